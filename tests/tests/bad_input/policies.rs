//! Policies: those that cannot be used are refused at a stage, and those that misbehave at run time
//! cost no request anything.

use crate::{PageRow, Report, config, good_engine, is_well, run};
use anyhow::{Context, Result};
use pointsman_tests::{Host, guest, policy};

/// (what, how its file differs, configuration, stage, text)
const REFUSED: &[(&str, File, &str, &str, &str)] = &[
    (
        "an empty file",
        File::Is(b""),
        "{}",
        "parse",
        "an empty file",
    ),
    (
        "a text",
        File::Is(b"hello there"),
        "{}",
        "parse",
        "this is not WebAssembly",
    ),
    (
        "machine code",
        File::Is(b"\x7FELF...."),
        "{}",
        "parse",
        "compiled code, which is never taken",
    ),
    (
        "a core module",
        File::Is(b"\0asm\x01\0\0\0"),
        "{}",
        "parse",
        "make it one with `pointsman policy build`",
    ),
    (
        "half a component",
        File::Half,
        "{}",
        "compile",
        "not a valid component",
    ),
    (
        "an empty component",
        File::Is(b"\0asm\x0d\0\x01\0"),
        "{}",
        "contract",
        "it does not export pointsman:policy/policy@0.1.0",
    ),
    (
        "another version",
        File::Guest("newer-minor"),
        "{}",
        "contract",
        "it needs pointsman:policy/fleet@0.2.0, this host speaks pointsman:policy@0.1.0",
    ),
    (
        "a newer patch",
        File::Renamed("policy/policy@0.1.0", "policy/policy@0.1.9"),
        "{}",
        "contract",
        "pointsman:policy/policy@0.1.9",
    ),
    (
        "another world",
        File::Guest("wrong-world"),
        "{}",
        "contract",
        "it exports lift",
    ),
    (
        "an import of another package",
        File::Renamed("pointsman:policy/", "passenger:policy/"),
        "{}",
        "contract",
        "which no policy gets",
    ),
    (
        "an unknown interface",
        File::Renamed("policy/fleet@", "policy/fleas@"),
        "{}",
        "contract",
        "fleas",
    ),
    (
        "a configuration that is no JSON",
        File::Guest("slow-start"),
        "{",
        "configure",
        "EOF",
    ),
    (
        "an unknown option",
        File::Guest("slow-start"),
        r#"{"round": 1}"#,
        "configure",
        "unknown field `round`",
    ),
    (
        "an impossible value",
        File::Guest("slow-start"),
        r#"{"rounds": -1}"#,
        "configure",
        "`rounds`: invalid value: integer `-1`",
    ),
    (
        "`configure` traps",
        File::Guest("trap-on-configure"),
        "{}",
        "configure",
        "trapped",
    ),
    (
        "`configure` takes for ever",
        File::Guest("slow-start"),
        r#"{"rounds": 4294967295}"#,
        "configure",
        "time limit",
    ),
];

