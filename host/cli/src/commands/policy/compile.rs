//! `pointsman policy compile`: what `serve` runs beside itself to fill its code cache. Not for people.

use crate::commands::print_json;
use anyhow::{Context, Result};
use pointsman_runtime::{CodeCache, Engine};
use serde_json::json;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The private folder of the cache
    #[arg(long, value_name = "DIR")]
    cache: PathBuf,
    /// The shared one
    #[arg(long, value_name = "DIR")]
    shared: Option<PathBuf>,
}

/// Compiles the policy that comes on standard input. One that cannot be compiled is described on
/// standard output.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut wasm = Vec::new();
    (io::stdin().lock().read_to_end(&mut wasm)).context("cannot read the policy")?;
    let cache = CodeCache::open(&args.cache, args.shared.as_deref())?;
    match Engine::new()?.with_cache(cache).compile(&wasm) {
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            print_json(&json!({ "stage": error.stage().as_str(), "cause": error.to_string() }))?;
            Ok(ExitCode::FAILURE)
        }
    }
}
