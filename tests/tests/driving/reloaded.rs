//! Drivers, grants and what is measured come with a reload, and go with it.

use crate::operated::{Operated, TOKEN, read, token_file};
use crate::{AT_LAST, GRANT_A, REFERENCE, config, settings, turn_off, until_protected};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, guest, policy};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const ALL: &str = "[[grant]]\npolicy = \"decode-protect\"\nengines = [\"*\"]";
const NULL: &str = "driver = { kind = \"null\" }";

/// A host, and the operator who edits its file.
struct Edited {
    operated: Operated,
}

/// With an admin API.
fn operated(folder: &TempDir, text: &str) -> String {
    let token = folder.path().join("admin.token");
    text.replace("[policy]", &format!("token_file = {token:?}\n[policy]"))
}

/// With the driving guest in the place of decode-protect.
fn driving(text: &str, tick: &str) -> String {
    text.replace(
        &policy("decode-protect").display().to_string(),
        &guest("driving-guest").display().to_string(),
    )
    .replace(
        "tick_ms = 10, max_queue_ms = 700",
        &format!("tick = {tick:?}"),
    )
    .replace("policy = \"decode-protect\"", "policy = \"driving-guest\"")
}

impl Edited {
    async fn start(text: &str) -> Result<Edited> {
        Edited::start_logging(text, None).await
    }

    async fn start_logging(text: &str, log: Option<&Path>) -> Result<Edited> {
        let folder = tempfile::tempdir()?;
        token_file(&folder, 0o600, TOKEN)?;
        let log = log.map(std::fs::File::create).transpose()?;
        let change = |command: &mut tokio::process::Command| {
            if let Some(log) = log {
                command.stderr(log);
            }
        };
        let host = Host::start_changed(&operated(&folder, text), change).await?;
        Ok(Edited {
            operated: Operated::of(host, folder),
        })
    }

    fn host(&self) -> &Host {
        &self.operated.host
    }

    /// What the reload says.
    async fn becomes(&self, text: &str) -> Result<Value> {
        self.write(text)?;
        let said = self.reload().await?.ok()?;
        assert_eq!(said["needs_restart"], json!([]), "{said}");
        Ok(said)
    }

    fn write(&self, text: &str) -> Result<()> {
        self.host().rewrite(&operated(&self.operated.folder, text))
    }

    async fn reload(&self) -> Result<crate::operated::Said> {
        read(self.operated.request(Method::POST, "config/reload")).await
    }
}

async fn until<T>(what: &str, look: impl AsyncFn() -> Result<Option<T>>) -> Result<T> {
    let mut each = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        loop {
            each.tick().await;
            if let Some(found) = look().await? {
                return Ok(found);
            }
        }
    };
    let found = tokio::time::timeout(AT_LAST, looking).await;
    found.with_context(|| format!("never: {what}"))?
}

#[tokio::test]
async fn an_engine_that_a_reload_adds_is_driven_and_one_that_it_removes_is_not() -> Result<()> {
    let (a, b, c) = (
        Engine::start("a", 1).await?,
        Engine::start("b", 2).await?,
        Engine::start("c", 2).await?,
    );
    let edited = Edited::start(&config(&[&a, &b], REFERENCE, ALL)).await?;
    until_protected(&a).await?;
    until_protected(&b).await?;
    let said = edited.becomes(&config(&[&b, &c], REFERENCE, ALL)).await?;
    let drivers = json!({ "opened": ["c"], "ended": ["a"], "kept": ["b"] });
    assert_eq!(said["drivers"], drivers);
    until_protected(&c).await?;
    // Whole ticks pass from here on.
    turn_off(&a).await?;
    for _ in 0..2 {
        turn_off(&b).await?;
        until_protected(&b).await?;
        turn_off(&c).await?;
        until_protected(&c).await?;
    }
    ensure!(settings(&a).await?["prefill_delayer"] == false, "a is gone");
    // Another deadline is another driver, for the same engine.
    let later = REFERENCE.replace("\" }", "\", deadline = \"900ms\" }");
    let said = edited.becomes(&config(&[&b, &c], &later, ALL)).await?;
    assert_eq!(said["drivers"]["opened"], json!(["b", "c"]));
    assert_eq!(said["endpoints"]["kept"], json!(["b", "c"]));
    turn_off(&b).await?;
    until_protected(&b).await
}

