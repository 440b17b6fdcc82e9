use super::{Link, Upstream};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

/// Frames are merged up to this size: one write to the client instead of many. Nothing waits for
/// more to come.
const MERGE_BYTES: usize = 32 << 10;

/// An engine's answer as it comes. Dropped before its end it closes the connection; at its end the
/// connection goes back to the pool.
pub(crate) struct Inflow {
    incoming: Incoming,
    /// none: given back
    link: Option<Link>,
    upstream: Rc<Upstream>,
    trailers: Option<HeaderMap>,
    broken: Option<hyper::Error>,
}

impl Inflow {
    pub(super) fn new(incoming: Incoming, link: Link, upstream: Rc<Upstream>) -> Inflow {
        let mut inflow = Inflow {
            incoming,
            link: Some(link),
            upstream,
            trailers: None,
            broken: None,
        };
        if inflow.incoming.is_end_stream() {
            inflow.give_back();
        }
        inflow
    }

    pub(crate) fn upstream(&self) -> &Rc<Upstream> {
        &self.upstream
    }

    /// All data has come.
    pub(crate) fn is_over(&self) -> bool {
        self.link.is_none()
    }

    /// Nothing is left to be polled.
    pub(crate) fn is_drained(&self) -> bool {
        self.is_over() && self.trailers.is_none() && self.broken.is_none()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }

    /// All that is there now, merged.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        if let Some(error) = self.broken.take() {
            return Poll::Ready(Some(Err(error)));
        }
        let mut merged = Merged::default();
        while self.link.is_some() && merged.len() < MERGE_BYTES {
            match self.poll_incoming(cx) {
                Poll::Pending if merged.len() > 0 => break,
                Poll::Ready(Some(Err(error))) if merged.len() > 0 => {
                    self.broken = Some(error);
                    break;
                }
                frame => match ready!(frame) {
                    Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                    None => self.give_back(),
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => merged.push(data),
                        Err(frame) => self.trailers = frame.into_trailers().ok(),
                    },
                },
            }
        }
        let data = merged.take().map(Frame::data);
        let frame = data.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    /// What is there, else what comes when the connection is driven.
    fn poll_incoming(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let incoming = Pin::new(&mut self.incoming);
        if let Poll::Ready(frame) = incoming.poll_frame(cx) {
            return Poll::Ready(frame);
        }
        if let Some(link) = &mut self.link {
            link.drive(cx);
        }
        Pin::new(&mut self.incoming).poll_frame(cx)
    }

    fn give_back(&mut self) {
        if let Some(link) = self.link.take() {
            self.upstream.give_back(link);
        }
    }
}

/// Chunks as one; the only one is not copied.
#[derive(Default)]
struct Merged {
    first: Option<Bytes>,
    more: BytesMut,
}

impl Merged {
    fn push(&mut self, data: Bytes) {
        if data.is_empty() {
            return;
        }
        match self.first.take() {
            None if self.more.is_empty() => self.first = Some(data),
            None => self.more.extend_from_slice(&data),
            Some(first) => {
                self.more
                    .reserve(MERGE_BYTES.min(4 * (first.len() + data.len())));
                self.more.extend_from_slice(&first);
                self.more.extend_from_slice(&data);
            }
        }
    }

    fn len(&self) -> usize {
        self.first.as_ref().map_or(self.more.len(), Bytes::len)
    }

    fn take(self) -> Option<Bytes> {
        let more = || (!self.more.is_empty()).then(|| self.more.freeze());
        self.first.or_else(more)
    }
}
