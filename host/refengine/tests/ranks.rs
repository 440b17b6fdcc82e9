//! Ranks that are killed or hang.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use common::{Answer, Engine, FROZEN, INSTANT, and, chat};
use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use pointsman_refengine::{EngineConfig, EngineStats, Server};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

async fn on(engine: &Engine, rank: &str, body: &Value) -> Answer {
    let headers = [("x-data-parallel-rank", rank)];
    engine
        .call(Method::POST, CHAT, &headers, body.to_string())
        .await
}

async fn stream_on(engine: &Engine, rank: &str) -> Response<Incoming> {
    let body = and(chat("hello", 9), json!({ "stream": true })).to_string();
    let headers = [("x-data-parallel-rank", rank)];
    engine
        .head(Method::POST, CHAT, &headers, body)
        .await
        .unwrap()
}

async fn fault(engine: &Engine, fault: Value) {
    let answer = engine.post("/fault", &fault).await;
    assert_eq!(
        (answer.status.as_u16(), answer.json()["mode"].clone()),
        (200, fault["mode"].clone())
    );
}

fn alive(stats: &EngineStats) -> Vec<bool> {
    stats.ranks.iter().map(|rank| rank.alive).collect()
}

#[tokio::test]
async fn the_requests_of_a_rank_that_is_killed_end_with_an_error_and_new_ones_are_refused() {
    let engine = Engine::with(3, FROZEN).await;
    let stream = stream_on(&engine, "1").await;
    let hello = chat("hello", 9);
    let whole = on(&engine, "1", &hello);
    let killed = async {
        engine
            .until(|s| s.ranks[1].requests_running + s.ranks[1].requests_waiting == 2)
            .await;
        fault(&engine, json!({ "mode": "kill-rank", "rank": 1 })).await;
    };
    let (answer, ()) = tokio::join!(whole, killed);
    assert_eq!(
        (answer.status.as_u16(), &answer.json()["error"]["code"]),
        (503, &json!("rank_dead"))
    );
    assert!(answer.json().to_string().contains("rank 1 died"));
    let text = stream.into_body().collect().await.unwrap().to_bytes();
    let text = std::str::from_utf8(&text).unwrap();
    assert!(
        text.contains("rank 1 died") && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );

    let refused = on(&engine, "1", &chat("hello", 9)).await;
    assert_eq!(
        (refused.status.as_u16(), refused.header("retry-after")),
        (503, "")
    );
    assert!(refused.json().to_string().contains("rank 1 is dead"));
    for rank in ["0", "2", "0"] {
        let stream = stream_balanced(&engine).await;
        assert_eq!(
            stream.headers()["x-engine-rank"],
            rank,
            "the balancer avoids it"
        );
        std::mem::forget(stream);
    }

    let stats = engine.stats().await;
    assert_eq!(alive(&stats), [true, false, true]);
    let dead = stats.ranks[1];
    assert_eq!(
        (dead.requests_running, dead.requests_waiting, dead.kv_usage),
        (0, 0, 0.0)
    );
    let metrics = String::from_utf8(engine.get("/metrics").await.body.to_vec()).unwrap();
    for (rank, alive) in [(0, 1), (1, 0), (2, 1)] {
        let sample = format!("pointsman_engine_alive{{engine=\"{rank}\"}} {alive}\n");
        assert!(metrics.contains(&sample), "{metrics}");
    }
    let info = engine.get("/server_info").await.json();
    assert_eq!(info["internal_states"][1]["alive"], false);
    // Nobody waits for it: neither a reset nor a profiling window.
    assert_eq!(engine.post("/start_profile", &json!({})).await.status, 200);
    assert_eq!(engine.post("/stop_profile", &json!({})).await.status, 200);

    assert_eq!(engine.get("/health").await.status, 200);
    for rank in [0, 2] {
        fault(&engine, json!({ "mode": "kill-rank", "rank": rank })).await;
    }
    for answer in [
        engine.get("/health").await,
        engine.chat(&chat("hello", 9)).await,
    ] {
        assert_eq!(answer.status, 503);
        assert!(
            answer
                .json()
                .to_string()
                .contains("no rank of this engine is alive")
        );
    }
}

async fn stream_balanced(engine: &Engine) -> Response<Incoming> {
    let body = and(chat("hello", 9), json!({ "stream": true })).to_string();
    engine.head(Method::POST, CHAT, &[], body).await.unwrap()
}

#[tokio::test]
async fn a_rank_is_killed_when_its_next_prefill_has_begun() {
    let engine = Engine::with(2, INSTANT).await;
    fault(
        &engine,
        json!({ "mode": "kill-rank", "rank": 0, "after": "prefill" }),
    )
    .await;
    assert_eq!(alive(&engine.stats().await), [true, true], "not yet");
    let answer = on(&engine, "0", &chat("hello", 9)).await;
    assert_eq!(answer.status, 503);
    let stats = engine.stats().await;
    assert_eq!(alive(&stats), [false, true]);
    assert!(
        stats.ranks[0].prefill_tokens_computed_total > 0,
        "it had begun"
    );
    assert_eq!(on(&engine, "1", &chat("hello", 9)).await.status, 200);
}

