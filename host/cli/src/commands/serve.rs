//! `pointsman serve`: configuration → policy → fleet → data plane.

use super::{check, print_json, stop_signal};
use crate::admin::{self, Admin, Folders, Reload, Shadows, Swapper, Token, Watch};
use crate::config::Config;
use crate::engines::{Driven, EVERY};
use crate::native;
use crate::policies::{Named, candidate};
use crate::profiling;
use anyhow::{Context, Result};
use pointsman_core::{Core, Policy, Source};
use pointsman_proxy::{Proxy, SystemClock, Witnesses};
use pointsman_recorder::Recorder;
use pointsman_runtime::{CodeCache, Control, Engine, Protection, Slot};
use serde_json::json;
use std::env;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};
use tokio::signal::unix::{SignalKind, signal};

/// Arguments.
#[derive(clap::Args)]
pub struct Args {
    /// The configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// For profiling windows that are open when the process is told to end.
const WINDOWS_PATIENCE: Duration = Duration::from_secs(10);

/// Runs until the process is told to end.
pub fn run(args: &Args, as_json: bool) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("no runtime")?;
    // First of all: by default the signal ends the process.
    let hangups = {
        let _within = runtime.enter();
        signal(SignalKind::hangup()).context("SIGHUP cannot be taken")?
    };
    let config = Config::read(&args.config)?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let core = core(&config);
    let witnesses = Witnesses {
        recorder: Arc::new(Recorder::new(config.recorder.keep)),
        ..Witnesses::default()
    };
    let deciding = Deciding::new(&config, &core, &witnesses.recorder)?;
    folders(&config)?;
    let engines = Arc::new(Driven::start(&config, core.clone())?);
    // Before a policy's first tick, which may open one.
    let windows = Arc::new(profiling::collector(
        profiling::settings(&config),
        &engines,
    )?);
    warn_of_engines(&config, &engines)?;
    let token = token(&config)?;
    let settings = config.settings(nonce());
    let route = settings.route.clone();
    let recordings = (config.recorder.folder.as_ref()).map(|folder| config.base.join(folder));
    let shadows = Shadows::new(core.clone(), settings.fallback, witnesses.shadow.clone());
    let mut proxy = Proxy::bind(settings, core.clone(), deciding.source, witnesses.clone())
        .context("the data plane cannot start")?;
    engines.measure();
    if let Some(swapper) = &deciding.swapper {
        swapper.slot().set_workers(proxy.workers());
    }
    let reload = Arc::new(Reload::new(
        &args.config,
        config,
        proxy.reloader(),
        (engines.clone(), windows.clone()),
        deciding.swapper.clone(),
        deciding.watch,
    ));
    let admin = Admin {
        core,
        shadows,
        witnesses: witnesses.clone(),
        recordings,
        swapper: deciding.swapper,
        engines: engines.clone(),
        windows: windows.clone(),
        route,
        reload: reload.clone(),
    };
    if let Some(token) = token {
        proxy = proxy.with_admin_routes(admin::routes(admin, token));
    }
    let (data, admin) = (proxy.data_addr(), proxy.admin_addr());
    if as_json {
        print_json(&json!({
            "listening": format!("http://{data}"), "admin": format!("http://{admin}")
        }))?;
    } else {
        say!("pointsman serve: listening on http://{data}, metrics on http://{admin}/metrics");
    }
    runtime.spawn(admin::follow(reload.follows()));
    runtime.spawn(reload.on(hangups, "SIGHUP"));
    let failures = proxy.failures();
    let driven = engines.clone();
    let control = (deciding.slot).map(|slot| Control::start(slot, engines, failures));
    let _control = control.transpose().context("no thread for ticks")?;
    runtime.block_on(proxy.run(stop_signal()))?;
    witnesses.recorder.stop();
    windows.end(WINDOWS_PATIENCE);
    close(&driven);
    Ok(ExitCode::SUCCESS)
}

/// Closes all drivers, each within its deadline.
pub fn close(engines: &Driven) {
    thread::scope(|scope| {
        for (engine, seat) in engines.of(&EVERY) {
            scope.spawn(move || {
                if let Err(error) = seat.desk.close() {
                    tracing::warn!(engine, %error, "its driver is not closed: the process ends without");
                }
            });
        }
    });
}

/// The configured policy, as it would decide.
pub fn policy(config: &Config) -> Result<Policy> {
    let recorder = Arc::new(Recorder::new(0));
    let deciding = Deciding::new(config, &core(config), &recorder)?;
    let (policy, _) = deciding.source.router();
    Ok(policy)
}

