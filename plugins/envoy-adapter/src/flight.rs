//! The life of a request, from its head or body to Envoy's log:
//! understand → decide → head of the answer → first output → end.

use crate::answer::Answer;
use crate::second::Second;
use crate::shared::Shared;
use crate::site::Site;
use crate::table::Decided;
use crate::understand::{Understood, understand};
use http::HeaderMap;
use pointsman_core::{
    Event, Explicit, Failure, Outcome, Router, Step, Target, Ticket, Usage, Verdict, Wants,
};

/// How a request leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Departure {
    /// the addresses to try, in order
    pub destinations: String,
    /// headers that go along
    pub add: Vec<(String, String)>,
    /// headers that end here
    pub strip: Vec<String>,
    /// the body in the place of the client's; none: as it is
    pub body: Option<Vec<u8>>,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Fate {
    /// it goes to an engine
    Leaves(Box<Flight>, Departure),
    /// it goes nowhere; the headers say why, if the client asked
    Stays(Answer, Vec<(String, String)>),
}

/// What Envoy says of an engine's head.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// HTTP status
    pub status: u16,
    /// whether it has `Retry-After`
    pub retry_after: bool,
    /// the address of the engine that sent it
    pub address: &'a str,
}

/// How a request ended, as Envoy logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// the answer came to its end
    Complete,
    /// the client left
    ClientLeft,
    /// anything else
    Broken,
}

impl Ending {
    /// Of Envoy's `response.code_details`.
    pub fn of(details: &str) -> Ending {
        if details.starts_with("via_upstream") {
            Ending::Complete
        } else if details.starts_with("downstream_") {
            Ending::ClientLeft
        } else {
            Ending::Broken
        }
    }
}

/// A request in flight.
pub struct Flight {
    ticket: Option<Ticket>,
    second: Option<Second>,
    /// for the client that asked
    explained: Option<Vec<(String, String)>>,
    target: Target,
    prompt_tokens: u32,
    decided_ms: u64,
    /// by an engine
    answered: bool,
    output_ms: Option<u64>,
    good: bool,
    /// an engine's answer came to its end
    whole: bool,
}

impl std::fmt::Debug for Flight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Flight").field("target", &self.target)).finish_non_exhaustive()
    }
}

/// Decides a request.
pub fn begin<S: Shared>(
    site: &Site<S>,
    router: &mut dyn Router,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
) -> Fate {
    let mut understood = match understand(site, headers, body) {
        Ok(understood) => understood,
        Err(answer) => return Fate::Stays(answer, Vec::new()),
    };
    let Decided {
        outcome,
        before,
        changes,
    } = site.decide(router, &understood.incoming);
    let ticket = match outcome {
        Outcome::Routed(ticket) => ticket,
        Outcome::Refused(refusal) => {
            let word = word(refusal.reason.as_deref(), refusal.failure.as_ref());
            let mut said = explain(site, None, &word);
            if site.config.test.is_some() {
                said.push(fallback(refusal.fallback));
            }
            let said = if understood.explain { said } else { Vec::new() };
            return Fate::Stays(Answer::from(&refusal), said);
        }
    };
    if understood.last
        && let Some(session) = understood.incoming.session
    {
        site.end_session(session);
    }
    let second = (site.config.attempts > 1 && understood.incoming.explicit == Explicit::None)
        .then(|| {
            Second::ask(
                site,
                router,
                &understood.incoming,
                &ticket,
                &before,
                &changes,
            )
        })
        .flatten();
    let departure = departure(site, &ticket, second.as_ref(), &mut understood);
    let said = || {
        let verdict = ticket.verdict();
        let word = word(verdict.reason.as_deref(), verdict.failure.as_ref());
        explain(site, Some(ticket.target()), &word)
    };
    let flight = Flight {
        target: ticket.target(),
        prompt_tokens: understood.incoming.prompt_tokens,
        decided_ms: site.core.now_ms(),
        answered: false,
        output_ms: None,
        good: false,
        whole: false,
        explained: understood.explain.then(said),
        ticket: Some(ticket),
        second,
    };
    Fate::Leaves(Box::new(flight), departure)
}

fn departure<S: Shared>(
    site: &Site<S>,
    ticket: &Ticket,
    second: Option<&Second>,
    understood: &mut Understood,
) -> Departure {
    let targets = [Some(ticket.target()), second.map(|second| second.target)];
    let ways = targets.into_iter().flatten().filter_map(|t| site.way(t));
    let destinations: Vec<&str> = ways.map(|way| way.address.as_str()).collect();
    let mut departure = Departure {
        destinations: destinations.join(","),
        strip: std::mem::take(&mut understood.strip),
        ..Departure::default()
    };
    if let Some(way) = site.way(ticket.target()) {
        if let Some((name, value)) = way.dialect.header(way.rank) {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            departure.add.push((name.as_str().to_owned(), value));
        }
        if let Some(shape) = understood.shape {
            let json = understood.json.clone().into();
            let body = way.dialect.body(&json, shape, way.rank);
            departure.body = body.map(|body| body.to_vec());
        }
    }
    if site.config.test.is_some() {
        let verdict = ticket.verdict();
        let word = word(verdict.reason.as_deref(), verdict.failure.as_ref());
        departure
            .add
            .extend(explain(site, Some(ticket.target()), &word));
        let adopted = (
            "x-pointsman-adopted".to_owned(),
            verdict.adopted.to_string(),
        );
        departure.add.extend([adopted, fallback(verdict.fallback)]);
    }
    departure
}

