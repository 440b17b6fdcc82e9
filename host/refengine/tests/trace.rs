//! Traces of profiling windows, in the Chrome trace event format.

#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

mod common;

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use common::{Engine, and, chat, text};
use pointsman_refengine::delayer::Thresholds;
use pointsman_refengine::{DP_RANK_HEADER, EngineConfig};
use serde_json::{Value, json};

fn config() -> EngineConfig {
    EngineConfig {
        name: "t".into(),
        ranks: 2,
        // A step of 5 ms takes 50 µs.
        time_scale: 0.01,
        prefill_delayer: true,
        thresholds: Thresholds {
            prefill_decode_interval: 3,
            ..Thresholds::default()
        },
        ..EngineConfig::default()
    }
}

/// Chats on both ranks at once, some of them with a prompt that was there before.
async fn traffic(engine: &Engine) {
    for round in 0..3 {
        let on = |rank: &'static str, words: usize| async move {
            let body = and(chat(&text(rank, words), 40), json!({ "stream": true }));
            let headers = [(DP_RANK_HEADER, rank)];
            let path = "/v1/chat/completions";
            let answer = engine.call(http::Method::POST, path, &headers, body.to_string());
            assert_eq!(answer.await.status, 200);
        };
        tokio::join!(on("0", 300), on("1", 40), on("0", 20 + round), on("1", 700));
    }
}

fn unix_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    u64::try_from(now.as_micros()).unwrap()
}

async fn start(engine: &Engine) -> u16 {
    engine
        .post("/start_profile", &json!({}))
        .await
        .status
        .as_u16()
}

async fn stop(engine: &Engine) -> Value {
    let answer = engine.post("/stop_profile", &json!({})).await;
    assert_eq!(answer.status, 200);
    answer.json()
}

async fn trace(engine: &Engine, rank: usize) -> Value {
    let answer = engine.get(&format!("/profile/trace?rank={rank}")).await;
    assert_eq!(
        (answer.status.as_u16(), answer.header("content-type")),
        (200, "application/json")
    );
    answer.json()
}

/// The keys of an object, in order.
fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<_> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

/// Every event has what its phase needs and nothing else; slices lie in the window, one after the
/// other. How many there are of each phase and name.
fn check(trace: &Value, rank: usize) -> BTreeMap<String, u64> {
    assert_eq!(keys(trace), ["displayTimeUnit", "otherData", "traceEvents"]);
    let about = &trace["otherData"];
    assert_eq!(
        (&about["engine"], &about["rank"]),
        (&json!("t"), &json!(rank))
    );
    assert_eq!(about["time_scale"], 0.01);
    assert!(
        about["clock"]
            .as_str()
            .unwrap()
            .starts_with("real time, not modelled")
    );
    let begin = about["start_unix_us"].as_u64().unwrap();
    let end = begin + about["duration_us"].as_u64().unwrap();
    let (mut counts, mut free, mut latest) = (BTreeMap::new(), begin, begin);
    for event in trace["traceEvents"].as_array().unwrap() {
        let (name, args) = (event["name"].as_str().unwrap(), &event["args"]);
        assert_eq!(event["pid"], std::process::id());
        assert_eq!(event["tid"], rank);
        let phase = event["ph"].as_str().unwrap();
        *counts.entry(format!("{phase} {name}")).or_default() += 1;
        if phase == "M" {
            assert_eq!(keys(event), ["args", "name", "ph", "pid", "tid"]);
            let wanted = match name {
                "process_name" => "engine t".to_owned(),
                "thread_name" => format!("rank {rank}"),
                other => panic!("{other}"),
            };
            assert_eq!(*args, json!({ "name": wanted }));
            continue;
        }
        let ts = event["ts"].as_u64().unwrap();
        assert!(
            latest <= ts && ts <= end,
            "out of order or of the window: {event}"
        );
        latest = ts;
        match phase {
            "X" => {
                assert_eq!(
                    keys(event),
                    ["args", "cat", "dur", "name", "ph", "pid", "tid", "ts"]
                );
                assert!(free <= ts, "overlaps the slice before: {event}");
                free = ts + event["dur"].as_u64().unwrap();
                assert!(free <= end, "ends after the window: {event}");
                slice(name, args);
            }
            "i" => {
                let wanted = ["args", "cat", "name", "ph", "pid", "s", "tid", "ts"];
                assert_eq!((keys(event), &event["s"]), (wanted.to_vec(), &json!("t")));
                assert_eq!((name, keys(args)), ("hold", vec!["cause"]));
            }
            "C" => {
                assert_eq!(
                    keys(event),
                    ["args", "cat", "name", "ph", "pid", "tid", "ts"]
                );
                assert_eq!(keys(args), ["running", "waiting"]);
                assert!(args["running"].is_u64() && args["waiting"].is_u64());
            }
            other => panic!("phase {other}"),
        }
    }
    counts
}

