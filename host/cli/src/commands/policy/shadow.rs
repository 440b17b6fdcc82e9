//! `pointsman policy shadow …`: a second policy on a running host's requests, which decides nothing.

use super::remote::{Wanted, show_canary, show_status};
use crate::commands::remote::{Remote, field, some, text};
use anyhow::Result;
use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;
use std::process::ExitCode;

/// Commands.
#[derive(Subcommand)]
pub enum Command {
    /// Ask it too, from now on
    Start(Wanted),
    /// How it compares with the one that decides
    Report(Remote),
    /// Ask it no more
    Stop(Remote),
    /// Let it decide from now on; exit status 0 only when it does
    Promote(Remote),
}

/// Runs one of them.
pub fn run(command: &Command, as_json: bool) -> Result<ExitCode> {
    let (said, show): (_, fn(&Value)) = match command {
        Command::Start(wanted) => (wanted.send("policy/shadow/start")?, |value| {
            show_canary(field(value, "canary"));
            show_report(value);
        }),
        Command::Report(remote) => (
            remote.ask(Method::GET, "policy/shadow", |request| request)?,
            show_report,
        ),
        Command::Stop(remote) => (
            remote.ask(Method::POST, "policy/shadow/stop", |request| request)?,
            show_report,
        ),
        Command::Promote(remote) => (
            remote.ask(Method::POST, "policy/shadow/promote", |request| request)?,
            |value| {
                show_report(field(value, "shadow"));
                show_status(value);
            },
        ),
    };
    said.show(as_json, show)
}

fn show_report(value: &Value) {
    let (name, version) = (text(value, "name"), text(value, "version"));
    let number = |name| field(value, name).as_u64().unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "seconds for people")]
    let seconds = number("ran_ms") as f64 / 1000.0;
    let (decided, agreed) = (number("decided"), number("agreed"));
    let share = some(agreed, decided);
    say!("{name} {version} in the shadow for {seconds:.1} s");
    say!("    from      {}", text(value, "origin"));
    say!("    sha256    {}", text(value, "digest"));
    match decided {
        0 => say!("    decided   nothing yet"),
        _ => say!("    decided   {decided}, as the live policy {agreed} ({share} %)"),
    }
    for difference in field(value, "differences").as_array().into_iter().flatten() {
        say!(
            "    {:>8}  live {}, shadow {}",
            field(difference, "count"),
            text(difference, "live"),
            text(difference, "shadow")
        );
    }
    for (cause, count) in field(value, "failures").as_object().into_iter().flatten() {
        say!("    {count:>8}  failed: {cause}");
    }
    if number("dropped") > 0 {
        say!("    not asked {} times: it is too slow", number("dropped"));
    }
    let decision = field(value, "decision");
    say!(
        "    time      {} ns on average, {} ns at most",
        field(decision, "mean_ns"),
        field(decision, "max_ns")
    );
    say!("    last      {}", text(value, "last"));
}
