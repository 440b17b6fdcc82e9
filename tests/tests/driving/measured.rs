//! What the host measures itself, as policies and operators read it.

use crate::{AT_LAST, config};
use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use pointsman_tests::{Engine, Host, Metrics, guest, policy};
use serde_json::json;
use std::path::Path;
use std::time::{Duration, Instant};

/// The driver that knows nothing: what is read is the host's own.
const NULL: &str = "driver = { kind = \"null\" }";
const GRANT: &str = "[[grant]]\npolicy = \"driving-guest\"\nengines = [\"a\"]";
const TOKENS: u32 = 40;

/// A host whose policy reads in its tick what was measured, and writes it into the log.
async fn reading(engines: &[&Engine], log: &Path) -> Result<Host> {
    let text = config(engines, NULL, GRANT)
        .replace(
            &policy("decode-protect").display().to_string(),
            &guest("driving-guest").display().to_string(),
        )
        .replace("tick_ms = 10, max_queue_ms = 700", "tick = \"read\"");
    let log = std::fs::File::create(log)?;
    Host::start_changed(&text, |command| {
        command.stderr(log);
    })
    .await
}

/// What a client saw of one answer.
#[derive(Clone, Copy, Debug)]
struct Seen {
    ttft: Duration,
    /// from the first bytes to the last
    rest: Duration,
}

async fn stream(host: &Host, target: &str, prompt: &str) -> Result<Seen> {
    let body = json!({
        "model": "demo", "max_tokens": TOKENS, "stream": true,
        "messages": [{ "role": "user", "content": prompt }],
    });
    let began = Instant::now();
    let request = host.request_with("s", &body);
    let answer = request.header("x-pointsman-target", target).send().await?;
    ensure!(answer.status() == 200, "{answer:?}");
    let (mut chunks, mut first) = (answer.bytes_stream(), None);
    while let Some(chunk) = chunks.next().await {
        chunk?;
        first.get_or_insert_with(Instant::now);
    }
    let first = first.context("an empty stream")?;
    Ok(Seen {
        ttft: first - began,
        rest: first.elapsed(),
    })
}

/// A line of the policy's that says all of these.
async fn says(log: &Path, all: &[&str]) -> Result<String> {
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        loop {
            look.tick().await;
            let text = std::fs::read_to_string(log)?;
            let found = text
                .lines()
                .find(|line| all.iter().all(|t| line.contains(t)));
            if let Some(line) = found {
                return anyhow::Ok(line.to_owned());
            }
        }
    };
    let found = tokio::time::timeout(AT_LAST, looking).await;
    found.with_context(|| format!("nobody says {all:?}"))?
}

fn number(line: &str, name: &str) -> Result<f64> {
    let found = line
        .split(' ')
        .find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    Ok(found
        .with_context(|| format!("no {name} in {line}"))?
        .parse()?)
}

fn quantile(metrics: &Metrics, kind: &str, target: &str, quantile: &str) -> f64 {
    let labels = [
        format!("target=\"{target}\""),
        format!("quantile=\"{quantile}\""),
    ];
    let name = format!("pointsman_target_{kind}_seconds");
    metrics.sum(&name, &labels.each_ref().map(String::as_str))
}

#[tokio::test]
async fn a_policy_reads_the_ttft_and_itl_that_clients_saw_of_what_it_is_granted() -> Result<()> {
    // As modelled: a token takes 5 ms, and the long prompts of a/0 some hundred.
    let a = Engine::start_with("a", 2, "127.0.0.1:0", "1").await?;
    let b = Engine::start_with("b", 1, "127.0.0.1:0", "1").await?;
    let log = tempfile::NamedTempFile::new()?;
    let host = reading(&[&a, &b], log.path()).await?;
    let silent = "(nothing was measured at a/1 in the last 5 s)";
    says(log.path(), &[" a/1:", silent]).await?;
    says(log.path(), &[" b/0: denied denied"]).await?;
    ensure!(!host.metrics().await?.has("pointsman_target_ttft"));

    let long = |n| format!("{n} {}", "word ".repeat(12_000));
    let mut slow = Vec::new();
    for n in 0..2 {
        slow.push(stream(&host, "a/0", &long(n)).await?);
        stream(&host, "a/1", &format!("short {n}")).await?;
        stream(&host, "b/0", &format!("short {n}")).await?;
    }
    let metrics = host.metrics().await?;
    println!("{slow:?} {metrics:#?}");
    let of = |kind, target, q| quantile(&metrics, kind, target, q);
    for kind in ["ttft", "itl"] {
        for target in ["a/0", "a/1"] {
            let [p50, p90, p99] = ["0.5", "0.9", "0.99"].map(|q| of(kind, target, q));
            ensure!(0.0 < p50 && p50 <= p90 && p90 <= p99, "{kind} {target}");
        }
    }
    ensure!(
        of("ttft", "a/0", "0.5") > 2.0 * of("ttft", "a/1", "0.5"),
        "a long prompt takes longer"
    );
    // The client's time has the host's in it.
    let worst = slow.iter().map(|seen| seen.ttft).max().context("two")?;
    ensure!(
        of("ttft", "a/0", "0.99") <= 1.05 * worst.as_secs_f64(),
        "{worst:?}"
    );
    ensure!(
        of("ttft", "a/0", "0.99") >= worst.as_secs_f64() / 4.0,
        "{worst:?}"
    );
    ensure!(
        !metrics.has("{target=\"b/0\",quantile"),
        "of b nobody reads it"
    );

    let line = says(log.path(), &[" a/0:", "ttft_ms_p99=", "itl_ms_p99="]).await?;
    let ms = |name| number(&line, name);
    ensure!(ms("ttft_ms_p99")? <= 1050.0 * worst.as_secs_f64(), "{line}");
    ensure!(ms("itl_ms_p50")? <= ms("itl_ms_p99")?, "{line}");
    let rest = slow.iter().map(|seen| seen.rest.as_secs_f64());
    let mean = 1000.0 * rest.sum::<f64>() / slow.len() as f64 / f64::from(TOKENS);
    let (low, high) = (mean / 4.0, mean * 4.0);
    let itl = ms("itl_ms_mean")?;
    ensure!(low < itl && itl < high, "{itl} ms, clients saw {mean}");
    Ok(())
}

#[tokio::test]
async fn what_is_no_stream_or_an_error_is_not_measured() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let log = tempfile::NamedTempFile::new()?;
    let host = reading(&[&a], log.path()).await?;
    assert_eq!(host.chat("s", "hello").await?.status, 200);
    let bad = host.request_with("s", &json!({ "model": "demo", "stream": true }));
    assert_eq!(bad.send().await?.status(), 400);
    ensure!(!host.metrics().await?.has("pointsman_target_ttft"));
    stream(&host, "a/0", "hello").await?;
    ensure!(host.metrics().await?.has("pointsman_target_ttft"));
    Ok(())
}
