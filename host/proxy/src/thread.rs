//! One worker thread: it accepts, serves, and lets what is in flight finish.

use crate::answer::Answer;
use crate::connection::{Connections, LINGER};
use crate::request;
use crate::site::{Shared, Site};
use hyper::service::service_fn;
use hyper_util::rt::TokioTimer;
use hyper_util::server::conn::auto;
use pointsman_core::Phase;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::spawn_local;
use tokio::time::{interval, timeout};

/// What a client may have open on one HTTP/2 connection.
const STREAMS: u32 = 256;
/// Connections beyond the limit that are told so at one time.
const DOORSTEP: usize = 64;
/// After an accept that failed, e.g. for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// A connection's own tasks stay on its thread.
#[derive(Clone, Copy)]
struct Local;

impl<F: Future<Output = ()> + 'static> hyper::rt::Executor<F> for Local {
    fn execute(&self, task: F) {
        spawn_local(task);
    }
}

/// Serves until it is told to stop, and what is in flight has ended or its time is over.
pub(crate) async fn serve(
    listener: std::net::TcpListener,
    site: Rc<Site>,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    let settings = &site.shared.settings;
    let http = Rc::new(http(&site.shared));
    let most = u32::try_from(settings.limits.connections).unwrap_or(u32::MAX);
    let places = Arc::new(Semaphore::new(most as usize));
    let doorstep = Arc::new(Semaphore::new(DOORSTEP));
    let connections = Rc::new(Connections::default());
    let sweeper = spawn_local(sweep(site.clone()));
    let watch = spawn_local({
        let (connections, patience) = (connections.clone(), settings.timeouts.client);
        async move { connections.watch(patience).await }
    });
    let mut refused = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => {
                refused = false;
                stream
            }
            Err(error) => {
                if !std::mem::replace(&mut refused, true) {
                    tracing::warn!(%error, "cannot accept connections");
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let Ok(place) = places.clone().try_acquire_owned() else {
            // Those that are one too many beyond that are closed without a word.
            if let Ok(step) = doorstep.clone().try_acquire_owned() {
                spawn_local(turn_away(site.clone(), stream, step));
            }
            continue;
        };
        let (http, site, member) = (http.clone(), site.clone(), connections.add());
        spawn_local(async move {
            let io = member.watched(stream);
            let requests = member.clone();
            let service = service_fn(move |request| {
                let (site, busy) = (site.clone(), requests.begin());
                async move {
                    let response = request::serve(site, request).await?;
                    Ok::<_, Infallible>(busy.until_end(response))
                }
            });
            let connection = http.serve_connection(io, service);
            let ended = member.serve(connection, |c| c.graceful_shutdown()).await;
            if let Some(Err(error)) = ended {
                tracing::debug!(error, "a client's connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    sweeper.abort();
    connections.leave();
    let patience = settings.timeouts.shutdown;
    if timeout(patience, places.acquire_many(most)).await.is_err() {
        tracing::warn!("requests in flight are broken off: their time to finish is over");
    }
    watch.abort();
    Ok(())
}

fn http(shared: &Shared) -> auto::Builder<Local> {
    let mut http = auto::Builder::new(Local);
    http.http1()
        // `Connections` knows more.
        .header_read_timeout(None)
        // hyper's least is 8 KiB
        .max_buf_size(shared.settings.limits.header_bytes.max(8 << 10));
    http.http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(
            u32::try_from(shared.settings.limits.header_bytes).unwrap_or(u32::MAX),
        );
    http
}

/// There is no place for it: told at once, instead of left to wait.
async fn turn_away(site: Rc<Site>, mut stream: TcpStream, step: OwnedSemaphorePermit) {
    let answer = Answer::too_many_connections();
    (site.tally).request(&site.policy(), Phase::Serve, answer.code(), 503);
    let told = async {
        stream.write_all(answer.to_text().as_bytes()).await?;
        stream.shutdown().await?;
        let mut scratch = [0; 4096];
        while stream.read(&mut scratch).await? > 0 {}
        std::io::Result::Ok(())
    };
    let _ = timeout(LINGER, told).await;
    drop(step);
}

async fn sweep(site: Rc<Site>) {
    let mut each_second = interval(Duration::from_secs(1));
    loop {
        each_second.tick().await;
        site.sweep();
    }
}
