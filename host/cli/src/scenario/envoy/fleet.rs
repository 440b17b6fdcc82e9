//! The fleet of a scenario: an engine of its own for each target, also for those that come later.

use super::config;
use super::stage::{CONTROL, Stage};
use crate::config::WhenFull;
use crate::scenario::file::{Scenario, Step};
use anyhow::{Context, Result, bail};
use pointsman_envoy_adapter::config as adapter;
use serde_json::json;
use std::collections::BTreeMap;

impl Stage<'_> {
    /// Targets come, go, and change their condition.
    pub(super) fn membership(&mut self, step: &Step) -> Result<()> {
        let changes = [
            (&step.down, "down", true),
            (&step.up, "down", false),
            (&step.drain, "draining", true),
            (&step.undrain, "draining", false),
            (&step.remove, "removed", true),
        ];
        for (name, what, value) in changes {
            if let Some(name) = name {
                let target = self.target(name)?;
                self.control(&json!({ "stand": { "target": target, what: value } }))?;
                if what == "removed"
                    && let Some(present) = self.present.get_mut(target)
                {
                    *present = false;
                }
            }
        }
        let Some(name) = &step.add else { return Ok(()) };
        if (self.names.iter().zip(&self.present)).any(|(other, present)| other == name && *present)
        {
            bail!("target {name:?} is there already: remove it first");
        }
        let mut targets = self.names.iter().zip(&mut self.present).enumerate();
        let next = targets.find(|(target, (other, present))| {
            // Not one that was there before: those that are yet to come are absent from the start.
            let yet = self.plugin.endpoints.get(*target).is_some_and(|e| e.absent);
            *other == name && !**present && yet
        });
        let (target, (_, present)) = next.with_context(|| format!("no target {name:?} to add"))?;
        *present = true;
        if let Some(endpoint) = self.plugin.endpoints.get_mut(target) {
            endpoint.absent = false;
        }
        self.control(&json!({ "stand": { "target": target, "removed": false } }))?;
        Ok(())
    }
}

/// Every target that is ever part of the fleet, in the order of their numbers.
pub(super) fn all_targets(scenario: &Scenario) -> impl Iterator<Item = &str> {
    let added = scenario.steps.iter().filter_map(|step| step.add.as_ref());
    (scenario.fleet.targets.iter())
        .chain(added)
        .map(String::as_str)
}

/// The plugin's configuration; the engines' addresses are yet to come.
pub(super) fn plugin(scenario: &Scenario) -> Result<adapter::Config> {
    let bindings = &scenario.bindings;
    let first = scenario.fleet.targets.len();
    let mut endpoints = Vec::new();
    for (target, name) in all_targets(scenario).enumerate() {
        let parts = name
            .split_once('/')
            .and_then(|(name, rank)| Some((name, rank.parse().ok()?)));
        let Some((endpoint, rank)) = parts else {
            bail!("target {name:?}: wanted \"endpoint/rank\", for example \"a/0\"");
        };
        endpoints.push(adapter::Endpoint {
            name: endpoint.to_owned(),
            address: String::new(),
            ranks: 1,
            first_rank: rank,
            role: adapter::Role::All,
            dialect: adapter::Speaks::Vllm,
            models: None,
            labels: BTreeMap::new(),
            instance: Some(target.to_string()),
            absent: target >= first,
        });
    }
    Ok(adapter::Config {
        route: String::new(),
        policy: config(&scenario.config)?,
        fallback: adapter::Fallback::LeastLoad,
        endpoints,
        session: None,
        explicit_header: "x-pointsman-target".to_owned(),
        explain: true,
        bindings: adapter::Bindings {
            max: bindings.max,
            ttl_ms: bindings.ttl_ms,
            reject_when_full: matches!(bindings.when_full, WhenFull::Reject),
            lease_ms: u64::MAX,
        },
        // A scenario sends a request anew itself.
        attempts: 1,
        read_body: false,
        counts_attempts: true,
        inspect_bytes: 0,
        test: Some(adapter::Test {
            path: CONTROL.to_owned(),
            label: String::new(),
        }),
    })
}
