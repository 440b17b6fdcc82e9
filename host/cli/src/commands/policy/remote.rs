//! `pointsman policy list|load|swap|rollback|status --admin URL --token-file FILE`: a running host's
//! policies. Exit status 0 only when the host did what was wanted.

use crate::commands::remote::{Remote, Said, field, some, text};
use crate::policies::Named;
use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// Which policy.
#[derive(clap::Args)]
pub struct Wanted {
    /// A built-in name or the path of a .wasm, which is sent to the host
    policy: String,
    /// Its configuration
    #[arg(long, value_name = "JSON", default_value = "{}")]
    config: String,
    /// The SHA-256 that the .wasm must have
    #[arg(long, value_name = "HEX", default_value = "")]
    sha256: String,
    #[command(flatten)]
    remote: Remote,
}

/// The policies of the host's binary, and the one that decides.
pub fn list(remote: &Remote, as_json: bool) -> Result<ExitCode> {
    let said = remote.ask(Method::GET, "policies", |request| request)?;
    said.show(as_json, |value| {
        for policy in field(value, "policies").as_array().into_iter().flatten() {
            let mark = if field(policy, "decides") == true {
                '*'
            } else {
                ' '
            };
            say!(
                "{mark} {:<26}{}",
                text(policy, "name"),
                text(policy, "about")
            );
        }
        show_status(field(value, "now"));
    })
}

/// What decides now.
pub fn status(remote: &Remote, as_json: bool) -> Result<ExitCode> {
    let said = remote.ask(Method::GET, "policy", |request| request)?;
    said.show(as_json, show_status)
}

/// Brings the policy before this one back.
pub fn rollback(remote: &Remote, as_json: bool) -> Result<ExitCode> {
    let said = remote.ask(Method::POST, "policy/rollback", |request| request)?;
    said.show(as_json, show_status)
}

/// Puts a policy in place.
pub fn swap(wanted: &Wanted, as_json: bool) -> Result<ExitCode> {
    wanted.send("policy/swap")?.show(as_json, |value| {
        show_canary(field(value, "canary"));
        show_status(value);
    })
}

/// Loads a policy on the host, and leaves the running one in place.
pub fn load(wanted: &Wanted, as_json: bool) -> Result<ExitCode> {
    wanted.send("policy/load")?.show(as_json, |value| {
        let (name, version) = (text(value, "name"), text(value, "version"));
        say!("{name} {version} can be used there: swap it in with `pointsman policy swap`");
        show_canary(field(value, "canary"));
    })
}

impl Wanted {
    pub fn send(&self, path: &str) -> Result<Said> {
        let config: Value = serde_json::from_str(&self.config)
            .with_context(|| format!("--config {:?}: wanted JSON", self.config))?;
        match Named::parse(&self.policy, Path::new(""))? {
            Named::BuiltIn(policy) => {
                let wanted = json!({
                    "policy": policy.name, "config": config, "sha256": self.sha256
                });
                (self.remote).ask(Method::POST, path, |request| request.json(&wanted))
            }
            Named::File(file) => {
                let wasm = Named::File(file.clone()).wasm()?.into_owned();
                let origin = file.file_name().unwrap_or(file.as_os_str());
                let query = [
                    ("origin", origin.to_string_lossy().into_owned()),
                    ("config", config.to_string()),
                    ("sha256", self.sha256.clone()),
                ];
                let mut url = (self.remote.url(path)).context("--admin: no URL to add to")?;
                url.query_pairs_mut().extend_pairs(query);
                self.remote.send(Method::POST, url, |request| {
                    request
                        .header("content-type", "application/wasm")
                        .body(wasm)
                })
            }
        }
    }
}

/// What a policy would have said to the last decisions.
pub fn show_canary(value: &Value) {
    let number = |name| field(value, name).as_u64().unwrap_or(0);
    let (asked, changed) = (number("decisions"), number("changed"));
    if asked == 0 {
        return say!("tried on no decision: none is recorded yet");
    }
    let share = some(changed, asked);
    say!("tried on the last {asked} decisions: {changed} would change ({share} %)");
}

/// What decides.
pub fn show_status(value: &Value) {
    let (name, version) = (text(value, "name"), text(value, "version"));
    say!(
        "{name} {version} decides, generation {}",
        field(value, "generation")
    );
    say!("    from      {}", text(value, "origin"));
    say!("    sha256    {}", text(value, "digest"));
    say!(
        "    before    {}",
        field(value, "previous").as_str().unwrap_or("none")
    );
    say!("    last      {}", text(value, "last"));
    if let Some(file) = field(value, "file").as_str() {
        say!("    file      {file}");
    }
    if let (Some(until), Some(now)) = (
        field(value, "paused_until_ms").as_u64(),
        field(value, "now_ms").as_u64(),
    ) {
        let left = until.saturating_sub(now);
        say!("    paused    the fallback decides for {left} ms more");
    }
}
