use super::Head;
use crate::arriving::{Arriving, Incomplete};
use bytes::{Buf, Bytes, BytesMut};
use http::Method;
use http_body::Body;
use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;
use tokio::net::TcpStream;

/// What is shorter is copied behind the head: one plain write costs less than a vectored one.
const COPY_BYTES: usize = 8 << 10;

/// A request's body on its way to an engine.
#[derive(Debug)]
pub(crate) enum Outbound {
    /// all of it; empty: there is none
    Whole(Bytes),
    /// as it comes from the client
    Stream {
        /// what was read of it before
        read: Option<Bytes>,
        /// what comes
        rest: Arriving,
    },
}

/// A request, and how far it is written.
#[derive(Debug)]
pub(crate) struct Sending {
    /// written before all else: the head, a chunk's size
    front: BytesMut,
    /// then this
    piece: Bytes,
    /// and this
    tail: &'static [u8],
    rest: Rest,
    /// the answer has no body
    pub(super) bodiless: bool,
}

/// What is still to come from the client.
#[derive(Debug)]
enum Rest {
    Nothing,
    /// so many bytes of it
    Length(Arriving, u64),
    Chunked(Arriving),
    /// the engine takes no more
    Lost,
}

/// Why a request cannot be sent to its end.
#[derive(Debug)]
pub(super) enum Unsent {
    Lost(io::Error),
    Client(Incomplete),
}

impl Sending {
    /// `said`: the body's length, as the client says it.
    pub(crate) fn new(head: Head, said: Option<u64>, body: Outbound) -> Sending {
        let Head { mut text, method } = head;
        // Some servers answer 411 without one (RFC 9110 §8.6).
        let has_content = [Method::POST, Method::PUT, Method::PATCH].contains(&method);
        let length = match &body {
            Outbound::Whole(bytes) if bytes.is_empty() => {
                (has_content || said.is_some()).then_some(0)
            }
            Outbound::Whole(bytes) => Some(bytes.len() as u64),
            Outbound::Stream { .. } => said,
        };
        match (length, &body) {
            (Some(length), _) => write(&mut text, format_args!("content-length: {length}\r\n")),
            (None, Outbound::Stream { .. }) => {
                text.extend_from_slice(b"transfer-encoding: chunked\r\n")
            }
            (None, Outbound::Whole(_)) => {}
        }
        text.extend_from_slice(b"\r\n");
        let mut sending = Sending {
            front: text,
            piece: Bytes::new(),
            tail: b"",
            rest: Rest::Nothing,
            bodiless: method == Method::HEAD,
        };
        match body {
            Outbound::Whole(bytes) => sending.push(bytes),
            Outbound::Stream { read, rest } => {
                sending.rest = match length {
                    Some(length) => Rest::Length(rest, length),
                    None => Rest::Chunked(rest),
                };
                if let Some(read) = read.filter(|read| !read.is_empty()) {
                    sending.next(read);
                }
            }
        }
        sending
    }

    /// Nothing can be sent before the client gives more of it.
    pub(super) fn waits_for_client(&self) -> bool {
        matches!(self.rest, Rest::Length(..) | Rest::Chunked(_)) && !self.has_more()
    }

    /// All that will be sent is sent.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.rest, Rest::Nothing) && !self.has_more()
    }

    /// Writes what can be written now.
    pub(super) fn poll(
        &mut self,
        stream: &mut TcpStream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Unsent>> {
        loop {
            if self.piece.is_empty() && self.tail.is_empty() {
                self.fetch(cx).map_err(Unsent::Client)?;
            }
            if !self.has_more() {
                return match self.rest {
                    Rest::Nothing => Poll::Ready(Ok(())),
                    Rest::Length(..) | Rest::Chunked(_) | Rest::Lost => Poll::Pending,
                };
            }
            let stream = Pin::new(&mut *stream);
            let written = if self.piece.is_empty() && self.tail.is_empty() {
                stream.poll_write(cx, &self.front)
            } else {
                let parts = [&self.front[..], &self.piece[..], self.tail].map(IoSlice::new);
                stream.poll_write_vectored(cx, &parts)
            };
            match ready!(written) {
                Ok(0) => return self.lose(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.wrote(bytes),
                Err(error) => return self.lose(error),
            }
        }
    }

    fn lose(&mut self, error: io::Error) -> Poll<Result<(), Unsent>> {
        (self.front, self.piece, self.tail) = (BytesMut::new(), Bytes::new(), b"");
        self.rest = Rest::Lost;
        Poll::Ready(Err(Unsent::Lost(error)))
    }

    fn has_more(&self) -> bool {
        !(self.front.is_empty() && self.piece.is_empty() && self.tail.is_empty())
    }

    fn wrote(&mut self, bytes: usize) {
        let front = bytes.min(self.front.len());
        self.front.advance(front);
        let piece = (bytes - front).min(self.piece.len());
        self.piece.advance(piece);
        self.tail = self.tail.get(bytes - front - piece..).unwrap_or_default();
    }

    /// The next part from the client, if there is one now.
    fn fetch(&mut self, cx: &mut Context<'_>) -> Result<(), Incomplete> {
        loop {
            let (Rest::Length(arriving, _) | Rest::Chunked(arriving)) = &mut self.rest else {
                return Ok(());
            };
            match Pin::new(arriving).poll_frame(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(Some(frame)) => match frame?.into_data() {
                    Ok(data) if !data.is_empty() => {
                        self.next(data);
                        return Ok(());
                    }
                    // Trailers end here: the engine was not told that there would be any.
                    Ok(_) | Err(_) => {}
                },
                Poll::Ready(None) => return self.end(),
            }
        }
    }

    fn next(&mut self, data: Bytes) {
        match &mut self.rest {
            Rest::Length(_, left) => {
                // hyper lets no more through than was said.
                *left = left.saturating_sub(data.len() as u64);
                if *left == 0 {
                    self.rest = Rest::Nothing;
                }
                self.push(data);
            }
            Rest::Chunked(arriving) => {
                let last = arriving.is_end_stream();
                write(&mut self.front, format_args!("{:x}\r\n", data.len()));
                self.tail = if last { b"\r\n0\r\n\r\n" } else { b"\r\n" };
                self.piece = data;
                if last {
                    self.rest = Rest::Nothing;
                }
            }
            Rest::Nothing | Rest::Lost => {}
        }
    }

    fn end(&mut self) -> Result<(), Incomplete> {
        match std::mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Length(..) => return Err(Incomplete::Short),
            Rest::Chunked(_) => self.tail = b"0\r\n\r\n",
            Rest::Nothing | Rest::Lost => {}
        }
        Ok(())
    }

    fn push(&mut self, data: Bytes) {
        if data.len() <= COPY_BYTES {
            self.front.extend_from_slice(&data);
        } else {
            self.piece = data;
        }
    }
}

fn write(text: &mut BytesMut, what: std::fmt::Arguments<'_>) {
    // Memory has no errors.
    let _ = bytes::BufMut::writer(text).write_fmt(what);
}