#[tokio::test]
async fn a_rank_that_hangs_goes_on_where_it_was_and_can_be_killed_meanwhile() {
    let engine = Engine::with(2, INSTANT).await;
    fault(
        &engine,
        json!({ "mode": "hang-rank", "rank": 0, "duration_ms": 200 }),
    )
    .await;
    assert_eq!(
        on(&engine, "0", &chat("hello", 9)).await.status,
        200,
        "later"
    );
    // For a day, and yet the engine ends at once, or the rank does.
    fault(
        &engine,
        json!({ "mode": "hang-rank", "rank": 0, "duration_ms": 86_400_000 }),
    )
    .await;
    let hello = chat("hello", 9);
    let asked = on(&engine, "0", &hello);
    let killed = fault(&engine, json!({ "mode": "kill-rank", "rank": 0 }));
    let (answer, ()) = tokio::join!(asked, killed);
    assert_eq!(answer.status, 503);
    fault(
        &engine,
        json!({ "mode": "hang-rank", "rank": 1, "duration_ms": 86_400_000 }),
    )
    .await;
}

#[tokio::test]
async fn a_fault_of_a_rank_that_cannot_be_is_refused() {
    let engine = Engine::with(2, INSTANT).await;
    fault(&engine, json!({ "mode": "kill-rank", "rank": 1 })).await;
    let cases = [
        (
            json!({ "mode": "kill-rank" }),
            "`rank`: wanted with this mode",
        ),
        (
            json!({ "mode": "kill-rank", "rank": 2 }),
            "this engine has ranks 0 to 1",
        ),
        (
            json!({ "mode": "kill-rank", "rank": 1 }),
            "rank 1 is dead already",
        ),
        (json!({ "mode": "kill-rank", "rank": -1 }), "-1"),
        (
            json!({ "mode": "kill-rank", "rank": 0, "after": "lunch" }),
            "unknown variant `lunch`",
        ),
        (
            json!({ "mode": "hang-rank", "rank": 0 }),
            "`duration_ms`: wanted with this mode",
        ),
        (
            json!({ "mode": "error-500", "rank": 0 }),
            "`rank`: not wanted",
        ),
    ];
    for (body, wanted) in cases {
        let answer = engine.post("/fault", &body).await;
        assert_eq!(answer.status, 400, "{body}");
        let said = answer.json()["error"]["message"].to_string();
        assert!(said.contains(wanted), "{wanted}: {said}");
    }
    assert_eq!(alive(&engine.stats().await), [true, false]);
}

#[tokio::test]
async fn a_thousand_ranks_are_a_thousand_threads_that_end_with_the_server() {
    let named = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        // Of this engine only: those of other tests have few ranks.
        tasks
            .filter_map(name)
            .filter(|n| n.starts_with("rank-9"))
            .count()
    };
    let config = EngineConfig {
        ranks: 1024,
        time_scale: INSTANT,
        prefill_delayer: true,
        ..EngineConfig::default()
    };
    let server = Server::bind(config, "127.0.0.1:0".parse().unwrap())
        .await
        .unwrap();
    let address = server.local_addr();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = tokio::spawn(server.run(async { drop(stopped.await) }));
    let engine = Engine { address, server };
    // 9, 90 to 99 and 900 to 999; each gives itself its name.
    while named() < 111 {
        tokio::task::yield_now().await;
    }
    assert_eq!(on(&engine, "1023", &chat("hello", 3)).await.status, 200);
    stop.send(()).unwrap();
    while named() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_engine_reports_what_its_requests_waited_for() {
    let config = EngineConfig {
        time_scale: 0.001,
        ..EngineConfig::default()
    };
    let engine = Engine::start(config).await;
    for _ in 0..2 {
        assert_eq!(engine.chat(&chat("hello", 5)).await.status, 200);
    }
    let rank = engine.stats().await.ranks[0];
    assert_eq!(rank.time_to_first_token_seconds_count, 2);
    assert_eq!(
        (
            rank.inter_token_latency_seconds_count,
            rank.decode_tokens_total
        ),
        (8, 8)
    );
    assert_eq!(rank.generation_tokens_total, 10);
    assert!(rank.time_to_first_token_seconds_sum > 0.0);
    engine.post("/reset", &json!({})).await;
    let rank = engine.stats().await.ranks[0];
    assert_eq!(
        (
            rank.time_to_first_token_seconds_count,
            rank.decode_tokens_total
        ),
        (0, 0)
    );
}
