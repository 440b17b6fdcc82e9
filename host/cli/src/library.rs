//! Loads drivers: first in a process that may die of it, then in this one.
//!
//! A library's own code runs when it is loaded, and the system's loader believes what is in the file. A
//! driver that crashes or hangs there would take the requests with it, also on a reload. So a child loads
//! it first; initialisers of a driver run twice, and must not hold what only one process can have.

use crate::commands::engine::try_driver::LOADED;
use anyhow::{Context, Result, anyhow, bail};
use pointsman_engine::Library;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;
use tokio::process::Command;

/// To load it and read its table.
const PATIENCE: Duration = Duration::from_secs(10);

/// This file, if it can be loaded.
pub fn load(path: &Path) -> Result<Library> {
    // On a thread of its own: whoever calls may be within a runtime.
    let tried = thread::scope(|scope| scope.spawn(|| tried(path)).join());
    tried.map_err(|_| anyhow!("cannot load {}: no way to try it", path.display()))??;
    Ok(Library::load(path)?)
}

fn tried(path: &Path) -> Result<()> {
    let (file, remedy) = (path.display(), "build it anew, and rename it into place");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    // This very binary, also if another one has taken its place on disk.
    let mut child = Command::new(format!("/proc/{}/exe", std::process::id()));
    child
        .args(["engine", "try-driver", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let output = runtime.block_on(async { tokio::time::timeout(PATIENCE, child.output()).await });
    let output = match output {
        Ok(Ok(output)) => output,
        Ok(Err(error)) => {
            tracing::warn!(%error, "no process to try the driver in: it is loaded as it is");
            return Ok(());
        }
        Err(_) => bail!(
            "cannot load {file}: it is not loaded after {PATIENCE:?}: its initialisers hang; {remedy}"
        ),
    };
    let status = output.status;
    if let Some(signal) = status.signal() {
        bail!("cannot load {file}: a process that loaded it died of signal {signal}; {remedy}");
    }
    // A line, also if the library has said something.
    let said = String::from_utf8_lossy(&output.stdout).replace(char::is_control, " ");
    match said.trim() {
        word if status.success() && word.contains(LOADED) => Ok(()),
        _ if status.success() => bail!(
            "cannot load {file}: its own code ended a process that loaded it ({status}); {remedy}"
        ),
        "" => bail!("cannot load {file}: a process that loaded it ended with {status}; {remedy}"),
        why => bail!("{why}"),
    }
}
