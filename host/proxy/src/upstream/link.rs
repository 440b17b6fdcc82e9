use super::head::{Answer, HEAD_BYTES};
use super::sending::Unsent;
use super::{Broken, Malformed, Sending};
use bytes::BytesMut;
use http::StatusCode;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

/// What is read at once, at first. A connection that gives more reads more.
const READ_BYTES: usize = 16 << 10;
const MOST_BYTES: usize = 128 << 10;

/// An upstream connection. It has no task of its own: whoever waits for something from it drives it
/// (a task each costs four times as much on streams).
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    /// what came and was not taken
    pub(super) buf: BytesMut,
    at_once: usize,
}

impl Link {
    pub(crate) fn new(stream: TcpStream) -> Link {
        Link {
            stream,
            buf: BytesMut::new(),
            at_once: READ_BYTES,
        }
    }

    /// Sends a request, and waits for the head of the answer: at most `limit` (0: without end) in which
    /// it is the engine that is waited for, not the client.
    pub(super) async fn ask(
        &mut self,
        sending: &mut Sending,
        limit: Duration,
    ) -> Result<Answer, Broken> {
        let mut asking = Asking::default();
        std::future::poll_fn(|cx| match asking.poll(self, sending, cx) {
            Poll::Pending => asking.poll_patience(sending, limit, cx),
            answer => answer,
        })
        .await
    }

    /// As [`Link::ask`], for those whom the rest does not concern.
    pub(crate) async fn status(&mut self, sending: &mut Sending) -> Result<StatusCode, Broken> {
        let answer = self.ask(sending, Duration::ZERO).await?;
        Ok(answer.response.status())
    }

    /// As much of the request as can be written now.
    pub(super) fn poll_send(
        &mut self,
        sending: &mut Sending,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Unsent>> {
        sending.poll(&mut self.stream, cx)
    }

    /// What is there; 0: the engine has ended the connection.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.buf.capacity() - self.buf.len() < self.at_once / 2 {
            self.buf.reserve(self.at_once);
        }
        let room = self.buf.capacity() - self.buf.len();
        let bytes = ready!(pin!(self.stream.read_buf(&mut self.buf)).poll(cx))?;
        if bytes == room {
            self.at_once = MOST_BYTES.min(self.at_once * 2);
        }
        Poll::Ready(Ok(bytes))
    }

    /// Its memory is as small as can be.
    pub(super) fn rest(&mut self) {
        if self.at_once > READ_BYTES {
            (self.buf, self.at_once) = (BytesMut::new(), READ_BYTES);
        }
    }

    /// Whether it can take a request: it lives, and nothing of an earlier one is left on it.
    pub(super) fn is_idle(&self) -> bool {
        let nothing = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        self.buf.is_empty() && self.stream.try_read(&mut [0]).is_err_and(nothing)
    }
}

/// What came of a request so far.
#[derive(Default)]
struct Asking {
    /// nothing more can be sent: what the engine has said still counts
    lost: Option<io::Error>,
    sent: bool,
    heard: bool,
    /// for the engine
    patience: Option<Pin<Box<Sleep>>>,
}

impl Asking {
    fn poll(
        &mut self,
        link: &mut Link,
        sending: &mut Sending,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Answer, Broken>> {
        if !self.sent {
            match link.poll_send(sending, cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) => self.sent = true,
                Poll::Ready(Err(Unsent::Client(why))) => {
                    return Poll::Ready(Err(Broken::Client(why)));
                }
                Poll::Ready(Err(Unsent::Lost(error))) => {
                    (self.sent, self.lost) = (true, Some(error))
                }
            }
        }
        loop {
            let bytes = match ready!(link.poll_read(cx)) {
                Ok(0) => return Poll::Ready(Err(self.ended(None))),
                Ok(bytes) => bytes,
                Err(error) => return Poll::Ready(Err(self.ended(Some(error)))),
            };
            self.heard = true;
            // No head ends within a line: what drips is not read from its start each time.
            let before = link.buf.len() - bytes;
            let fresh = link.buf.get(before..).unwrap_or_default();
            if before > 0 && link.buf.len() < HEAD_BYTES && memchr::memchr(b'\n', fresh).is_none() {
                continue;
            }
            while let Some(answer) = Answer::take(&mut link.buf, sending.bodiless)? {
                match answer.response.status().as_u16() {
                    101 => return Poll::Ready(Err(Broken::Switched)),
                    // Hints, which end here.
                    100..200 => {}
                    _ => return Poll::Ready(Ok(answer)),
                }
            }
        }
    }

    fn poll_patience(
        &mut self,
        sending: &Sending,
        limit: Duration,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Answer, Broken>> {
        if limit.is_zero() {
            return Poll::Pending;
        }
        if sending.waits_for_client() {
            self.patience = None;
            return Poll::Pending;
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(limit)));
        patience
            .as_mut()
            .poll(cx)
            .map(|()| Err(Broken::TooLate(limit)))
    }

    fn ended(&mut self, error: Option<io::Error>) -> Broken {
        if self.heard {
            return Malformed::CutShort.into();
        }
        let error = self.lost.take().or(error);
        Broken::HungUp(error.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))
    }
}
