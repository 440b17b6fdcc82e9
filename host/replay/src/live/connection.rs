//! One kept-alive HTTP/1.1 connection of a conversation.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Where requests go.
#[derive(Debug)]
pub(super) struct Upstream {
    /// Without the brackets of an IPv6 address.
    host: String,
    port: u16,
    /// The `host` header.
    pub authority: String,
}

impl Upstream {
    pub fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.trim_matches(['[', ']']).into(),
            port,
            authority: format!("{host}:{port}"),
        }
    }
}

/// Opened by the first request, and anew when the server has closed it.
#[derive(Default)]
pub(super) struct Connection {
    sender: Option<SendRequest<Full<Bytes>>>,
}

impl Connection {
    /// Sends a request. One that an idle connection closed under goes out
    /// again on a new connection: the server has not seen it.
    pub async fn send(
        &mut self,
        upstream: &Upstream,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, String> {
        if let Some(mut sender) = self.sender.take()
            && sender.ready().await.is_ok()
        {
            match sender.try_send_request(request).await {
                Ok(response) => {
                    self.sender = Some(sender);
                    return Ok(response);
                }
                Err(mut refused) => match refused.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(format!("sending: {}", refused.into_error())),
                },
            }
        }
        let mut sender = connect(upstream).await?;
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| format!("sending: {e}"))?;
        self.sender = Some(sender);
        Ok(response)
    }

    /// Forgets the connection, and with it an answer that is still arriving.
    pub fn close(&mut self) {
        self.sender = None;
    }
}

async fn connect(upstream: &Upstream) -> Result<SendRequest<Full<Bytes>>, String> {
    let failed = |e: &dyn std::fmt::Display| format!("connecting to {}: {e}", upstream.authority);
    let stream = TcpStream::connect((upstream.host.as_str(), upstream.port))
        .await
        .map_err(|e| failed(&e))?;
    stream.set_nodelay(true).map_err(|e| failed(&e))?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| failed(&e))?;
    // Ends with the sender; what went wrong reaches the request in flight.
    tokio::spawn(connection);
    Ok(sender)
}
