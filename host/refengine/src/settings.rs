//! What can be read of a running engine, and changed.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::clock::Clock;
use crate::config::{EngineConfig, check_collective_timeout};
use crate::delayer::{Counts, Thresholds};
use crate::engine::Engine;
use crate::error::ConfigError;
use crate::preset::Preset;
use crate::stats::RankStats;

/// What may be changed while the engine runs, as one flat object: `server_args`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Settings {
    prefill_delayer: bool,
    collective_timeout_ms: u64,
    #[serde(flatten)]
    thresholds: Thresholds,
}

/// Ranks are given this long by the machine's clock, whatever the time scale: shorter, and a rank that
/// merely waits for a core would be taken for one that hangs.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);

/// A setting was not taken; everything is as before.
#[derive(Debug, thiserror::Error)]
pub enum BadSetting {
    /// no such setting, or a value of another type
    #[error("server_args: {0}")]
    Shape(#[from] serde_json::Error),
    /// out of its range
    #[error(transparent)]
    Range(#[from] ConfigError),
}

/// The body of `POST /set_internal_state`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Changes {
    pub(crate) server_args: Map<String, Value>,
}

impl Settings {
    /// As the engine starts.
    #[must_use]
    pub fn of(config: &EngineConfig) -> Self {
        let budget = u32::try_from(config.preset.max_num_batched_tokens);
        Self {
            prefill_delayer: config.prefill_delayer,
            collective_timeout_ms: config.collective_timeout_ms,
            thresholds: Thresholds {
                token_budget: budget.unwrap_or(u32::MAX),
                ..config.thresholds
            },
        }
    }

    /// The delayer's thresholds; none: off.
    #[must_use]
    pub fn delayer(&self) -> Option<Thresholds> {
        self.prefill_delayer.then_some(self.thresholds)
    }

    /// How long ranks wait for each other, by the machine's clock; none: for ever.
    pub(crate) fn collective_timeout(&self, clock: Clock) -> Option<Duration> {
        let modelled = Duration::from_millis(self.collective_timeout_ms);
        (!modelled.is_zero()).then(|| clock.real(modelled).max(SHORTEST_TIMEOUT))
    }

    /// With some of it changed.
    ///
    /// # Errors
    /// What cannot be set; then nothing is.
    pub fn with(&self, changes: Map<String, Value>) -> Result<Self, BadSetting> {
        let mut all = match serde_json::to_value(self.thresholds)? {
            Value::Object(all) => all,
            _ => Map::new(),
        };
        let mut prefill_delayer = self.prefill_delayer;
        let mut collective_timeout_ms = self.collective_timeout_ms;
        for (name, value) in changes {
            match name.as_str() {
                "prefill_delayer" => prefill_delayer = bool::deserialize(value)?,
                "collective_timeout_ms" => collective_timeout_ms = u64::deserialize(value)?,
                _ => drop(all.insert(name, value)),
            }
        }
        let thresholds = Thresholds::deserialize(Value::Object(all))?;
        thresholds.validate()?;
        check_collective_timeout(collective_timeout_ms)?;
        if thresholds.token_budget != self.thresholds.token_budget {
            let wanted = format!("{}, as the preset has it", self.thresholds.token_budget);
            return Err(ConfigError::new("token_budget", wanted, thresholds.token_budget).into());
        }
        Ok(Self {
            prefill_delayer,
            collective_timeout_ms,
            thresholds,
        })
    }
}

/// The answer of `GET /server_info`.
#[derive(Debug, Serialize)]
pub(crate) struct ServerInfo<'a> {
    name: &'a str,
    version: &'static str,
    model: &'a str,
    dp_size: usize,
    max_queue: usize,
    time_scale: f64,
    preset: &'a Preset,
    server_args: ServerArgs,
    /// Of each rank.
    internal_states: Vec<InternalState>,
}

/// What it was started with, under the names that engines give it, and what was changed since.
#[derive(Debug, Serialize)]
struct ServerArgs {
    #[serde(flatten)]
    settings: Settings,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    cache_blocks: usize,
    block_tokens: usize,
}

#[derive(Debug, Serialize)]
struct InternalState {
    #[serde(flatten)]
    stats: RankStats,
    prefill_delayer: Counts,
}

impl<'a> ServerInfo<'a> {
    pub(crate) fn of(config: &'a EngineConfig, engine: &Engine) -> Self {
        let states = engine.stats().into_iter().zip(engine.decisions());
        Self {
            name: &config.name,
            version: env!("CARGO_PKG_VERSION"),
            model: &config.model,
            dp_size: config.ranks,
            max_queue: config.max_queue,
            time_scale: config.time_scale,
            preset: &config.preset,
            server_args: ServerArgs {
                settings: engine.settings(),
                max_num_seqs: config.preset.max_num_seqs,
                max_num_batched_tokens: config.preset.max_num_batched_tokens,
                cache_blocks: config.preset.cache_blocks,
                block_tokens: config.preset.block_tokens,
            },
            internal_states: states
                .map(|(stats, prefill_delayer)| InternalState {
                    stats,
                    prefill_delayer,
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn change(changes: Value) -> Result<Settings, String> {
        let Value::Object(changes) = changes else {
            panic!()
        };
        let now = Settings::of(&EngineConfig::default());
        now.with(changes).map_err(|e| e.to_string())
    }

    #[test]
    fn one_setting_changes_and_the_others_stay() {
        let off = Settings::of(&EngineConfig::default());
        assert_eq!(off.delayer(), None);
        let on = change(json!({ "prefill_delayer": true, "max_queue_ms": 5000 })).unwrap();
        let thresholds = Thresholds {
            max_queue_ms: Some(5000.0),
            ..off.thresholds
        };
        assert_eq!(on.delayer(), Some(thresholds));
        let Value::Object(never) = json!({ "max_queue_ms": null }) else {
            panic!()
        };
        assert_eq!(on.with(never).unwrap().thresholds, off.thresholds);
    }

    #[test]
    fn what_cannot_be_set_is_named() {
        let cases = [
            (json!({ "prefill_delayer": 1 }), "boolean"),
            (json!({ "interval": 1 }), "unknown field `interval`"),
            (json!({ "stall_ticks": -1 }), "-1"),
            (
                json!({ "stall_ticks": 0 }),
                "`stall_ticks`: wanted at least 1",
            ),
            (
                json!({ "target_fill": 2 }),
                "`target_fill`: wanted 0.05 to 1, found 2",
            ),
            (json!({ "token_budget": 1 }), "`token_budget`: wanted 8192"),
        ];
        for (changes, wanted) in cases {
            let error = change(changes).unwrap_err();
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
    }
}
