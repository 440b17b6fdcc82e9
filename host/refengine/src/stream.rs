//! Response bodies.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};

use crate::engine::{Generation, Word};
use crate::openai::{Answer, ApiError};

/// The connection is to be cut here: hyper turns it into a closed connection or a reset stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the engine breaks the response off")]
pub(crate) struct Cut;

impl From<Infallible> for Cut {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// A response body of this engine.
#[derive(Debug)]
pub(crate) enum EngineBody {
    /// All at once.
    Whole(Bytes),
    /// That much, then cut.
    Torn(Bytes, Tear),
    /// One frame a token. Nothing comes before the first token, so that a client or router that
    /// waits for the first body byte measures TTFT.
    Stream(Box<TokenStream>),
}

/// How far a cut has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tear {
    /// hyper forgets what it has not flushed when the body fails, and flushes when the body is
    /// pending: so it has to be pending once.
    Flush,
    Cut,
}

/// Server-sent events of one generation. Dropped by hyper when the client is gone, which gives
/// the request up.
#[derive(Debug)]
pub(crate) struct TokenStream {
    generation: Generation,
    answer: Answer,
    after_first: AfterFirst,
    state: State,
}

/// What follows the first token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterFirst {
    Tokens,
    Cut,
    ErrorEvent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    Tearing(Tear),
    Done,
}

impl TokenStream {
    pub(crate) fn new(generation: Generation, answer: Answer, after_first: AfterFirst) -> Self {
        Self {
            generation,
            answer,
            after_first,
            state: State::Open,
        }
    }

    fn poll_events(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Cut>>> {
        match &mut self.state {
            State::Done => return Poll::Ready(None),
            State::Tearing(tear) => return tear.poll(cx).map(|cut| Some(Err(cut))),
            State::Open => {}
        }
        let Some(word) = ready!(self.generation.poll_word(cx)) else {
            self.state = State::Done;
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let error = ApiError::new(status, self.generation.broken_off());
            return Poll::Ready(Some(Ok(Answer::error_events(&error).into())));
        };
        // A stream that goes wrong has no proper end, also if the first token is the last.
        let ends_well = self.after_first == AfterFirst::Tokens;
        let word = Word {
            last: word.last && ends_well,
            ..word
        };
        let mut events = self.answer.events(word, &self.generation);
        match self.after_first {
            AfterFirst::Tokens if word.last => self.state = State::Done,
            AfterFirst::Tokens => {}
            AfterFirst::Cut => self.state = State::Tearing(Tear::Flush),
            AfterFirst::ErrorEvent => {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                let error = ApiError::new(status, "injected fault: sse-error");
                events.extend(Answer::error_events(&error));
                self.state = State::Done;
            }
        }
        Poll::Ready(Some(Ok(events.into())))
    }
}

impl Tear {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Cut> {
        match self {
            Self::Flush => {
                *self = Self::Cut;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Self::Cut => Poll::Ready(Cut),
        }
    }
}

impl Body for EngineBody {
    type Data = Bytes;
    type Error = Cut;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cut>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Torn(bytes, tear) if bytes.is_empty() => tear.poll(cx).map(|cut| Some(Err(cut))),
            Self::Whole(bytes) | Self::Torn(bytes, _) => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))))
            }
            Self::Stream(stream) => stream.poll_events(cx).map_ok(Frame::data),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Torn(..) => false,
            Self::Stream(stream) => stream.state == State::Done,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Torn(..) | Self::Stream(_) => SizeHint::default(),
        }
    }
}
