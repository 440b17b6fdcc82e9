//! What users of such routers hit, by its number in the list of field cases, where no other file has
//! it with the feature that it belongs to.

use crate::harness::*;
use http_body_util::BodyExt;
use std::time::Duration;

const EXPLAIN: (&str, &str) = ("x-pointsman-explain", "1");
const SESSION: (&str, &str) = ("x-session-id", "s");
const PROMPT: &str = r#"{"model":"m","messages":["12345678"]}"#;

fn target(response: &http::Response<hyper::body::Incoming>) -> String {
    let target = &response.headers()["x-pointsman-target"];
    target.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn case_05_a_session_whose_stream_held_an_error_is_placed_anew_and_the_breaker_counts() {
    let (failing, mut streams) = streaming().await;
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = (Rig::new().endpoint("a", &failing).endpoint("b", &engine))
        .with(|settings| {
            settings.pools[0].breaker.failures = 2;
            settings.pools[0].breaker.cooldown = Duration::from_secs(3600);
        })
        .start();
    for failures in 1..=2 {
        let mut client = rig.client().await;
        // Only the first rank has no request yet: both turns are placed there.
        let response = client.begin(post("/", &[EXPLAIN, SESSION], PROMPT)).await;
        assert_eq!(response.status(), 200);
        assert_eq!(target(&response), "a/0");
        assert_eq!(response.headers()["x-pointsman-reason"], "placed");
        let stream = streams.recv().await.unwrap();
        let error = "data: {\"error\":{\"message\":\"cuda\"}}\n\n";
        stream.send(Ok(error)).unwrap();
        drop(stream);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, error, "it passes as it is");
        rig.drained().await;
        assert!(rig.core.bindings().is_empty(), "failure {failures}");
        assert_eq!(rig.takes(0), failures < 2);
    }
    let next = rig.send(post("/", &[EXPLAIN, SESSION], PROMPT)).await;
    assert_eq!(next.header("x-pointsman-target"), Some("b/0"));
    assert_eq!(next.header("x-pointsman-reason"), Some("placed"));
}

#[tokio::test]
async fn case_30_an_engine_whose_streams_broke_off_is_charged_for_the_rest_and_draws_its_share() {
    let (a, mut of_a) = streaming().await;
    let (b, _of_b) = streaming().await;
    let rig = Rig::new().endpoint("a", &a).endpoint("b", &b).start();
    let mut open = Vec::new();
    for _ in 0..6 {
        let mut client = rig.client().await;
        let response = client.begin(post("/", &[EXPLAIN], PROMPT)).await;
        open.push((client, response));
    }
    assert_eq!((rig.load(0).requests, rig.load(1).requests), (3, 3));
    // It restarts: its connections break, its health check fails and passes again.
    for _ in 0..2 {
        let stream = of_a.recv().await.unwrap();
        stream.send(Err(std::io::Error::other("restart"))).unwrap();
    }
    for healthy in [false, true] {
        let change = |standing: &mut pointsman_core::Standing| standing.healthy = healthy;
        rig.core.fleet.set(&[0], change);
    }
    until("those are given back", || rig.load(0).requests == 1).await;
    assert_eq!(rig.load(1).requests, 3);
    let mut drawn = Vec::new();
    for _ in 0..4 {
        let mut client = rig.client().await;
        let response = client.begin(post("/", &[EXPLAIN], PROMPT)).await;
        drawn.push(target(&response));
        open.push((client, response));
    }
    assert_eq!(drawn, ["a/0", "a/0", "a/0", "b/0"], "until they are even");
    // Clients that leave give back what they held, and no more than that.
    drop(open);
    rig.drained().await;
    let after = rig.client().await.begin(get("/", &[EXPLAIN])).await;
    assert_eq!(target(&after), "a/0", "all are even again");
}

#[tokio::test]
async fn case_31_a_decision_that_cannot_be_made_true_charges_nobody() {
    let held = Engine::start(|_| std::future::pending()).await;
    let rig = Rig::new().url("a", &held.url(), 2).source(Lost).start();
    let mut client = rig.client().await;
    let waiting = tokio::spawn(async move {
        client.begin(post("/", &[SESSION], PROMPT)).await;
    });
    until("the fallback's target has it", || !held.seen().is_empty()).await;
    let fleet = rig.core.fleet.snapshot();
    let loads: Vec<u32> = [0, 1, 99].map(|t| fleet.ledger().load(t).requests).to_vec();
    assert_eq!(loads.iter().sum::<u32>(), 1, "{loads:?}");
    assert_eq!(rig.load(99).prefill_tokens, 0);
    assert!(rig.core.bindings().is_empty());
    waiting.abort();
    rig.drained().await;
    let count = "pointsman_policy_failures_total{policy=\"lost\",cause=\"bad-answer\"} 1";
    assert!(rig.metrics().await.contains(count));
}
