//! Scenarios in a real Envoy: requests through its listener, engines behind it, the policy fused into
//! it. Time, sizes of prompts, the fleet's condition and what others hold reach the adapter through the
//! plugin's `test` setting; everything else is traffic.

mod fleet;
mod look;
mod stage;
mod wire;

use super::expect::{Difference, json};
use super::file::Scenario;
use crate::policies::{ENVOY_ADAPTER, Named};
use anyhow::{Context, Result};
use pointsman_fuse::{Options, fuse};
use stage::Stage;
use std::cell::RefCell;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// See the module.
pub struct EnvoyHost {
    /// the program
    envoy: PathBuf,
    /// fused policies, by name or path
    modules: RefCell<HashMap<String, PathBuf>>,
    folder: tempfile::TempDir,
}

impl EnvoyHost {
    pub fn new(envoy: PathBuf) -> Result<EnvoyHost> {
        Ok(EnvoyHost {
            envoy,
            modules: RefCell::default(),
            folder: tempfile::tempdir().context("a folder for modules")?,
        })
    }

    /// As [`super::play`], in an Envoy of its own.
    pub fn play(
        &self,
        scenario: &Scenario,
        policy: Option<&str>,
    ) -> Result<Result<(), Difference>> {
        let mut stage = Stage::set(self, scenario, scenario.policy_or(policy)?)?;
        scenario.walk(|step| stage.step(step))
    }

    /// A policy as a module; fused once.
    fn module(&self, policy: &str) -> Result<PathBuf> {
        let mut modules = self.modules.borrow_mut();
        if let Some(module) = modules.get(policy) {
            return Ok(module.clone());
        }
        let named = Named::parse(policy, Path::new(""))?;
        let adapter = ENVOY_ADAPTER.context("this binary carries no Envoy adapter")?;
        let fused = fuse(&named.wasm()?, adapter, &Options::default())
            .with_context(|| format!("the policy {named} cannot be made a module for Envoy"))?;
        let path = self.folder.path().join(format!("{}.wasm", modules.len()));
        std::fs::write(&path, fused.bytes)?;
        modules.insert(policy.to_owned(), path.clone());
        Ok(path)
    }
}

/// A policy's configuration as the plugin has it.
fn config(table: &toml::Table) -> Result<serde_json::Map<String, serde_json::Value>> {
    Ok(serde_json::from_str(&json(table)?)?)
}
