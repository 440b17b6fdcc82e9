//! Active health checks: one engine server, asked again and again.

use crate::engines::Engine;
use crate::settings::Health;
use crate::site::Shared;
use crate::upstream::{Link, Outbound, Sending};
use bytes::Bytes;
use http::header::CONNECTION;
use http::uri::PathAndQuery;
use http::{Method, StatusCode};
use std::rc::Rc;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

/// Asks until it is dropped; changes the standing of the engine's targets after enough equal answers in a row.
pub(crate) async fn watch(
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    health: Health,
    probes: Rc<Semaphore>,
) {
    let path = PathAndQuery::try_from(health.path.as_str())
        .unwrap_or_else(|_| PathAndQuery::from_static("/"));
    let fleet = &shared.core.fleet;
    let mut streak = Streak::default();
    loop {
        let healthy = {
            let _turn = probes.acquire().await;
            match engine.said.address.connect(health.timeout).await {
                Ok(stream) => {
                    let asked = timeout(health.timeout, probe(&engine, &path, stream)).await;
                    Some(asked.is_ok_and(|status| status.is_some_and(|s| s.is_success())))
                }
                Err(error) if is_ours(&error) => {
                    tracing::warn!(endpoint = engine.name(), %error, "no health check");
                    None
                }
                Err(_) => Some(false),
            }
        };
        let Some(healthy) = healthy else {
            sleep(health.interval).await;
            continue;
        };
        let length = streak.add(healthy);
        let enough = if healthy {
            health.healthy_after
        } else {
            health.unhealthy_after
        };
        if length >= enough.max(1) && engine.set_healthy(fleet, healthy) {
            if healthy {
                tracing::info!(endpoint = engine.name(), "healthy again");
            } else {
                tracing::warn!(endpoint = engine.name(), "unhealthy");
            }
        }
        if healthy {
            engine.try_close(fleet);
        }
        sleep(health.interval).await;
    }
}

/// A connection of its own each time: an engine that takes no new ones is not healthy.
async fn probe(engine: &Engine, path: &PathAndQuery, stream: TcpStream) -> Option<StatusCode> {
    let mut head = engine.said.address.head(&Method::GET, path);
    head.line(&CONNECTION, b"close");
    let mut request = Sending::new(head, None, Outbound::Whole(Bytes::new()));
    Link::new(stream).status(&mut request).await.ok()
}

/// This process has no file descriptor left (ENFILE, EMFILE): that says nothing about the engine.
fn is_ours(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(23 | 24))
}

/// Equal answers in a row.
#[derive(Default)]
struct Streak {
    healthy: bool,
    length: u32,
}

impl Streak {
    fn add(&mut self, healthy: bool) -> u32 {
        if self.healthy != healthy {
            self.length = 0;
        }
        self.healthy = healthy;
        self.length = self.length.saturating_add(1);
        self.length
    }
}
