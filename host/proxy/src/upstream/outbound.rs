use crate::arriving::{Arriving, Incomplete};
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};

/// A request's body on its way to an engine.
#[derive(Debug)]
pub(crate) enum Outbound {
    /// all of it; none: it was sent
    Whole(Option<Bytes>),
    /// as it comes from the client
    Stream {
        /// what was read of it before
        read: Option<Bytes>,
        /// what comes
        rest: Arriving,
    },
}

impl Outbound {
    pub(crate) fn whole(bytes: Bytes) -> Outbound {
        Outbound::Whole((!bytes.is_empty()).then_some(bytes))
    }
}

impl Body for Outbound {
    type Data = Bytes;
    type Error = Incomplete;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Incomplete>>> {
        match self.get_mut() {
            Outbound::Whole(bytes) => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            Outbound::Stream { read, rest } => match read.take() {
                Some(bytes) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
                None => Pin::new(rest).poll_frame(cx),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outbound::Whole(bytes) => bytes.is_none(),
            Outbound::Stream { read, rest } => read.is_none() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outbound::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            // Its length, where the client said it, is in the header that goes on.
            Outbound::Stream { .. } => SizeHint::default(),
        }
    }
}
