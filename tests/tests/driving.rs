//! A policy drives engines: what it is granted, in ticks, and in nobody's way.

use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, Process, policy};
use serde_json::{Value, json};
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
    Ok(info.error_for_status()?.json::<Value>().await?["server_args"].clone())
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

#[tokio::test]
async fn a_driver_in_c_is_told_which_engine_it_drives() -> Result<()> {
    let a = Engine::start("a", 1).await?;
    let folder = tempfile::tempdir()?;
    let source = folder.path().join("driver.c");
    // Refuses to open unless it gets name and url, and says so in a file when it is set.
    std::fs::write(
        &source,
        format!(
            r#"#include "pointsman_engine.h"
#include <stdio.h>
#include <string.h>
static int64_t interval;
static int e;
static int32_t open_(pointsman_bytes c, pointsman_engine **out, pointsman_message *m) {{
  (void)m; *out = (void *)&e;
  return memmem(c.data, c.length, "\"name\":\"a\"", 10) && memmem(c.data, c.length, "{url}", {length})
    && memmem(c.data, c.length, "\"mine\":3", 8) ? POINTSMAN_OK : POINTSMAN_INVALID;
}}
static void close_(pointsman_engine *x) {{ (void)x; }}
static int32_t ranks(pointsman_engine *x, uint32_t *n, pointsman_message *m) {{ (void)x; (void)m; *n = 1; return 0; }}
static int32_t knobs(pointsman_engine *x, uint32_t r, pointsman_knob *k, size_t cap, size_t *n, pointsman_message *m) {{
  (void)x; (void)r; (void)cap; (void)m; *n = 1;
  k[0] = (pointsman_knob){{{{"prefill_decode_interval", 23}}, {{"ticks", 5}}, 0, 100, interval}}; return 0;
}}
static int32_t get(pointsman_engine *x, uint32_t r, pointsman_bytes s, int64_t *v, pointsman_message *m) {{
  (void)x; (void)r; (void)s; (void)m; *v = interval; return 0;
}}
static int32_t set(pointsman_engine *x, uint32_t r, pointsman_bytes s, int64_t v, pointsman_message *m) {{
  (void)x; (void)r; (void)s; (void)m; interval = v;
  FILE *f = fopen("{said}", "w"); fprintf(f, "%lld", (long long)v); fclose(f); return rename("{said}", "{done}");
}}
static int32_t stat_(pointsman_engine *x, uint32_t r, pointsman_bytes s, double *v, pointsman_message *m) {{
  (void)x; (void)r; (void)s; (void)v; (void)m; return POINTSMAN_UNKNOWN;
}}
const pointsman_engine_v1_table *pointsman_engine_v1(void) {{
  static const pointsman_engine_v1_table t = {{sizeof t, 1, 0, open_, close_, ranks, knobs, get, set, stat_, 0, 0, 0, 0}};
  return &t;
}}
"#,
            url = a.url,
            length = a.url.len(),
            said = folder.path().join("saying").display(),
            done = folder.path().join("said").display(),
        ),
    )?;
    let library = folder.path().join("driver.so");
    let built = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-shared", "-fPIC", "-I"])
        .arg(pointsman_tests::root().join("host/engine/include"))
        .arg("-o")
        .args([&library, &source])
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
        let command = if wanted.contains("load") {
            "serve"
        } else {
            "check"
        };
        let output = Command::new(pointsman_tests::pointsman())
            .args([command, "--config"])
            .arg(file.path())
            .output()?;
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{wanted}");
        ensure!(error.contains(wanted), "{wanted} is not in {error}");
    }
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
