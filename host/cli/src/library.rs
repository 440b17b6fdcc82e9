//! Loads drivers: first in a process that may die of it, then in this one.
//!
//! A library's own code runs when it is loaded, and the system's loader believes what is in the file. A
//! driver that crashes or hangs there would take the requests with it, also on a reload. So a child loads
//! it first; initialisers of a driver run twice, and must not hold what only one process can have.

use anyhow::{Context, Result, bail};
use pointsman_engine::Library;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// To load it and read its table.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of what the child says, bytes.
const SAID: u64 = 64 << 10;

/// This file, if it can be loaded.
pub fn load(path: &Path) -> Result<Library> {
    match child(path) {
        Ok(child) => tried(child, path)?,
        Err(error) => {
            tracing::warn!(%error, "no process to try the driver in: it is loaded as it is");
        }
    }
    Ok(Library::load(path)?)
}

/// This very binary, also if another one has taken its place on disk.
fn child(path: &Path) -> std::io::Result<Child> {
    Command::new(format!("/proc/{}/exe", std::process::id()))
        .args(["engine", "try-driver", "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
}

fn tried(mut child: Child, path: &Path) -> Result<()> {
    let (file, remedy) = (path.display(), "build it anew, and rename it into place");
    let output = child.stdout.take().context("no output of the child")?;
    let (sender, said) = channel();
    // It ends when the child does, or closes its output.
    let reader = thread::Builder::new().spawn(move || {
        let mut text = String::new();
        let _ = output.take(SAID).read_to_string(&mut text);
        let _ = sender.send(text);
    });
    reader.context("no thread to read what the child says")?;
    let said = said.recv_timeout(PATIENCE);
    if said.is_err() {
        let _ = child.kill();
    }
    let status = child.wait()?;
    let Ok(said) = said else {
        bail!(
            "cannot load {file}: it is not loaded after {PATIENCE:?}: its initialisers hang; {remedy}"
        );
    };
    if let Some(signal) = status.signal() {
        bail!("cannot load {file}: a process that loaded it died of signal {signal}; {remedy}");
    }
    if !status.success() {
        match said.trim() {
            "" => {
                bail!("cannot load {file}: a process that loaded it ended with {status}; {remedy}")
            }
            why => bail!("{why}"),
        }
    }
    Ok(())
}
