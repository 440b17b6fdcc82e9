//! Policies that must not decide, or not for long: the guests of `tests/guests`, each swapped in under
//! load. No client notices.

use crate::operated::{Operated, Said, TOKEN, another};
use crate::traffic::{Seen, Traffic};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, guest, policy, root};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

/// For the guest `slow-start`.
pub const FOR_EVER: &str = "{\"rounds\":4294967295}";

/// What becomes of a guest.
#[derive(Clone, Copy, Debug)]
enum Then {
    /// it never decides; at which stage, and what the cause says
    Refused(&'static str, &'static str),
    /// it decides until it has failed too often; what is said of it then
    TakenOut(&'static str),
    /// it decides until an operator goes back
    Decides,
}
use Then::{Decides, Refused, TakenOut};

/// (guest, its configuration, what becomes of it)
const GUESTS: &[(&str, &str, Then)] = &[
    ("trap-on-route", "{}", TakenOut("the policy trapped")),
    ("trap-on-configure", "{}", Refused("configure", "trapped")),
    ("trap-on-nth", "{}", TakenOut("the policy trapped")),
    ("spin", "{}", TakenOut("within its time limit of 10 ms")),
    // on a machine that has much to do its time is over before its memory is
    ("balloon", "{}", TakenOut("limit of 1")),
    // its own stack ends in its memory before wasmtime's does, or the other way round
    ("deep-stack", "{}", TakenOut("the policy ")),
    (
        "bad-answer",
        "{\"answer\":\"no-target\"}",
        TakenOut("breaks the contract"),
    ),
    (
        "bad-answer",
        "{\"answer\":\"no-reason\"}",
        TakenOut("breaks the contract"),
    ),
    (
        "bad-answer",
        "{\"answer\":\"bad-status\"}",
        TakenOut("breaks the contract"),
    ),
    (
        "bad-answer",
        "{\"answer\":\"bind-parent\"}",
        TakenOut("breaks the contract"),
    ),
    (
        "wrong-world",
        "{}",
        Refused("contract", "does not export pointsman:policy/policy@0.1.0"),
    ),
    (
        "newer-minor",
        "{}",
        Refused(
            "contract",
            "needs pointsman:policy/fleet@0.2.0, this host speaks pointsman:policy@0.1.0",
        ),
    ),
    ("slow-start", "{}", Decides),
    (
        "slow-start",
        FOR_EVER,
        Refused("configure", "within its time limit"),
    ),
    ("log-flood", "{}", Decides),
    ("observer", "{}", Decides),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_policy_does_wrong_no_client_notices_and_the_old_one_decides_again() -> Result<()>
{
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start_untried("session-affinity", &[&a]).await?);
    for (name, config, then) in GUESTS {
        let traffic = Traffic::start(&host, 32, 4, false);
        traffic.more(32).await?;
        let came = swapped_in(&host, &traffic, name, config, *then).await;
        let came = came.with_context(|| format!("{name} {config}"))?;
        traffic.more(32).await?;
        // Any failed request and any broken stream is an error here.
        let seen = traffic
            .stop()
            .await
            .with_context(|| format!("under {name}"))?;
        println!(
            "{name} {config}: {came}; {} by the fallback",
            seen.fallbacks
        );
        fits(name, *then, &seen)?;
        let now = host.status().await?;
        assert_eq!(now["name"], "session-affinity", "{name}: {now:#}");
    }
    let metrics = host.host.metrics().await?;
    assert_eq!(metrics.outstanding(), 0.0);
    Ok(())
}

/// What the host says of it, in one line.
async fn swapped_in(
    host: &Operated,
    traffic: &Traffic,
    name: &str,
    config: &str,
    then: Then,
) -> Result<String> {
    let before = host.status().await?;
    let said = host.upload(std::fs::read(guest(name))?, config).await?;
    match then {
        Refused(stage, cause) => refused(host, &before, &said, 422, stage, cause).await,
        TakenOut(why) => {
            ensure!(said.ok()?["name"] == name, "it comes up, and then fails");
            let rollbacks = before["rollbacks"].as_u64().map(|before| before + 1);
            let now = (host.status_until(|now| now["rollbacks"].as_u64() == rollbacks)).await?;
            let last = now["last"].as_str().unwrap_or_default();
            let whole = last.starts_with("rolled back from sent.wasm to session-affinity: ");
            ensure!(
                whole && last.contains(why) && !last.contains('\n'),
                "{last}"
            );
            Ok(last.to_owned())
        }
        Decides => {
            ensure!(said.ok()?["name"] == name);
            traffic.more(64).await?;
            let now = host.post("policy/rollback", &json!({})).await?.ok()?;
            Ok(now["last"].as_str().unwrap_or_default().to_owned())
        }
    }
}

/// Checks a refusal: stage, cause, remedy; the old policy stays.
async fn refused(
    host: &Operated,
    before: &Value,
    said: &Said,
    status: u16,
    stage: &str,
    cause: &str,
) -> Result<String> {
    ensure!((said.status, said.stage()) == (status, stage), "{said:?}");
    ensure!(said.cause().contains(cause), "{said:?}");
    let remedy = said.body["error"]["remedy"].as_str();
    ensure!(remedy.is_some_and(|remedy| !remedy.is_empty()), "{said:?}");
    let now = host.status().await?;
    for key in ["generation", "digest", "rollbacks"] {
        ensure!(now[key] == before[key], "{key}: {now:#}");
    }
    Ok(format!("refused at stage {stage}: {}", said.cause()))
}

/// Who answered meanwhile.
fn fits(name: &str, then: Then, seen: &Seen) -> Result<()> {
    let by_it = seen.policies.get(name).copied().unwrap_or(0);
    match then {
        Refused(..) => ensure!(by_it == 0 && seen.fallbacks == 0, "{seen:?}"),
        TakenOut(_) => ensure!(seen.fallbacks > 0, "{seen:?}"),
        Decides => ensure!(by_it > 0 && seen.fallbacks == 0, "{seen:?}"),
    }
    if name == "trap-on-nth" {
        ensure!(
            by_it > seen.fallbacks,
            "it decides well in between: {seen:?}"
        );
    }
    Ok(())
}

#[test]
fn every_guest_has_its_row() -> Result<()> {
    let folders = std::fs::read_dir(root().join("tests/guests"))?;
    let folders: BTreeSet<String> = folders
        .map(|folder| Ok(folder?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    let rows: BTreeSet<String> = GUESTS.iter().map(|row| row.0.to_owned()).collect();
    assert_eq!(folders, rows);
    Ok(())
}

#[tokio::test]
async fn what_is_no_policy_or_not_the_one_that_is_wanted_is_refused() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = Operated::start("session-affinity", &[&a]).await?;
    let before = host.status().await?;
    let check = async |said: Said, status, stage, cause: &str| -> Result<()> {
        refused(&host, &before, &said, status, stage, cause).await?;
        assert_eq!(host.host.chat("s", "hello").await?.status, 200);
        Ok(())
    };
    let core_module = b"\0asm\x01\0\0\0".to_vec();
    let whole = std::fs::read(policy("parent-affinity"))?;
    let half = whole[..whole.len() / 2].to_vec();
    let unknown = "unknown field";
    for (wasm, config, stage, cause) in [
        (b"no policy".to_vec(), "{}", "parse", "not WebAssembly"),
        (core_module, "{}", "parse", "core WebAssembly module"),
        (half, "{}", "compile", "not a valid component"),
        (whole, "{\"no\":1}", "configure", unknown),
    ] {
        check(host.upload(wasm, config).await?, 422, stage, cause).await?;
    }
    let pinned = json!({ "policy": "parent-affinity", "sha256": "00" });
    let said = host.post("policy/swap", &pinned).await?;
    check(said, 422, "pin", "wanted sha256 00, found").await?;
    let said = host.swap("no-such").await?;
    check(said, 400, "request", "no built-in policy").await?;
    let said = host.post("policy/swap", &json!({ "polcy": "x" })).await?;
    check(said, 400, "request", unknown).await?;
    let large = json!({ "policy": "x".repeat(65 << 10) });
    let said = host.post("policy/swap", &large).await?;
    check(said, 413, "request", "cannot be taken").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_taken_out_may_not_come_back_at_once() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start_untried("session-affinity", &[&a]).await?);
    let traffic = Traffic::start(&host, 8, 0, false);
    let wasm = another(&guest("trap-on-route"), 1)?;
    host.upload(wasm.clone(), "{}").await?.ok()?;
    host.status_until(|status| status["rollbacks"] == 1).await?;
    let said = host.upload(wasm, "{}").await?;
    assert_eq!((said.status, said.stage()), (409, "swap"));
    traffic.stop().await?;
    Ok(())
}

/// What one policy may write in a second, and what the host says of itself meanwhile.
const LINES_A_SECOND: u64 = 64 + 16;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_log_lines_leaves_the_log_bounded() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("host.log");
    let file = std::fs::File::create(&log)?;
    let to_file = |command: &mut tokio::process::Command| {
        command.stderr(file);
    };
    let host = Operated::start_changed(folder, "session-affinity", &[&a], to_file).await?;
    let host = Arc::new(host);
    let traffic = Traffic::start(&host, 32, 0, false);
    let began = Instant::now();
    let said = host
        .upload(std::fs::read(guest("log-flood"))?, "{}")
        .await?;
    assert_eq!(said.ok()?["name"], "log-flood");
    traffic.more(2000).await?;
    let seen = traffic.stop().await?;
    let seconds = began.elapsed().as_secs() + 2;
    let text = std::fs::read_to_string(&log)?;
    let lines = text.lines().count() as u64;
    let floods = text.matches("flood ").count();
    println!(
        "{lines} lines in {seconds} s, {} decisions",
        seen.policies["log-flood"]
    );
    assert!(floods > 0 && !text.contains(TOKEN));
    assert!(lines <= seconds * LINES_A_SECOND, "{lines} in {seconds} s");
    assert!(text.contains("more than 64 lines in this second, the rest is dropped"));
    Ok(())
}
