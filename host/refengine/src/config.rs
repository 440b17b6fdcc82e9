//! How one engine process is set up.

use std::time::Duration;

use crate::delayer::Thresholds;
use crate::error::ConfigError;
use crate::preset::Preset;

/// The most ranks one engine has.
pub const MAX_RANKS: usize = 1024;

/// The most tokens one request may ask for; more is answered with 400.
pub const MAX_OUTPUT_TOKENS: usize = 32_768;

/// One engine process: its ranks and what they pretend to run on.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineConfig {
    /// Sent as `x-engine-name` on every response; visible ASCII, not empty.
    pub name: String,
    /// The model that `/v1/models` lists. Requests may name any model.
    pub model: String,
    /// Data-parallel ranks, 1 to [`MAX_RANKS`].
    pub ranks: usize,
    /// Costs and capacities of one rank.
    pub preset: Preset,
    /// Modelled durations are multiplied by this: 1 is real time, 0.01 a hundred times faster,
    /// 0 as fast as the machine goes.
    pub time_scale: f64,
    /// The most requests that wait on one rank, at least 1; the next one is answered with 503 and
    /// `Retry-After`. Also a burst on an idle rank waits until its next step begins.
    pub max_queue: usize,
    /// The largest request body in bytes; a larger one is answered with 413.
    pub max_body_bytes: usize,
    /// Whether ranks tick together and a delayer decides when they prefill.
    pub prefill_delayer: bool,
    /// What it decides by, also when it is turned on later. Its token budget is the preset's
    /// `max_num_batched_tokens`, whatever stands here.
    pub thresholds: Thresholds,
    /// How long ranks wait in the collective for one that does not come, modelled ms (at time scale 0
    /// the machine's; never less than 100 ms of the machine's): then they go on without it until it is
    /// back. 0: for ever.
    pub collective_timeout_ms: u64,
    /// How long requests in flight may go on after the shutdown signal.
    pub shutdown_grace: Duration,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            name: "engine".into(),
            model: "reference".into(),
            ranks: 1,
            preset: Preset::default(),
            time_scale: 1.0,
            max_queue: 1024,
            max_body_bytes: 64 << 20,
            prefill_delayer: false,
            thresholds: Thresholds::default(),
            collective_timeout_ms: 10_000,
            shutdown_grace: Duration::from_secs(5),
        }
    }
}

impl EngineConfig {
    /// Checks every range.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let visible = |c: u8| c.is_ascii_graphic();
        if self.name.is_empty() || !self.name.bytes().all(visible) {
            return Err(ConfigError::new(
                "name",
                "visible ASCII without spaces",
                &self.name,
            ));
        }
        if !(1..=MAX_RANKS).contains(&self.ranks) {
            return Err(ConfigError::new(
                "ranks",
                format!("1 to {MAX_RANKS}"),
                self.ranks,
            ));
        }
        if !(self.time_scale.is_finite() && self.time_scale >= 0.0) {
            return Err(ConfigError::new(
                "time_scale",
                "a number of at least 0",
                self.time_scale,
            ));
        }
        if !(1..=1 << 20).contains(&self.max_queue) {
            return Err(ConfigError::new(
                "max_queue",
                "1 to 1048576",
                self.max_queue,
            ));
        }
        check_collective_timeout(self.collective_timeout_ms)?;
        self.thresholds.validate()?;
        self.preset.validate()?;
        self.check_timeout_against_passes()?;
        if self.prefill_delayer {
            self.check_delayer_can_hold()?;
        }
        Ok(())
    }

    /// Shorter than any forward pass, every rank would be suspended in every tick.
    fn check_timeout_against_passes(&self) -> Result<(), ConfigError> {
        let (ms, base_us) = (self.collective_timeout_ms, self.preset.cost.step_base_us);
        if ms > 0 && (ms as f64) * 1e3 < base_us {
            let wanted = format!(
                "0 (no end) or at least the shortest forward pass, step_base_us = {base_us}"
            );
            return Err(ConfigError::new("collective_timeout_ms", wanted, ms));
        }
        Ok(())
    }

    /// A delayer that fires in every tick only costs a collective.
    fn check_delayer_can_hold(&self) -> Result<(), ConfigError> {
        let set = &self.thresholds;
        let high = set.kv_high_watermark;
        if high <= 0.0 {
            let wanted =
                "more than 0: every cache is used to that, so no prefill would ever be held";
            return Err(ConfigError::new("kv_high_watermark", wanted, high));
        }
        if let Some(low) = set.token_usage_low_watermark.filter(|low| *low >= high) {
            let wanted = format!(
                "less than kv_high_watermark = {high}: every cache is below the one or above the \
                 other, so no prefill would ever be held"
            );
            return Err(ConfigError::new("token_usage_low_watermark", wanted, low));
        }
        if let Some(ms) = set.max_queue_ms.filter(|ms| *ms <= 0.0) {
            let wanted =
                "more than 0: every prompt has waited that long, so none would ever be held";
            return Err(ConfigError::new("max_queue_ms", wanted, ms));
        }
        Ok(())
    }
}

/// The longest that ranks wait for each other, if there is an end: a day.
const LONGEST_COLLECTIVE_TIMEOUT_MS: u64 = 86_400_000;

pub(crate) fn check_collective_timeout(ms: u64) -> Result<(), ConfigError> {
    if ms > LONGEST_COLLECTIVE_TIMEOUT_MS {
        let wanted = format!("0 to {LONGEST_COLLECTIVE_TIMEOUT_MS}");
        return Err(ConfigError::new("collective_timeout_ms", wanted, ms));
    }
    Ok(())
}

impl Thresholds {
    /// Checks every range.
    ///
    /// # Errors
    /// The first threshold that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let parts = [
            (
                "target_fill",
                Some(self.target_fill),
                0.05,
                1.0,
                "0.05 to 1",
            ),
            (
                "kv_high_watermark",
                Some(self.kv_high_watermark),
                0.0,
                1.0,
                "0 to 1",
            ),
            (
                "token_usage_low_watermark",
                self.token_usage_low_watermark,
                0.0,
                1.0,
                "0 to 1",
            ),
            (
                "max_queue_ms",
                self.max_queue_ms,
                0.0,
                f64::MAX,
                "at least 0",
            ),
        ];
        for (setting, value, low, high, wanted) in parts {
            if let Some(found) = value.filter(|value| !(low..=high).contains(value)) {
                return Err(ConfigError::new(setting, wanted, found));
            }
        }
        let ticks = [
            ("ttft_max_ticks", self.ttft_max_ticks),
            ("partial_max_ticks", self.partial_max_ticks),
            ("stall_ticks", self.stall_ticks),
        ];
        for (setting, ticks) in ticks {
            if ticks == 0 {
                return Err(ConfigError::new(setting, "at least 1", ticks));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
