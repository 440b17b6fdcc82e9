//! What replacing the policy costs the requests: 64 clients at a fixed rate and 16 open streams through
//! the real binary; pairs of seconds, one with four replacements and one without, in changing order. The
//! code is warm. And what a start costs: see `start`.
//!
//! Prints JSON: the 99th percentile of a chat in both kinds of seconds, all of a kind taken together;
//! its ratio within each pair, of which the median does not count a moment in which the machine was
//! elsewhere; and the time from sending a command until the head of the first answer under the new
//! policy, with the engine's own time in it.

#![allow(
    missing_docs,
    clippy::indexing_slicing,
    dead_code,
    reason = "a bench that shares the test's operator"
)]

#[path = "../../tests/swap/operated.rs"]
mod operated;
mod start;

use anyhow::{Context, Result, ensure};
use operated::Operated;
use pointsman_tests::Engine;
use serde_json::json;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{interval, interval_at};

const CLIENTS: usize = 64;
const STREAMS: usize = 16;
/// Of one client's requests.
const EVERY: Duration = Duration::from_millis(40);
/// Of seconds.
const PAIRS: usize = 24;
const SWAPS: u32 = 4;

struct Shared {
    host: Operated,
    stop: AtomicBool,
    /// twice the pair; one more in the second with replacements
    second: AtomicUsize,
    /// of chats that began in each second, in ms
    times: Vec<Mutex<Vec<f64>>>,
}

fn main() -> Result<()> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(bench())
}

async fn bench() -> Result<()> {
    let a = Engine::start("a", 8).await?;
    let host = Operated::start("session-affinity", &[&a]).await?;
    for name in ["parent-affinity", "session-affinity"] {
        host.swap(name).await?.ok()?;
    }
    let shared = Arc::new(Shared {
        host,
        stop: AtomicBool::new(false),
        second: AtomicUsize::new(0),
        times: (0..2 * PAIRS).map(|_| Mutex::default()).collect(),
    });
    let (last, mut seen) = watch::channel((String::new(), Instant::now()));
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..CLIENTS {
        tasks.spawn(chats(shared.clone(), n, last.clone()));
    }
    for n in 0..STREAMS {
        tasks.spawn(streams(shared.clone(), n));
    }
    let mut first = Vec::new();
    let mut names = ["parent-affinity", "session-affinity"].into_iter().cycle();
    let mut second = interval(Duration::from_secs(1));
    second.tick().await;
    second.tick().await;
    for pair in 0..PAIRS {
        // So that a machine that becomes slower or faster favours neither.
        for kind in [pair % 2, 1 - pair % 2] {
            shared.second.store(2 * pair + kind, Relaxed);
            let mut turn = interval(Duration::from_secs(1) / SWAPS);
            for name in names.by_ref().take(kind * SWAPS as usize) {
                turn.tick().await;
                let began = Instant::now();
                shared.host.swap(name).await?.ok()?;
                let at = seen.wait_for(|(policy, _)| policy == name).await?.1;
                first.push(at.duration_since(began).as_secs_f64() * 1e3);
            }
            second.tick().await;
        }
    }
    shared.stop.store(true, Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let times: Vec<Vec<f64>> = (shared.times.iter())
        .map(|times| std::mem::take(&mut *lock(times)))
        .collect();
    let p99 = |times: &[f64]| percentile(&mut times.to_vec(), 0.99);
    let all = |kind: usize| {
        p99(&(times.iter().skip(kind).step_by(2).flatten().copied()).collect::<Vec<_>>())
    };
    let (without, with) = (all(0)?, all(1)?);
    let ratios = times
        .chunks(2)
        .map(|pair| Ok(p99(&pair[1])? / p99(&pair[0])?));
    let mut ratios = ratios.collect::<Result<Vec<f64>>>()?;
    drop(shared);
    println!(
        "{}",
        json!({
            "bench": "swap", "cores": std::thread::available_parallelism()?.get(),
            "clients": CLIENTS, "streams": STREAMS, "swaps": first.len(), "pairs": PAIRS,
            "failed_requests": 0,
            "chat_p99_ms": {
                "without": without, "with": with, "ratio": with / without,
                "ratio_in_pairs": {
                    "p25": percentile(&mut ratios, 0.25)?, "p50": percentile(&mut ratios, 0.5)?,
                    "p75": percentile(&mut ratios, 0.75)?,
                },
            },
            "command_to_first_decision_ms": {
                "p50": percentile(&mut first, 0.5)?, "max": percentile(&mut first, 1.0)?,
            },
            "start": start::bench().await?,
        })
    );
    Ok(())
}

async fn chats(
    shared: Arc<Shared>,
    n: usize,
    last: watch::Sender<(String, Instant)>,
) -> Result<()> {
    let mut turn = interval_at(later(n, CLIENTS), EVERY);
    let session = format!("chat-{n}");
    while !shared.stop.load(Relaxed) {
        turn.tick().await;
        let second = shared.second.load(Relaxed);
        let began = Instant::now();
        let response = shared.host.host.request(&session, "hello").send().await?;
        let head = Instant::now();
        ensure!(response.status() == 200, "status {}", response.status());
        let policy = response.headers().get("x-pointsman-policy");
        let policy = policy.context("no policy")?.to_str()?.to_owned();
        last.send_replace((policy, head));
        response.bytes().await?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        lock(shared.times.get(second).context("no such second")?).push(took);
    }
    Ok(())
}

async fn streams(shared: Arc<Shared>, n: usize) -> Result<()> {
    let body = json!({
        "model": "demo", "max_tokens": 200, "stream": true,
        "messages": [{ "role": "user", "content": "hello" }],
    });
    let session = format!("stream-{n}");
    let mut turn = interval_at(later(n, STREAMS), EVERY);
    while !shared.stop.load(Relaxed) {
        turn.tick().await;
        let response = shared
            .host
            .host
            .request_with(&session, &body)
            .send()
            .await?;
        let text = response.text().await?;
        ensure!(
            text.trim_end().ends_with("data: [DONE]"),
            "a stream broke: {text}"
        );
    }
    Ok(())
}

fn lock(times: &Mutex<Vec<f64>>) -> MutexGuard<'_, Vec<f64>> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Clients do not come all at once.
fn later(n: usize, of: usize) -> tokio::time::Instant {
    let part = u32::try_from(n).unwrap_or(0);
    tokio::time::Instant::now() + EVERY * part / u32::try_from(of).unwrap_or(1)
}

fn percentile(times: &mut [f64], share: f64) -> Result<f64> {
    times.sort_by(f64::total_cmp);
    let last = times.len().saturating_sub(1);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a place in a short list"
    )]
    let at = (last as f64 * share).round() as usize;
    times.get(at).copied().context("nothing was measured")
}
