use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tokio::net::TcpStream;

/// A whole answer.
#[derive(Debug)]
pub struct Got {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Got {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// One connection; dropped, it is closed.
pub struct Client {
    requests: SendRequest<Full<Bytes>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).await.unwrap();
        let (requests, connection) = handshake(TokioIo::new(stream)).await.unwrap();
        let task = tokio::spawn(async move {
            let _ = connection.await;
        });
        Client { requests, task }
    }

    /// Up to the head.
    pub async fn begin(&mut self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        self.requests.ready().await.unwrap();
        self.requests.send_request(request).await.unwrap()
    }

    /// To the end.
    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Got {
        let (parts, body) = self.begin(request).await.into_parts();
        Got {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }
}

pub fn get(path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    request("GET", path, headers, Bytes::new())
}

/// A JSON body.
pub fn post(path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    let mut request = request("POST", path, headers, body.into());
    if !request.headers().contains_key("content-type") {
        request
            .headers_mut()
            .insert("content-type", "application/json".parse().unwrap());
    }
    request
}

fn request(
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Bytes,
) -> Request<Full<Bytes>> {
    let builder = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "proxy.test");
    (headers.iter())
        .fold(builder, |builder, (name, value)| {
            builder.header(*name, *value)
        })
        .body(Full::new(body))
        .unwrap()
}
