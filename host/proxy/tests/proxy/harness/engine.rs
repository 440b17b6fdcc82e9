use bytes::Bytes;
use futures_util::stream::unfold;
use http::{HeaderMap, Method, Request, Response, Uri};
use http_body::Frame;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

/// What an engine answers with.
pub type Answer = Response<BoxBody<Bytes, io::Error>>;

/// A request as an engine got it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

#[derive(Default)]
struct Log {
    seen: Mutex<Vec<Seen>>,
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// An engine with a script.
pub struct Engine {
    pub address: SocketAddr,
    log: Arc<Log>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Engine {
    /// Answers every request with what `script` makes of it.
    pub async fn start<F>(script: impl Fn(Seen) -> F + Clone + Send + Sync + 'static) -> Engine
    where
        F: Future<Output = Answer> + Send + 'static,
    {
        Engine::raw(move |stream, log, _| {
            let script = script.clone();
            async move {
                let service = service_fn(move |request: Request<Incoming>| {
                    let (script, log) = (script.clone(), log.clone());
                    async move {
                        let (parts, body) = request.into_parts();
                        let seen = Seen {
                            method: parts.method,
                            uri: parts.uri,
                            headers: parts.headers,
                            body: body.collect().await.unwrap().to_bytes(),
                        };
                        log.seen.lock().unwrap().push(seen.clone());
                        Ok::<_, io::Error>(script(seen).await)
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            }
        })
        .await
    }

    /// Does with the n-th connection (from 0) what `script` says.
    pub async fn connections<F>(
        script: impl Fn(TcpStream, usize) -> F + Clone + Send + Sync + 'static,
    ) -> Engine
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Engine::raw(move |stream, _, number| script(stream, number)).await
    }

    async fn raw<F>(
        script: impl Fn(TcpStream, Arc<Log>, usize) -> F + Clone + Send + Sync + 'static,
    ) -> Engine
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let log = Arc::<Log>::default();
        let shared = log.clone();
        let task = tokio::spawn(async move {
            let log = shared;
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                stream.set_nodelay(true).unwrap();
                let number = log.accepted.fetch_add(1, SeqCst);
                log.open.fetch_add(1, SeqCst);
                let (script, log) = (script.clone(), log.clone());
                connections.spawn(async move {
                    script(stream, log.clone(), number).await;
                    log.open.fetch_sub(1, SeqCst);
                });
            }
        });
        Engine { address, log, task }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.log.seen.lock().unwrap().clone()
    }

    pub fn last(&self) -> Seen {
        self.seen().pop().expect("the engine got no request")
    }

    /// Connections ever.
    pub fn accepted(&self) -> usize {
        self.log.accepted.load(SeqCst)
    }

    /// Connections now.
    pub fn open(&self) -> usize {
        self.log.open.load(SeqCst)
    }
}

pub fn say(status: u16, body: impl Into<Bytes>) -> Answer {
    let body = Full::new(body.into())
        .map_err(|never| match never {})
        .boxed();
    Response::builder().status(status).body(body).unwrap()
}

pub fn text(body: impl Into<Bytes>) -> Answer {
    say(200, body)
}

/// A JSON text.
pub fn json(body: impl Into<Bytes>) -> Answer {
    let mut answer = say(200, body);
    let kind = http::HeaderValue::from_static("application/json");
    answer.headers_mut().insert("content-type", kind);
    answer
}

/// Writes an event stream; dropped, it ends.
pub type Sender = mpsc::UnboundedSender<io::Result<&'static str>>;

/// An engine whose streams the test writes.
pub async fn streaming() -> (Engine, mpsc::UnboundedReceiver<Sender>) {
    let (handed, streams) = mpsc::unbounded_channel();
    let engine = Engine::start(move |_| {
        let (sender, answer) = chunks();
        handed.send(sender).unwrap();
        async move { answer }
    })
    .await;
    (engine, streams)
}

/// An event stream of what is put into the channel; an error cuts it off.
pub fn chunks() -> (Sender, Answer) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let stream = unfold(receiver, |mut receiver| async move {
        let chunk: io::Result<&str> = receiver.recv().await?;
        Some((chunk.map(|chunk| Frame::data(Bytes::from(chunk))), receiver))
    });
    let answer = Response::builder()
        .header("content-type", "text/event-stream")
        .body(BodyExt::boxed(StreamBody::new(Box::pin(sync(stream)))))
        .unwrap();
    (sender, answer)
}

/// `BoxBody` wants `Sync`; only one task ever polls it.
fn sync<S: futures_util::Stream + Send>(
    stream: S,
) -> impl futures_util::Stream<Item = S::Item> + Send + Sync {
    let stream = Mutex::new(Box::pin(stream));
    futures_util::stream::poll_fn(move |cx| stream.lock().unwrap().as_mut().poll_next(cx))
}
