use super::Outbound;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use tokio::net::TcpStream;

/// An upstream connection. It has no task of its own: whoever waits for something from it drives it
/// (a task each costs four times as much on streams).
pub(crate) struct Link {
    requests: SendRequest<Outbound>,
    /// none: it has ended
    connection: Option<Box<Connection<TokioIo<TcpStream>, Outbound>>>,
}

impl Link {
    pub(crate) async fn new(stream: TcpStream) -> hyper::Result<Link> {
        let (requests, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Link {
            requests,
            connection: Some(Box::new(connection)),
        })
    }

    /// Reads and writes what can be read and written now.
    pub(crate) fn drive(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection.as_mut()).poll(cx).is_ready()
        {
            // Whoever waits for something from it learns why from hyper.
            self.connection = None;
        }
    }

    /// Sends a request, and waits for the head of the answer.
    pub(crate) async fn ask(
        &mut self,
        request: Request<Outbound>,
    ) -> hyper::Result<Response<Incoming>> {
        let mut answer = pin!(self.requests.send_request(request));
        poll_fn(|cx| {
            if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
                return Poll::Ready(answer);
            }
            if let Some(connection) = &mut self.connection
                && Pin::new(connection.as_mut()).poll(cx).is_ready()
            {
                self.connection = None;
            }
            answer.as_mut().poll(cx)
        })
        .await
    }

    /// Whether it can take a request: it lives, and nothing of an earlier one is left on it.
    pub(crate) fn is_idle(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.connection.is_some() && self.requests.is_ready()
    }
}
