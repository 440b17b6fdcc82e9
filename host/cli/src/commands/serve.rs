//! `pointsman serve`: configuration → policy → fleet → data plane.

use super::{print_json, stop_signal};
use crate::config::Config;
use crate::native;
use crate::policies::{Named, compile, configure};
use anyhow::{Context, Result};
use pointsman_core::{Core, Policy, Source};
use pointsman_proxy::{Proxy, SystemClock};
use pointsman_runtime::{Engine, Slot};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::SystemTime;

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Runs until the process is told to end.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let config = Config::read(&args.config)?;
    let core = Arc::new(Core::new(config.table(), Arc::new(SystemClock::start())));
    let source = source(&config, &core)?;
    let proxy = Proxy::bind(config.settings(nonce()), core, source)
        .context("the data plane cannot start")?;
    let (data, admin) = (proxy.data_addr(), proxy.admin_addr());
    if as_json {
        print_json(&json!({
            "listening": format!("http://{data}"), "admin": format!("http://{admin}")
        }))?;
    } else {
        println!("pointsman serve: listening on http://{data}, metrics on http://{admin}/metrics");
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    runtime.block_on(proxy.run(stop_signal()))?;
    Ok(ExitCode::SUCCESS)
}

/// The configured policy, as it would decide.
pub fn policy(config: &Config) -> Result<Policy> {
    let core = Core::new(config.table(), Arc::new(SystemClock::start()));
    let (policy, _) = source(config, &Arc::new(core))?.router();
    Ok(policy)
}

fn source(config: &Config, core: &Arc<Core>) -> Result<Arc<dyn Source>> {
    if config.policy.r#use.starts_with(native::PREFIX) {
        return native::source(&config.policy.r#use);
    }
    let policy = Named::parse(&config.policy.r#use, &config.base)?;
    let text =
        serde_json::to_string(&config.policy.config).context("policy.config has no JSON form")?;
    let engine = Engine::new()?;
    let compiled = compile(&engine, &policy, &config.policy.sha256)?;
    let prepared = configure(&compiled, &policy, &text, config.policy_limits())?;
    Ok(Arc::new(Slot::new(
        core.clone(),
        engine,
        Arc::new(prepared),
    )))
}

/// Differs between starts; only makes request ids that clients did not bring.
fn nonce() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.subsec_nanos());
    u64::from(std::process::id()) << 32 | u64::from(nanos)
}
