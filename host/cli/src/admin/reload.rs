//! Reads the configuration anew: on SIGHUP, or on an operator's word.
//!
//! ```text
//! read and check the file → check the endpoints → open their drivers → load the policy, if another one
//!     is wanted → swap → replace endpoints, drivers and grants
//! ```
//!
//! Whatever stops on the way leaves everything as it is; what comes after the swap cannot fail. Of
//! `[policy]` only a change in the file counts: a policy that an operator has swapped in since stays.
//! Settings that only a start reads keep their values, and are named.

use super::refused::Refused;
use super::swapper::{Swapper, blocking};
use super::wanted::Wanted;
use super::watch::Watch;
use crate::config::Config;
use crate::engines::Driven;
use crate::native;
use crate::policies::Named;
use axum::body::Bytes;
use axum::http::StatusCode;
use pointsman_engine::windows::Collector;
use pointsman_proxy::{Changes, Reloader};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::signal::unix::Signal;
use tokio::sync::{Mutex, watch};

/// See the module.
#[derive(Debug)]
pub struct Reload {
    file: PathBuf,
    reloader: Reloader,
    engines: Arc<Driven>,
    /// profiling windows on them
    windows: Arc<Collector>,
    /// none: a baseline decides
    swapper: Option<Arc<Swapper>>,
    /// the policy's file that is to be followed
    follows: watch::Sender<Option<Watch>>,
    one_at_a_time: Mutex<()>,
    running: std::sync::Mutex<Running>,
}

/// What is true now.
#[derive(Debug)]
struct Running {
    /// of what only a start reads, the values of the start
    config: Config,
    /// settings that the file has changed and only a start reads
    needs_restart: Vec<String>,
    loaded: SystemTime,
    reloads: u64,
    /// what happened last, in one line
    last: String,
}

/// The policy that the file wants now, and did not before.
struct Next {
    wanted: Wanted,
    /// to be followed
    file: Option<PathBuf>,
}

impl Reload {
    /// With the configuration of the start, and the policy's file that is followed.
    pub fn new(
        file: &Path,
        config: Config,
        reloader: Reloader,
        (engines, windows): (Arc<Driven>, Arc<Collector>),
        swapper: Option<Arc<Swapper>>,
        follows: Option<Watch>,
    ) -> Reload {
        Reload {
            file: file.to_owned(),
            reloader,
            engines,
            windows,
            swapper,
            follows: watch::Sender::new(follows),
            one_at_a_time: Mutex::default(),
            running: std::sync::Mutex::new(Running {
                config,
                needs_restart: Vec::new(),
                loaded: SystemTime::now(),
                reloads: 0,
                last: "started".to_owned(),
            }),
        }
    }

    /// The policy's file that is to be followed, as it changes.
    pub fn follows(&self) -> watch::Receiver<Option<Watch>> {
        self.follows.subscribe()
    }

    /// Reloads at each signal, for ever. Signals that come together are one.
    pub async fn on(self: Arc<Self>, mut signal: Signal, name: &'static str) {
        while signal.recv().await.is_some() {
            let held = self.one_at_a_time.lock().await;
            // The log says what became of it.
            let _ = self.reload(name, true).await;
            drop(held);
        }
    }

    /// Reloads, unless somebody does so now.
    pub async fn try_now(&self, by: &str) -> Result<Value, Refused> {
        let _held = self.one_at_a_time.try_lock().map_err(|_| {
            let cause = "the configuration is being reloaded";
            let remedy = "try again when it is done";
            Refused::new(StatusCode::CONFLICT, "configuration", cause, remedy)
        })?;
        self.reload(by, false).await
    }

    /// The models that the configuration names.
    pub fn models(&self) -> Vec<String> {
        self.running().config.models()
    }