#[tokio::test]
async fn grants_come_and_go_with_a_reload() -> Result<()> {
    let (a, b) = (Engine::start("a", 1).await?, Engine::start("b", 1).await?);
    let edited = Edited::start(&config(&[&b, &a], REFERENCE, "")).await?;
    let text = |grant: &str| config(&[&b, &a], REFERENCE, grant);
    ensure!(settings(&a).await?["prefill_delayer"] == false);
    edited.becomes(&text(GRANT_A)).await?;
    until_protected(&a).await?;
    ensure!(settings(&b).await?["prefill_delayer"] == false);
    edited
        .becomes(&text(&GRANT_A.replace("\"a\"", "\"b\"")))
        .await?;
    until_protected(&b).await?;
    turn_off(&a).await?;
    turn_off(&b).await?;
    until_protected(&b).await?;
    ensure!(settings(&a).await?["prefill_delayer"] == false, "no more");
    Ok(())
}

#[tokio::test]
async fn a_tick_finds_the_engines_that_are_left_when_the_first_are_gone() -> Result<()> {
    let engines = ["a", "b", "c", "d"];
    let [a, b, c, d] = engines.map(|name| Engine::start(name, 1));
    let (a, b, c, d) = (a.await?, b.await?, c.await?, d.await?);
    let log = tempfile::NamedTempFile::new()?;
    let text = |engines: &[&Engine]| driving(&config(engines, NULL, ALL), "read");
    let edited = Edited::start_logging(&text(&[&a, &b]), Some(log.path())).await?;
    // The policy's lines since the first that names this target.
    let since = async |target: &str, other: &str| {
        until(&format!("{target} and {other}"), async || {
            let text = std::fs::read_to_string(log.path())?;
            let lines: Vec<String> = (text.lines())
                .skip_while(|line| !line.contains(&format!(" {target}: ")))
                .map(str::to_owned)
                .collect();
            let other = format!(" {other}: ");
            Ok(lines
                .iter()
                .any(|line| line.contains(&other))
                .then_some(lines))
        })
        .await
    };
    since("a/0", "b/0").await?;
    edited.becomes(&text(&[&b, &c])).await?;
    since("c/0", "b/0").await?;
    // By now the host has forgotten what was target 0.
    edited.becomes(&text(&[&d, &c])).await?;
    let lines = since("d/0", "c/0").await?;
    let gone = |line: &&String| line.contains(" a/0: ") || line.contains(" b/0: ");
    assert_eq!(lines.iter().find(gone), None);
    Ok(())
}

#[tokio::test]
async fn what_is_measured_follows_drivers_and_grants() -> Result<()> {
    let (a, b) = (Engine::start("a", 1).await?, Engine::start("b", 1).await?);
    let text = |grant: &str| driving(&config(&[&a, &b], NULL, grant), "rest");
    let edited = Edited::start(&text(GRANT_A)).await?;
    let measured = async || {
        let body = json!({ "model": "demo", "max_tokens": 4, "stream": true,
            "messages": [{ "role": "user", "content": "hello" }] });
        for target in ["a/0", "b/0"] {
            let request = edited.host().request_with("s", &body);
            let answer = request.header("x-pointsman-target", target).send().await?;
            answer.error_for_status()?.bytes().await?;
        }
        let metrics = edited.host().metrics().await?;
        let has = |target| metrics.has(&format!("_ttft_seconds{{target=\"{target}\""));
        anyhow::Ok((has("a/0"), has("b/0")))
    };
    assert_eq!(measured().await?, (true, false));
    edited.becomes(&text(ALL)).await?;
    assert_eq!(measured().await?, (true, true));
    edited
        .becomes(&text(&GRANT_A.replace("\"a\"", "\"b\"")))
        .await?;
    assert_eq!(measured().await?, (false, true));
    edited.becomes(&text("")).await?;
    assert_eq!(measured().await?, (false, false));
    Ok(())
}

