//! Compiles a policy where it takes nothing from the requests: in a process of its own, with low
//! priority, which leaves the code in the cache. A thread of this process would share its priority with
//! the workers, and cranelift starts one on every core.
//!
//! Without a cache there is no place to leave the code, and it is compiled here after all, on a thread
//! that serves no request. So it is where the process cannot be started, or its code is gone before it is
//! read.

use super::refused::Refused;
use super::swapper::blocking;
use axum::body::Bytes;
use pointsman_runtime::{Compiled, Slot};
use serde::Deserialize;
use std::io;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// The code of a large Python policy takes half a minute of one core; with low priority more.
const LONGEST: Duration = Duration::from_secs(600);

/// The folders of the code cache.
#[derive(Clone, Debug)]
pub struct Folders {
    pub private: PathBuf,
    pub shared: Option<PathBuf>,
}

/// See the module.
#[derive(Debug)]
pub struct Compiler {
    folders: Option<Folders>,
}

/// What the child says of a policy that it cannot compile.
#[derive(Deserialize)]
struct Said {
    stage: String,
    cause: String,
}

impl Compiler {
    pub fn new(folders: Option<Folders>) -> Compiler {
        Compiler { folders }
    }

    /// A policy with its code: from the cache, where a process of its own puts it first if it is not
    /// there.
    pub async fn compile(&self, slot: &Arc<Slot>, wasm: &Bytes) -> Result<Compiled, Refused> {
        let cached = async || {
            let (slot, wasm) = (slot.clone(), wasm.clone());
            Ok::<_, Refused>(blocking(move || slot.engine().cached(&wasm)).await??)
        };
        if let Some(folders) = &self.folders {
            if let Some(compiled) = cached().await? {
                return Ok(compiled);
            }
            if fill(folders, wasm).await?
                && let Some(compiled) = cached().await?
            {
                return Ok(compiled);
            }
            tracing::warn!("no code from a compiling process, a thread compiles");
        }
        let (slot, wasm) = (slot.clone(), wasm.clone());
        Ok(blocking(move || slot.engine().compile(&wasm)).await??)
    }
}

/// Has the code put into the cache; false: no process could.
async fn fill(folders: &Folders, wasm: &[u8]) -> Result<bool, Refused> {
    let child = match spawn(folders) {
        Ok(child) => child,
        Err(error) => {
            tracing::warn!(%error, "no process to compile in");
            return Ok(false);
        }
    };
    let output = match tokio::time::timeout(LONGEST, feed(child, wasm)).await {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => return Err(Refused::failed("compile", error)),
        Err(_) => {
            let cause = format!("it is not compiled after {} s", LONGEST.as_secs());
            return Err(Refused::stage("compile", cause));
        }
    };
    if output.status.success() {
        return Ok(true);
    }
    if let Ok(said) = serde_json::from_slice::<Said>(&output.stdout) {
        return Err(Refused::stage(&said.stage, said.cause));
    }
    if output.status.code().is_some() {
        // It could not work at all, and said so on our standard error.
        tracing::warn!(status = %output.status, "the compiling process failed");
        return Ok(false);
    }
    let cause = format!("the compiling process died: {}", output.status);
    Err(Refused::stage("compile", cause))
}

/// This very binary, also if another one has taken its place on disk: only its code fits.
fn spawn(folders: &Folders) -> io::Result<Child> {
    let binary = format!("/proc/{}/exe", std::process::id());
    let run = |mut command: Command| {
        (command.args(["policy", "compile", "--cache"]))
            .arg(&folders.private)
            .args(
                folders
                    .shared
                    .iter()
                    .flat_map(|shared| ["--shared".as_ref(), shared.as_os_str()]),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
    };
    let mut nice = Command::new("nice");
    nice.args(["-n", "10", &binary]);
    match run(nice) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => run(Command::new(&binary)),
        other => other,
    }
}

async fn feed(mut child: Child, wasm: &[u8]) -> io::Result<Output> {
    if let Some(mut stdin) = child.stdin.take()
        && let Err(error) = stdin.write_all(wasm).await
    {
        // It had enough before it read all: its answer says why.
        tracing::debug!(%error, "the compiling process did not read the whole policy");
    }
    child.wait_with_output().await
}
