//! One unchanged policy drives engines behind any driver.

use crate::AT_LAST;
use crate::operated::{Operated, TOKEN, token_file};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, driver_in_c, root};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The examples' drivers, built as their READMEs say.
fn drivers(folder: &Path) -> Result<()> {
    let examples = root().join("examples");
    let source = examples.join("engine-driver-c/driver.c");
    driver_in_c(&source, &[], &folder.join("c.so"))?;
    let crate_folder = examples.join("engine-driver-rust");
    let cargo = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet"])
        .current_dir(&crate_folder)
        .output()?;
    let said = String::from_utf8_lossy(&cargo.stderr);
    ensure!(cargo.status.success(), "{said}");
    let built = crate_folder.join("target/release/libengine_driver_rust.so");
    std::fs::copy(built, folder.join("rust.so"))?;
    Ok(())
}

/// Each rank's value of a knob, engine by engine.
fn values(engines: &Value, knob: &str) -> Vec<(String, Vec<Option<i64>>)> {
    let engines = engines["engines"].as_array().into_iter().flatten();
    let ranks = |engine: &Value| {
        let ranks = engine["ranks"].as_array().into_iter().flatten();
        ranks.map(|rank| rank[knob]["value"].as_i64()).collect()
    };
    engines
        .map(|engine| {
            let name = engine["engine"].as_str().unwrap_or_default();
            (name.to_owned(), ranks(engine))
        })
        .collect()
}

#[tokio::test]
async fn one_unchanged_policy_drives_the_reference_engine_a_driver_in_c_and_one_in_rust()
-> Result<()> {
    let folder = tempfile::tempdir()?;
    drivers(folder.path())?;
    let settings = folder.path().join("settings");
    std::fs::create_dir(&settings)?;
    for knob in ["prefill_delayer", "prefill_decode_interval", "max_queue_ms"] {
        std::fs::write(settings.join(knob), "0")?;
    }
    let engine = Engine::start("reference", 2).await?;
    let pool = |name: &str, url: &str, ranks: u32, driver: &str| {
        format!(
            "[[pool]]\nname = {name:?}\ndialect = \"vllm\"\n\
             endpoints = [{{ name = {name:?}, url = {url:?}, ranks = {ranks} }}]\n\
             driver = {{ {driver} }}\n"
        )
    };
    let nowhere = "http://127.0.0.1:9";
    let library = |file: &str, config: &str| {
        let path = folder.path().join(file);
        format!("kind = \"library\", library = {path:?}, config = {{ {config} }}")
    };
    let pools = [
        pool("reference", &engine.url, 2, "kind = \"reference\""),
        pool("c", nowhere, 2, &library("c.so", "ranks = 2")),
        pool(
            "rust",
            nowhere,
            1,
            &library("rust.so", &format!("folder = {settings:?}")),
        ),
    ];
    let token = token_file(&folder, 0o600, TOKEN)?;
    let text = format!(
        "[listen]\naddress = \"127.0.0.1:0\"\n\
         [admin]\naddress = \"127.0.0.1:0\"\ntoken_file = {token:?}\n\
         [policy]\nuse = \"decode-protect\"\n\
         config = {{ tick_ms = 10, prefill_decode_interval = 7, max_queue_ms = 900 }}\n\
         {}[[grant]]\npolicy = \"decode-protect\"\nengines = [\"*\"]\n",
        pools.concat()
    );
    let operated = Operated::of(Host::start_config(&text).await?, folder);
    let wanted = |knob: &str, value: i64| {
        let ranks = |name: &str, n| (name.to_owned(), vec![Some(value); n]);
        let all = vec![ranks("c", 2), ranks("reference", 2), ranks("rust", 1)];
        (knob.to_owned(), all)
    };
    let wanted = [
        wanted("prefill_decode_interval", 7),
        wanted("max_queue_ms", 900),
    ];
    let mut look = tokio::time::interval(Duration::from_millis(5));
    let driven = async {
        loop {
            let now = operated.get("engines").await?;
            if (wanted.iter()).all(|(knob, all)| values(&now, knob) == *all) {
                return anyhow::Ok(());
            }
            look.tick().await;
        }
    };
    tokio::time::timeout(AT_LAST, driven)
        .await
        .context("they are not set")??;
    // What the driver in Rust was told is in its engine's own files.
    let file = std::fs::read_to_string(settings.join("prefill_decode_interval"))?;
    assert_eq!(file, "7");
    Ok(())
}
