//! What operators say and ask: configuration, profiling windows, options.

use crate::{AT_LAST, GRANT_A, REFERENCE, config};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, Process, pointsman};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

#[tokio::test]
async fn a_profiling_window_on_the_engines_of_a_role_ends_by_itself_and_leaves_its_trace()
-> Result<()> {
    let (a, p) = (Engine::start("a", 1).await?, Engine::start("p", 2).await?);
    let folder = tempfile::tempdir()?;
    let token = folder.path().join("token");
    std::fs::write(&token, "a-token-for-operators-of-this-test")?;
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600))?;
    let prefill = format!(
        "[[pool]]\nname = \"more\"\nrole = \"prefill\"\n\
         endpoints = [{{ name = \"p\", url = {:?}, ranks = 2 }}]\n{REFERENCE}",
        p.url
    );
    let text = config(&[&a], REFERENCE, &prefill)
        .replace("[policy]", &format!("token_file = {token:?}\n[policy]"));
    let host = Host::start_config(&text).await?;
    let client = reqwest::Client::new();
    let ask = async |post: bool, path: &str, body: Value| {
        let url = format!("{}/api/v1/profile{path}", host.admin);
        let request = if post {
            client.post(url).json(&body)
        } else {
            client.get(url)
        };
        let answer = request
            .bearer_auth("a-token-for-operators-of-this-test")
            .send()
            .await?;
        let status = answer.status().as_u16();
        anyhow::Ok((status, answer.json::<Value>().await?))
    };
    let names = |said: &Value| -> Vec<String> {
        let engines = said["engines"].as_array().cloned().unwrap_or_default();
        engines
            .iter()
            .map(|e| format!("{}:{}:{}", e["engine"], e["role"], e["open"]))
            .collect()
    };
    let window = json!({ "roles": ["prefill"], "duration_ms": 30 });
    let (status, started) = ask(true, "/start", window).await?;
    assert_eq!(
        (status, names(&started)),
        (200, vec!["\"p\":\"prefill\":true".to_owned()])
    );
    let over = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        loop {
            look.tick().await;
            let (_, now) = ask(false, "", Value::Null).await?;
            if now["engines"][1]["open"] == false {
                return anyhow::Ok(now);
            }
        }
    };
    let now = tokio::time::timeout(AT_LAST, over)
        .await
        .context("it does not end")??;
    let trace = now["engines"][1]["profile"].as_str().context("no trace")?;
    let trace: Value = serde_json::from_str(trace)?;
    assert_eq!(trace["ranks"].as_array().map(Vec::len), Some(2));
    assert_eq!(now["engines"][0]["profile"], Value::Null, "a had no window");

    // By hand, on all; one is open on p already, and a starts all the same.
    ask(true, "/start", json!({ "roles": ["prefill"] })).await?;
    let (_, started) = ask(true, "/start", json!({})).await?;
    assert_eq!(started["engines"][0]["open"], true);
    let why = started["engines"][1]["error"]
        .as_str()
        .context("no error")?;
    ensure!(why.contains("open already"), "{why}");
    let (_, stopped) = ask(true, "/stop", json!({})).await?;
    for engine in stopped["engines"].as_array().context("engines")? {
        ensure!(
            engine["profile"]
                .as_str()
                .is_some_and(|p| p.contains("duration_ms")),
            "{engine}"
        );
    }
    for (body, wanted) in [
        (json!({ "roles": ["decode"] }), 404),
        (json!({ "duration_ms": 0 }), 400),
        (json!({ "minutes": 1 }), 400),
    ] {
        assert_eq!(ask(true, "/start", body.clone()).await?.0, wanted, "{body}");
    }
    Ok(())
}

#[tokio::test]
async fn drivers_and_grants_that_cannot_be_are_refused_by_check_with_their_key() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let cases = [
        (
            REFERENCE,
            "[[grant]]\npolicy = \"p\"\nengines = [\"b\"]",
            "grant[0].engines: there is no endpoint of the name \"b\"",
        ),
        (
            "",
            GRANT_A,
            "grant[0].engines: \"a\" has no driver: pool \"main\" needs one",
        ),
        (
            "",
            "[[grant]]\npolicy = \"\"\nengines = [\"a\"]",
            "grant[0]: wanted the name of a policy",
        ),
        (
            "driver = { kind = \"library\" }",
            "",
            "pool[0].driver: kind = \"library\" and library",
        ),
        (
            "driver = { kind = \"null\", library = \"x\" }",
            "",
            "pool[0].driver: kind = \"library\" and library",
        ),
        (
            "driver = { kind = \"null\", config = { x = 1 } }",
            "",
            "pool[0].driver.config is for",
        ),
        (
            "driver = { kind = \"null\", deadline = \"0s\" }",
            "",
            "pool[0].driver.deadline = 0ns",
        ),
        (
            "driver = { kind = \"magic\" }",
            "",
            "unknown variant `magic`",
        ),
        (
            "driver = { kind = \"library\", library = \"/no/such.so\" }",
            "",
            "cannot load /no/such.so",
        ),
    ];
    for (driver, grant, wanted) in cases {
        let text = config(&[&a], driver, grant);
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), text)?;
        let output = Command::new(pointsman())
            .args(["check", "--config"])
            .arg(file.path())
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{wanted}");
        ensure!(error.contains(wanted), "{wanted} is not in {error}");
    }
    Ok(())
}

