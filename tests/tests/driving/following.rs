//! decode-protect follows what the host measured, in real time.

use crate::{AT_LAST, REFERENCE, settings};
use anyhow::{Context, Result};
use pointsman_tests::{Engine, Host};
use serde_json::{Value, json};
use std::time::Duration;

/// With the delayer at an interval of 4, and a limit that nothing real can hold.
async fn host(engine: &Engine, limit: &str) -> Result<Host> {
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n\
         [policy]\nuse = \"decode-protect\"\n\
         config = {{ tick_ms = 10, settle_ms = 20, prefill_decode_interval = 4, max_interval = 9, {limit} }}\n\
         [[pool]]\nname = \"main\"\ndialect = \"vllm\"\n\
         endpoints = [{{ name = {:?}, url = {:?}, ranks = {} }}]\n{REFERENCE}\n\
         [[grant]]\npolicy = \"decode-protect\"\nengines = [\"*\"]\n",
        engine.name, engine.url, engine.ranks
    );
    Host::start_config(&text).await
}

/// Streams answers until the engine's settings are as wanted.
async fn until(host: &Host, engine: &Engine, wanted: impl Fn(&Value) -> bool) -> Result<()> {
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let looking = async {
        while !wanted(&settings(engine).await?) {
            look.tick().await;
        }
        anyhow::Ok(())
    };
    let streaming = async {
        let body = json!({
            "model": "demo", "max_tokens": 16, "stream": true,
            "messages": [{ "role": "user", "content": "hello" }],
        });
        loop {
            let answer = host.request_with("s", &body).send().await?;
            answer.error_for_status()?.bytes().await?;
        }
    };
    let either = async {
        tokio::select! {
            found = looking => found,
            broken = streaming => broken,
        }
    };
    tokio::time::timeout(AT_LAST, either)
        .await
        .context("it is not set")?
}

#[tokio::test]
async fn streams_that_are_too_slow_get_ticks_up_to_the_longest_interval() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = host(&a, "itl_limit_ms = 0.0001").await?;
    until(&host, &a, |settings| {
        settings["prefill_delayer"] == true && settings["prefill_decode_interval"] == 9
    })
    .await
}

#[tokio::test]
async fn prompts_that_wait_too_long_get_ticks_until_the_delayer_is_off() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = host(&a, "ttft_limit_ms = 0.0001").await?;
    let is = |on: bool, interval: u32| {
        move |settings: &Value| {
            settings["prefill_delayer"] == on && settings["prefill_decode_interval"] == interval
        }
    };
    until(&host, &a, is(true, 4)).await?;
    until(&host, &a, is(false, 0)).await
}
