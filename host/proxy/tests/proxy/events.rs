//! What a policy is told after its decisions, if it wants to know.

use crate::harness::*;
use http_body_util::BodyExt;
use pointsman_core::{Event, Usage, Wants};
use std::sync::atomic::Ordering::SeqCst;

const PROMPT: &str = r#"{"model":"m","messages":["12345678901234567890123456789012345678"]}"#;

fn told(wants: Wants) -> Told {
    Told {
        wants,
        ..Told::default()
    }
}

async fn end_of(stream: Sender, response: http::Response<hyper::body::Incoming>) {
    drop(stream);
    let _ = response.into_body().collect().await;
}

#[tokio::test]
async fn the_first_output_and_the_end_with_the_engines_own_counts() {
    let (engine, mut streams) = streaming().await;
    let policy = told(EVERY_EVENT);
    let rig = Rig::new().endpoint("a", &engine).source(policy.clone());
    let rig = rig.start();
    let mut client = rig.client().await;
    let response = client.begin(post("/", &[], PROMPT)).await;
    let stream = streams.recv().await.unwrap();
    assert_eq!(policy.events(), [], "a head is no output");
    stream.send(Ok("data: {}\n\n")).unwrap();
    until("it is told", || policy.events() == [Event::FirstOutput(0)]).await;
    let usage = "data: {\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":8}}}\n\n";
    stream.send(Ok(usage)).unwrap();
    end_of(stream, response).await;
    until("it is told", || policy.events().len() == 2).await;
    let Event::Finished(usage) = policy.events()[1] else {
        panic!("{:?}", policy.events())
    };
    assert!(usage.first_output_ms <= usage.total_ms);
    assert!(usage.total_ms < 20_000, "since its arrival: {usage:?}");
    let counts = (usage.target, usage.prompt_tokens, usage.cached_tokens);
    assert_eq!((counts, usage.output_tokens), ((0, 9, 8), 5));
}

#[tokio::test]
async fn times_are_taken_from_the_arrival() {
    let engine = Engine::start(|_| async {
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        text("ok")
    })
    .await;
    let policy = told(EVERY_EVENT);
    let rig = Rig::new().endpoint("a", &engine).source(policy.clone());
    rig.start().send(post("/", &[], PROMPT)).await;
    let Some(Event::Finished(usage)) = policy.events().pop() else {
        panic!("{:?}", policy.events())
    };
    assert!(usage.first_output_ms >= 29, "{usage:?}");
    assert!(usage.total_ms >= usage.first_output_ms);
}

#[tokio::test]
async fn estimates_where_the_engine_counts_nothing() {
    let engine = Engine::start(|seen| async move {
        match seen.uri.path() {
            "/json" => json("01234567"),
            _ => {
                let (sender, answer) = chunks();
                sender
                    .send(Ok("data: 1\n\ndata: 2\n\ndata: 3\n\n"))
                    .unwrap();
                answer
            }
        }
    })
    .await;
    for (path, output_tokens) in [("/json", 2), ("/stream", 3)] {
        let policy = told(EVERY_EVENT);
        let rig = Rig::new().endpoint("a", &engine).source(policy.clone());
        rig.start().send(post(path, &[], PROMPT)).await;
        let Some(Event::Finished(usage)) = policy.events().pop() else {
            panic!("{:?}", policy.events())
        };
        let estimate = Usage {
            prompt_tokens: 10,
            cached_tokens: 0,
            output_tokens,
            ..usage
        };
        assert_eq!(usage, estimate);
    }
}

#[tokio::test]
async fn each_failed_attempt_and_a_stream_that_breaks_off() {
    let broken = Engine::start(|_| async { say(500, "no") }).await;
    let (engine, mut streams) = streaming().await;
    let policy = told(EVERY_EVENT);
    let rig = (Rig::new()
        .endpoint("a", &broken)
        .url("b", "http://127.0.0.1:1", 1))
    .endpoint("c", &engine)
    .source(policy.clone())
    .start();
    let mut client = rig.client().await;
    let response = client.begin(post("/", &[], PROMPT)).await;
    let stream = streams.recv().await.unwrap();
    let failed = [Event::Failed(0), Event::Failed(1)];
    until("it is told", || policy.events() == failed).await;
    stream.send(Err(std::io::Error::other("crash"))).unwrap();
    end_of(stream, response).await;
    until("it is told", || {
        policy.events().last() == Some(&Event::Failed(2))
    })
    .await;
    assert_eq!(policy.events().len(), 3);
}

