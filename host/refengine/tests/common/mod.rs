//! A small language for the tests: an engine in this process, and a client with a connection for
//! each request.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use pointsman_refengine::{EngineConfig, EngineStats, Server};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// A modelled step takes longer than any test: what runs stays where it is.
pub const FROZEN: f64 = 1e9;

/// As fast as the machine goes.
pub const INSTANT: f64 = 0.0;

/// An engine; it ends with this value.
pub struct Engine {
    pub address: SocketAddr,
    pub server: JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// An answer that has come to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {:?}", self.body))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |v| v.to_str().unwrap())
    }

    /// The events of a stream, without the end mark, which has to be there.
    pub fn events(&self) -> Vec<Value> {
        let text = std::str::from_utf8(&self.body).unwrap();
        let mut events: Vec<_> = text.split_terminator("\n\n").collect();
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let json = |e: &&str| serde_json::from_str(e.strip_prefix("data: ").unwrap()).unwrap();
        events.iter().map(json).collect()
    }

    pub fn cached_tokens(&self) -> u64 {
        self.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    }
}

impl Engine {
    pub async fn start(config: EngineConfig) -> Self {
        let server = Server::bind(config, "127.0.0.1:0".parse().unwrap())
            .await
            .unwrap();
        let address = server.local_addr();
        Self {
            address,
            server: tokio::spawn(server.run(std::future::pending())),
        }
    }

    pub async fn with(ranks: usize, time_scale: f64) -> Self {
        Self::start(EngineConfig {
            ranks,
            time_scale,
            ..EngineConfig::default()
        })
        .await
    }

    /// The response's head; its connection lives as long as its body is read, and is closed when
    /// the response is dropped.
    pub async fn head(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Response<Incoming>, hyper::Error> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "engine");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        sender
            .send_request(request.body(Full::new(body.into())).unwrap())
            .await
    }

    pub async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let (head, body) = self
            .head(method, path, headers, body)
            .await
            .unwrap()
            .into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Answer {
            status: head.status,
            headers: head.headers,
            body,
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(Method::POST, path, &[], body.to_string()).await
    }

    pub async fn chat(&self, body: &Value) -> Answer {
        self.post("/v1/chat/completions", body).await
    }

    pub async fn stats(&self) -> EngineStats {
        serde_json::from_slice(&self.get("/stats").await.body).unwrap()
    }

    /// Asks until the figures are as wanted. The limit only ends a test that has failed.
    pub async fn until(&self, wanted: impl Fn(&EngineStats) -> bool) -> EngineStats {
        let asking = async {
            loop {
                let stats = self.stats().await;
                if wanted(&stats) {
                    return stats;
                }
                tokio::task::yield_now().await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(60), asking).await {
            Ok(stats) => stats,
            Err(_) => panic!("never came to that: {:?}", self.stats().await),
        }
    }
}

/// A chat of one user message.
pub fn chat(text: &str, max_tokens: usize) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens})
}

/// The same with these fields set.
pub fn and(mut body: Value, fields: Value) -> Value {
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    body
}

/// Text of `words` words, none equal to another of its own or of another seed.
pub fn text(seed: &str, words: usize) -> String {
    (0..words).map(|i| format!("{seed}{i} ")).collect()
}
