//! The reference engine as a process: ranks that die or hang in mid-collective, traces of several
//! engines, settings that cannot be.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

use anyhow::{Context, Result, ensure};
use pointsman_tests::{Metrics, Process, pointsman};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::process::Command;
use tokio::task::JoinSet;

const RANKS: usize = 4;
/// The rank that something happens to.
const VICTIM: usize = 2;
/// For what must happen; it only ends a test that has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// An engine of four ranks that decide together.
struct Engine {
    process: Process,
    client: Client,
}

impl Engine {
    async fn start(name: &str, more: &[&str]) -> Result<Engine> {
        let mut args = vec![
            "engine",
            "--listen",
            "127.0.0.1:0",
            "--name",
            name,
            "--ranks",
            "4",
        ];
        args.extend(["--prefill-delayer", "on", "--decode-interval", "2"]);
        args.extend(more);
        Ok(Engine {
            process: Process::start(&args).await?,
            client: Client::new(),
        })
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.process.urls[0])
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let answer = self.client.get(self.url(path)).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        let answer = self.client.post(self.url(path)).json(body).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }

    async fn chat(&self, rank: Option<usize>, text: &str, tokens: usize) -> Result<Response> {
        let body = json!({
            "model": "m", "max_tokens": tokens,
            "messages": [{ "role": "user", "content": text }],
        });
        let mut request = self
            .client
            .post(self.url("/v1/chat/completions"))
            .json(&body);
        if let Some(rank) = rank {
            request = request.header("x-data-parallel-rank", rank.to_string());
        }
        Ok(request.send().await?)
    }

    /// Asks until `/stats` is as wanted.
    async fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let asking = async {
            loop {
                let stats = self.get("/stats").await?;
                if wanted(&stats) {
                    return Ok(stats);
                }
            }
        };
        let asked = tokio::time::timeout(PATIENCE, asking).await;
        asked.with_context(|| format!("never: {what}"))?
    }
}

/// Chats on every rank, as fast as they are answered, until it is told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    /// Clients that were refused, and have left.
    left: Arc<AtomicUsize>,
    clients: JoinSet<Result<Vec<(usize, u16, String)>>>,
}

impl Load {
    fn start(engine: &Arc<Engine>) -> Load {
        let (stop, left) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let mut clients = JoinSet::new();
        for client in 0..3 * RANKS {
            let (engine, stop) = (engine.clone(), stop.clone());
            let left: Arc<AtomicUsize> = Arc::clone(&left);
            clients.spawn(async move {
                let (rank, mut answers) = (client % RANKS, Vec::new());
                for turn in 0.. {
                    if stop.load(Ordering::Acquire) {
                        break;
                    }
                    let text = format!("c{client}t{turn} ").repeat(10 + turn * 37 % 200);
                    let answer = engine.chat(Some(rank), &text, 3 + turn % 20).await?;
                    let status = answer.status().as_u16();
                    answers.push((rank, status, answer.text().await?));
                    // It has its answer, and there is no other.
                    if status == 503 {
                        left.fetch_add(1, Ordering::Release);
                        break;
                    }
                }
                Ok(answers)
            });
        }
        Load {
            stop,
            left,
            clients,
        }
    }

    /// Rank, status and body of every answer.
    async fn end(mut self) -> Result<Vec<(usize, u16, String)>> {
        self.stop.store(true, Ordering::Release);
        let mut all = Vec::new();
        while let Some(answers) = self.clients.join_next().await {
            all.extend(answers??);
        }
        Ok(all)
    }
}

fn decided(stats: &Value, rank: usize, cause: &str) -> u64 {
    stats["prefill_delayer"][rank][cause].as_u64().unwrap()
}

fn ticks(stats: &Value, rank: usize) -> u64 {
    let causes = stats["prefill_delayer"][rank].as_object().unwrap();
    causes.values().map(|n| n.as_u64().unwrap()).sum()
}

