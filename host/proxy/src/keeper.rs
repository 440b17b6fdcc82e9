//! What happens beside the requests, on one thread of its own: health checks, breakers that reopen,
//! bindings whose time is over, and the admin address.

use crate::admin;
use crate::engines::{Engine, Engines, Server};
use crate::health;
use crate::metrics::Scrape;
use crate::site::Shared;
use std::collections::HashMap;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinSet, spawn_local};
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
    spawn_local(tend(shared.clone()));
    spawn_local(sweep(shared));
    tokio::select! {
        result = admin::serve(listener, scrape, more) => result,
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    }
}

/// The tasks of each server, for as long as it is one; begun anew where something else is said of it.
async fn tend(shared: Arc<Shared>) {
    let probes = Rc::new(Semaphore::new(PROBES));
    let mut follows = shared.engines.subscribe();
    // Dropped, a set ends its tasks.
    let mut tended = HashMap::<*const Server, (Arc<Engine>, JoinSet<()>)>::new();
    loop {
        let engines: Arc<Engines> = follows.borrow_and_update().clone();
        // Of two engines of one server the later is the newer.
        let now: HashMap<*const Server, &Arc<Engine>> = (engines.iter())
            .map(|engine| (Arc::as_ptr(&engine.server), engine))
            .collect();
        tended.retain(|server, _| now.contains_key(server));
        for (&server, &engine) in &now {
            let was = tended.get(&server).map(|(was, _)| was.clone());
            if was.as_ref().is_some_and(|was| Arc::ptr_eq(was, engine)) {
                continue;
            }
            tended.remove(&server);
            let health = |engine: &Engine| engine.said.health.is_some();
            if was.is_some_and(|was| health(&was)) && !health(engine) {
                // What the check said that is no more counts no more.
                engine.set_healthy(&shared.core.fleet, true);
            }
            let tasks = begin(&shared, engine, &probes);
            tended.insert(server, (engine.clone(), tasks));
        }
        if follows.changed().await.is_err() {
            return;
        }
    }
}

fn begin(shared: &Arc<Shared>, engine: &Arc<Engine>, probes: &Rc<Semaphore>) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn_local(reopen(shared.clone(), engine.clone()));
    if let Some(health) = engine.said.health.clone() {
        let (shared, engine, probes) = (shared.clone(), engine.clone(), probes.clone());
        tasks.spawn_local(health::watch(shared, engine, health, probes));
    }
    tasks
}

/// With a health check it is the check that closes the breaker; without one, time does.
async fn reopen(shared: Arc<Shared>, engine: Arc<Engine>) {
    loop {
        // At first too: an earlier check may have been what it waited for.
        if engine.said.health.is_none() {
            engine.try_close(&shared.core.fleet);
        }
        engine.server.breaker.cooled().await;
    }
}

async fn sweep(shared: Arc<Shared>) {
    let mut each_second = interval(Duration::from_secs(1));
    loop {
        each_second.tick().await;
        shared.core.sweep();
    }
}
