//! The prefill delayer behind HTTP: it can be read, changed, and all ranks agree.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::time::Duration;

use http::{Method, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use common::{Engine, INSTANT, and, chat, text};
use pointsman_refengine::delayer::{Cause, Thresholds};
use pointsman_refengine::{DP_RANK_HEADER, EngineConfig, EngineStats};
use serde_json::{Value, json};

fn delayed(ranks: usize, thresholds: Thresholds) -> EngineConfig {
    EngineConfig {
        ranks,
        time_scale: INSTANT,
        prefill_delayer: true,
        thresholds,
        ..EngineConfig::default()
    }
}

/// Chats of all lengths at once, on all ranks.
async fn traffic(engine: &Engine, chats: usize) {
    let chats = (0..chats).map(|i| {
        let words = 20 + i * 37 % 400;
        let body = chat(&text(&format!("c{i}x"), words), 5 + i % 60);
        async move { engine.chat(&body).await.status }
    });
    for status in futures(chats).await {
        assert_eq!(status, 200);
    }
}

/// All of them, at the same time.
async fn futures<F: Future>(all: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut all: Vec<_> = all.map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|cx| {
        for (future, output) in &mut all {
            if output.is_none()
                && let std::task::Poll::Ready(ready) = future.as_mut().poll(cx)
            {
                *output = Some(ready);
            }
        }
        if all.iter().all(|(_, output)| output.is_some()) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    all.into_iter().filter_map(|(_, output)| output).collect()
}

/// A stream on this rank that has begun to decode, and goes on for long.
async fn long_stream(engine: &Engine, rank: usize) -> Response<Incoming> {
    let body = and(chat("a long answer", 30_000), json!({ "stream": true }));
    let rank = rank.to_string();
    let headers = [(DP_RANK_HEADER, rank.as_str())];
    let path = "/v1/chat/completions";
    let mut answer = engine
        .head(Method::POST, path, &headers, body.to_string())
        .await
        .unwrap();
    assert!(answer.body_mut().frame().await.is_some());
    answer
}

fn idle(stats: &EngineStats) -> bool {
    let agree = stats.prefill_delayer.windows(2).all(|w| w[0] == w[1]);
    agree
        && stats
            .ranks
            .iter()
            .all(|r| r.requests_running + r.requests_waiting == 0)
}

async fn set(engine: &Engine, args: Value) -> (u16, Value) {
    let answer = engine
        .post("/set_internal_state", &json!({ "server_args": args }))
        .await;
    (answer.status.as_u16(), answer.json())
}

#[tokio::test]
async fn all_ranks_decide_alike_and_the_metrics_count_by_cause() {
    let interval = Thresholds {
        prefill_decode_interval: 500,
        ..Thresholds::default()
    };
    let engine = Engine::start(delayed(3, interval)).await;
    // Streams that run at full speed may be over before a busy machine has brought the prompts that are to
    // wait beside them: again, until each of these causes has decided.
    let mut rounds = 0;
    let stats = loop {
        let streams = [0, 1, 2].map(|rank| long_stream(&engine, rank));
        let streams = futures(streams.into_iter()).await;
        traffic(&engine, 60).await;
        // One prompt for three ranks: first the interval holds it, then the ranks without one.
        traffic(&engine, 1).await;
        drop(streams);
        let stats = engine.until(idle).await;
        let decisions = stats.prefill_delayer[0];
        let (first, error) = (decisions.of(Cause::First), decisions.of(Cause::Error));
        assert_eq!((first, error), (1, 0));
        let wanted = [Cause::Interval, Cause::Align, Cause::Ttft];
        if wanted.iter().all(|cause| decisions.of(*cause) > 0) {
            break stats;
        }
        rounds += 1;
        assert!(rounds < 50, "{decisions:?}");
    };
    let metrics = String::from_utf8(engine.get("/metrics").await.body.to_vec()).unwrap();
    for (rank, counts) in stats.prefill_delayer.iter().enumerate() {
        for (cause, n) in counts.iter() {
            let sample = format!(
                "pointsman_engine_prefill_delayer_decisions_total\
                 {{engine=\"{rank}\",decision=\"{}\",cause=\"{}\"}} {n}\n",
                cause.decision(),
                cause.as_str()
            );
            assert!(
                metrics.contains(&sample),
                "{sample} is missing in\n{metrics}"
            );
        }
    }
    let info = engine.get("/server_info").await.json();
    let states = info["internal_states"].as_array().unwrap();
    assert_eq!(states.len(), 3);
    assert_eq!(states[2]["prefill_delayer"]["fire_first"], 1);
    assert_eq!(info["server_args"]["prefill_decode_interval"], 500);
    engine.post("/reset", &json!({})).await;
    let zero = engine.stats().await.prefill_delayer;
    assert_eq!(
        zero,
        vec![pointsman_refengine::delayer::Counts::default(); 3]
    );
}

#[tokio::test]
async fn off_is_the_default_and_nothing_is_decided() {
    let engine = Engine::with(2, INSTANT).await;
    traffic(&engine, 20).await;
    let stats = engine.until(idle).await;
    assert!(
        stats
            .prefill_delayer
            .iter()
            .all(|c| c.iter().all(|(_, n)| n == 0))
    );
    let args = &engine.get("/get_server_info").await.json()["server_args"];
    assert_eq!(
        (&args["prefill_delayer"], &args["ttft_max_ticks"]),
        (&json!(false), &json!(200))
    );
}

#[tokio::test]
async fn it_is_turned_on_and_off_and_changed_while_requests_run_and_none_is_lost() {
    let engine = Engine::with(4, INSTANT).await;
    let switching = async {
        for round in 0..40 {
            let args =
                json!({ "prefill_delayer": round % 2 == 0, "prefill_decode_interval": round % 5 });
            let (status, body) = set(&engine, args).await;
            assert_eq!((status, &body["updated"]), (200, &json!(true)));
            assert_eq!(body["server_args"]["prefill_decode_interval"], round % 5);
        }
    };
    let all = async { tokio::join!(traffic(&engine, 120), switching) };
    let hung = "a rank waits for one that does not come";
    tokio::time::timeout(Duration::from_secs(60), all)
        .await
        .expect(hung);
    engine
        .until(|s| {
            s.ranks
                .iter()
                .all(|r| r.requests_running + r.requests_waiting == 0)
        })
        .await;

    set(&engine, json!({ "prefill_delayer": true })).await;
    engine.post("/reset", &json!({})).await;
    traffic(&engine, 12).await;
    let stats = engine.until(idle).await;
    assert!(stats.prefill_delayer[3].iter().any(|(_, n)| n > 0));
}

#[tokio::test]
async fn a_setting_that_cannot_be_is_refused_and_changes_nothing() {
    let engine = Engine::with(1, INSTANT).await;
    let before = engine.get("/server_info").await.json()["server_args"].clone();
    for (args, wanted) in [
        (json!({ "stall_ticks": 0 }), "at least 1"),
        (
            json!({ "prefill_delayer": true, "no_such": 1 }),
            "unknown field `no_such`",
        ),
        (json!([]), "map"),
    ] {
        let (status, body) = set(&engine, args).await;
        assert_eq!(status, 400);
        assert!(body.to_string().contains(wanted), "{wanted}: {body}");
    }
    assert_eq!(
        engine.get("/server_info").await.json()["server_args"],
        before
    );
}

#[tokio::test]
async fn the_interval_lets_a_running_stream_go_on_beside_waiting_prompts() {
    let interval = Thresholds {
        prefill_decode_interval: 20_000,
        ..Thresholds::default()
    };
    // Slow enough for the prompt to come while the stream runs.
    let config = EngineConfig {
        time_scale: 0.01,
        ..delayed(1, interval)
    };
    let engine = Engine::start(config).await;
    let stream = long_stream(&engine, 0).await;
    traffic(&engine, 1).await;
    let stats = engine.stats().await;
    assert!(
        stats.prefill_delayer[0].of(Cause::Interval) > 0,
        "{stats:?}"
    );
    let tokens = stats.ranks[0].generation_tokens_total;
    assert!(
        tokens > 20_000,
        "the prompt came after {tokens} tokens of the stream"
    );
    drop(stream);
    engine.until(idle).await;
}
