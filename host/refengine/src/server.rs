//! Listening and stopping.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderValue;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::{ConfigError, Error};
use crate::http::App;
use crate::rank::Threads;

/// After a failed `accept` (usually: no file descriptors left) before the next one.
const ACCEPT_PAUSE: Duration = Duration::from_millis(10);

/// An engine that listens: HTTP/1.1 and HTTP/2 without TLS on one port. Connections are taken up
/// by [`Server::run`].
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    app: Arc<App>,
    grace: Duration,
    /// They end with the server.
    ranks: Threads,
}

impl Server {
    /// Checks the configuration, starts the ranks and listens; port 0 takes any free port. Within
    /// a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// The configuration is wrong, the address cannot be listened on, or there are not enough threads.
    pub async fn bind(config: EngineConfig, address: SocketAddr) -> Result<Self, Error> {
        config.validate()?;
        let name = HeaderValue::from_str(&config.name)
            .map_err(|_| ConfigError::new("name", "a value for a header", &config.name))?;
        let listen = |source| Error::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;

        let (engine, ranks) = Engine::start(&config)?;
        let grace = config.shutdown_grace;
        let app = Arc::new(App::new(config, name, engine));
        Ok(Self {
            listener,
            address,
            app,
            grace,
            ranks,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `shutdown` is ready; then lets requests in flight end, no longer than the
    /// configured grace, and closes everything. Dropping the future closes everything at once.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Self {
            listener,
            app,
            grace,
            ranks,
            ..
        } = self;
        let graceful = GracefulShutdown::new();
        let mut connections = JoinSet::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                // Takes finished connections out of the set.
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(serve(stream, app.clone(), graceful.watcher()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(listener);
        if tokio::time::timeout(grace, graceful.shutdown())
            .await
            .is_err()
        {
            tracing::info!("requests were still in flight at the end of the grace");
        }
        drop(connections);
        // The ranks' threads end within a tick, but that may be a while on a machine that is busy.
        let _ = tokio::task::spawn_blocking(move || drop(ranks)).await;
    }
}

/// One connection, to its end.
async fn serve(stream: TcpStream, app: Arc<App>, watcher: hyper_util::server::graceful::Watcher) {
    // Tokens are small and each matters by itself.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY");
    }
    let service = service_fn(move |request| {
        let app = app.clone();
        async move { app.handle(request).await }
    });
    let http = auto::Builder::new(TokioExecutor::new());
    let connection = http
        .serve_connection(TokioIo::new(stream), service)
        .into_owned();
    if let Err(error) = watcher.watch(connection).await {
        // A client that went away, or a fault that was asked for.
        tracing::debug!(%error, "connection ended");
    }
}