fn explain<S: Shared>(site: &Site<S>, target: Option<Target>, word: &str) -> Vec<(String, String)> {
    let mut said = vec![
        (
            "x-pointsman-policy".to_owned(),
            site.worker.policy().name.clone(),
        ),
        ("x-pointsman-reason".to_owned(), word.to_owned()),
    ];
    if let Some(target) = target {
        said.push(("x-pointsman-target".to_owned(), site.name(target)));
    }
    said
}

fn fallback(fallback: bool) -> (String, String) {
    ("x-pointsman-fallback".to_owned(), fallback.to_string())
}

fn word(reason: Option<&str>, failure: Option<&Failure>) -> String {
    match failure {
        Some(failure) => format!("fallback:{}", failure.cause()),
        None => reason.unwrap_or("none").to_owned(),
    }
}

impl Flight {
    /// An engine answered with a head. Returns what the client asked to be told.
    pub fn head<S: Shared>(
        &mut self,
        site: &Site<S>,
        router: &mut dyn Router,
        head: Head<'_>,
    ) -> Vec<(String, String)> {
        self.went_to(site, router, head.address);
        self.answered = true;
        let busy = head.status == 429 || (head.status == 503 && head.retry_after);
        self.good = head.status < 400;
        if busy {
            self.step(site, Step::Refused);
        } else if head.status >= 500 {
            self.step(site, Step::Failed);
            self.tell(site, router, Event::Failed(self.target), |wants| {
                wants.failed
            });
        } else {
            self.step(site, Step::Dispatched);
        }
        self.explained.clone().unwrap_or_default()
    }

    /// Whether Envoy may have sent it to a second choice: then the address matters.
    pub fn may_be_elsewhere(&self) -> bool {
        self.second.is_some() && !self.answered
    }

    /// Whether the next part of the body is an engine's first: Envoy's own answers have bodies too.
    pub fn awaits_output(&self) -> bool {
        self.answered && self.output_ms.is_none()
    }

    /// The answer that is passing came to its end.
    pub fn came_to_its_end(&mut self) {
        self.whole = self.answered;
    }

    /// How it ended, where that is known without asking Envoy.
    pub fn ending(&self) -> Option<Ending> {
        self.whole.then_some(Ending::Complete)
    }

    /// A part of the answer's body came.
    pub fn output<S: Shared>(&mut self, site: &Site<S>, router: &mut dyn Router) {
        if !self.awaits_output() {
            return;
        }
        self.output_ms = Some(site.core.now_ms());
        self.step(site, Step::Output);
        if self.good {
            let event = Event::FirstOutput(self.target);
            self.tell(site, router, event, |wants| wants.first_output);
        }
    }

    /// The request is over. `address`: of the engine that it was sent to last; empty: to none.
    pub fn end<S: Shared>(
        mut self,
        site: &Site<S>,
        router: &mut dyn Router,
        ending: Ending,
        address: &str,
    ) {
        if self.ticket.is_none() {
            return;
        }
        let step = match ending {
            Ending::Complete => Step::Finished,
            Ending::ClientLeft => Step::Cancelled,
            Ending::Broken => {
                // The failure of the second choice is none of the first one's.
                self.went_to(site, router, address);
                Step::Failed
            }
        };
        self.step(site, step);
        match ending {
            Ending::Complete if self.good => {
                let event = Event::Finished(self.usage(site.core.now_ms()));
                self.tell(site, router, event, |wants| wants.finished);
            }
            Ending::Broken => {
                let event = Event::Failed(self.target);
                self.tell(site, router, event, |wants| wants.failed);
            }
            Ending::Complete | Ending::ClientLeft => {}
        }
        drop(self);
    }

    fn step<S: Shared>(&mut self, site: &Site<S>, step: Step) {
        if let Some(ticket) = &mut self.ticket {
            site.step(ticket, step);
        }
        if !matches!(step, Step::Dispatched | Step::Output) {
            self.ticket = None;
        }
    }

    /// If Envoy took the second choice, the first one failed, and the second decision is the true one.
    fn went_to<S: Shared>(&mut self, site: &Site<S>, router: &mut dyn Router, address: &str) {
        if self.answered {
            return;
        }
        let second = self.second.take_if(|second| {
            let is = |target| site.way(target).is_some_and(|way| way.address == address);
            is(second.target) && !is(self.target)
        });
        let Some(second) = second else { return };
        self.step(site, Step::Failed);
        self.tell(site, router, Event::Failed(self.target), |wants| {
            wants.failed
        });
        let target = second.target;
        if let Outcome::Routed(ticket) = second.use_it(site) {
            if let Some(said) = &mut self.explained {
                let verdict: &Verdict = ticket.verdict();
                let word = word(verdict.reason.as_deref(), verdict.failure.as_ref());
                *said = explain(site, Some(target), &word);
            }
            self.target = target;
            self.ticket = Some(ticket);
        }
    }

    fn tell<S: Shared>(
        &self,
        site: &Site<S>,
        router: &mut dyn Router,
        event: Event,
        wants: impl Fn(Wants) -> bool,
    ) {
        if wants(router.wants()) {
            // Nothing depends on the answer.
            let _ = router.observe(event, &site.worker.overview());
        }
    }

    fn usage(&self, now_ms: u64) -> Usage {
        let since = |ms: u64| u32::try_from(ms.saturating_sub(self.decided_ms)).unwrap_or(u32::MAX);
        Usage {
            target: self.target,
            prompt_tokens: self.prompt_tokens,
            cached_tokens: 0,
            output_tokens: 0,
            first_output_ms: since(self.output_ms.unwrap_or(now_ms)),
            total_ms: since(now_ms),
        }
    }
}
