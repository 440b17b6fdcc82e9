//! One worker thread: it accepts, serves, and lets what is in flight finish.

use crate::request;
use crate::site::{Shared, Site};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_local;
use tokio::time::{interval, timeout};

/// What a client may have open on one HTTP/2 connection.
const STREAMS: u32 = 256;
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
    let http = Rc::new(http(&site.shared));
    let graceful = GracefulShutdown::new();
    let places = Arc::new(Semaphore::new(site.shared.settings.limits.connections));
    let sweeper = spawn_local(sweep(site.clone()));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            accepted = accepted => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (http, site, watcher) = (http.clone(), site.clone(), graceful.watcher());
        spawn_local(async move {
            if is_silent(&stream, site.shared.settings.timeouts.client).await {
                return;
            }
            let service = service_fn(move |request| request::serve(site.clone(), request));
            let connection = http.serve_connection(TokioIo::new(stream), service);
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!(error, "a client's connection ended");
            }
            drop(place);
        });
    }
    drop(listener);
    sweeper.abort();
    let patience = site.shared.settings.timeouts.shutdown;
    if timeout(patience, graceful.shutdown()).await.is_err() {
        tracing::warn!("requests in flight are broken off: their time to finish is over");
    }
    Ok(())
}

fn http(shared: &Shared) -> auto::Builder<Local> {
    let mut http = auto::Builder::new(Local);
    http.http1()
        .timer(TokioTimer::new())
        .header_read_timeout(shared.settings.timeouts.client)
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

/// Before a client has said anything no timeout of hyper's runs.
async fn is_silent(stream: &TcpStream, patience: Duration) -> bool {
    let _ = stream.set_nodelay(true);
    !matches!(timeout(patience, stream.readable()).await, Ok(Ok(())))
}

async fn sweep(site: Rc<Site>) {
    let mut each_second = interval(Duration::from_secs(1));
    loop {
        each_second.tick().await;
        site.sweep();
    }
}
