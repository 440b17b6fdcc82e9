//! SIGHUP, however often and early.

use crate::edited::{Edited, SOON};
use crate::operated::{TOKEN, config, read, token_file};
use anyhow::{Context, Result};
use pointsman_tests::{Engine, pointsman};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

#[tokio::test]
async fn a_hundred_hangups_at_once_are_some_reloads_and_the_last_one_counts() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let b = Engine::start("b", 2).await?;
    let edited = Edited::start("session-affinity", &[&a]).await?;
    edited.write(&edited.text("session-affinity", &[&b]))?;
    let id = edited.0.host.process.id().context("it has ended")?;
    let burst = format!("for n in $(seq 100); do kill -s HUP {id}; done");
    let status = Command::new("sh").args(["-c", &burst]).status().await?;
    assert!(status.success(), "it lives through all of them");
    let now = edited
        .until(|now| now["pools"][0]["endpoints"][0]["name"] == "b")
        .await?;
    let reloads = now["reloads"].as_u64().unwrap();
    println!("{reloads} reloads");
    assert!((1..=100).contains(&reloads));
    assert_eq!(edited.targets().await?, ["b/0", "b/1"]);
    assert_eq!(edited.chat("s").await?.status, 200);
    Ok(())
}

#[tokio::test]
async fn a_storm_of_hangups_from_before_it_listens_is_survived() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let folder = tempfile::tempdir()?;
    token_file(&folder, 0o600, TOKEN)?;
    let file = folder.path().join("pointsman.toml");
    std::fs::write(&file, config(&folder, "session-affinity", &[&a]))?;
    // Until the process is the binary, and has its own say, the signal is ignored.
    let mut host = Command::new("sh")
        .args([
            "-c",
            "trap '' HUP; echo deaf; exec \"$0\" serve --config \"$1\"",
        ])
        .args([&pointsman(), &file])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let id = host.id().context("it has ended")?;
    let mut lines = BufReader::new(host.stdout.take().context("no output")?).lines();
    assert_eq!(lines.next_line().await?.as_deref(), Some("deaf"));
    let mut storm = Command::new("sh")
        .args(["-c", &format!("while kill -s HUP {id}; do :; done")])
        .kill_on_drop(true)
        .spawn()?;
    let line = lines
        .next_line()
        .await?
        .context("it ended before it listened")?;
    let metrics = line.rsplit(' ').next().context(line.clone())?;
    let admin = metrics.trim_end_matches("/metrics");
    let asked = reqwest::Client::new()
        .get(format!("{admin}/api/v1/config"))
        .bearer_auth(TOKEN);
    let reloads = async || -> Result<u64> {
        let now = read(asked.try_clone().unwrap()).await?.ok()?;
        now["reloads"].as_u64().context("a number")
    };
    let reloaded = async {
        while reloads().await? < 10 {}
        anyhow::Ok(())
    };
    (tokio::time::timeout(SOON, reloaded).await).context("no reloads")??;
    storm.kill().await?;
    assert!(host.try_wait()?.is_none(), "it lives");
    Ok(())
}
