//! A process of the binary that says where it listens.

use crate::paths::pointsman;
use anyhow::{Context, Result, bail};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Killed when it is dropped.
pub struct Process {
    child: Child,
    /// the addresses that it named, in order
    pub urls: Vec<String>,
    _output: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `pointsman ARGS` and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it listens.
    pub async fn start(args: &[&str]) -> Result<Process> {
        let mut child = Command::new(pointsman())
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .context("target/release/pointsman does not start: `make build` first")?;
        let output = child.stdout.take().context("no output")?;
        let mut output = BufReader::new(output).lines();
        while let Some(line) = output.next_line().await? {
            let urls: Vec<String> = (line.split([' ', ',']))
                .filter(|word| word.starts_with("http://"))
                .map(str::to_owned)
                .collect();
            if !urls.is_empty() {
                return Ok(Process {
                    child,
                    urls,
                    _output: output,
                });
            }
        }
        bail!("`pointsman {}` ended before it listened", args.join(" "))
    }

    /// Kills it as a crash would, and waits until it is gone.
    ///
    /// # Errors
    /// If it is gone already.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}
