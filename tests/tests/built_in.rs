//! The policies that the binary carries.

use anyhow::{Context, Result, ensure};
use pointsman_tests::{pointsman, policy};
use serde_json::Value;
use std::process::Command;

const NAMES: [&str; 5] = [
    "least-tokens",
    "session-affinity",
    "parent-affinity",
    "conversation-round-robin",
    "decode-protect",
];

fn run(args: &[&str]) -> Result<String> {
    let output = Command::new(pointsman()).args(args).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{args:?}: {said}");
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn policy_list_names_them_without_any_host() -> Result<()> {
    let text = run(&["policy", "list"])?;
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let names: Vec<String> = text.lines().filter_map(first).collect();
    assert_eq!(names, NAMES);
    let json: Value = serde_json::from_str(&run(&["policy", "list", "--json"])?)?;
    let listed = json.get("policies").and_then(Value::as_array);
    let listed = listed.context("policies")?;
    for (policy, name) in listed.iter().zip(NAMES) {
        assert_eq!(policy.get("name"), Some(&name.into()));
    }
    assert_eq!(listed.len(), NAMES.len());
    Ok(())
}

#[test]
fn each_is_the_component_that_was_built() -> Result<()> {
    for name in NAMES {
        let built_in = run(&["policy", "check", name, "--json"])?;
        let file = policy(name);
        let built = run(&["policy", "check", &file.display().to_string(), "--json"])?;
        let digest = |text: &str| -> Result<Value> {
            let said: Value = serde_json::from_str(text)?;
            said.get("sha256").cloned().context("sha256")
        };
        assert_eq!(digest(&built_in)?, digest(&built)?, "{name}");
    }
    Ok(())
}

#[test]
fn an_address_without_a_token_is_half_a_host() -> Result<()> {
    let args = ["policy", "list", "--admin", "http://127.0.0.1:9"];
    let output = Command::new(pointsman()).args(args).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(said.contains("--token-file <FILE>"), "{said}");
    assert_eq!(output.status.code(), Some(2));
    Ok(())
}
