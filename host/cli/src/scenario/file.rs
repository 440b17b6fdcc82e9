//! The scenario file.

use crate::config::{Role, WhenFull};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::path::Path;

/// A policy, a fleet, and what happens.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// the policy when none is given on the command line
    pub policy: Option<String>,
    /// the policy's configuration
    #[serde(default)]
    pub config: toml::Table,
    pub fleet: Fleet,
    #[serde(default)]
    pub bindings: Bindings,
    #[serde(default, rename = "step")]
    pub steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fleet {
    /// "endpoint/rank"; numbered in this order
    pub targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bindings {
    pub max: usize,
    pub ttl_ms: u64,
    pub when_full: WhenFull,
}

impl Default for Bindings {
    fn default() -> Self {
        let limits = pointsman_core::Limits::default();
        Bindings {
            max: limits.max,
            ttl_ms: limits.ttl_ms,
            when_full: WhenFull::default(),
        }
    }
}

/// What happens at one step; several things happen in the order of the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Step {
    pub send: Option<Send>,
    pub expect: Option<Expect>,
    pub dispatched: Option<String>,
    pub output: Option<String>,
    pub finish: Option<String>,
    pub fail: Option<String>,
    pub cancel: Option<String>,
    /// a session
    pub r#final: Option<String>,
    pub down: Option<String>,
    pub up: Option<String>,
    pub drain: Option<String>,
    pub undrain: Option<String>,
    pub remove: Option<String>,
    pub add: Option<String>,
    pub advance_ms: Option<u64>,
    pub load: Option<Load>,
    pub check: Option<Check>,
    pub swap: Option<Swap>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Send {
    pub id: String,
    pub session: Option<String>,
    pub parent: Option<String>,
    #[serde(default = "Send::tokens")]
    pub tokens: u32,
    #[serde(default)]
    pub shared: u32,
    pub explicit: Option<String>,
    #[serde(default)]
    pub phase: Role,
    #[serde(default = "model")]
    pub model: String,
}

impl Send {
    fn tokens() -> u32 {
        1000
    }
}

fn model() -> String {
    "m".to_owned()
}

/// What the decision of `send` must be; each part is optional.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    pub target: Option<String>,
    pub any: Option<Vec<String>>,
    pub same_as: Option<String>,
    pub not_same_as: Option<String>,
    pub reason: Option<String>,
    pub reject: Option<u16>,
    pub fallback: Option<bool>,
    pub adopted: Option<bool>,
}

/// What others hold on a target.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Load {
    pub target: String,
    #[serde(default)]
    pub requests: u32,
    #[serde(default)]
    pub prefill_tokens: u64,
    #[serde(default)]
    pub context_tokens: u64,
}

/// What must be outstanding, or bound; each part is optional.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Check {
    pub target: Option<String>,
    pub requests: Option<u32>,
    pub prefill_tokens: Option<u64>,
    pub context_tokens: Option<u64>,
    pub sessions: Option<u32>,
    pub bound: Option<Bound>,
}

/// Where a session, or the children of a parent, must be bound; "none": nowhere.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    pub session: Option<String>,
    /// the parent's id
    pub siblings: Option<String>,
    pub target: String,
    #[serde(default)]
    pub phase: Role,
    #[serde(default = "model")]
    pub model: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Swap {
    pub policy: String,
    #[serde(default)]
    pub config: toml::Table,
}

impl Scenario {
    /// Reads a file; an error names line, column and key.
    pub fn read(path: &Path) -> Result<Scenario> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the scenario {}", path.display()))?;
        let scenario: Scenario = toml::from_str(&text)
            .with_context(|| format!("{} is not a scenario", path.display()))?;
        anyhow::ensure!(
            !scenario.steps.is_empty(),
            "{} has no [[step]]: nothing would be shown by it",
            path.display()
        );
        Ok(scenario)
    }
}
