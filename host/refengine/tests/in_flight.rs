//! Requests while they run: queueing, balancing, clients that go, faults.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Engine, FROZEN, INSTANT, and, chat, text};
use http::Method;
use http_body_util::BodyExt;
use pointsman_refengine::{EngineConfig, Preset, Server};
use serde_json::json;

const CHAT: &str = "/v1/chat/completions";

fn streamed(text: &str, max_tokens: usize) -> String {
    and(chat(text, max_tokens), json!({"stream": true})).to_string()
}

#[tokio::test]
async fn a_client_that_goes_frees_its_blocks_streamed_or_not() {
    let engine = Engine::with(1, FROZEN).await;
    let stream = engine
        .head(Method::POST, CHAT, &[], streamed(&text("w", 200), 9))
        .await
        .unwrap();
    assert_eq!(
        stream.status(),
        200,
        "the head does not wait for the first token"
    );
    let running = engine
        .until(|s| s.ranks[0].requests_running == 1)
        .await
        .ranks[0];
    assert!(running.cache_blocks_referenced > 0);

    let body = chat(&text("v", 200), 9).to_string();
    let mut waiting = Box::pin(engine.head(Method::POST, CHAT, &[], body));
    tokio::select! {
        _ = &mut waiting => panic!("nothing can be answered"),
        _ = engine.until(|s| s.ranks[0].requests_waiting == 1) => {}
    }
    drop(waiting);
    engine.until(|s| s.ranks[0].requests_waiting == 0).await;
    drop(stream);
    let stats = engine
        .until(|s| s.ranks[0].requests_running == 0)
        .await
        .ranks[0];
    assert_eq!(
        (stats.cache_blocks_referenced, stats.cancelled_total),
        (0, 2)
    );
}

#[tokio::test]
async fn a_full_queue_is_answered_with_503_and_retry_after() {
    let config = EngineConfig {
        max_queue: 1,
        time_scale: FROZEN,
        ranks: 2,
        ..EngineConfig::default()
    };
    let engine = Engine::start(config).await;
    let on_rank_1 = [("x-data-parallel-rank", "1")];
    let ask = || engine.head(Method::POST, CHAT, &on_rank_1, streamed("x", 9));
    let _running = ask().await.unwrap();
    engine.until(|s| s.ranks[1].requests_running == 1).await;
    let waiting = ask().await.unwrap();
    engine.until(|s| s.ranks[1].requests_waiting == 1).await;
    let refused = ask().await.unwrap();
    assert_eq!(
        (
            refused.status().as_u16(),
            refused.headers()["retry-after"].as_bytes()
        ),
        (503, &b"1"[..])
    );
    drop(waiting);
    engine.until(|s| s.ranks[1].requests_waiting == 0).await;
    assert_eq!(ask().await.unwrap().status(), 200);
}

#[tokio::test]
async fn without_a_wanted_rank_the_one_with_the_fewest_requests_serves() {
    let engine = Engine::with(3, FROZEN).await;
    let mut held = Vec::new();
    for rank in ["0", "1", "2", "0"] {
        let response = engine
            .head(Method::POST, CHAT, &[], streamed("x", 9))
            .await
            .unwrap();
        assert_eq!(response.headers()["x-engine-rank"], rank);
        held.push(response);
    }
    held.remove(1);
    engine.until(|s| s.ranks[1].cancelled_total == 1).await;
    let response = engine
        .head(Method::POST, CHAT, &[], streamed("x", 9))
        .await
        .unwrap();
    assert_eq!(response.headers()["x-engine-rank"], "1");
}

#[tokio::test]
async fn many_clients_at_once_all_get_their_tokens_and_every_gauge_returns_to_zero() {
    let preset = Preset {
        max_num_seqs: 4,
        max_num_batched_tokens: 4096,
        cache_blocks: 64,
        ..Preset::default()
    };
    let config = EngineConfig {
        ranks: 2,
        time_scale: INSTANT,
        preset,
        ..EngineConfig::default()
    };
    let engine = std::sync::Arc::new(Engine::start(config).await);
    let clients: Vec<_> = (0..40)
        .map(|i| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let body = and(
                    chat(&text("w", 10 * (i % 7)), 1 + i),
                    json!({"stream": true}),
                );
                assert_eq!(engine.chat(&body).await.events().len(), 1 + (1 + i) + 1);
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    let ranks = engine.stats().await.ranks;
    assert_eq!(
        ranks.iter().map(|r| r.generation_tokens_total).sum::<u64>(),
        (1..=40).sum::<u64>()
    );
    for rank in ranks {
        assert_eq!(
            (
                rank.requests_running,
                rank.requests_waiting,
                rank.cache_blocks_referenced
            ),
            (0, 0, 0)
        );
    }
}

#[tokio::test]
async fn each_fault_misbehaves_as_it_says_and_then_ends() {
    let engine = Engine::with(1, INSTANT).await;
    let fault = async |mode: &str| {
        let body = json!({"mode": mode, "count": 1, "retry_after": 7});
        assert_eq!(engine.post("/fault", &body).await.status, 200);
    };
    for (mode, status) in [("error-500", 500), ("error-503", 503), ("error-429", 429)] {
        fault(mode).await;
        let answer = engine.chat(&chat("x", 2)).await;
        assert_eq!(
            (answer.status.as_u16(), answer.header("retry-after")),
            (status, "7")
        );
        assert_eq!(engine.chat(&chat("x", 2)).await.status, 200);
    }

    fault("reset-before-head").await;
    assert!(
        engine
            .head(Method::POST, CHAT, &[], streamed("x", 2))
            .await
            .is_err()
    );

    for (body, begin) in [
        (streamed("x", 2), "data: {"),
        (chat("x", 2).to_string(), "{\"id\""),
    ] {
        fault("reset-mid-stream").await;
        let mut body = engine
            .head(Method::POST, CHAT, &[], body)
            .await
            .unwrap()
            .into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(first.starts_with(begin.as_bytes()), "{first:?}");
        assert!(body.collect().await.is_err());
    }

    fault("sse-error").await;
    let events = engine
        .chat(&serde_json::from_str(&streamed("x", 1)).unwrap())
        .await
        .events();
    assert_eq!(
        (events.len(), &events[2]["error"]["type"]),
        (3, &json!("server_error"))
    );

    fault("hang-before-head").await;
    let mut hung = Box::pin(engine.head(Method::POST, CHAT, &[], streamed("x", 2)));
    let faults = engine.stats().await.faults_total;
    tokio::select! {
        answer = &mut hung => panic!("answered: {answer:?}"),
        _ = engine.until(|s| s.faults_total == faults + 1) => {}
    }
    drop(hung);
    assert_eq!(
        engine.post("/fault", &json!({"mode": "none"})).await.status,
        200
    );
    assert_eq!(engine.chat(&chat("x", 2)).await.status, 200);
    engine
        .until(|s| s.ranks[0].cache_blocks_referenced == 0)
        .await;
}

#[tokio::test]
async fn after_the_signal_requests_in_flight_end_and_no_new_ones_are_taken() {
    let config = EngineConfig {
        time_scale: 0.001,
        ..EngineConfig::default()
    };
    let server = Server::bind(config, "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = server.local_addr();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(server.run(async { drop(stopped.await) }));
    let engine = Engine { address, server };
    let response = engine
        .head(Method::POST, CHAT, &[], streamed("x", 50))
        .await
        .unwrap();
    stop.send(()).unwrap();
    let text = response.into_body().collect().await.unwrap().to_bytes();
    assert!(text.ends_with(b"data: [DONE]\n\n"));
}