fn slice(name: &str, args: &Value) {
    if name == "wait for ranks" {
        assert_eq!(keys(args), ["cause", "decision"]);
        return;
    }
    let fields = [
        "cached_tokens",
        "decode_sequences",
        "kv_usage",
        "modelled_us",
        "prefill_tokens",
    ];
    assert_eq!(keys(args), fields);
    let number = |of: &str| args[of].as_f64().unwrap();
    let (prefills, decodes) = (
        number("prefill_tokens") > 0.0,
        number("decode_sequences") > 0.0,
    );
    let wanted = match name {
        "prefill" => (true, false),
        "decode" => (false, true),
        "mixed" => (true, true),
        other => panic!("{other}"),
    };
    assert_eq!((prefills, decodes), wanted);
    assert!((0.0..=1.0).contains(&number("kv_usage")));
    assert!(number("modelled_us") >= 5000.0, "a step has a base");
}

#[tokio::test]
async fn a_window_leaves_a_trace_of_each_rank_that_counts_what_stop_profile_says() {
    let engine = Engine::start(config()).await;
    traffic(&engine).await;
    let opened = unix_us();
    assert_eq!(start(&engine).await, 200);
    assert_eq!(start(&engine).await, 400, "one is open");
    traffic(&engine).await;
    let profile = stop(&engine).await;
    let closed = unix_us();

    let mut all = BTreeMap::new();
    for rank in 0..2 {
        let trace = trace(&engine, rank).await;
        let counts = check(&trace, rank);
        let (metadata, events): (Vec<_>, Vec<_>) =
            counts.iter().partition(|(name, _)| name.starts_with('M'));
        let sum = |of: &[(&String, &u64)]| of.iter().map(|(_, n)| **n).sum::<u64>();
        assert_eq!(sum(&metadata), 2);
        let said = json!({ "rank": rank, "events": sum(&events), "dropped": 0 });
        assert_eq!(profile["traces"][rank], said);
        let about = &trace["otherData"];
        assert_eq!(
            (&about["events"], &about["events_dropped"]),
            (&said["events"], &json!(0))
        );
        let begin = about["start_unix_us"].as_u64().unwrap();
        assert!(
            opened <= begin && begin <= closed,
            "{opened} {begin} {closed}"
        );

        // The window was opened and closed while nothing ran: every pass is in it.
        let slices = trace["traceEvents"].as_array().unwrap().iter();
        let passes: Vec<_> = slices.filter(|e| e["cat"] == "pass").collect();
        let total = |of: &str| {
            passes
                .iter()
                .map(|e| e["args"][of].as_u64().unwrap())
                .sum::<u64>()
        };
        let rank = &profile["ranks"][rank];
        assert_eq!(passes.len() as u64, rank["steps"]);
        assert_eq!(total("prefill_tokens"), rank["prefill_tokens_computed"]);
        assert!(total("cached_tokens") > 0, "the second round hits");
        assert!(total("decode_sequences") > 0);
        for (name, n) in counts {
            *all.entry(name).or_insert(0) += n;
        }
    }
    for name in [
        "X prefill",
        "X decode",
        "X wait for ranks",
        "i hold",
        "C requests of rank 1",
    ] {
        assert!(all.contains_key(name), "{name} is missing: {all:?}");
    }
}

#[tokio::test]
async fn there_is_a_trace_from_the_end_of_a_window_to_the_next_one_or_a_reset() {
    let engine = Engine::start(config()).await;
    let status = async |path: &str| engine.get(path).await.status.as_u16();
    let none = engine.get("/profile/trace?rank=0").await;
    assert_eq!(none.status, 404);
    assert!(
        none.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("POST /start_profile")
    );
    for bad in [
        "",
        "?rank=",
        "?rank=2",
        "?rank=-1",
        "?rank=x",
        "?other=0",
        "?rank=0&rank=1",
    ] {
        let answer = engine.get(&format!("/profile/trace{bad}")).await;
        assert_eq!(answer.status, 400, "{bad}");
        let text = answer.json().to_string();
        assert!(text.contains("rank=N with N from 0 to 1"), "{text}");
    }
    for reset in [false, true] {
        start(&engine).await;
        assert_eq!(
            status("/profile/trace?rank=0").await,
            404,
            "the last one is forgotten"
        );
        stop(&engine).await;
        assert_eq!(status("/profile/trace?rank=1").await, 200);
        if reset {
            engine.post("/reset", &json!({})).await;
            assert_eq!(status("/profile/trace?rank=1").await, 404);
        }
    }
    // A window without requests is a trace, too.
    start(&engine).await;
    assert_eq!(
        stop(&engine).await["traces"][1],
        json!({ "rank": 1, "events": 0, "dropped": 0 })
    );
    assert_eq!(check(&trace(&engine, 1).await, 1).len(), 2);
}
