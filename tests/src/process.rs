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

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    /// memory, in KiB
    pub resident_kb: u64,
    /// the most it ever was, in KiB
    pub peak_kb: u64,
    /// threads
    pub threads: u64,
    /// open file descriptors
    pub files: usize,
}

impl Process {
    /// Starts `pointsman ARGS` and waits until it listens.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it listens.
    pub async fn start(args: &[&str]) -> Result<Process> {
        Process::start_with(args, |_| {}).await
    }

    /// The same, with something about the command changed: its environment, where its log goes.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it listens.
    pub async fn start_with(args: &[&str], change: impl FnOnce(&mut Command)) -> Result<Process> {
        let mut command = Command::new(pointsman());
        change(command.args(args));
        let mut child = command
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

    /// Its number; none: it has ended.
    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// Sends it a signal by name, for example "STOP".
    ///
    /// # Errors
    /// If it is gone.
    pub async fn signal(&self, name: &str) -> Result<()> {
        let id = self.id().context("it is gone")?.to_string();
        let status = Command::new("kill")
            .args(["-s", name, &id])
            .status()
            .await?;
        anyhow::ensure!(status.success(), "kill -s {name} {id}: {status}");
        Ok(())
    }

    /// From now on it gets no file descriptor beyond this number; those that it has it keeps.
    ///
    /// # Errors
    /// If it is gone, or `prlimit` is not installed.
    pub async fn limit_files(&self, most: u32) -> Result<()> {
        let id = self.id().context("it is gone")?.to_string();
        let limit = format!("--nofile={most}:");
        let status = Command::new("prlimit")
            .args(["--pid", &id, &limit])
            .status()
            .await?;
        anyhow::ensure!(status.success(), "prlimit {limit}: {status}");
        Ok(())
    }

    /// What it uses now.
    ///
    /// # Errors
    /// If it is gone.
    pub fn usage(&self) -> Result<Usage> {
        let folder = format!("/proc/{}", self.id().context("it is gone")?);
        let status = std::fs::read_to_string(format!("{folder}/status"))?;
        let number = |key: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            let word = line.and_then(|rest| rest.split_whitespace().next());
            word.and_then(|word| word.parse().ok())
                .with_context(|| format!("no {key} in {folder}/status"))
        };
        Ok(Usage {
            resident_kb: number("VmRSS:")?,
            peak_kb: number("VmHWM:")?,
            threads: number("Threads:")?,
            files: std::fs::read_dir(format!("{folder}/fd"))?.count(),
        })
    }

    /// Kills it as a crash would, and waits until it is gone.
    ///
    /// # Errors
    /// If it is gone already.
    pub async fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }
}
