//! Why a request went where it went: for the client that asks, and in the metrics.

use crate::harness::*;
use pointsman_core::Fallback;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const EXPLAIN: (&str, &str) = ("x-pointsman-explain", "1");

#[tokio::test]
async fn only_who_asks_is_told() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().url("a", &engine.url(), 2).start();
    let told = rig.send(get("/", &[EXPLAIN])).await;
    assert_eq!(told.header("x-pointsman-target"), Some("a/0"));
    assert_eq!(told.header("x-pointsman-policy"), Some("least-0"));
    assert_eq!(told.header("x-pointsman-reason"), Some("placed"));
    assert_eq!(told.header("x-pointsman-attempts"), None);
    assert_eq!(
        rig.send(get("/", &[])).await.header("x-pointsman-target"),
        None
    );
    let off = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.explain = false)
        .start();
    assert_eq!(
        off.send(get("/", &[EXPLAIN]))
            .await
            .header("x-pointsman-target"),
        None
    );
}

#[tokio::test]
async fn a_client_may_name_its_target() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().url("a", &engine.url(), 2).start();
    let named = |name| [EXPLAIN, ("x-pointsman-target", name)];
    let got = rig.send(get("/", &named("a/1"))).await;
    assert_eq!(got.header("x-pointsman-target"), Some("a/1"));
    let unknown = rig.send(get("/", &named("z/0"))).await;
    assert_eq!(
        (unknown.status, unknown.header("x-pointsman-error")),
        (400, Some("unknown_target"))
    );
    rig.core
        .fleet
        .set(&[1], |standing| standing.healthy = false);
    assert_eq!(rig.send(get("/", &named("a/1"))).await.status, 503);
    assert!(
        rig.metrics()
            .await
            .contains("pointsman_affinity_total{event=\"explicit\"} 1")
    );
}

#[tokio::test]
async fn a_policy_that_traps_is_counted_and_the_fallback_decides() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).source(Broken).start();
    let got = rig.send(get("/", &[EXPLAIN])).await;
    assert_eq!(
        (got.status, got.header("x-pointsman-reason")),
        (200, Some("fallback:trap"))
    );
    let metrics = rig.metrics().await;
    for line in [
        "pointsman_policy_failures_total{policy=\"broken\",cause=\"trap\"} 1",
        "pointsman_requests_total{policy=\"broken\",phase=\"serve\",reason=\"fallback:trap\",code=\"200\"} 1",
        "pointsman_decision_seconds_count 1",
        "pointsman_target_requests{target=\"a/0\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let rejecting = (Rig::new().endpoint("a", &engine).source(Broken))
        .with(|settings| settings.fallback = Fallback::Reject)
        .start();
    assert_eq!(rejecting.send(get("/", &[])).await.status, 503);
}

#[tokio::test]
async fn a_policys_refusal_reaches_the_client_with_its_time_to_come_back() {
    let rig = Rig::new().start();
    let got = rig.send(get("/", &[EXPLAIN])).await;
    assert_eq!((got.status, got.header("retry-after")), (503, Some("2")));
    assert_eq!(got.header("x-pointsman-reason"), Some("nobody"));
    let count = "pointsman_requests_total{policy=\"least-0\",phase=\"serve\",reason=\"nobody\",code=\"503\"} 1";
    assert!(rig.metrics().await.contains(count));
}

#[tokio::test]
async fn a_new_generation_of_the_policy_decides_the_next_request_of_an_open_connection() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let generation = Arc::new(AtomicU64::new(0));
    let rig = Rig::new()
        .endpoint("a", &engine)
        .source(Least(generation.clone()))
        .start();
    let mut client = rig.client().await;
    let got = client.send(get("/", &[EXPLAIN])).await;
    assert_eq!(got.header("x-pointsman-policy"), Some("least-0"));
    generation.store(1, SeqCst);
    let got = client.send(get("/", &[EXPLAIN])).await;
    assert_eq!(got.header("x-pointsman-policy"), Some("least-1"));
    assert!(
        rig.metrics()
            .await
            .contains("pointsman_policy_generation 1")
    );
}
