//! `pointsman engine delayer`: recorded ticks are decided as written down.

use anyhow::{Context, Result, ensure};
use pointsman_tests::{pointsman, root};
use std::path::Path;
use std::process::{Command, Output};

const CAUSES: &str = "--interval 1 --budget 100 --stall-ticks 1 --partial-max-ticks 1 \
                      --ttft-max-ticks 2 --kv-low 0.1 --max-queue-ms 5000";

fn play(file: &Path, options: &str) -> Result<Output> {
    Command::new(pointsman())
        .args(["engine", "delayer", "--play"])
        .arg(file)
        .args(options.split_whitespace())
        .output()
        .context("`make build` first")
}

/// What is printed before the line that is no tick, and what is said of that line.
fn refused(lines: &str) -> Result<(String, String)> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("bad.jsonl");
    std::fs::write(&file, lines)?;
    let output = play(&file, "")?;
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.code() == Some(1), "{output:?}");
    Ok((text(&output.stdout), text(&output.stderr)))
}

#[test]
fn recordings_are_decided_as_expected() -> Result<()> {
    for (name, options) in [("vector", "--interval 2 --budget 100"), ("causes", CAUSES)] {
        let file = root().join("tests/delayer").join(name);
        let output = play(&file.with_extension("jsonl"), options)?;
        ensure!(output.status.success(), "{output:?}");
        let expected = std::fs::read_to_string(file.with_extension("expected"))?;
        assert_eq!(String::from_utf8(output.stdout)?, expected, "{name}");
    }
    Ok(())
}

#[test]
fn thresholds_come_from_the_options_and_json_is_for_programs() -> Result<()> {
    let vector = root().join("tests/delayer/vector.jsonl");
    let output = play(&vector, "--budget 100 --target-fill 0.5 --json")?;
    let text = String::from_utf8(output.stdout)?;
    let (first, rest) = text.split_once('\n').context("no line")?;
    assert_eq!(first, r#"{"decision":"fire","cause":"first"}"#);
    ensure!(rest.lines().count() == 13, "{rest}");
    for line in rest.lines() {
        assert_eq!(line, r#"{"decision":"fire","cause":"fill"}"#);
    }
    let output = play(&vector, "--budget 100 --kv-high 0.2")?;
    ensure!(String::from_utf8(output.stdout)?.ends_with("fire kv\n"));
    for bad in [
        "--target-fill 1.5",
        "--kv-low x",
        "--budget 0",
        "--max-queue-ms -1",
    ] {
        ensure!(!play(&vector, bad)?.status.success(), "{bad}");
    }
    Ok(())
}

#[test]
fn a_line_that_is_no_tick_ends_it_with_its_number_and_what_was_wanted() -> Result<()> {
    let vector = std::fs::read_to_string(root().join("tests/delayer/vector.jsonl"))?;
    let good = vector.lines().next().context("no line")?;
    let rank = good.strip_prefix("{\"ranks\": [").context("ranks")?;
    let two = format!("{{\"ranks\": [{}, {rank}", rank.trim_end_matches("]}"));
    let cases = [
        ("nonsense".to_owned(), "wanted {\"ranks\":"),
        (
            good.replace("\"kv_usage\": 0.2, ", ""),
            "missing field `kv_usage`",
        ),
        (
            good.replace("kv_usage", "kv_used"),
            "unknown field `kv_used`",
        ),
        (
            good.replace("0.2", "1.5"),
            "`kv_usage` of rank 0: wanted 0 to 1, found 1.5",
        ),
        (good.replace("50", "-1"), "-1"),
        (
            "{\"ranks\": []}".to_owned(),
            "wanted 1 to 1024 of them, found 0",
        ),
        (two, "wanted 1, as in the first tick, found 2"),
        ("9".repeat(2 << 20), "line 3: wanted less than"),
    ];
    for (bad, wanted) in cases {
        let (decided, error) = refused(&format!("{good}\n\n{bad}\n{good}\n"))?;
        assert_eq!(decided, "fire first\n", "{wanted}");
        ensure!(
            error.contains("line 3") && error.contains(wanted),
            "{wanted}: {error}"
        );
    }
    let missing = play(Path::new("/no/such.jsonl"), "")?;
    assert_eq!(missing.status.code(), Some(1));
    ensure!(String::from_utf8_lossy(&missing.stderr).contains("/no/such.jsonl"));
    Ok(())
}
