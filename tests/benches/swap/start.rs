//! From the start of the process until the first answer of an engine comes through it: the policy is a
//! file, its code is in the cache.

use crate::operated::config;
use crate::percentile;
use anyhow::{Result, ensure};
use pointsman_tests::{Engine, Host, policy};
use serde_json::{Value, json};
use std::time::Instant;

const STARTS: usize = 30;
/// What DESIGN promises for the median, in ms.
const GOAL_MS: f64 = 100.0;

pub async fn bench() -> Result<Value> {
    let a = Engine::start("a", 4).await?;
    let folder = tempfile::tempdir()?;
    crate::operated::token_file(&folder, 0o600, crate::operated::TOKEN)?;
    let file = folder.path().join("policy.wasm");
    std::fs::copy(policy("session-affinity"), &file)?;
    let config = config(&folder, &file.to_string_lossy(), &[&a]);
    let cold = start(&config).await?;
    let (mut listening, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..STARTS {
        let times = start(&config).await?;
        listening.push(times.0);
        answered.push(times.1);
    }
    let median = percentile(&mut answered, 0.5)?;
    Ok(json!({
        "starts": STARTS, "goal_ms": GOAL_MS, "within_goal": median <= GOAL_MS,
        "listening_ms": { "p50": percentile(&mut listening, 0.5)? },
        "first_answer_ms": {
            "p50": median, "p90": percentile(&mut answered, 0.9)?,
            "max": percentile(&mut answered, 1.0)?,
        },
        "cold_cache_first_answer_ms": cold.1,
    }))
}

/// Until it listens, and until the first answer has ended, in ms.
async fn start(config: &str) -> Result<(f64, f64)> {
    let began = Instant::now();
    let host = Host::start_config(config).await?;
    let listening = began.elapsed().as_secs_f64() * 1e3;
    let answer = host.chat("s", "hello").await?;
    let answered = began.elapsed().as_secs_f64() * 1e3;
    ensure!(answer.status == 200, "{answer:?}");
    Ok((listening, answered))
}