/// The state of a host that has just started.
pub fn core(config: &Config) -> Arc<Core> {
    Arc::new(Core::new(config.table(), Arc::new(SystemClock::start())))
}

/// The folders that the file names and this host writes to: better known now than when they are needed.
pub fn folders(config: &Config) -> Result<()> {
    let writable = |key: &str, folder: &Path| -> Result<()> {
        let folder = match folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => folder,
        };
        let tried = tempfile::tempfile_in(folder);
        tried.map(drop).with_context(|| {
            format!(
                "{key}: cannot write to {}: make that folder, and let this user write to it",
                folder.display()
            )
        })
    };
    if let Some(folder) = &config.recorder.folder {
        writable("recorder.folder", &config.base.join(folder))?;
    }
    if let Some(folder) = profiling::folder(config) {
        // It is made when the first window ends; then its parent must be there.
        let parent = folder.parent().filter(|_| !folder.exists());
        writable("profile.folder", parent.unwrap_or(&folder))?;
    }
    Ok(())
}

/// Says where engines cannot work as they say they were started; those that do not answer say nothing.
fn warn_of_engines(config: &Config, engines: &Arc<Driven>) -> Result<()> {
    let (config, engines) = (config.clone(), engines.clone());
    let ask = move || {
        for why in check::deployments(&config, &engines).into_iter().flatten() {
            tracing::warn!("{why}");
        }
    };
    let thread = thread::Builder::new().name("ask-engines".into());
    thread.spawn(ask).context("no thread to ask the engines")?;
    Ok(())
}

/// The token of the admin API; none: it is off.
pub fn token(config: &Config) -> Result<Option<Token>> {
    let file = config.admin.token_file.as_ref();
    file.map(|file| {
        let token = admin::read_token(&config.base.join(file));
        Ok(Token::new(
            &token.context("admin.token_file cannot be used")?,
        ))
    })
    .transpose()
}

/// Who decides.
struct Deciding {
    source: Arc<dyn Source>,
    /// none: a baseline, which is not replaced
    swapper: Option<Arc<Swapper>>,
    /// where the policy is a file
    watch: Option<Watch>,
    /// none: a baseline, which gets no ticks
    slot: Option<Arc<Slot>>,
}

impl Deciding {
    fn new(config: &Config, core: &Arc<Core>, recorder: &Arc<Recorder>) -> Result<Deciding> {
        if config.policy.r#use.starts_with(native::PREFIX) {
            return Ok(Deciding {
                source: native::source(&config.policy.r#use)?,
                swapper: None,
                watch: None,
                slot: None,
            });
        }
        let policy = Named::parse(&config.policy.r#use, &config.base)?;
        let (text, limits) = (config.policy_config()?, config.policy_limits());
        let (engine, folders) = engine(config)?;
        let first = candidate(&engine, &policy, &text, limits, &config.policy.sha256)?;
        let slot = Arc::new(Slot::new(
            core.clone(),
            engine,
            first,
            Protection::default(),
        ));
        let swapper = Arc::new(Swapper::new(
            slot.clone(),
            limits,
            folders,
            recorder.clone(),
        ));
        let watch = match policy {
            Named::BuiltIn(_) => None,
            Named::File(file) => Some(Watch {
                file,
                config: text,
                pin: config.policy.sha256.clone(),
                swapper: swapper.clone(),
            }),
        };
        Ok(Deciding {
            source: slot.clone(),
            swapper: Some(swapper),
            watch,
            slot: Some(slot),
        })
    }
}

/// The engine with its code cache. The folder that the operator names must be there; without the
/// default one a start takes longer, and that is all.
fn engine(config: &Config) -> Result<(Engine, Option<Folders>)> {
    let engine = Engine::new()?;
    let cache = &config.cache;
    if !cache.enabled {
        return Ok((engine, None));
    }
    let shared = cache.shared.as_ref().map(|shared| config.base.join(shared));
    let folders = |private| Folders { private, shared };
    let open = |folders: &Folders| CodeCache::open(&folders.private, folders.shared.as_deref());
    if let Some(folder) = &cache.folder {
        let folders = folders(config.base.join(folder));
        return Ok((engine.with_cache(open(&folders)?), Some(folders)));
    }
    let Some(folders) = user_cache().map(folders) else {
        return Ok((engine, None));
    };
    match open(&folders) {
        Ok(cache) => Ok((engine.with_cache(cache), Some(folders))),
        Err(error) => {
            tracing::warn!("policies are compiled at every start: {error}");
            Ok((engine, None))
        }
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