enum File {
    Guest(&'static str),
    Is(&'static [u8]),
    /// half of a good one
    Half,
    /// a good one; all over the file, to a name of the same length
    Renamed(&'static str, &'static str),
}

#[tokio::test]
async fn what_cannot_be_used_as_a_policy_is_refused_with_its_stage() -> Result<()> {
    let good = std::fs::read(policy("least-tokens"))?;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("bad.wasm");
    let path = path.to_str().unwrap();
    let mut report = Report::default();
    for (what, file, config, stage, text) in REFUSED {
        let bytes = match file {
            File::Guest(name) => std::fs::read(guest(name))?,
            File::Half => good[..good.len() / 2].to_vec(),
            File::Is(bytes) => bytes.to_vec(),
            File::Renamed(from, to) => renamed(&good, from.as_bytes(), to.as_bytes()),
        };
        std::fs::write(path, bytes)?;
        let (status, said) = run(&["policy", "check", path, "--config", config]).await?;
        let stage = format!("stage {stage}: ");
        let fits = status == 1 && said.contains(&stage) && said.contains(text);
        report.row(
            what,
            fits.then_some(())
                .with_context(|| format!("{status}, no {stage}…{text} in {said}")),
        );
    }
    report.close();
    Ok(())
}

fn renamed(wasm: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut wasm = wasm.to_vec();
    let mut at = 0;
    while at + from.len() <= wasm.len() {
        if &wasm[at..at + from.len()] == from {
            wasm[at..at + from.len()].copy_from_slice(to);
        }
        at += 1;
    }
    wasm
}

/// (guest, its configuration, the cause that is counted; none: no failure)
const MISBEHAVES: &[(&str, &str, Option<&str>)] = &[
    ("trap-on-route", "", Some("trap")),
    ("spin", "", Some("timeout")),
    ("balloon", "", Some("memory")),
    // its own stack ends in its memory before wasmtime's does, or the other way round
    ("deep-stack", "", Some("")),
    ("bad-answer", "answer = \"no-target\"", Some("bad-answer")),
    ("bad-answer", "answer = \"no-reason\"", Some("bad-answer")),
    ("bad-answer", "answer = \"bad-status\"", Some("bad-answer")),
    ("bad-answer", "answer = \"bind-parent\"", Some("bad-answer")),
    ("log-flood", "", None),
];

const REQUESTS: usize = 4;

#[tokio::test]
async fn a_policy_that_misbehaves_costs_no_request_and_its_cause_is_counted() -> Result<()> {
    let engine = good_engine().await?;
    for (does, options, cause) in MISBEHAVES {
        let policy = format!(
            "[policy]\nuse = {:?}\nconfig = {{ {options} }}\nfallback = \"least-load\"\n\
             memory_limit_mb = 8\ntime_limit_ms = 250",
            guest(does)
        );
        let host = Host::start_config(&config(&engine.url, 4, &policy)).await?;
        for n in 0..REQUESTS {
            let answer = host.request(&format!("s{n}"), "hello").send().await?;
            let reason = answer.headers()["x-pointsman-reason"].to_str()?.to_owned();
            assert_eq!(answer.status(), 200, "{does}");
            assert_eq!(
                cause.is_some(),
                reason.starts_with("fallback:"),
                "{does}: {reason}"
            );
            assert_eq!(answer.text().await?, "good");
        }
        let metrics = host.metrics().await?;
        let label = cause
            .map(|cause| format!("cause=\"{cause}"))
            .unwrap_or_default();
        let counted = metrics.sum("pointsman_policy_failures_total", &[&label]);
        let wanted = if cause.is_some() {
            REQUESTS as f64
        } else {
            0.0
        };
        assert_eq!(counted, wanted, "{does}: {metrics:#?}");
        is_well(&host).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_policy_that_misbehaves_without_a_fallback_answers_503_and_the_host_lives() -> Result<()>
{
    let engine = good_engine().await?;
    let policy = format!(
        "[policy]\nuse = {:?}\nfallback = \"reject\"",
        guest("trap-on-route")
    );
    let host = Host::start_config(&config(&engine.url, 4, &policy)).await?;
    let answer = host.chat("s", "hello").await?;
    assert_eq!(
        (answer.status, answer.body["error"]["code"].as_str()),
        (503, Some("not_routed"))
    );
    assert!(engine.take().is_empty());
    let metrics = host.metrics().await?;
    assert_eq!(metrics.outstanding(), 0.0);
    assert_eq!(metrics.sum("pointsman_bindings", &[]), 0.0);
    Ok(())
}

/// For the page.
pub(crate) fn refused_rows() -> Vec<PageRow> {
    (REFUSED.iter())
        .map(|(what, _, _, stage, text)| {
            [
                (*what).to_owned(),
                (*stage).to_owned(),
                format!("… {text} …"),
                String::new(),
            ]
        })
        .collect()
}

/// For the page.
pub(crate) fn misbehaving_rows() -> Vec<PageRow> {
    (MISBEHAVES.iter())
        .map(|(does, options, cause)| {
            let (by, cause) = match cause {
                None => ("the policy", "nothing"),
                Some("") => ("the fallback", "stack, or trap"),
                Some(cause) => ("the fallback", *cause),
            };
            let answer = format!("200, by {by}");
            let what = match *options {
                "" => format!("`{does}`"),
                options => format!("`{does}`, `{options}`"),
            };
            [what, answer, cause.to_owned(), String::new()]
        })
        .collect()
}