/// Nothing runs any more, and these ranks have decided the same.
fn agree(stats: &Value, ranks: &[usize]) -> bool {
    let idle = |rank: &usize| {
        let rank = &stats["ranks"][*rank];
        rank["requests_running"] == 0 && rank["requests_waiting"] == 0
    };
    let same =
        |pair: &[usize]| stats["prefill_delayer"][pair[0]] == stats["prefill_delayer"][pair[1]];
    ranks.iter().all(idle) && ranks.windows(2).all(same)
}

#[tokio::test]
async fn a_rank_killed_in_mid_collective_fails_one_tick_of_the_others_and_none_of_their_requests()
-> Result<()> {
    let engine = Arc::new(
        Engine::start(
            "kill",
            &["--time-scale", "0.01", "--collective-timeout-ms", "0"],
        )
        .await?,
    );
    let others: Vec<usize> = (0..RANKS).filter(|rank| *rank != VICTIM).collect();
    let load = Load::start(&engine);
    engine.until("ticks", |stats| ticks(stats, 0) > 50).await?;
    let kill = json!({ "mode": "kill-rank", "rank": VICTIM, "after": "collective" });
    engine.post("/fault", &kill).await?;
    let dead = |stats: &Value| stats["ranks"][VICTIM]["alive"] == false;
    let killed = engine.until("dead", dead).await?;
    // The others go on while the load does, and each client of the dead one is told.
    let more = |stats: &Value| {
        load.left.load(Ordering::Acquire) == 3
            && others
                .iter()
                .all(|r| ticks(stats, *r) > ticks(&killed, *r) + 50)
    };
    engine.until("more ticks", more).await?;
    let answers = load.end().await?;
    for (rank, status, body) in &answers {
        if *rank == VICTIM {
            ensure!([200, 503].contains(status), "{status}: {body}");
            let names = body.contains("rank 2 died") || body.contains("rank 2 is dead");
            ensure!(*status == 200 || names, "{body}");
        } else {
            ensure!(*status == 200, "rank {rank}: {status}: {body}");
        }
    }
    let broken = answers
        .iter()
        .filter(|(_, status, _)| *status == 503)
        .count();
    assert_eq!(broken, 3, "of each of its three clients the last request");

    let stats = engine
        .until("agreement", |stats| agree(stats, &others))
        .await?;
    for rank in &others {
        assert_eq!(decided(&stats, *rank, "fire_error"), 1, "{stats}");
    }
    let page = engine
        .client
        .get(engine.url("/metrics"))
        .send()
        .await?
        .text()
        .await?;
    let errors = ["engine=\"0\"", "decision=\"fire\"", "cause=\"error\""];
    let metrics = Metrics::parse(&page);
    assert_eq!(
        metrics.sum("pointsman_engine_prefill_delayer_decisions_total", &errors),
        1.0
    );
    assert_eq!(metrics.sum("pointsman_engine_alive", &[]), 3.0);

    // Later ticks are as ever; requests that name no rank go elsewhere.
    let refused = engine.chat(Some(VICTIM), "hello", 3).await?;
    assert_eq!(refused.status(), 503);
    for _ in 0..8 {
        let answer = engine.chat(None, "hello", 3).await?;
        assert_eq!(answer.status(), 200);
        ensure!(answer.headers()["x-engine-rank"] != "2");
    }
    let after = engine
        .until("agreement", |stats| agree(stats, &others))
        .await?;
    assert_eq!(decided(&after, 0, "fire_error"), 1);
    ensure!(ticks(&after, 0) > ticks(&stats, 0));
    Ok(())
}

