//! One thread's connections to one engine: HTTP/1.1, spoken by hand.
//!
//! A request's own task writes and reads, so that nothing has to be handed from one task to another:
//! head and body go out in one write, and all chunks of an answer that are there come in as one piece,
//! their framing moved away in place. hyper's client costs about 10 000 instructions more a request,
//! and a frame for each chunk.
//!
//! ```text
//! Upstream ── the pool: the connection used last comes first
//!   └─ Link ── one connection: writes a `Sending` while it reads the head of the answer
//!        └─ Inflow ── the answer's body, and what it comes over until its `Framing` is over
//! ```
//!
//! An answer is understood in one way or not at all (RFC 9112 §6.3), and a connection on which anything
//! was unusual is not used again. Bounded: an answer's head, a chunk's size line, trailers. Not spoken:
//! upgrades, pipelining, `Expect`, transfer codings but `chunked`.

mod framing;
mod head;
mod inflow;
mod link;
mod sending;

pub(crate) use head::Head;
pub(crate) use inflow::{Inflow, Torn};
pub(crate) use link::Link;
pub(crate) use sending::{Outbound, Sending};

use crate::arriving::Incomplete;
use crate::engines::Engine;
use crate::metrics::{Connection, Tally};
use crate::settings::Settings;
use head::Answer;
use http::Response;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why an engine gave no answer.
#[derive(Debug, Error)]
pub(crate) enum Broken {
    #[error("it cannot be reached: {0}")]
    Unreachable(io::Error),
    /// before its first byte
    #[error("it hung up before it answered: {0}")]
    HungUp(io::Error),
    #[error("its answer is unusable: {0}")]
    Malformed(#[from] Malformed),
    #[error("it did not begin to answer within {0:?}")]
    TooLate(Duration),
    #[error("it switched protocols, which nobody asked it to")]
    Switched,
    /// no fault of the engine
    #[error("the client's body broke off: {0}")]
    Client(Incomplete),
}

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum Malformed {
    #[error("its head is not HTTP/1: {0}")]
    Head(httparse::Error),
    #[error("its head is too long")]
    Long,
    #[error("its content-length is no number, or two")]
    Length,
    #[error("its transfer-encoding is another than chunked")]
    Coding,
    #[error("a chunk's size is none")]
    ChunkSize,
    #[error("a chunk does not end where its size says")]
    ChunkEnd,
    #[error("its trailers are none")]
    Trailers,
    #[error("it ended before its end")]
    CutShort,
}

/// See the module.
pub(crate) struct Upstream {
    pub(crate) engine: Arc<Engine>,
    tally: Arc<Tally>,
    /// newest last
    idle: RefCell<VecDeque<(Instant, Box<Link>)>>,
    max_idle: usize,
    idle_limit: Duration,
    connect_limit: Duration,
    head_limit: Duration,
}

impl Upstream {
    pub(crate) fn new(engine: Arc<Engine>, settings: &Settings, tally: Arc<Tally>) -> Upstream {
        Upstream {
            engine,
            tally,
            idle: RefCell::default(),
            max_idle: settings.limits.idle_connections,
            idle_limit: settings.timeouts.idle_connection,
            connect_limit: settings.timeouts.connect,
            head_limit: settings.timeouts.first_byte,
        }
    }

    /// Sends over an idle connection, if one lives. None: there was none, or it turned out to be dead,
    /// which says nothing about the engine. Only for requests that can be made anew.
    pub(crate) async fn send_pooled(
        self: &Rc<Self>,
        request: impl FnOnce() -> Sending,
    ) -> Option<Result<Response<Inflow>, Broken>> {
        let link = self.check_out()?;
        self.tally.connection(Connection::Reused);
        match self.exchange(link, request()).await {
            Err(Broken::HungUp(_)) => {
                self.tally.connection(Connection::Stale);
                None
            }
            answer => Some(answer),
        }
    }

    /// A new connection.
    pub(crate) async fn open(&self) -> Result<Box<Link>, Broken> {
        let opened = self.engine.said.address.connect(self.connect_limit).await;
        let link = Link::new(opened.map_err(Broken::Unreachable)?);
        self.tally.connection(Connection::Opened);
        Ok(Box::new(link))
    }

    /// Sends a request, and waits for the head of the answer.
    pub(crate) async fn exchange(
        self: &Rc<Self>,
        mut link: Box<Link>,
        mut request: Sending,
    ) -> Result<Response<Inflow>, Broken> {
        let Answer {
            response,
            framing,
            stays,
        } = link.ask(&mut request, self.head_limit).await?;
        let inflow = Inflow::new((framing, stays), request, link, self.clone());
        Ok(response.map(|()| inflow))
    }

    /// Takes over the idle connections of another one, to the same server.
    pub(crate) fn inherit(&self, other: &Upstream) {
        self.idle.swap(&other.idle);
    }

    /// Closes what was idle for too long.
    pub(crate) fn sweep(&self) {
        let mut idle = self.idle.borrow_mut();
        while idle
            .front()
            .is_some_and(|(since, _)| since.elapsed() >= self.idle_limit)
        {
            idle.pop_front();
        }
    }

    /// The connection that was used last: the others can then grow old and go.
    fn check_out(&self) -> Option<Box<Link>> {
        let mut idle = self.idle.borrow_mut();
        while let Some((since, link)) = idle.pop_back() {
            if since.elapsed() >= self.idle_limit {
                idle.clear();
                return None;
            }
            if link.is_idle() {
                return Some(link);
            }
        }
        None
    }

    fn give_back(&self, mut link: Box<Link>) {
        if self.max_idle == 0 || !link.is_idle() {
            return;
        }
        link.rest();
        let mut idle = self.idle.borrow_mut();
        if idle.len() >= self.max_idle {
            idle.pop_front();
        }
        idle.push_back((Instant::now(), link));
    }
}
