//! What can go wrong where a policy is compiled: in a process beside the host.

use crate::operated::{Operated, another};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, policy};
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

const SOON: Duration = Duration::from_secs(30);

/// The first child process of a process; it tells nobody when it comes.
async fn child_of(process: u32) -> Result<u32> {
    let tasks = format!("/proc/{process}/task");
    let find = async {
        loop {
            for task in std::fs::read_dir(&tasks)? {
                // A thread may end meanwhile.
                let children = std::fs::read_to_string(task?.path().join("children"));
                let children = children.unwrap_or_default();
                if let Some(child) = children.split_whitespace().next() {
                    return Ok(child.parse()?);
                }
            }
            tokio::task::yield_now().await;
        }
    };
    (tokio::time::timeout(SOON, find).await).context("no child process")?
}

fn entries(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let files = std::fs::read_dir(folder)?;
    files.map(|file| Ok(file?.path())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_compiling_process_that_is_killed_leaves_the_old_policy_and_says_so() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let host = Operated::start("session-affinity", &[&a]).await?;
    let id = host.host.process.id().context("it is gone")?;
    let wasm = another(&policy("parent-affinity"), 1)?;
    let kill = async {
        let child = child_of(id).await?.to_string();
        let killed = Command::new("kill").args(["-s", "KILL", &child]).status();
        ensure!(killed.await?.success(), "it was faster");
        Ok(())
    };
    let (said, ()) = tokio::try_join!(host.upload(wasm.clone(), "{}"), kill)?;
    assert_eq!((said.status, said.stage()), (422, "compile"), "{said:?}");
    assert!(said.cause().contains("died: signal: 9"), "{said:?}");
    assert_eq!(host.status().await?["generation"], 1);
    assert_eq!(host.host.chat("s", "hello").await?.status, 200);
    // It was the process's fault, not the policy's.
    host.upload(wasm, "{}").await?.ok()?;
    assert_eq!(host.status().await?["name"], "parent-affinity");
    Ok(())
}

#[tokio::test]
async fn without_nice_on_the_path_a_process_compiles_all_the_same() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("host.log");
    let file = std::fs::File::create(&log)?;
    let empty = folder.path().join("empty");
    std::fs::create_dir(&empty)?;
    let change = |command: &mut Command| {
        command.env("PATH", &empty).stderr(file);
    };
    let host = Operated::start_changed(folder, "session-affinity", &[&a], change).await?;
    let wasm = another(&policy("parent-affinity"), 1)?;
    host.upload(wasm, "{}").await?.ok()?;
    assert_eq!(host.status().await?["name"], "parent-affinity");
    let log = std::fs::read_to_string(log)?;
    assert!(!log.contains("a thread compiles"), "{log}");
    Ok(())
}

#[tokio::test]
async fn code_that_vanishes_from_the_cache_is_compiled_in_a_process_again() -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("host.log");
    let file = std::fs::File::create(&log)?;
    let change = |command: &mut Command| {
        command.stderr(file);
    };
    let host = Operated::start_changed(folder, "session-affinity", &[&a], change).await?;
    let cache = host.folder.path().join("cache");
    for name in ["parent-affinity", "session-affinity", "parent-affinity"] {
        for entry in entries(&cache)? {
            std::fs::remove_file(entry)?;
        }
        host.swap(name).await?.ok()?;
        let [entry] = &entries(&cache)?[..] else {
            anyhow::bail!("one entry wanted");
        };
        // Whole and used, but now half of it.
        let code = std::fs::read(entry)?;
        std::fs::write(entry, &code[..code.len() / 2])?;
        host.swap(name).await?.ok()?;
        assert_eq!(std::fs::metadata(entry)?.len(), code.len() as u64);
    }
    let log = std::fs::read_to_string(log)?;
    assert!(!log.contains("a thread compiles"), "{log}");
    Ok(())
}