    /// The running configuration. There are no secrets in it.
    pub fn show(&self) -> Value {
        let running = self.running();
        let config = &running.config;
        let loaded = running.loaded.duration_since(UNIX_EPOCH);
        json!({
            "file": self.file, "loaded_unix_s": loaded.map_or(0, |loaded| loaded.as_secs()),
            "reloads": running.reloads, "last": running.last,
            "needs_restart": running.needs_restart,
            "policy": { "use": config.policy.r#use, "sha256": config.policy.sha256 },
            "pools": config.pools,
        })
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `patient`: waits for a policy that is being loaded.
    async fn reload(&self, by: &str, patient: bool) -> Result<Value, Refused> {
        let result = self.replace(by, patient).await;
        if let Err(refused) = &result {
            let file = self.file.display();
            tracing::warn!(by, %file, %refused, "configuration not reloaded: nothing has changed");
            self.running().last = format!("not reloaded by {by}: {refused}");
        }
        result
    }

    async fn replace(&self, by: &str, patient: bool) -> Result<Value, Refused> {
        let began = Instant::now();
        let (file, before) = (self.file.clone(), self.running().config.clone());
        let (new, next) = blocking(move || read(&file, &before)).await??;
        let plan = (self.reloader.plan(&new.settings(0).pools)).map_err(unusable)?;
        let engines = self.engines.clone();
        let open = move || {
            let drivers = engines.plan(&new).map_err(unusable);
            drivers.map(|drivers| (new, drivers))
        };
        let (new, drivers) = blocking(open).await??;
        // Held until all is done: nobody swaps in between.
        let turn = match (&self.swapper, &next) {
            (Some(swapper), Some(_)) if patient => Some(swapper.wait().await),
            (Some(swapper), Some(_)) => Some(swapper.turn()?),
            _ => None,
        };
        let swapped = match (&turn, &next) {
            (Some(turn), Some(next)) => Some(turn.swap(next.wanted.clone()).await?.0),
            _ => None,
        };
        // No `await` from here on: whoever leaves now leaves nothing half done.
        let changes = plan.apply();
        let drivers = self.engines.apply(drivers);
        self.windows.adopt();
        if let (Some(swapper), Some(next)) = (&self.swapper, next) {
            self.follow(swapper, next);
        }
        let warnings = new.warnings();
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        let needs_restart = self.note(by, new, &changes);
        let policy = swapped.map(|generation| {
            let status = self.swapper.as_ref().map(|swapper| swapper.slot().status());
            let status = status.map(|status| (status.policy.name, status.policy.version));
            let (name, version) = status.unwrap_or_default();
            json!({ "name": name, "version": version, "generation": generation })
        });
        let generation = swapped;
        let Changes {
            added,
            removed,
            replaced,
            changed,
            kept,
            ..
        } = changes;
        tracing::info!(
            by, file = %self.file.display(), ?added, ?removed, ?replaced, ?changed,
            kept = kept.len(), opened = ?drivers.opened, ended = ?drivers.ended, generation,
            ?needs_restart, "configuration reloaded"
        );
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(json!({
            "reloaded": true, "file": self.file, "took_ms": took,
            "endpoints": {
                "added": added, "removed": removed, "replaced": replaced, "changed": changed,
                "kept": kept,
            },
            "drivers": {
                "opened": drivers.opened, "ended": drivers.ended, "kept": drivers.kept,
            },
            "policy": policy, "needs_restart": needs_restart, "warnings": warnings,
        }))
    }

    fn follow(&self, swapper: &Arc<Swapper>, next: Next) {
        let Next { wanted, file } = next;
        swapper.note_file(match &file {
            Some(file) => format!("{} is followed since a reload", file.display()),
            None => "none is followed since a reload".to_owned(),
        });
        self.follows.send_replace(file.map(|file| Watch {
            file,
            config: wanted.config,
            pin: wanted.pin,
            swapper: swapper.clone(),
        }));
    }

    /// Remembers what is true now. Returns what needs a restart.
    fn note(&self, by: &str, new: Config, changes: &Changes) -> Vec<String> {
        let mut running = self.running();
        let mut needs_restart = running.config.differs(&new);
        if swappable(&running.config, &new) {
            let policy = &mut running.config.policy;
            policy.r#use = new.policy.r#use;
            policy.sha256 = new.policy.sha256;
            policy.config = new.policy.config;
        } else if !running.config.same_policy(&new) {
            needs_restart.push("policy.use".to_owned());
        }
        running.config.pools = new.pools;
        running.config.grants = new.grants;
        running.needs_restart.clone_from(&needs_restart);
        running.loaded = SystemTime::now();
        running.reloads += 1;
        running.last = match changes.is_empty() {
            true => format!("reloaded by {by}: the same endpoints"),
            false => format!("reloaded by {by}: other endpoints"),
        };
        needs_restart
    }
}

/// A baseline is neither replaced nor comes by a reload.
fn swappable(before: &Config, new: &Config) -> bool {
    !(before.policy.r#use.starts_with(native::PREFIX)
        || new.policy.r#use.starts_with(native::PREFIX))
}

fn read(file: &Path, before: &Config) -> Result<(Config, Option<Next>), Refused> {
    let new = Config::read(file).map_err(unusable)?;
    if new.policy.r#use.starts_with(native::PREFIX) {
        native::source(&new.policy.r#use).map_err(unusable)?;
    }
    if before.same_policy(&new) || !swappable(before, &new) {
        return Ok((new, None));
    }
    let named = Named::parse(&new.policy.r#use, &new.base).map_err(unusable)?;
    let wanted = Wanted {
        wasm: match named.wasm().map_err(unusable)? {
            Cow::Borrowed(wasm) => Bytes::from_static(wasm),
            Cow::Owned(wasm) => wasm.into(),
        },
        origin: named.to_string(),
        config: new.policy_config().map_err(unusable)?,
        pin: new.policy.sha256.clone(),
    };
    let file = match named {
        Named::BuiltIn(_) => None,
        Named::File(file) => Some(file),
    };
    Ok((new, Some(Next { wanted, file })))
}

fn unusable(error: impl Into<anyhow::Error>) -> Refused {
    Refused::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "configuration",
        // The parser's messages end with a line break.
        format!("{:#}", error.into()).trim_end(),
        "mend the file: `pointsman check --config FILE` says when it can be used",
    )
}
