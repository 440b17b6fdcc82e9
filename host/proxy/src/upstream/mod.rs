//! One thread's connections to one engine.

mod inflow;
mod link;
mod outbound;

pub(crate) use inflow::Inflow;
pub(crate) use link::Link;
pub(crate) use outbound::Outbound;

use crate::engines::Engine;
use crate::metrics::{Connection, Tally};
use crate::settings::Settings;
use http::{Request, Response};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why an engine gave no answer.
#[derive(Debug, Error)]
pub(crate) enum Broken {
    #[error("it cannot be reached: {0}")]
    Unreachable(std::io::Error),
    #[error("it hung up before it answered: {0}")]
    HungUp(hyper::Error),
    #[error("it did not begin to answer within {0:?}")]
    TooLate(Duration),
    #[error("it switched protocols, which nobody asked it to")]
    Switched,
    /// no fault of the engine
    #[error("the client's body broke off: {0}")]
    Client(hyper::Error),
}

/// See the module.
pub(crate) struct Upstream {
    pub(crate) engine: Arc<Engine>,
    tally: Arc<Tally>,
    /// newest last
    idle: RefCell<VecDeque<(Instant, Link)>>,
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
        request: impl FnOnce() -> Request<Outbound>,
    ) -> Option<Result<Response<Inflow>, Broken>> {
        let link = self.check_out()?;
        self.tally.connection(Connection::Reused);
        match self.exchange(link, request()).await {
            Err(Broken::HungUp(error)) if !error.is_parse() => {
                self.tally.connection(Connection::Stale);
                None
            }
            answer => Some(answer),
        }
    }

    /// A new connection.
    pub(crate) async fn open(&self) -> Result<Link, Broken> {
        let opened = async {
            let stream = self.engine.connect(self.connect_limit).await?;
            Link::new(stream).await.map_err(std::io::Error::other)
        };
        let link = opened.await.map_err(Broken::Unreachable)?;
        self.tally.connection(Connection::Opened);
        Ok(link)
    }

    /// Sends a request, and waits for the head of the answer.
    pub(crate) async fn exchange(
        self: &Rc<Self>,
        mut link: Link,
        request: Request<Outbound>,
    ) -> Result<Response<Inflow>, Broken> {
        let answer = if self.head_limit.is_zero() {
            link.ask(request).await
        } else {
            (tokio::time::timeout(self.head_limit, link.ask(request)).await)
                .map_err(|_| Broken::TooLate(self.head_limit))?
        };
        match answer {
            // The other ones below 200 hyper passes over.
            Ok(response) if response.status().is_informational() => Err(Broken::Switched),
            Ok(response) => Ok(response.map(|body| Inflow::new(body, link, self.clone()))),
            Err(error) if error.is_user() => Err(Broken::Client(error)),
            Err(error) => Err(Broken::HungUp(error)),
        }
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
    fn check_out(&self) -> Option<Link> {
        let mut idle = self.idle.borrow_mut();
        while let Some((since, mut link)) = idle.pop_back() {
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

    fn give_back(&self, mut link: Link) {
        if self.max_idle == 0 || !link.is_idle() {
            return;
        }
        let mut idle = self.idle.borrow_mut();
        if idle.len() >= self.max_idle {
            idle.pop_front();
        }
        idle.push_back((Instant::now(), link));
    }
}
