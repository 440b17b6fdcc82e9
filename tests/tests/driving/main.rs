//! Policies drive engines: what they are granted, in ticks, and in nobody's way.

#![allow(clippy::indexing_slicing, reason = "a test's helper fails the test")]

mod alike;
mod following;
mod granted;
mod measured;
mod misbehaving;
#[path = "../swap/operated.rs"]
#[expect(dead_code, reason = "some of it is for policies only")]
mod operated;
mod operators;
mod reloaded;

use anyhow::{Context, Result};
use pointsman_tests::{Engine, policy};
use serde_json::{Value, json};
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
