//! `pointsman check`: everything that `serve` would refuse, without serving.

use super::{print_json, serve};
use crate::config::Config;
use crate::engines::Driven;
use anyhow::Result;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Exit status 0 only if `serve` would start, as far as this machine's ports and engines let it.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let config = Config::read(&args.config)?;
    config.settings(0).check()?;
    serve::token(&config)?;
    Driven::start(&config, serve::core(&config))?;
    let policy = serve::policy(&config)?;
    let targets: u32 = (config.pools.iter())
        .flat_map(|pool| &pool.endpoints)
        .map(|endpoint| endpoint.ranks)
        .sum();
    let warnings = config.warnings();
    for warning in &warnings {
        eprintln!("warning: {warning}");
    }
    if as_json {
        print_json(&json!({
            "ok": true, "warnings": warnings, "policy": policy.name, "version": policy.version, "targets": targets
        }))?;
    } else {
        println!(
            "ok: policy {} {}, {} pools, {targets} targets",
            policy.name,
            policy.version,
            config.pools.len()
        );
    }
    Ok(ExitCode::SUCCESS)
}
