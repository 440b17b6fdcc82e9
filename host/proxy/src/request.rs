//! The life of a request: identify → estimate → eligible · ask · commit → dispatch → release.

use crate::answer::Answer;
use crate::explain::Explained;
use crate::flow::{Flow, Reply};
use crate::headers::{self, REQUEST_ID};
use crate::metrics::Retry;
use crate::pace::Pace;
use crate::received::{Payload, Received};
use crate::report::{self, Subject};
use crate::site::{Decided, Listener, Seat, Site};
use crate::upstream::{Broken, Inflow, Outbound, Sending, Upstream};
use bytes::Bytes;
use http::header::{HeaderValue, RETRY_AFTER, TRANSFER_ENCODING};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use hyper::body::Incoming as Body;
use pointsman_core::{Explicit, Incoming, Outcome, Phase, Refusal, Shared, Ticket, hash_text};
use pointsman_request::{Estimate, Scan};
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

/// Takes a request of a client to its answer.
pub(crate) async fn serve(
    site: Rc<Site>,
    request: Request<Body>,
) -> Result<Response<Reply>, Infallible> {
    let mut account = Account::open(&site);
    let asks = site.shared.settings.explain && Explained::is_asked(request.headers());
    let mut response = match carry(&site, request, &mut account, asks).await {
        Ok(response) => response,
        Err(answer) => {
            account.ended_by(answer.code());
            answer.into_response()
        }
    };
    if let (true, Some(explained)) = (asks, &account.explained) {
        explained.put(response.headers_mut());
    }
    account.close(response.status());
    Ok(response)
}

async fn carry(
    site: &Rc<Site>,
    request: Request<Body>,
    account: &mut Account,
    asks: bool,
) -> Result<Response<Reply>, Answer> {
    if request.method() == Method::CONNECT {
        return Err(Answer::no_tunnel());
    }
    if request.uri().path_and_query().is_none() {
        return Err(Answer::no_path());
    }
    let seat = site.seat()?;
    let arrived_ms = site.arrival();
    let (received, mut payload) = Payload::read(site, request).await?;
    let Understood {
        mut incoming,
        received,
        id,
        last,
        mut subject,
    } = understand(site, received, &payload)?;
    subject.arrived_ms = arrived_ms;
    let mut setback = None;
    loop {
        let Decided {
            outcome,
            explained,
            listener,
        } = site.decide(&incoming, asks);
        account.explained = Some(explained);
        subject.listener = listener;
        let ticket = match outcome {
            Outcome::Routed(ticket) => ticket,
            Outcome::Refused(refusal) => return nowhere(refusal, setback, seat),
        };
        let upstream = site.upstream(ticket.target());
        if upstream.is_none() && site.is_removed(ticket.target()) {
            // It came and went while this request was decided: the next decision knows.
            continue;
        }
        if last && let Some(session) = incoming.session {
            site.shared.core.end_session(session);
            site.shared.witnesses.session_ended(session);
        }
        let pace = Pace::begin(&site.shared.core, ticket.target());
        let sent = dispatch(site, upstream, &ticket, &received, &mut payload, &id).await;
        let again = Again {
            possible: payload.is_there()
                && incoming.explicit == Explicit::None
                && incoming.attempt + 1 < site.shared.settings.attempts,
            site,
            incoming: &mut incoming,
            listener,
        };
        setback = match weigh(sent, ticket, again)? {
            Weighed::Take(response, ticket) => {
                return Ok(take(response, ticket, subject, pace, seat));
            }
            Weighed::Again(setback) => Some(setback),
        };
    }
}

/// A request, understood.
struct Understood {
    incoming: Incoming,
    received: Arc<Received>,
    id: HeaderValue,
    /// its session ends with it
    last: bool,
    subject: Subject,
}

/// Identify and estimate.
fn understand(
    site: &Site,
    mut received: Received,
    payload: &Payload,
) -> Result<Understood, Answer> {
    let shared = &site.shared;
    let body = match payload {
        Payload::Whole { bytes, .. } => bytes.clone(),
        Payload::Stream { .. } => Bytes::new(),
    };
    let text = std::str::from_utf8(&body).unwrap_or_default();
    let scan = Scan::of(text);
    let identity = (shared.identifier).identify(&received.headers, scan.as_ref().map(|_| text))?;
    if identity.session.is_none() {
        site.tally.without_session();
    }
    let model = (scan.as_ref()).and_then(|scan| scan.model.as_deref().map(hash_text));
    let model = model.unwrap_or_default();
    let ratio = shared.learner.ratio(model);
    let estimate = match (&scan, payload) {
        (Some(scan), _) => Estimate::of(scan, ratio),
        (None, Payload::Whole { bytes, .. }) => {
            Estimate::of_length(Some(bytes.len() as u64), ratio)
        }
        (None, Payload::Stream { .. }) => Estimate::of_length(received.content_length(), ratio),
    };
    if let Some(scan) = &scan {
        received.shape = scan.shape;
        received.max_output_tokens = scan.max_output_tokens;
        received.json = body.clone();
    }
    let id = request_id(site, &received.headers);
    let explicit = explicit(site, &received.headers)?;
    let received = Arc::new(received);
    let incoming = Incoming {
        route: shared.route,
        phase: Phase::Serve,
        model,
        seed: id.to_str().map(hash_text).unwrap_or_default(),
        session: identity.session,
        parent: identity.parent,
        prompt_tokens: estimate.size.tokens,
        shared: Shared::Chain(estimate.chain),
        explicit,
        facts: Some(received.clone()),
        ..Incoming::default()
    };
    Ok(Understood {
        incoming,
        received,
        id,
        last: identity.last,
        subject: Subject {
            model,
            size: estimate.size,
            ..Subject::default()
        },
    })
}

