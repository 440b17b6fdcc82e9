//! The main job: what `make demo` shows must be true.

use anyhow::{Context, Result, ensure};
use pointsman_tests::pointsman;
use serde_json::Value;
use std::process::Command;

#[test]
fn sticky_policies_find_more_in_the_caches_and_siblings_share_more_still() -> Result<()> {
    let output = Command::new(pointsman())
        .args(["demo", "--json"])
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}");
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let runs = report["runs"].as_array().context("runs")?;
    let figure = |policy: &str, name: &str| {
        (runs.iter())
            .find(|run| run["policy"] == policy)
            .and_then(|run| run[name].as_f64())
            .with_context(|| format!("{name} of {policy}"))
    };
    let names: Vec<&str> = runs
        .iter()
        .filter_map(|run| run["policy"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            "native:round-robin",
            "least-tokens",
            "session-affinity",
            "parent-affinity",
            "conversation-round-robin"
        ]
    );
    for name in names {
        assert_eq!(figure(name, "errors")?, 0.0, "{name}");
        ensure!(figure(name, "requests")? > 200.0, "{name}");
    }
    let (plain, sticky) = (
        figure("native:round-robin", "prefix_hit_ratio")?,
        figure("session-affinity", "prefix_hit_ratio")?,
    );
    ensure!(sticky >= 1.5 * plain, "{sticky} is not 1.5 times {plain}");
    let (alone, together) = (
        figure("session-affinity", "prefill_tokens_computed")?,
        figure("parent-affinity", "prefill_tokens_computed")?,
    );
    ensure!(together < alone, "{together} is not below {alone}");
    Ok(())
}