#[tokio::test]
async fn a_library_that_cannot_be_loaded_refuses_the_whole_reload() -> Result<()> {
    let (a, b) = (Engine::start("a", 1).await?, Engine::start("b", 1).await?);
    let good = config(&[&a], REFERENCE, ALL);
    let edited = Edited::start(&good).await?;
    until_protected(&a).await?;
    let before = edited.operated.get("targets").await?;
    let library = "driver = { kind = \"library\", library = \"/no/such.so\" }";
    let other = config(&[&a, &b], library, "").replace("max_queue_ms = 700", "max_queue_ms = 800");
    edited.write(&other)?;
    let said = edited.reload().await?;
    assert_eq!(
        (said.status, said.stage()),
        (422, "configuration"),
        "{said:?}"
    );
    ensure!(said.cause().contains("cannot load /no/such.so"), "{said:?}");
    assert_eq!(edited.operated.get("targets").await?, before);
    assert_eq!(edited.operated.status().await?["generation"], 1);
    turn_off(&a).await?;
    until_protected(&a).await
}

#[tokio::test]
async fn a_driver_that_is_stuck_stalls_no_reload() -> Result<()> {
    let (stuck, a) = (
        Engine::start("stuck", 1).await?,
        Engine::start("a", 1).await?,
    );
    let driver = "driver = { kind = \"reference\", deadline = \"20ms\" }";
    let edited = Edited::start(&config(&[&a, &stuck], driver, ALL)).await?;
    until_protected(&stuck).await?;
    stuck.process.signal("STOP").await?;
    turn_off(&a).await?;
    until_protected(&a).await?;
    let said = edited.becomes(&config(&[&a], driver, ALL)).await?;
    assert_eq!(said["drivers"]["ended"], json!(["stuck"]));
    let said = edited.becomes(&config(&[&a, &stuck], driver, ALL)).await?;
    assert_eq!(said["drivers"]["opened"], json!(["stuck"]));
    turn_off(&a).await?;
    until_protected(&a).await?;
    stuck.process.signal("CONT").await?;
    // Its new driver answers.
    until("a window on it", async || {
        let asked = edited.operated.post("profile/start", &json!({})).await?;
        if asked.status == 409 {
            // By now the other one has one open.
            return Ok(None);
        }
        let engines = asked.ok()?["engines"].clone();
        let said = (engines.as_array().into_iter().flatten())
            .find(|engine| engine["engine"] == "stuck")
            .context("it has no driver")?;
        Ok((said["open"] == true).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_profiling_window_ends_with_the_policy_that_opened_it_and_an_operators_stays()
-> Result<()> {
    let (a, b) = (Engine::start("a", 1).await?, Engine::start("b", 1).await?);
    let text = driving(&config(&[&a, &b], REFERENCE, GRANT_A), "profile");
    let edited = Edited::start(&text).await?;
    let operated = &edited.operated;
    let open = async || {
        let now = operated.get("profile").await?;
        anyhow::Ok([&now["engines"][0]["open"], &now["engines"][1]["open"]].map(|o| o == true))
    };
    until("its window", async || {
        Ok((open().await? == [true, false]).then_some(()))
    })
    .await?;
    // On a one is open already; on b it is the operator's.
    operated.post("profile/start", &json!({})).await?.ok()?;
    assert_eq!(open().await?, [true, true]);
    operated.swap("session-affinity").await?.ok()?;
    until("its end", async || {
        Ok((open().await? == [false, true]).then_some(()))
    })
    .await?;
    let now = operated.get("profile").await?;
    let trace = now["engines"][0]["profile"].as_str().context("no trace")?;
    ensure!(trace.contains("duration_ms"), "{trace}");
    Ok(())
}