fn request_id(site: &Site, headers: &HeaderMap) -> HeaderValue {
    let given = headers
        .get(REQUEST_ID)
        .filter(|id| !id.is_empty() && id.to_str().is_ok());
    match given {
        Some(id) => id.clone(),
        None => HeaderValue::try_from(site.request_id())
            .unwrap_or_else(|_| HeaderValue::from_static("0")),
    }
}

/// As with identities: empty is absent, and two different ones are refused.
fn explicit(site: &Site, headers: &HeaderMap) -> Result<Explicit, Answer> {
    let header = site.shared.explicit_header.as_slice();
    Ok(match pointsman_request::first(headers, header)? {
        None => Explicit::None,
        Some(name) => {
            let fleet = site.shared.core.fleet.snapshot();
            fleet.find(name).map_or(Explicit::Unknown, Explicit::Target)
        }
    })
}

/// Sends the request to the ticket's target, and waits for the head of the answer.
async fn dispatch(
    site: &Site,
    upstream: Option<Rc<Upstream>>,
    ticket: &Ticket,
    received: &Received,
    payload: &mut Payload,
    id: &HeaderValue,
) -> Result<Sent, Broken> {
    let missing = || Broken::Unreachable(std::io::ErrorKind::NotFound.into());
    let upstream = upstream.ok_or_else(missing)?;
    let rank = ticket.spec().ok_or_else(missing)?.endpoint.rank;
    let request = |body| compose(site, &upstream, rank, received, id, body);
    if let Payload::Whole { bytes, .. } = payload {
        let body = || request(Outbound::Whole(bytes.clone()));
        if let Some(answer) = upstream.send_pooled(body).await {
            return answer.map(Sent);
        }
    }
    // A stream can be sent only once: never over a connection that may have died in the pool.
    let link = upstream.open().await?;
    let body = payload.take().ok_or_else(missing)?;
    upstream.exchange(link, request(body)).await.map(Sent)
}

/// An engine's answer, its body still to come.
struct Sent(Response<Inflow>);

fn compose(
    site: &Site,
    upstream: &Upstream,
    rank: u32,
    received: &Received,
    id: &HeaderValue,
    body: Outbound,
) -> Sending {
    let engine = &upstream.engine.said;
    let shared = &site.shared;
    let path = received.uri.path_and_query();
    let slash = PathAndQuery::from_static("/");
    let mut head = engine
        .address
        .head(&received.method, path.unwrap_or(&slash));
    headers::to_engine(
        &received.headers,
        &shared.identifier,
        shared.explicit_header.as_ref(),
        |name, value| head.line(name, value),
    );
    head.line(&REQUEST_ID, id.as_bytes());
    if let Some((name, value)) = engine.dialect.header(rank) {
        head.line(&name, value.as_bytes());
    }
    let with_rank = match &body {
        Outbound::Whole(_) if !received.json.is_empty() => {
            engine.dialect.body(&received.json, received.shape, rank)
        }
        Outbound::Whole(_) | Outbound::Stream { .. } => None,
    };
    let body = with_rank.map_or(body, Outbound::Whole);
    // Both at once is how requests are smuggled: hyper obeyed the other one.
    let chunked = received.headers.contains_key(TRANSFER_ENCODING);
    let said = received.content_length().filter(|_| !chunked);
    Sending::new(head, said, body)
}

/// What an attempt came to.
#[expect(clippy::large_enum_variant, reason = "the large one is the usual one")]
enum Weighed {
    /// the client gets this answer; none: nothing is held any more
    Take(Response<Inflow>, Option<Ticket>),
    /// another target is to be asked
    Again(Setback),
}

/// What the client gets if nobody else can take its request.
enum Setback {
    Answered(Box<Response<Inflow>>),
    Broken(Answer),
}

/// The next attempt, if there is to be one.
struct Again<'a> {
    possible: bool,
    site: &'a Site,
    incoming: &'a mut Incoming,
    listener: Listener,
}

impl Again<'_> {
    fn without(self, targets: impl IntoIterator<Item = u32>, cause: Retry) {
        self.site.tally.retry(cause);
        self.incoming.attempt += 1;
        self.incoming.tried.extend(targets);
    }
}

