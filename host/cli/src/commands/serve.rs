//! `pointsman serve`: configuration → policy → fleet → data plane.

use super::{print_json, stop_signal};
use crate::config::Config;
use crate::native;
use crate::policies::{Named, candidate};
use anyhow::{Context, Result};
use pointsman_core::{Core, Policy, Source};
use pointsman_proxy::{Proxy, SystemClock};
use pointsman_runtime::{CodeCache, Engine, Protection, Slot};
use serde_json::json;
use std::env;
use std::path::{Path, PathBuf};
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
    let engine = engine(config)?;
    let first = candidate(
        &engine,
        &policy,
        &text,
        config.policy_limits(),
        &config.policy.sha256,
    )?;
    let slot = Slot::new(core.clone(), engine, first, Protection::default());
    Ok(Arc::new(slot))
}

/// The engine with its code cache. The folder that the operator names must be there; without the
/// default one a start takes longer, and that is all.
fn engine(config: &Config) -> Result<Engine> {
    let engine = Engine::new()?;
    let cache = &config.cache;
    if !cache.enabled {
        return Ok(engine);
    }
    let shared = cache.shared.as_ref().map(|shared| config.base.join(shared));
    let open = |folder: &Path| CodeCache::open(folder, shared.as_deref());
    if let Some(folder) = &cache.folder {
        return Ok(engine.with_cache(open(&config.base.join(folder))?));
    }
    match user_cache().map(|folder| open(&folder)) {
        Some(Ok(cache)) => Ok(engine.with_cache(cache)),
        Some(Err(error)) => {
            tracing::warn!("policies are compiled at every start: {error}");
            Ok(engine)
        }
        None => Ok(engine),
    }
}

/// See the XDG base directory specification.
fn user_cache() -> Option<PathBuf> {
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
    let folder = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    Some(
        folder
            .filter(|f| f.is_absolute())
            .or_else(home)?
            .join("pointsman"),
    )
}

/// Differs between starts; only makes request ids that clients did not bring.
fn nonce() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = now.map_or(0, |now| now.subsec_nanos());
    u64::from(std::process::id()) << 32 | u64::from(nanos)
}
