//! A request's body as it arrives: bounded in bytes, and in the time between two parts.

use crate::answer::Answer;
use crate::settings::Settings;
use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::time::{Instant, Sleep, sleep};

/// Why a client's body did not come whole. Never the engine's fault.
#[derive(Debug, Error)]
pub(crate) enum Incomplete {
    #[error("{0}")]
    Broken(#[from] hyper::Error),
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    #[error("it stopped coming")]
    Slow,
    #[error("it is shorter than it said")]
    Short,
}

impl Incomplete {
    pub(crate) fn answer(&self) -> Answer {
        match self {
            Incomplete::Broken(_) | Incomplete::Short => {
                Answer::body(format!("the request's body: {self}"))
            }
            Incomplete::TooLong(limit) => Answer::too_long(*limit),
            Incomplete::Slow => Answer::slow_body(),
        }
    }
}

/// See the module. Costs no clock reading per part, so that a body that stopped is given up between
/// one and two times the limit after its last part.
#[derive(Debug)]
pub(crate) struct Arriving {
    body: Incoming,
    limit: u64,
    left: u64,
    patience: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// something came since the timer was set
    heard: bool,
}

impl Arriving {
    pub(crate) fn new(body: Incoming, settings: &Settings) -> Arriving {
        Arriving {
            body,
            limit: settings.limits.body_bytes,
            left: settings.limits.body_bytes,
            patience: settings.timeouts.client,
            timer: None,
            heard: false,
        }
    }

    fn has_stopped(&mut self, cx: &mut Context<'_>) -> bool {
        let patience = self.patience;
        let timer = (self.timer).get_or_insert_with(|| Box::pin(sleep(patience)));
        while timer.as_mut().poll(cx).is_ready() {
            if !std::mem::take(&mut self.heard) {
                return true;
            }
            timer.as_mut().reset(Instant::now() + patience);
        }
        false
    }
}

impl Body for Arriving {
    type Data = Bytes;
    type Error = Incomplete;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Incomplete>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                self.heard = true;
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                Poll::Ready(Some(match self.left.checked_sub(length) {
                    Some(left) => {
                        self.left = left;
                        Ok(frame)
                    }
                    None => Err(Incomplete::TooLong(self.limit)),
                }))
            }
            Poll::Ready(end) => Poll::Ready(end.map(|frame| frame.map_err(Incomplete::Broken))),
            Poll::Pending if self.has_stopped(cx) => Poll::Ready(Some(Err(Incomplete::Slow))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
