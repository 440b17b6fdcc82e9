//! Every scenario, on every host: they agree because each agrees with the file.

use anyhow::{Context, Result, ensure};
use pointsman_tests::{pointsman, root};
use std::path::{Path, PathBuf};
use std::process::Command;

fn scenarios() -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("tests/scenarios")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "toml") {
                found.push(path);
            }
        }
    }
    found.sort();
    ensure!(
        found.len() > 40,
        "{} scenarios: some are missing",
        found.len()
    );
    Ok(found)
}

fn play(host: &str, scenarios: &[PathBuf]) -> Result<(bool, String)> {
    let output = Command::new(pointsman())
        .args(["policy", "test", "--host", host, "--scenario"])
        .args(scenarios)
        .output()
        .context("`make build` first")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((
        output.status.success(),
        text + &String::from_utf8_lossy(&output.stderr),
    ))
}

#[test]
fn every_scenario_passes_natively() -> Result<()> {
    let (passed, output) = play("native", &scenarios()?)?;
    ensure!(passed, "{output}");
    Ok(())
}

#[test]
fn every_scenario_passes_as_webassembly() -> Result<()> {
    let (passed, output) = play("wasm", &scenarios()?)?;
    ensure!(passed, "{output}");
    Ok(())
}

/// With real requests, and two workers that share nothing but the store.
#[test]
fn every_scenario_passes_in_envoy() -> Result<()> {
    let envoy = pointsman_tests::envoy()?.display().to_string();
    let arguments = [
        "policy",
        "test",
        "--host",
        "envoy",
        "--envoy",
        &envoy,
        "--scenario",
    ];
    let output = Command::new(pointsman())
        .args(arguments)
        .args(scenarios()?)
        .output()
        .context("`make build` first")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{said}{errors}");
    Ok(())
}

#[test]
fn the_first_difference_is_printed_and_the_exit_status_is_1() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("wrong.toml");
    std::fs::write(
        &file,
        "policy = \"session-affinity\"\n[fleet]\ntargets = [\"a/0\"]\n\
         [[step]]\nsend = { id = \"r1\", session = \"s\" }\n\
         [[step]]\nsend = { id = \"r2\", session = \"s\" }\nexpect = { reason = \"placed\" }\n",
    )?;
    for host in ["native", "wasm"] {
        let (passed, output) = play(host, std::slice::from_ref(&file))?;
        ensure!(!passed);
        for part in [
            "step      2",
            "expected  reason placed",
            "got       a/0 (owner)",
        ] {
            ensure!(output.contains(part), "no {part:?} in {output}");
        }
    }
    Ok(())
}

#[test]
fn an_unknown_key_is_refused_with_its_line() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("typo.toml");
    std::fs::write(
        &file,
        "[fleet]\ntargets = [\"a/0\"]\n[[step]]\nsendd = { id = \"r\" }\n",
    )?;
    let (passed, output) = play("native", &[Path::new(&file).to_owned()])?;
    ensure!(
        !passed && output.contains("line 4") && output.contains("sendd"),
        "{output}"
    );
    Ok(())
}
