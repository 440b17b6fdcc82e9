//! Writers of the code cache that die while they write, at every moment: the real binary, before its
//! next start.

#![allow(clippy::indexing_slicing, reason = "a test's helper fails the test")]

use anyhow::{Context, Result, ensure};
use pointsman_tests::{Engine, Host, pointsman, policy};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tempfile::TempDir;

/// Each kills one writer.
const KILLS: usize = 24;

fn names(cache: &Path) -> Result<Vec<String>> {
    let files = match std::fs::read_dir(cache) {
        Ok(files) => files,
        Err(_) => return Ok(Vec::new()),
    };
    files
        .map(|file| Ok(file?.file_name().to_string_lossy().into_owned()))
        .collect()
}

fn temporary(names: &[String]) -> usize {
    names.iter().filter(|name| name.starts_with('.')).count()
}

/// `pointsman policy compile`, run by `before`.
fn writer(before: &[&str], cache: &Path) -> Result<Child> {
    let mut line = before.iter().map(PathBuf::from).collect::<Vec<_>>();
    line.push(pointsman());
    let child = Command::new(&line[0])
        .args(&line[1..])
        .args(["policy", "compile", "--cache"])
        .arg(cache)
        .stdin(File::open(policy("session-affinity"))?)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    child.context("no writer")
}

/// A writer that nobody disturbs puts one whole entry there, and clears up.
fn settles(cache: &Path) -> Result<ExitStatus> {
    let status = writer(&[], cache)?.wait()?;
    let names = names(cache)?;
    ensure!(status.success(), "{status}");
    ensure!(names.len() == 1 && temporary(&names) == 0, "{names:?}");
    Ok(status)
}

/// A host starts with the folder and serves.
async fn serves(home: &TempDir) -> Result<()> {
    let a = Engine::start("a", 2).await?;
    let more = format!("[cache]\nfolder = {:?}", home.path().join("cache"));
    let host = Host::start_with("session-affinity", &more, &[&a]).await?;
    ensure!(host.chat("s", "hello").await?.status == 200);
    Ok(())
}

#[tokio::test]
async fn a_writer_that_dies_at_any_byte_leaves_nothing_that_is_executed_or_stays() -> Result<()> {
    let home = TempDir::new()?;
    let cache = home.path().join("cache");
    settles(&cache)?;
    let entry = cache.join(&names(&cache)?[0]);
    let whole = std::fs::metadata(&entry)?.len();
    for bytes in [0, 1, 31, 32, 33, 4096, whole / 2, whole - 1] {
        std::fs::remove_file(&entry)?;
        // The system ends the process with a signal at the first byte beyond.
        let limit = format!("--fsize={bytes}");
        let status = writer(&["prlimit", "--core=0", &limit], &cache)?.wait()?;
        let left = names(&cache)?;
        println!("{bytes} of {whole} bytes: {status}, left {left:?}");
        ensure!(!status.success() && temporary(&left) == 1, "{left:?}");
        ensure!(std::fs::metadata(cache.join(&left[0]))?.len() == bytes);
        if bytes == whole / 2 {
            serves(&home).await?;
            ensure!(temporary(&names(&cache)?) == 0);
        }
        settles(&cache)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_writer_that_is_killed_at_any_moment_leaves_nothing_that_is_executed_or_stays()
-> Result<()> {
    let home = TempDir::new()?;
    let cache = home.path().join("cache");
    let (mut killed, mut cut) = (0, 0);
    for n in 0..KILLS {
        for name in names(&cache)? {
            // Leftovers stay, so that they could add up.
            if !name.starts_with('.') {
                std::fs::remove_file(cache.join(name))?;
            }
        }
        let mut child = writer(&[], &cache)?;
        // Kill it a few looks after it has begun to write; or before, or after.
        let own = format!(".{}-", child.id());
        let mut looks = n / 2;
        while child.try_wait()?.is_none() && looks > 0 {
            looks -= usize::from(names(&cache)?.iter().any(|name| name.starts_with(&own)));
        }
        child.kill()?;
        killed += usize::from(!child.wait()?.success());
        let left = names(&cache)?;
        cut += temporary(&left);
        // One that came so far as to write an entry has cleared up before.
        let wrote = left.contains(&format!("{own}1"));
        ensure!(!wrote || temporary(&left) == 1, "they add up: {left:?}");
    }
    println!("{killed} of {KILLS} were killed, {cut} of them while they wrote");
    ensure!(killed > 0 && cut > 0);
    serves(&home).await?;
    settles(&cache)?;
    Ok(())
}
