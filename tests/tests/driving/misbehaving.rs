//! A policy that drives where it may not, and whose ticks go wrong.

use crate::{AT_LAST, REFERENCE, config, settings};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, guest, policy};
use std::time::Duration;

/// A host whose policy is the driving guest, with the engine granted to it.
async fn misbehaving(engine: &Engine, tick: &str) -> Result<Host> {
    let grant = "[[grant]]\npolicy = \"driving-guest\"\nengines = [\"*\"]";
    let text = config(&[engine], REFERENCE, grant)
        .replace(
            &policy("decode-protect").display().to_string(),
            &guest("driving-guest").display().to_string(),
        )
        .replace(
            "tick_ms = 10, max_queue_ms = 700",
            &format!("tick = {tick:?}"),
        );
    Host::start_config(&text).await
}

#[tokio::test]
async fn while_it_routes_a_policy_is_denied_also_what_it_is_granted() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let host = misbehaving(&a, "rest").await?;
    assert_eq!(host.chat("s", "hello").await?.reason, "denied");
    assert_eq!(settings(&a).await?["prefill_delayer"], false);
    Ok(())
}

#[tokio::test]
async fn a_tick_that_never_ends_delays_no_request() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let host = misbehaving(&a, "spin").await?;
    for n in 0..20 {
        assert_eq!(host.chat(&format!("s{n}"), "hello").await?.reason, "denied");
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_whose_ticks_fail_is_taken_out_as_one_whose_decisions_do() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let host = misbehaving(&a, "panic").await?;
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let out = async {
        loop {
            look.tick().await;
            let answer = host.chat("s", "hello").await?;
            ensure!(answer.status == 200, "{answer:?}");
            if answer.reason.starts_with("fallback:") {
                return Ok(answer.reason);
            }
        }
    };
    let reason = tokio::time::timeout(AT_LAST, out)
        .await
        .context("it stays")??;
    assert_eq!(reason, "fallback:paused");
    let labels = ["policy=\"driving-guest\"", "cause=\"trap\""];
    let metrics = host.metrics().await?;
    let failures = metrics.sum("pointsman_policy_failures_total", &labels);
    ensure!(failures >= 5.0, "{failures} of 5");
    Ok(())
}
