//! A policy drives engines: what it is granted, in ticks, and in nobody's way.

use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, Process, guest, policy};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

/// Much longer than anything here takes; only ends a test that has failed.
const AT_LAST: Duration = Duration::from_secs(30);

/// A host whose policy is decode-protect with a tick of 10 ms.
fn config(engines: &[&Engine], driver: &str, more: &str) -> String {
    let endpoints: String = (engines.iter())
        .map(|e| {
            format!(
                "  {{ name = {:?}, url = {:?}, ranks = {} }},\n",
                e.name, e.url, e.ranks
            )
        })
        .collect();
    format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [policy]\nuse = {:?}\nconfig = {{ tick_ms = 10, max_queue_ms = 700 }}\n\
         [[pool]]\nname = \"main\"\ndialect = \"vllm\"\nendpoints = [\n{endpoints}]\n{driver}\n{more}\n",
        policy("decode-protect")
    )
}

const REFERENCE: &str = "driver = { kind = \"reference\" }";
const GRANT_A: &str = "[[grant]]\npolicy = \"decode-protect\"\nengines = [\"a\"]";

/// The engine's settings.
async fn settings(engine: &Engine) -> Result<Value> {
    let info = reqwest::get(format!("{}/server_info", engine.url)).await?;
    let info: Value = info.error_for_status()?.json().await?;
    info.get("server_args").cloned().context("server_args")
}

fn is_protected(settings: &Value) -> bool {
    settings["prefill_delayer"] == true
        && settings["prefill_decode_interval"] == 10
        && settings["max_queue_ms"] == 700.0
}

/// Looks until it is so.
async fn until_protected(engine: &Engine) -> Result<()> {
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        while !is_protected(&settings(engine).await?) {
            look.tick().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(AT_LAST, looking)
        .await
        .context("it is not set")?
}

/// As after a start: off.
async fn turn_off(engine: &Engine) -> Result<()> {
    let args = json!({ "server_args": { "prefill_delayer": false, "prefill_decode_interval": 0 } });
    let url = format!("{}/set_internal_state", engine.url);
    reqwest::Client::new()
        .post(url)
        .json(&args)
        .send()
        .await?
        .error_for_status()?;
    Ok(())
}

#[tokio::test]
async fn a_policy_drives_the_engines_that_it_is_granted_and_no_other() -> Result<()> {
    let (b, a) = (Engine::start("b", 2).await?, Engine::start("a", 2).await?);
    // The one that is denied comes first: the policy has met it whenever it has set the other.
    let host = Host::start_config(&config(&[&b, &a], REFERENCE, GRANT_A)).await?;
    until_protected(&a).await?;
    turn_off(&a).await?;
    until_protected(&a).await?;
    ensure!(settings(&b).await?["prefill_delayer"] == false);
    assert_eq!(host.chat("s", "hello").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_policy_of_another_name_is_granted_nothing_and_one_that_is_swapped_in_drives()
-> Result<()> {
    let a = Engine::start("a", 1).await?;
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("policy.wasm");
    std::fs::copy(policy("session-affinity"), &file)?;
    let text = config(&[&a], REFERENCE, GRANT_A)
        .replace(
            &policy("decode-protect").display().to_string(),
            &file.display().to_string(),
        )
        .replace("config = { tick_ms = 10, max_queue_ms = 700 }", "");
    let host = Host::start_config(&text).await?;
    assert_eq!(host.chat("s", "hello").await?.reason, "placed");
    let beside = folder.path().join(".new");
    std::fs::copy(policy("decode-protect"), &beside)?;
    std::fs::rename(&beside, &file)?;
    // With its own defaults now: an interval of 10, no maximum of its own.
    let looking = async {
        let mut look = tokio::time::interval(Duration::from_millis(5));
        while settings(&a).await?["prefill_decode_interval"] != 10 {
            look.tick().await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(AT_LAST, looking)
        .await
        .context("it is not set")??;
    assert_eq!(
        host.chat("s", "hello").await?.reason,
        "owner",
        "its sessions stay"
    );
    Ok(())
}

#[tokio::test]
async fn an_engine_that_hangs_stalls_no_request_and_the_others_are_driven() -> Result<()> {
    let (stuck, a) = (
        Engine::start("stuck", 1).await?,
        Engine::start("a", 1).await?,
    );
    let driver = "driver = { kind = \"reference\", deadline = \"20ms\" }";
    let grant = "[[grant]]\npolicy = \"decode-protect\"\nengines = [\"*\"]";
    let host = Host::start_config(&config(&[&stuck, &a], driver, grant)).await?;
    until_protected(&a).await?;
    stuck.process.signal("STOP").await?;
    turn_off(&a).await?;
    until_protected(&a).await?;
    let there = host
        .request("s", "hello")
        .header("x-pointsman-target", "a/0");
    assert_eq!(there.send().await?.status(), 200);
    stuck.process.signal("CONT").await?;
    turn_off(&stuck).await?;
    until_protected(&stuck).await
}

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
    Ok(())
}

#[tokio::test]
async fn a_driver_in_c_is_told_which_engine_it_drives() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let folder = tempfile::tempdir()?;
    let library = folder.path().join("driver.so");
    let root = pointsman_tests::root();
    let built = Command::new("cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-I",
        ])
        .arg(root.join("host/engine/include"))
        .arg(format!("-DURL=\"{}\"", a.url))
        .arg(format!("-DFOLDER=\"{}\"", folder.path().display()))
        .arg("-o")
        .args([&library, &root.join("tests/drivers/told.c")])
        .output()?;
    ensure!(
        built.status.success(),
        "{}",
        String::from_utf8_lossy(&built.stderr)
    );
    let driver = format!(
        "driver = {{ kind = \"library\", library = {library:?}, config = {{ mine = 3 }} }}"
    );
    let _host = Host::start_config(&config(&[&a], &driver, GRANT_A)).await?;
    let said = folder.path().join("said");
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        while !said.exists() {
            look.tick().await;
        }
    };
    tokio::time::timeout(AT_LAST, looking)
        .await
        .context("it is not set")?;
    assert_eq!(std::fs::read_to_string(said)?, "10");
    Ok(())
}

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
        let output = Command::new(pointsman_tests::pointsman())
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
        let mut check = Command::new(pointsman_tests::pointsman());
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
