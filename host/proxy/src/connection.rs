//! A client's connection: how long it may say nothing or take nothing, and how it ends.
//!
//! hyper's own timer bounds the head of an HTTP/1 request and nothing else: not the first bytes, while
//! it is still open which version they are (`P` may be a `POST` or HTTP/2's preface), not HTTP/2, and
//! not a client that stops reading. So each connection has a [`Pulse`], and the thread looks at all of
//! them from time to time: that costs a request nothing but two counters, and no timer of its own.

use crate::flow::{CutOff, Reply};
use bytes::Bytes;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::rc::{Rc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, interval, sleep};

/// A connection is over after this many looks without a sign of life.
const LOOKS: u8 = 4;
/// What a client still sends is read for so long after the last byte to it: closed at once, a
/// connection would be reset, and the client might not see its answer.
pub(crate) const LINGER: Duration = Duration::from_secs(1);

/// What is to become of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Stay,
    /// after what is in flight
    Leave,
    /// now
    Break,
}

/// What the thread sees of one connection.
#[derive(Debug, Default)]
struct Pulse {
    /// requests whose answer has not ended
    in_flight: Cell<u32>,
    /// requests so far
    begun: Cell<u64>,
    /// a write waits for the client to read
    blocked: Cell<bool>,
    /// bytes so far
    written: Cell<u64>,
    order: Cell<Order>,
    waker: RefCell<Option<Waker>>,
    /// `begun` and `written` at the last look
    seen: Cell<(u64, u64)>,
    /// looks in a row that found nothing new
    still: Cell<u8>,
}

impl Pulse {
    fn look(&self) {
        let (begun, written) = (self.begun.get(), self.written.get());
        let (seen_begun, seen_written) = self.seen.replace((begun, written));
        let waits_for_client = self.in_flight.get() == 0 && begun == seen_begun;
        let takes_nothing = self.blocked.get() && written == seen_written;
        if !waits_for_client && !takes_nothing {
            return self.still.set(0);
        }
        let still = self.still.get().saturating_add(1);
        self.still.set(still);
        if still > LOOKS || (still == LOOKS && takes_nothing) {
            self.order(Order::Break);
        } else if still == LOOKS {
            self.order(Order::Leave);
        }
    }

    fn order(&self, order: Order) {
        self.order.set(order);
        if let Some(waker) = self.waker.borrow().as_ref() {
            waker.wake_by_ref();
        }
    }

    /// The task's waker seldom changes.
    fn wake_by(&self, waker: &Waker) {
        let mut kept = self.waker.borrow_mut();
        if !kept.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            *kept = Some(waker.clone());
        }
    }
}

/// All connections of a thread.
#[derive(Debug, Default)]
pub(crate) struct Connections(RefCell<Vec<Weak<Pulse>>>);

impl Connections {
    /// One more.
    pub(crate) fn add(&self) -> Member {
        let pulse = Rc::new(Pulse::default());
        self.0.borrow_mut().push(Rc::downgrade(&pulse));
        Member(pulse)
    }

    /// Ends, for ever, those without a sign of life for `patience` to a quarter more.
    pub(crate) async fn watch(&self, patience: Duration) {
        let mut look = interval((patience / u32::from(LOOKS)).max(Duration::from_millis(1)));
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            self.each(Pulse::look);
        }
    }

    /// Each ends after what it has in flight.
    pub(crate) fn leave(&self) {
        self.each(|pulse| pulse.order(Order::Leave));
    }

    fn each(&self, of: impl Fn(&Pulse)) {
        self.0.borrow_mut().retain(|pulse| {
            let pulse = pulse.upgrade();
            pulse.as_deref().inspect(|pulse| of(pulse)).is_some()
        });
    }
}

/// A connection's place in the list.
#[derive(Clone, Debug)]
pub(crate) struct Member(Rc<Pulse>);

impl Member {
    /// Its socket.
    pub(crate) fn watched(&self, stream: TcpStream) -> Watched {
        Watched {
            io: TokioIo::new(stream),
            pulse: self.0.clone(),
            linger: None,
        }
    }

    /// A request began.
    pub(crate) fn begin(&self) -> Busy {
        self.0.begun.set(self.0.begun.get().wrapping_add(1));
        self.0.in_flight.set(self.0.in_flight.get() + 1);
        Busy(self.0.clone())
    }

    /// Serves the connection until it ends or is told to. `leave`: what makes it leave.
    pub(crate) async fn serve<C: Future>(
        self,
        connection: C,
        leave: impl Fn(Pin<&mut C>),
    ) -> Option<C::Output> {
        let mut connection = pin!(connection);
        let mut leaves = false;
        std::future::poll_fn(|cx| {
            self.0.wake_by(cx.waker());
            match self.0.order.get() {
                Order::Stay => {}
                Order::Break => return Poll::Ready(None),
                Order::Leave => {
                    if !std::mem::replace(&mut leaves, true) {
                        leave(connection.as_mut());
                    }
                }
            }
            connection.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

/// A request whose answer has not ended.
#[derive(Debug)]
pub(crate) struct Busy(Rc<Pulse>);

impl Busy {
    /// Until the end of the answer.
    pub(crate) fn until_end(self, response: Response<Reply>) -> Response<Ending> {
        response.map(|reply| Ending {
            reply,
            broken: None,
            _busy: self,
        })
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        (self.0.in_flight).set(self.0.in_flight.get().saturating_sub(1));
    }
}

/// An answer that keeps its connection busy.
pub(crate) struct Ending {
    reply: Reply,
    /// why it breaks off, after what came before that was sent
    broken: Option<CutOff>,
    _busy: Busy,
}

impl Body for Ending {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        if let Some(why) = self.broken.take() {
            return Poll::Ready(Some(Err(why)));
        }
        let frame = ready!(Pin::new(&mut self.reply).poll_frame(cx));
        match frame {
            // hyper would throw away what it has not written yet, even the head.
            Some(Err(why)) => {
                self.broken = Some(why);
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            frame => Poll::Ready(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.broken.is_none() && self.reply.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.reply.size_hint()
    }
}

/// A client's socket: tells whether writes get on, and lingers at the end.
#[derive(Debug)]
pub(crate) struct Watched {
    io: TokioIo<TcpStream>,
    pulse: Rc<Pulse>,
    linger: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        self.pulse.blocked.set(written.is_pending());
        if let Poll::Ready(Ok(bytes)) = written {
            (self.pulse.written).set(self.pulse.written.get().wrapping_add(bytes as u64));
        }
        written
    }
}

impl Read for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(cx, buf);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(cx))?;
            self.linger = Some(Box::pin(sleep(LINGER)));
        }
        let Watched { io, linger, .. } = &mut *self;
        let mut scratch = [0; 4096];
        loop {
            let mut buffer = ReadBuf::new(&mut scratch);
            match Pin::new(io.inner_mut()).poll_read(cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => break,
            }
        }
        match linger {
            Some(linger) => linger.as_mut().poll(cx).map(Ok),
            None => Poll::Ready(Ok(())),
        }
    }
}
