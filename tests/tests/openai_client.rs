//! The official `openai` client for Python, unchanged, from a venv under `target/`.

use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, root};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// The venv with what `requirements.txt` names; made at the first use.
async fn python() -> Result<PathBuf> {
    let requirements = root().join("tests/python/requirements.txt");
    let venv = root().join("target/venv-openai");
    let python = venv.join("bin/python");
    let done = venv.join("installed.txt");
    let wanted = std::fs::read_to_string(&requirements)?;
    if std::fs::read_to_string(&done).is_ok_and(|found| found == wanted) {
        return Ok(python);
    }
    let run = async |program: PathBuf, args: &[&std::ffi::OsStr]| -> Result<()> {
        let status = Command::new(&program).args(args).status().await?;
        ensure!(status.success(), "{} {args:?}: {status}", program.display());
        Ok(())
    };
    run(
        "python3".into(),
        &["-m".as_ref(), "venv".as_ref(), venv.as_os_str()],
    )
    .await
    .context("Python 3 with venv is needed")?;
    // A registry may stall: once more before giving up.
    let install = ["-m", "pip", "install", "--quiet", "--retries", "5", "-r"].map(AsRef::as_ref);
    let args: Vec<&std::ffi::OsStr> = install
        .into_iter()
        .chain([requirements.as_os_str()])
        .collect();
    if run(python.clone(), &args).await.is_err() {
        run(python.clone(), &args).await?;
    }
    std::fs::write(done, wanted)?;
    Ok(python)
}

async fn client(host: &Host, session: &str, turns: u32, max_tokens: u32) -> Result<Child> {
    Command::new(python().await?)
        .arg(root().join("tests/python/openai_session.py"))
        .args([
            host.url.as_str(),
            session,
            &turns.to_string(),
            &max_tokens.to_string(),
        ])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("the client does not start")
}

#[tokio::test]
async fn all_turns_of_a_session_reach_one_rank_and_a_killed_client_leaves_nothing() -> Result<()> {
    let (a, b) = (Engine::start("a", 4).await?, Engine::start("b", 4).await?);
    let host = Host::start("session-affinity", &[&a, &b]).await?;
    for session in ["one", "two", "three"] {
        let output = client(&host, session, 4, 8)
            .await?
            .wait_with_output()
            .await?;
        ensure!(output.status.success(), "the client failed: {output:?}");
        let text = String::from_utf8(output.stdout)?;
        let turns: Vec<Value> = (text.lines())
            .map(serde_json::from_str)
            .collect::<Result<Vec<Value>, _>>()?
            .into_iter()
            .filter(|line| line.get("first").is_none())
            .collect();
        let [first, rest @ ..] = turns.as_slice() else {
            anyhow::bail!("no turns: {text}");
        };
        assert_eq!((rest.len(), &first["tokens"]), (3, &Value::from(8)));
        for turn in rest {
            assert_eq!(
                (&turn["engine"], &turn["rank"]),
                (&first["engine"], &first["rank"])
            );
            assert!(turn["cached"].as_u64() > Some(0), "{turn}");
        }
    }

    // Slow: its stream would go on for minutes.
    let slow = Engine::start_with("slow", 2, "127.0.0.1:0", "50").await?;
    let host = Host::start("session-affinity", &[&slow]).await?;
    let mut client = client(&host, "killed", 1, 1000).await?;
    let output = client.stdout.take().context("no output")?;
    let first = BufReader::new(output).lines().next_line().await?;
    ensure!(first.is_some_and(|line| line.contains("first")));
    ensure!(host.metrics().await?.sum("pointsman_target_requests", &[]) == 1.0);
    client.kill().await?;
    host.metrics_until(Duration::from_secs(1), |m| m.outstanding() == 0.0)
        .await?;
    Ok(())
}