#[tokio::test]
async fn a_rank_that_hangs_in_mid_collective_is_left_out_and_agrees_when_it_is_back() -> Result<()>
{
    // A tick of 5 ms takes half of one, the timeout 2 s, the hang 8 s.
    let more = ["--time-scale", "0.1", "--collective-timeout-ms", "20000"];
    let engine = Arc::new(Engine::start("hang", &more).await?);
    let all: Vec<usize> = (0..RANKS).collect();
    let load = Load::start(&engine);
    engine.until("ticks", |stats| ticks(stats, 0) > 50).await?;
    let hang = json!({ "mode": "hang-rank", "rank": VICTIM, "after": "collective", "duration_ms": 80_000 });
    engine.post("/fault", &hang).await?;
    let suspended = |stats: &Value| stats["ranks"][VICTIM]["suspended"] == true;
    let left_out = engine.until("suspended", suspended).await?;
    // The others go on without it.
    let more = |stats: &Value| ticks(stats, 0) > ticks(&left_out, 0) + 50;
    let without = engine.until("ticks without it", more).await?;
    ensure!(suspended(&without), "it was back too soon to tell");
    let info = engine.get("/server_info").await?;
    assert_eq!(info["internal_states"][VICTIM]["suspended"], true);
    assert_eq!(info["server_args"]["collective_timeout_ms"], 20_000);
    let back = engine.until("back", |stats| !suspended(stats)).await?;
    let more = |stats: &Value| ticks(stats, VICTIM) > ticks(&back, VICTIM) + 50;
    engine.until("ticks of it", more).await?;
    for (rank, status, body) in load.end().await? {
        ensure!(status == 200, "rank {rank}: {status}: {body}");
    }
    let idle = |stats: &Value| {
        (stats["ranks"].as_array().unwrap().iter())
            .all(|r| r["requests_running"] == 0 && r["requests_waiting"] == 0)
    };
    let stats = engine.until("idle", idle).await?;
    for rank in &all {
        ensure!(decided(&stats, *rank, "fire_error") >= 1, "{stats}");
        ensure!(stats["ranks"][*rank]["alive"] == true);
    }

    // From now on all four decide the same, and nothing fails.
    engine.post("/reset", &json!({})).await?;
    let load = Load::start(&engine);
    engine.until("ticks", |stats| ticks(stats, 0) > 50).await?;
    for (rank, status, body) in load.end().await? {
        ensure!(status == 200, "rank {rank}: {status}: {body}");
    }
    let after = engine
        .until("agreement", |stats| agree(stats, &all))
        .await?;
    assert_eq!(decided(&after, VICTIM, "fire_error"), 0, "{after}");
    Ok(())
}

#[tokio::test]
async fn traces_of_several_engines_line_up() -> Result<()> {
    let engines = [
        Engine::start("a", &["--time-scale", "0.01"]).await?,
        Engine::start("b", &["--time-scale", "0.01"]).await?,
    ];
    for engine in &engines {
        engine.post("/start_profile", &json!({})).await?;
    }
    let mut spans = Vec::new();
    for engine in &engines {
        assert_eq!(engine.chat(Some(1), "hello", 5).await?.status(), 200);
    }
    for engine in &engines {
        let profile = engine.post("/stop_profile", &json!({})).await?;
        ensure!(
            profile["traces"].as_array().map(Vec::len) == Some(RANKS),
            "{profile}"
        );
        let trace = engine.get("/profile/trace?rank=1").await?;
        let events = trace["traceEvents"].as_array().context("no events")?;
        let id = engine.process.id().context("gone")?;
        ensure!(events.iter().all(|event| event["pid"] == id), "{trace}");
        let passes: Vec<_> = events
            .iter()
            .filter(|event| event["cat"] == "pass")
            .collect();
        assert_eq!(passes.len(), 5, "{trace}");
        let number = |event: &Value, of: &str| event[of].as_u64().context("no number");
        let (first, last) = (passes[0], passes[4]);
        spans.push((
            number(first, "ts")?,
            number(last, "ts")? + number(last, "dur")?,
        ));
    }
    ensure!(
        spans[0].1 <= spans[1].0,
        "b was asked after a had answered: {spans:?}"
    );
    Ok(())
}

