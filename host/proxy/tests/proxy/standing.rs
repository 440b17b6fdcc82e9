//! Who may take requests: breaker and health checks.

use crate::harness::*;
use pointsman_proxy::{Breaker, Health};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(5);

/// An engine that answers 500 while the switch is on.
async fn switched() -> (Engine, Arc<AtomicBool>) {
    let broken = Arc::new(AtomicBool::new(false));
    let state = broken.clone();
    let engine = Engine::start(move |_| {
        let broken = state.load(SeqCst);
        async move {
            if broken {
                say(500, "broken")
            } else {
                text("ok")
            }
        }
    })
    .await;
    (engine, broken)
}

fn breaker(failures: u32, cooldown: Duration) -> Breaker {
    Breaker { failures, cooldown }
}

#[tokio::test]
async fn failures_in_a_row_open_the_breaker_and_nobody_asks_the_engine_any_more() {
    // field case: smg#1124, Infera#82
    let (engine, broken) = switched().await;
    broken.store(true, SeqCst);
    let rig = (Rig::new().url("a", &engine.url(), 2))
        .with(|settings| {
            settings.attempts = 1;
            settings.pools[0].breaker = breaker(2, HOUR);
        })
        .start();
    for _ in 0..2 {
        assert!(rig.takes(0) && rig.takes(1));
        assert_eq!(rig.send(get("/", &[])).await.status, 500);
    }
    assert!(!rig.takes(0) && !rig.takes(1), "all ranks of the server");
    assert_eq!(rig.send(get("/", &[])).await.status, 503);
    assert_eq!(engine.seen().len(), 2);
    assert!(
        rig.metrics()
            .await
            .contains("pointsman_target_up{target=\"a/1\"} 0")
    );
}

#[tokio::test]
async fn without_a_health_check_time_closes_the_breaker_with_one_failure_left() {
    let (engine, broken) = switched().await;
    broken.store(true, SeqCst);
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.pools[0].breaker = breaker(3, SOON))
        .start();
    for round in 0..3 {
        while rig.takes(0) {
            rig.send(get("/", &[])).await;
        }
        let failures = engine.seen().len();
        assert_eq!(failures, 3 + round, "a trial costs one request");
        until("the breaker closes", || rig.takes(0)).await;
    }
    broken.store(false, SeqCst);
    assert_eq!(rig.send(get("/", &[])).await.text(), "ok");
    assert!(rig.takes(0));
}

#[tokio::test]
async fn answers_that_blame_the_client_or_say_busy_do_not_open_the_breaker() {
    let statuses = [400, 404, 422, 429, 429];
    let turn = Arc::new(AtomicUsize::new(0));
    let engine = Engine::start(move |_| {
        let status = statuses[turn.fetch_add(1, SeqCst)];
        async move { say(status, "") }
    })
    .await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.pools[0].breaker = breaker(1, HOUR))
        .start();
    for status in statuses {
        assert_eq!(rig.send(get("/", &[])).await.status, status);
        rig.drained().await;
    }
    assert!(rig.takes(0));
}

fn every_moment() -> Option<Health> {
    Some(Health {
        path: "/healthy?".to_owned(),
        interval: SOON,
        unhealthy_after: 2,
        healthy_after: 2,
        ..Health::default()
    })
}

#[tokio::test]
async fn an_engine_that_fails_its_health_check_gets_no_requests_until_it_passes() {
    let (engine, broken) = switched().await;
    let other = Engine::start(|_| async { text("other") }).await;
    let rig = (Rig::new().url("a", &engine.url(), 2).endpoint("b", &other))
        .with(|settings| settings.pools[0].health = every_moment())
        .start();
    broken.store(true, SeqCst);
    until("a is down", || !rig.takes(0) && !rig.takes(1)).await;
    assert_eq!(rig.send(get("/", &[])).await.text(), "other");
    assert!(rig.takes(2));
    broken.store(false, SeqCst);
    until("a is up", || rig.takes(0) && rig.takes(1)).await;
    assert_eq!(engine.last().uri, "/healthy?");
}

#[tokio::test]
async fn with_a_health_check_it_is_the_check_that_closes_the_breaker() {
    let checks = Arc::new(AtomicUsize::new(0));
    let count = checks.clone();
    let engine = Engine::start(move |seen| {
        let check = seen.uri.path() == "/healthy";
        count.fetch_add(usize::from(check), SeqCst);
        async move { if check { text("ok") } else { say(500, "") } }
    })
    .await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| {
            settings.pools[0].health = every_moment();
            settings.pools[0].breaker = breaker(1, SOON);
        })
        .start();
    assert_eq!(rig.send(get("/", &[])).await.status, 500);
    until("the breaker closes", || rig.takes(0)).await;
    assert!(checks.load(SeqCst) > 0);
}
