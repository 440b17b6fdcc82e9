//! `pointsman policy record …`: decisions of a running host, with all that they depended on.

use crate::commands::remote::{Remote, field};
use anyhow::{Context, Result};
use clap::Subcommand;
use reqwest::Method;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Commands.
#[derive(Subcommand)]
pub enum Command {
    /// Fetch the last decisions, which every host keeps
    Recent {
        /// The new file for them; holds what policies read of requests, so only you may read it
        #[arg(long, short, value_name = "FILE")]
        out: PathBuf,
        #[command(flatten)]
        remote: Remote,
    },
    /// Record every decision from now on, into a file of the host's [recorder] folder
    Start {
        /// The name of the new file
        name: String,
        /// How many at most
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        decisions: u64,
        #[command(flatten)]
        remote: Remote,
    },
    /// End that; all of it is on disk afterwards
    Stop(Remote),
    /// What is recorded
    Status(Remote),
}

/// Runs one of them.
pub fn run(command: &Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Recent { out, remote } => {
            let lines = remote.fetch("recorder/recent")?;
            let mut options = OpenOptions::new();
            (options.write(true).create_new(true).mode(0o600).open(out))
                .and_then(|mut file| file.write_all(&lines))
                .with_context(|| format!("cannot write {}", out.display()))?;
            eprintln!("{} bytes in {}", lines.len(), out.display());
            Ok(ExitCode::SUCCESS)
        }
        Command::Start {
            name,
            decisions,
            remote,
        } => {
            let wanted = json!({ "file": name, "decisions": decisions });
            (remote.ask(Method::POST, "recorder/start", |r| r.json(&wanted))?).show(as_json, show)
        }
        Command::Stop(remote) => {
            (remote.ask(Method::POST, "recorder/stop", |r| r)?).show(as_json, show)
        }
        Command::Status(remote) => {
            (remote.ask(Method::GET, "recorder", |r| r)?).show(as_json, show)
        }
    }
}

fn show(value: &Value) {
    say!(
        "{} of the last {} decisions are in memory",
        field(value, "recent"),
        field(value, "keep")
    );
    let Some(file) = field(value, "file").as_str() else {
        return say!("    no recording");
    };
    say!("    file      {file}");
    say!(
        "    written   {} decisions, {} bytes, {} left out",
        field(value, "written"),
        field(value, "bytes"),
        field(value, "lost")
    );
    match field(value, "ended").as_str() {
        Some(why) => say!("    ended     {why}"),
        None => say!("    goes on"),
    }
}
