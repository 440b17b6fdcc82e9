//! `pointsman policy check`: whether a policy could be used, and what it would have said.

use crate::commands::print_json;
use crate::commands::remote::some;
use crate::policies::{Named, compile, configure, digest, router};
use anyhow::{Context, Result, bail};
use pointsman_core::{Core, Key, Limits as Table, ManualClock};
use pointsman_recorder::{Reader, Rehearsal, Rehearsed};
use pointsman_runtime::{CONTRACT, Engine, Limits, Prepared};
use serde_json::{Value, json};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// A built-in name or the path of a .wasm
    policy: String,
    /// Its configuration
    #[arg(long, value_name = "JSON", default_value = "{}")]
    config: String,
    /// Decisions of a host, on which it is tried; exit status 1 if it fails on any
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
}

/// Loads it as a host would, and tries it on the recording.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let named = Named::parse(&args.policy, Path::new(""))?;
    let compiled = compile(&Engine::new()?, &named)?;
    let prepared = Arc::new(configure(
        &compiled,
        &named,
        &args.config,
        Limits::default(),
    )?);
    let tried = (args.recording.as_deref())
        .map(|file| {
            rehearse(&prepared, file).with_context(|| format!("the recording {}", file.display()))
        })
        .transpose()?;
    let ok = (tried.as_ref()).is_none_or(|tried| tried.rehearsed.failures.is_empty());
    if as_json {
        let mut said = described(&prepared, &named.wasm()?);
        if let Some(said) = said.as_object_mut() {
            said.insert("ok".to_owned(), json!(ok));
            if let Some(Tried { rehearsed, torn }) = &tried {
                let recording = json!({
                    "decisions": rehearsed.asked, "changed": rehearsed.changed,
                    "changed_share": rehearsed.share(), "changes": rehearsed.changes,
                    "failures": rehearsed.failures, "first_failure": rehearsed.first_failure,
                    "torn": torn,
                });
                said.insert("recording".to_owned(), recording);
            }
        }
        print_json(&said)?;
    } else {
        show(&prepared, &named.wasm()?);
        if let Some(tried) = &tried {
            tried.show();
        }
    }
    Ok(if ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn keys(prepared: &Prepared) -> Vec<&'static str> {
    [
        (Key::Session, "session"),
        (Key::Siblings, "siblings"),
        (Key::Parent, "parent"),
        (Key::Custom, "custom"),
    ]
    .into_iter()
    .filter(|(key, _)| prepared.policy().keys.has(*key))
    .map(|(_, name)| name)
    .collect()
}

fn described(prepared: &Prepared, wasm: &[u8]) -> Value {
    let policy = prepared.policy();
    let schema: Value = serde_json::from_str(prepared.config_schema()).unwrap_or(Value::Null);
    json!({
        "ok": true, "name": policy.name, "version": policy.version, "contract": CONTRACT,
        "keys": keys(prepared), "reasons": policy.reasons, "config_schema": schema,
        "sha256": digest(wasm), "bytes": wasm.len(),
    })
}

fn show(prepared: &Prepared, wasm: &[u8]) {
    let policy = prepared.policy();
    let keys = keys(prepared).join(", ");
    say!("ok: {} {} ({CONTRACT})", policy.name, policy.version);
    say!(
        "    keys     {}",
        if keys.is_empty() { "none" } else { &keys }
    );
    say!("    reasons  {}", policy.reasons.join(", "));
    say!("    sha256   {}", digest(wasm));
}

/// A policy, tried on a recording.
struct Tried {
    rehearsed: Rehearsed,
    /// the recording's last line is half a one
    torn: bool,
}

fn rehearse(prepared: &Arc<Prepared>, file: &Path) -> Result<Tried> {
    let open = File::open(file).context("cannot be opened")?;
    let mut reader = Reader::new(BufReader::new(open))?;
    // Each decision brings a state of its own.
    let core = Core::new(Table::default(), Arc::new(ManualClock::default()));
    let (policy, router) = router(&Arc::new(core), prepared.clone());
    let mut rehearsal = Rehearsal::new(policy, router);
    for moment in reader.by_ref() {
        rehearsal.ask(&moment?);
    }
    let rehearsed = rehearsal.end();
    if rehearsed.asked == 0 {
        bail!("there is no decision in it: wanted at least one");
    }
    Ok(Tried {
        rehearsed,
        torn: reader.is_torn(),
    })
}

impl Tried {
    fn show(&self) {
        let Tried { rehearsed, torn } = self;
        let asked = rehearsed.asked;
        let share = some(rehearsed.changed, asked);
        say!(
            "    recording {asked} decisions, {} would change ({share} %)",
            rehearsed.changed
        );
        for change in &rehearsed.changes {
            say!(
                "      {:>8}  {} → {}",
                change.count,
                change.before,
                change.after
            );
        }
        for (cause, count) in &rehearsed.failures {
            say!("      {count:>8}  failed: {cause}");
        }
        if let Some(failure) = &rehearsed.first_failure {
            say!("    FAILED    {failure}");
        }
        if *torn {
            say!("    its last line is not whole, and was left out");
        }
    }
}