#[tokio::test]
async fn check_asks_the_engines_whether_they_are_as_the_file_says() -> Result<()> {
    let (a, mut b) = (Engine::start("a", 2).await?, Engine::start("b", 2).await?);
    let file = tempfile::NamedTempFile::new()?;
    let check = |text: String| {
        std::fs::write(file.path(), text)?;
        let mut check = Command::new(pointsman());
        check
            .args(["check", "--engines", "--config"])
            .arg(file.path());
        let output = check.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::Ok((output.status.code(), said))
    };
    let text = config(&[&a, &b], REFERENCE, "");
    assert_eq!(check(text.clone())?, (Some(0), String::new()));
    let (status, said) = check(text.replacen("ranks = 2", "ranks = 3", 1))?;
    ensure!(
        said.contains("\"a\": ranks = 3 in the configuration, the engine has 2"),
        "{said}"
    );
    assert_eq!(status, Some(1));
    let (status, said) = check(config(&[&a], "", ""))?;
    ensure!(
        said.contains("warning: engine \"a\" has no driver to ask"),
        "{said}"
    );
    assert_eq!(status, Some(0));
    b.process.kill().await?;
    let (status, said) = check(text)?;
    ensure!(said.contains("engine \"b\": GET http://"), "{said}");
    assert_eq!(status, Some(1));
    Ok(())
}

#[tokio::test]
async fn what_engines_were_started_with_is_held_to_the_same_rules_as_the_file() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let file = tempfile::NamedTempFile::new()?;
    let check = |deployment: &str| {
        let text = config(
            &[&a],
            &format!("{REFERENCE}\ndeployment = {{ {deployment} }}"),
            "",
        );
        std::fs::write(file.path(), text)?;
        let mut check = Command::new(pointsman());
        check
            .args(["check", "--engines", "--config"])
            .arg(file.path());
        let output = check.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::Ok((output.status.code(), said))
    };
    assert_eq!(check("data_parallel_size = 2")?, (Some(0), String::new()));
    // Both true, and not of this engine.
    let (status, said) = check("max_num_batched_tokens = 4096, max_num_seqs = 8")?;
    assert_eq!(status, Some(0), "{said}");
    for differs in [
        "engine \"a\": deployment.max_num_batched_tokens = 4096 in the configuration, the engine has 8192",
        "engine \"a\": deployment.max_num_seqs = 8 in the configuration, the engine has",
    ] {
        ensure!(said.contains(differs), "no {differs} in {said}");
    }
    // Possible as it stands in the file, and not with what the engine says of the rest.
    let (status, said) = check("num_speculative_tokens = 1000")?;
    assert_eq!(status, Some(1), "{said}");
    let wanted = "engine \"a\" was started with max_num_batched_tokens = 8192: wanted at least \
                  (num_speculative_tokens + 1) · 2 · max_num_seqs = (1000 + 1) · 2 · ";
    ensure!(said.contains(wanted), "{said}");
    Ok(())
}

#[tokio::test]
async fn serve_warns_of_an_engine_that_was_started_with_what_cannot_work() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let deployment = format!("{REFERENCE}\ndeployment = {{ num_speculative_tokens = 1000 }}");
    let text = config(&[&a], &deployment, "");
    let log = tempfile::NamedTempFile::new()?;
    let to = log.reopen()?;
    let host = Host::start_changed(&text, |command| {
        command.stderr(to);
    })
    .await?;
    let mut look = tokio::time::interval(Duration::from_millis(10));
    let warned = async {
        loop {
            look.tick().await;
            let said = std::fs::read_to_string(log.path())?;
            if said.contains("was started with max_num_batched_tokens = 8192: wanted") {
                return anyhow::Ok(());
            }
        }
    };
    tokio::time::timeout(AT_LAST, warned)
        .await
        .context("no warning")??;
    assert_eq!(host.chat("s", "hello").await?.status, 200, "and it serves");
    Ok(())
}

#[tokio::test]
async fn an_engine_runs_with_the_delayer_that_its_options_say() -> Result<()> {
    let process = Process::start(&[
        "engine",
        "--listen",
        "127.0.0.1:0",
        "--ranks",
        "2",
        "--prefill-delayer",
        "on",
        "--decode-interval",
        "10",
        "--stall-ticks",
        "3",
        "--max-queue-ms",
        "5000",
    ])
    .await?;
    let url = process.urls.first().context("no address")?;
    let info: Value = reqwest::get(format!("{url}/server_info"))
        .await?
        .json()
        .await?;
    let args = &info["server_args"];
    assert_eq!(args["prefill_delayer"], true);
    assert_eq!(
        (&args["prefill_decode_interval"], &args["stall_ticks"]),
        (&json!(10), &json!(3))
    );
    assert_eq!(
        (&args["max_queue_ms"], &args["token_budget"]),
        (&json!(5000.0), &json!(8192))
    );
    Ok(())
}
