//! `pointsman engine simulate`: what a scheduler's settings, and a policy that drives it, make of a mixed
//! load on eight ranks.

use anyhow::{Context, Result, ensure};
use pointsman_tests::{pointsman, policy};
use serde_json::Value;
use std::process::{Command, Output};

fn simulate(options: &[&str]) -> Result<Output> {
    Command::new(pointsman())
        .args(["engine", "simulate"])
        .args(options)
        .output()
        .context("`make build` first")
}

fn runs(options: &[&str]) -> Result<Vec<Value>> {
    let output = simulate(&[options, &["--json"]].concat())?;
    ensure!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let runs = report.get("runs").and_then(Value::as_array);
    Ok(runs.context("runs")?.clone())
}

/// Sum of the decisions whose name begins so.
fn decisions(run: &Value, prefix: &str) -> u64 {
    let all = run["decisions"].as_object().into_iter().flatten();
    let those = all.filter(|(name, _)| name.starts_with(prefix));
    those.filter_map(|(_, n)| n.as_u64()).sum()
}

#[test]
fn intervals_trade_ttft_for_itl_on_eight_ranks_and_every_decision_has_its_cause() -> Result<()> {
    let runs = runs(&["--seconds", "120", "--interval", "0,10"])?;
    let names: Vec<_> = runs.iter().map(|run| &run["setting"]).collect();
    assert_eq!(
        names,
        ["off", "interval 0", "interval 10", "decode-protect"]
    );
    let [off, zero, ten, driven] = &runs[..] else {
        anyhow::bail!("{runs:?}")
    };
    for run in &runs {
        assert_eq!(run["requests"], off["requests"], "all of them end");
        let ticks = run["ticks"].as_u64().context("ticks")?;
        let decided = decisions(run, "");
        assert_eq!(decided, if run == off { 0 } else { ticks }, "{run}");
    }
    // Whatever is held is held for a reason that only the interval has.
    assert_eq!(decisions(zero, "hold_interval"), 0);
    ensure!(decisions(ten, "hold_interval") > 0);
    let itl = |run: &Value, part: &str| run["itl_ms"][part].as_f64().context("itl_ms");
    ensure!(itl(ten, "p99")? < itl(zero, "p99")?, "{ten} {zero}");
    ensure!(itl(zero, "p90")? < itl(off, "p90")?, "{zero} {off}");
    ensure!(itl(driven, "p99")? < itl(zero, "p99")?, "{driven} {zero}");
    let ttft = |run: &Value| run["ttft_ms"]["p50"].as_f64().context("ttft_ms");
    ensure!(
        ttft(off)? < ttft(ten)?,
        "what decode gets, prompts wait for"
    );
    Ok(())
}

#[test]
fn a_policy_gives_decode_more_ticks_until_its_limit_holds_and_prompts_theirs() -> Result<()> {
    let file = policy("decode-protect").display().to_string();
    // Beginning at 10, with a limit on one of them that cannot be held.
    let decode = format!(r#"{file}={{"itl_limit_ms": 0.1, "max_interval": 30}}"#);
    let prompts = format!(r#"{file}={{"ttft_limit_ms": 0.1}}"#);
    let options = ["--seconds", "120", "--interval", "0,30", "--policy"];
    let runs = runs(&[&options[..], &[&decode, "--policy", &prompts]].concat())?;
    let [off, _, thirty, decode, prompts] = &runs[..] else {
        anyhow::bail!("{runs:?}")
    };
    assert_eq!(decode["at_last"], "interval 30");
    assert_eq!(prompts["at_last"], "off");
    let held = |run| decisions(run, "hold_interval");
    ensure!(held(decode) > held(thirty) / 2, "{decode} {thirty}");
    ensure!(held(prompts) < held(decode) / 4, "{prompts}");
    // Its delayer off, most of the time it is as without one.
    let ttft = |run: &Value| run["ttft_ms"]["p50"].as_f64().context("ttft_ms");
    ensure!(ttft(prompts)? < 2.0 * ttft(off)?, "{prompts} {off}");
    Ok(())
}

#[test]
fn the_same_load_gives_the_same_table() -> Result<()> {
    let options = ["--seconds", "20", "--ranks", "4", "--seed", "7"];
    let (first, again) = (simulate(&options)?, simulate(&options)?);
    let table = String::from_utf8(first.stdout)?;
    assert_eq!(table, String::from_utf8(again.stdout)?);
    for row in [
        "TTFT p50, ms",
        "ITL p99, ms",
        "output tokens/s",
        "fire stall",
        "hold align",
    ] {
        ensure!(table.contains(row), "{row}: {table}");
    }
    Ok(())
}

#[test]
fn what_cannot_be_simulated_is_named() -> Result<()> {
    for (options, wanted) in [
        (
            ["--rate", "0"],
            "requests per second: wanted more than 0, found 0",
        ),
        (["--stall-ticks", "0"], "`stall_ticks`: wanted at least 1"),
        (["--target-fill", "0"], "`target_fill`: wanted 0.05 to 1"),
        (
            ["--max-queue-ms", "0"],
            "`max_queue_ms`: wanted more than 0",
        ),
        (["--ranks", "0"], "ranks: wanted 1 to 1024, found 0"),
        (["--long-prompt", "900000000"], "the cache of a rank"),
        (
            ["--policy", "least-tokens"],
            "wants no ticks: it drives no engine",
        ),
        (
            ["--policy", "nobody"],
            "wanted the path of a .wasm file or one of",
        ),
        (
            ["--policy", "decode-protect={\"itl_limit_ms\": -1}"],
            "itl_limit_ms: wanted more than 0 ms",
        ),
        (["--policy", "decode-protect={"], "stage configure"),
    ] {
        let output = simulate(&options)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(1) && said.contains(wanted),
            "{options:?}: {said}"
        );
    }
    Ok(())
}