#[tokio::test]
async fn an_answer_that_is_an_error_and_a_client_that_leaves_are_neither() {
    let (engine, mut streams) = streaming().await;
    let busy = Engine::start(|_| async { say(429, "busy") }).await;
    let policy = told(EVERY_EVENT);
    let rig = Rig::new().endpoint("a", &busy).source(policy.clone());
    rig.start().send(post("/", &[], PROMPT)).await;
    let rig = Rig::new().endpoint("a", &engine).source(policy.clone());
    let rig = rig.start();
    let mut client = rig.client().await;
    let response = client.begin(post("/", &[], PROMPT)).await;
    let _stream = streams.recv().await.unwrap();
    drop((client, response));
    rig.drained().await;
    assert_eq!(policy.events(), []);
}

#[tokio::test]
async fn the_fleets_changes_reach_every_threads_instance_without_a_request() {
    let policy = told(EVERY_EVENT);
    let rig = (Rig::new().url("a", "http://127.0.0.1:1", 1))
        .with(|settings| settings.threads = 3)
        .source(policy.clone())
        .start();
    // Each thread's instance exists only when its thread has begun.
    rig.send(get("/", &[])).await;
    until("all are told", || {
        rig.core
            .fleet
            .set(&[0], |standing| standing.draining ^= true);
        policy
            .events()
            .iter()
            .filter(|e| **e == Event::FleetChanged)
            .count()
            >= 9
    })
    .await;
}

#[tokio::test]
async fn the_fleets_change_comes_before_the_next_decision_and_once() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let policy = told(Wants {
        fleet_changed: true,
        ..Wants::default()
    });
    let rig = Rig::new().url("a", &engine.url(), 2).source(policy.clone());
    let rig = rig.start();
    let mut client = rig.client().await;
    client.send(get("/", &[])).await;
    assert_eq!(policy.events(), []);
    rig.core
        .fleet
        .set(&[1], |standing| standing.healthy = false);
    client.send(get("/", &[])).await;
    client.send(get("/", &[])).await;
    assert_eq!(policy.events(), [Event::FleetChanged]);
}

#[tokio::test]
async fn who_wants_nothing_is_told_nothing() {
    let engine = Engine::start(|_| async { json("{}") }).await;
    let policy = told(Wants::default());
    let rig = (Rig::new().url("gone", "http://127.0.0.1:1", 1))
        .endpoint("a", &engine)
        .source(policy.clone())
        .start();
    let mut client = rig.client().await;
    client.send(post("/", &[], PROMPT)).await;
    rig.core
        .fleet
        .set(&[0], |standing| standing.healthy = false);
    client.send(post("/", &[], PROMPT)).await;
    assert_eq!(policy.events(), []);
}

#[tokio::test]
async fn a_policy_that_cannot_bear_an_event_is_counted_and_the_request_ends_well() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let policy = Told {
        wants: EVERY_EVENT,
        fails: true,
        ..Told::default()
    };
    let rig = Rig::new().endpoint("a", &engine).source(policy.clone());
    let rig = rig.start();
    assert_eq!(rig.send(post("/", &[], PROMPT)).await.text(), "ok");
    rig.drained().await;
    let count = "pointsman_policy_failures_total{policy=\"least-0\",cause=\"trap\"} 2";
    let metrics = rig.metrics().await;
    assert!(metrics.contains(count), "{metrics}");
    assert!(
        metrics.contains("reason=\"placed\",code=\"200\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_policy_that_was_replaced_is_told_nothing_nor_is_the_new_one_of_its_requests() {
    let (engine, mut streams) = streaming().await;
    let policy = told(EVERY_EVENT);
    let rig = Rig::new().endpoint("a", &engine).source(policy.clone());
    let rig = rig.start();
    let mut client = rig.client().await;
    let response = client.begin(post("/", &[], PROMPT)).await;
    let stream = streams.recv().await.unwrap();
    policy.least.0.store(1, SeqCst);
    let mut other = rig.client().await;
    let second = other.begin(post("/", &[], PROMPT)).await;
    stream.send(Ok("data: 1\n\n")).unwrap();
    end_of(stream, response).await;
    assert_eq!(policy.events(), []);
    let stream = streams.recv().await.unwrap();
    stream.send(Ok("data: 1\n\n")).unwrap();
    end_of(stream, second).await;
    until("the new one's own", || policy.events().len() == 2).await;
}
