//! What happens beside the requests, on one thread of its own: health checks, breakers that reopen,
//! bindings whose time is over, and the admin address.

use crate::admin;
use crate::engines::Engine;
use crate::health;
use crate::metrics::Scrape;
use crate::site::Shared;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_local;
use tokio::time::interval;

/// Health checks at one time.
const PROBES: usize = 64;

pub(crate) async fn keep(
    listener: TcpListener,
    shared: Arc<Shared>,
    scrape: Scrape,
    more: axum::Router,
    mut stop: watch::Receiver<bool>,
) -> std::io::Result<()> {
    let probes = Rc::new(Semaphore::new(PROBES));
    for engine in shared.engines.iter() {
        spawn_local(reopen(shared.clone(), engine.clone()));
        if let Some(health) = engine.health.clone() {
            spawn_local(health::watch(
                shared.clone(),
                engine.clone(),
                health,
                probes.clone(),
            ));
        }
    }
    spawn_local(sweep(shared));
    tokio::select! {
        result = admin::serve(listener, scrape, more) => result,
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    }
}

/// With a health check it is the check that closes the breaker; without one, time does.
async fn reopen(shared: Arc<Shared>, engine: Arc<Engine>) {
    loop {
        engine.breaker.cooled().await;
        if engine.health.is_none() {
            engine.try_close(&shared.core.fleet);
        }
    }
}

async fn sweep(shared: Arc<Shared>) {
    let mut each_second = interval(Duration::from_secs(1));
    loop {
        each_second.tick().await;
        shared.core.sweep();
    }
}
