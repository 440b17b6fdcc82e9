//! `pointsman config reload|show --admin URL --token-file FILE`: a running host's configuration. Exit
//! status 0 only when the host did what was wanted.

use super::remote::{Remote, field, text};
use anyhow::Result;
use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;
use std::process::ExitCode;

/// Commands.
#[derive(Subcommand)]
pub enum Command {
    /// Let the host read its file anew, as SIGHUP does: endpoints come and go, the policy is replaced
    Reload(Remote),
    /// What the host runs with, and what waits for a restart
    Show(Remote),
}

/// Runs one of them.
pub fn run(command: &Command, as_json: bool) -> Result<ExitCode> {
    match command {
        Command::Reload(remote) => remote
            .ask(Method::POST, "config/reload", |request| request)?
            .show(as_json, show_reload),
        Command::Show(remote) => remote
            .ask(Method::GET, "config", |request| request)?
            .show(as_json, show_config),
    }
}

fn show_reload(value: &Value) {
    say!("reloaded {}", text(value, "file"));
    let endpoints = field(value, "endpoints");
    for what in ["added", "removed", "replaced", "changed", "kept"] {
        say!("    {what:<10}{}", list(field(endpoints, what)));
    }
    let drivers = field(value, "drivers");
    for what in ["opened", "ended"] {
        let names = field(drivers, what);
        if names.as_array().is_some_and(|names| !names.is_empty()) {
            say!("    drivers   {what}: {}", list(names));
        }
    }
    let policy = field(value, "policy");
    match policy.is_null() {
        true => say!("    policy    as it was"),
        false => say!(
            "    policy    {} {} decides, generation {}",
            text(policy, "name"),
            text(policy, "version"),
            field(policy, "generation")
        ),
    }
    show_rest(value);
}

fn show_config(value: &Value) {
    say!("{}", text(value, "file"));
    say!("    last      {}", text(value, "last"));
    say!("    policy    {}", text(field(value, "policy"), "use"));
    for pool in field(value, "pools").as_array().into_iter().flatten() {
        let (name, role) = (text(pool, "name"), text(pool, "role"));
        say!("    pool      {name}, {role}");
        for endpoint in field(pool, "endpoints").as_array().into_iter().flatten() {
            let (name, url) = (text(endpoint, "name"), text(endpoint, "url"));
            say!("      {name:<12}{url}, {} ranks", field(endpoint, "ranks"));
        }
    }
    show_rest(value);
}

fn show_rest(value: &Value) {
    let waits = field(value, "needs_restart");
    if waits.as_array().is_some_and(|waits| !waits.is_empty()) {
        say!("    needs a restart: {}", list(waits));
    }
    for warning in field(value, "warnings").as_array().into_iter().flatten() {
        say!("    warning: {}", warning.as_str().unwrap_or("?"));
    }
}

fn list(names: &Value) -> String {
    let names: Vec<&str> = (names.as_array().into_iter().flatten())
        .filter_map(Value::as_str)
        .collect();
    match names.is_empty() {
        true => "-".to_owned(),
        false => names.join(", "),
    }
}