/// Confirms the ticket, or rolls it back and says whether to go on.
fn weigh(sent: Result<Sent, Broken>, mut ticket: Ticket, again: Again) -> Result<Weighed, Answer> {
    let fleet = &again.site.shared.core.fleet;
    let target = ticket.target();
    let broken = match sent {
        Ok(Sent(response)) => {
            let status = response.status();
            let busy = status == StatusCode::TOO_MANY_REQUESTS
                || (status == StatusCode::SERVICE_UNAVAILABLE
                    && response.headers().contains_key(RETRY_AFTER));
            if busy {
                ticket.refused();
                return Ok(Weighed::Take(response, None));
            }
            if !status.is_server_error() {
                ticket.dispatched();
                return Ok(Weighed::Take(response, Some(ticket)));
            }
            ticket.fail();
            response.body().upstream().engine.failed(fleet);
            report::failed(again.site, again.listener, target);
            if !again.possible {
                return Ok(Weighed::Take(response, None));
            }
            again.without([target], Retry::Status);
            return Ok(Weighed::Again(Setback::Answered(Box::new(response))));
        }
        Err(Broken::Client(why)) => {
            // Dropped, the ticket counts as cancelled.
            return Err(why.answer());
        }
        Err(Broken::Unreachable(error)) if is_our_want(&error) => {
            tracing::warn!(%error, "no connection to an engine: the system gives no more");
            ticket.refused();
            return Err(Answer::exhausted(&error));
        }
        Err(broken) => broken,
    };
    let name = ticket
        .spec()
        .map_or("?", |spec| spec.endpoint.name.as_str());
    let message = format!("the engine of target {name} gave no answer: {broken}");
    tracing::debug!(message);
    let (answer, lost, cause) = match broken {
        Broken::TooLate(_) => (Answer::too_late(message), vec![target], Retry::Timeout),
        _ => (
            Answer::unreachable(message),
            ticket.neighbours(),
            Retry::Connection,
        ),
    };
    ticket.fail();
    if let Some(upstream) = again.site.upstream(target) {
        upstream.engine.failed(fleet);
    }
    report::failed(again.site, again.listener, target);
    if !again.possible {
        return Err(answer);
    }
    again.without(lost, cause);
    Ok(Weighed::Again(Setback::Broken(answer)))
}

/// Whether the system has no more files, ports or memory for us (Linux): of that no engine is guilty,
/// and trying the next one would only open every breaker.
fn is_our_want(error: &std::io::Error) -> bool {
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    const EADDRNOTAVAIL: i32 = 99;
    const ENOBUFS: i32 = 105;
    let wants = [ENOMEM, ENFILE, EMFILE, EADDRNOTAVAIL, ENOBUFS];
    error
        .raw_os_error()
        .is_some_and(|code| wants.contains(&code))
}

/// Nobody takes it (any more): what an engine said before weighs more than the refusal to try another.
fn nowhere(
    refusal: Refusal,
    setback: Option<Setback>,
    seat: Seat,
) -> Result<Response<Reply>, Answer> {
    match setback {
        None => Err(Answer::refused(&refusal)),
        Some(Setback::Answered(response)) => {
            Ok(take(*response, None, Subject::default(), None, seat))
        }
        Some(Setback::Broken(answer)) => Err(answer),
    }
}

/// Passes an engine's answer on; what the request holds is given back as it ends.
fn take(
    response: Response<Inflow>,
    ticket: Option<Ticket>,
    subject: Subject,
    pace: Option<Pace>,
    seat: Seat,
) -> Response<Reply> {
    let (mut parts, inflow) = response.into_parts();
    headers::to_client(&mut parts.headers);
    let subject = Some(subject).filter(|_| parts.status.as_u16() < 400);
    let flow = Flow::new(inflow, ticket, subject, &parts.headers, pace, seat);
    Response::from_parts(parts, Reply::flow(flow))
}

/// Counts a request once, whatever becomes of it.
struct Account {
    site: Rc<Site>,
    explained: Option<Explained>,
    /// why, where no policy was asked
    ended_by: &'static str,
    code: u16,
}

/// As nginx counts a client that left before it got an answer.
const CLIENT_LEFT: u16 = 499;

impl Account {
    fn open(site: &Rc<Site>) -> Account {
        Account {
            site: site.clone(),
            explained: None,
            ended_by: "cancelled",
            code: CLIENT_LEFT,
        }
    }

    fn ended_by(&mut self, code: &'static str) {
        self.ended_by = code;
    }

    fn close(mut self, status: StatusCode) {
        self.code = status.as_u16();
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        match &self.explained {
            Some(Explained { policy, reason, .. }) => {
                self.site
                    .tally
                    .request(policy, Phase::Serve, reason, self.code);
            }
            None => {
                let policy = self.site.policy();
                self.site
                    .tally
                    .request(&policy, Phase::Serve, self.ended_by, self.code);
            }
        }
    }
}
