//! A process of this binary that says where it listens.

use anyhow::{Context, Result, bail};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{ChildStdout, Command};

/// Dropped, it is killed.
pub struct Child {
    name: String,
    process: tokio::process::Child,
    urls: Vec<String>,
    /// kept open: a process whose output is closed dies of its next word
    _output: Lines<BufReader<ChildStdout>>,
}

impl Child {
    /// Starts it and waits for the line that says where it listens.
    pub async fn start(args: &[&str]) -> Result<Child> {
        let name = args.first().copied().unwrap_or_default().to_owned();
        // Not by its path: that may have been replaced by a newer build meanwhile.
        let this = std::path::Path::new("/proc/self/exe");
        let mut process = Command::new(this)
            .args(args)
            .env(
                "RUST_LOG",
                std::env::var("RUST_LOG").as_deref().unwrap_or("warn"),
            )
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start `pointsman {}`", args.join(" ")))?;
        let Some(output) = process.stdout.take() else {
            bail!("`pointsman {name}` has no output");
        };
        let mut output = BufReader::new(output).lines();
        let urls = loop {
            let line = (output.next_line().await)
                .with_context(|| format!("cannot read from `pointsman {name}`"))?;
            let Some(line) = line else {
                bail!("`pointsman {name}` ended before it listened");
            };
            let urls: Vec<String> = (line.split([' ', ',']))
                .filter(|word| word.starts_with("http://"))
                .map(str::to_owned)
                .collect();
            if !urls.is_empty() {
                break urls;
            }
        };
        Ok(Child {
            name,
            process,
            urls,
            _output: output,
        })
    }

    /// The n-th address that it named.
    pub fn url(&self, n: usize) -> Result<&str> {
        (self.urls.get(n).map(String::as_str))
            .with_context(|| format!("`pointsman {}` did not say where it listens", self.name))
    }

    /// When it ends by itself.
    pub async fn ended(&mut self) -> String {
        match self.process.wait().await {
            Ok(status) => format!("`pointsman {}` ended: {status}", self.name),
            Err(error) => format!("`pointsman {}` is lost: {error}", self.name),
        }
    }

    /// Ends it.
    pub async fn stop(mut self) {
        // Nothing is in flight any more where this is called, so the hard way loses nothing.
        if let Err(error) = self.process.kill().await {
            tracing::warn!("`pointsman {}` does not end: {error}", self.name);
        }
    }
}
