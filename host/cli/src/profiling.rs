//! Profiling windows on the engines of a configuration.

use crate::config::Config;
use crate::engines::{Driven, EVERY};
use anyhow::{Context, Result};
use pointsman_core::Phase;
use pointsman_engine::windows::{self, Collector, Settings};
use std::path::PathBuf;
use std::sync::Arc;

/// Collects what windows leave on these engines.
pub fn collector(settings: Settings, engines: &Arc<Driven>) -> Result<Collector> {
    let engines = engines.clone();
    let all = move || {
        let all = engines.of(&EVERY).into_iter();
        let driven = all.map(|(name, seat)| windows::Driven {
            name,
            role: role(seat.phase),
            desk: seat.desk.clone(),
        });
        driven.collect()
    };
    Collector::start(settings, all).context("no thread for profiling windows")
}

/// As `[profile]` says.
pub fn settings(config: &Config) -> Settings {
    Settings {
        folder: folder(config),
        keep: config.profile.keep,
    }
}

/// The operator's folder; none: no traces are kept.
pub fn folder(config: &Config) -> Option<PathBuf> {
    let folder = config.profile.folder.as_ref();
    folder.map(|folder| config.base.join(folder))
}

pub fn role(phase: Phase) -> &'static str {
    match phase {
        Phase::Serve => "serve",
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}
