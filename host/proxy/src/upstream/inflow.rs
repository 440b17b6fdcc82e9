use super::framing::Framing;
use super::sending::Unsent;
use super::{Link, Malformed, Sending, Upstream};
use crate::arriving::Incomplete;
use bytes::Bytes;
use http::HeaderMap;
use http_body::{Frame, SizeHint};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use thiserror::Error;

/// Why an answer's body does not come to its end.
#[derive(Debug, Error)]
pub(crate) enum Torn {
    #[error("{0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    Lost(#[from] io::Error),
    /// no fault of the engine, which waits for the rest of its request
    #[error("the client's body broke off: {0}")]
    Client(Incomplete),
}

/// An engine's answer as it comes. Dropped before its end it closes the connection; at its end the
/// connection goes back to the pool.
pub(crate) struct Inflow {
    /// none: given back, or at its end
    link: Option<Box<Link>>,
    framing: Framing,
    /// the connection can be used after it
    stays: bool,
    /// none: all of the request is sent
    sending: Option<Box<Sending>>,
    trailers: Option<Box<HeaderMap>>,
    upstream: Rc<Upstream>,
}

impl Inflow {
    pub(super) fn new(
        (framing, stays): (Framing, bool),
        sending: Sending,
        link: Box<Link>,
        upstream: Rc<Upstream>,
    ) -> Inflow {
        let mut inflow = Inflow {
            link: Some(link),
            framing,
            stays,
            sending: (!sending.is_over()).then(|| Box::new(sending)),
            trailers: None,
            upstream,
        };
        inflow.give_back_at_end();
        inflow
    }

    pub(crate) fn upstream(&self) -> &Rc<Upstream> {
        &self.upstream
    }

    /// All data has come.
    pub(crate) fn is_over(&self) -> bool {
        self.framing.is_over()
    }

    /// Nothing is left to be polled.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_over() && self.trailers.is_none()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.framing.size_hint()
    }

    /// All that is there now, as one.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Torn>>> {
        while let Some(link) = &mut self.link {
            if let Some(sending) = &mut self.sending {
                match link.poll_send(sending, cx) {
                    // What the engine says still counts, if it takes no more.
                    Poll::Pending | Poll::Ready(Err(Unsent::Lost(_))) => {}
                    Poll::Ready(Err(Unsent::Client(why))) => return self.tear(Torn::Client(why)),
                    Poll::Ready(Ok(())) => self.sending = None,
                }
            }
            match self.framing.take(&mut link.buf, &mut self.trailers) {
                Ok(data) => {
                    self.give_back_at_end();
                    if !data.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                }
                Err(why) => return self.tear(why.into()),
            }
            if let Some(link) = &mut self.link {
                match ready!(link.poll_read(cx)) {
                    Ok(0) => match self.framing.end() {
                        Ok(()) => self.give_back_at_end(),
                        Err(why) => return self.tear(why.into()),
                    },
                    Ok(_) => {}
                    Err(error) => return self.tear(error.into()),
                }
            }
        }
        Poll::Ready(
            self.trailers
                .take()
                .map(|trailers| Ok(Frame::trailers(*trailers))),
        )
    }

    fn tear(&mut self, why: Torn) -> Poll<Option<Result<Frame<Bytes>, Torn>>> {
        self.link = None;
        Poll::Ready(Some(Err(why)))
    }

    fn give_back_at_end(&mut self) {
        if self.framing.is_over()
            && let Some(link) = self.link.take()
            && self.stays
            && self.sending.is_none()
        {
            self.upstream.give_back(link);
        }
    }
}