/// Options, and what is said of them.
const IMPOSSIBLE: &[(&str, &str)] = &[
    ("--ranks 0", "`ranks`: wanted 1 to 1024, found 0"),
    (
        "--cache-blocks 0",
        "`cache_blocks`: wanted at least 1, found 0",
    ),
    (
        "--max-num-seqs 0",
        "`max_num_seqs`: wanted at least 1, found 0",
    ),
    (
        "--max-num-batched-tokens 255",
        "`max_num_batched_tokens`: wanted at least max_num_seqs = 256, so that each running sequence gets its token, found 255",
    ),
    (
        "--max-num-seqs 9000",
        "`max_num_batched_tokens`: wanted at least max_num_seqs = 9000",
    ),
    (
        "--max-num-batched-tokens 4294967296",
        "`max_num_batched_tokens`: wanted at most 4294967295, found 4294967296",
    ),
    (
        "--collective-timeout-ms 4",
        "`collective_timeout_ms`: wanted 0 (no end) or at least the shortest forward pass, step_base_us = 5000, found 4",
    ),
    (
        "--collective-timeout-ms 86400001",
        "`collective_timeout_ms`: wanted 0 to 86400000, found 86400001",
    ),
    (
        "--collective-timeout-ms=-1",
        "invalid digit found in string",
    ),
    (
        "--prefill-delayer on --kv-high 0",
        "`kv_high_watermark`: wanted more than 0",
    ),
    (
        "--prefill-delayer on --kv-low 0.9",
        "`token_usage_low_watermark`: wanted less than kv_high_watermark = 0.9",
    ),
    (
        "--prefill-delayer on --max-queue-ms 0",
        "`max_queue_ms`: wanted more than 0",
    ),
];

#[tokio::test]
async fn settings_that_cannot_be_are_refused_at_the_start_with_the_reason_and_the_numbers()
-> Result<()> {
    for (options, wanted) in IMPOSSIBLE {
        let command = Command::new(pointsman())
            .args(["engine", "--listen", "127.0.0.1:0"])
            .args(options.split_whitespace())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(PATIENCE, command).await;
        let output = output.with_context(|| format!("{options}: it runs"))??;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success(), "{options}: {output:?}");
        ensure!(
            output.stdout.is_empty(),
            "{options}: it said that it listens"
        );
        ensure!(
            said.contains(wanted),
            "{options}: wanted {wanted}, said {said}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_engine_says_with_how_much_it_runs() -> Result<()> {
    let more = [
        "--max-num-seqs",
        "32",
        "--max-num-batched-tokens",
        "2048",
        "--cache-blocks",
        "500",
    ];
    let engine = Engine::start("e", &more).await?;
    let args = &engine.get("/server_info").await?["server_args"];
    let wanted = [
        ("max_num_seqs", 32),
        ("max_num_batched_tokens", 2048),
        ("cache_blocks", 500),
        ("block_tokens", 64),
        ("collective_timeout_ms", 10_000),
        ("token_budget", 2048),
    ];
    for (name, value) in wanted {
        assert_eq!(args[name], value, "{name}");
    }
    let change = json!({ "server_args": { "collective_timeout_ms": 0 } });
    let changed = engine.post("/set_internal_state", &change).await?;
    assert_eq!(changed["server_args"]["collective_timeout_ms"], 0);
    Ok(())
}

#[tokio::test]
async fn ranks_that_get_no_thread_are_an_error_and_not_a_crash() -> Result<()> {
    // Root is not bound by the limit, so it becomes somebody else, who need not find the binary.
    let line = "[ $(id -u) = 0 ] && somebody='setpriv --reuid=65534 --regid=65534 --clear-groups'
                exec 3<\"$0\"
                exec prlimit --nproc=100:100 $somebody \\
                    /proc/self/fd/3 engine --listen 127.0.0.1:0 --ranks 1024";
    let command = Command::new("sh")
        .args(["-c", line])
        .arg(pointsman())
        .kill_on_drop(true)
        .output();
    let output = tokio::time::timeout(PATIENCE, command)
        .await
        .context("it runs")??;
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    ensure!(said.contains("cannot start the thread of rank "), "{said}");
    ensure!(said.contains("have fewer ranks"), "{said}");
    Ok(())
}
