//! What the operator may set, and what cannot be.

use pointsman_sdk::placement::Placement;
use pointsman_sdk::prelude::*;

/// The longest interval that can be set, in ticks.
pub(crate) const MOST_TICKS: u32 = 1 << 16;

/// What the operator may set.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// How a new session is placed.
    pub placement: Placement,
    /// Between two looks at the engines, ms; at least 10.
    pub tick_ms: u32,
    /// Ticks of the engine that belong to decode after every executed prefill. With limits: where an
    /// engine begins that nothing is kept of.
    pub prefill_decode_interval: u32,
    /// With limits, the interval stays from this …
    pub min_interval: u32,
    /// … to this, at most 65536.
    pub max_interval: u32,
    /// More inter-token latency than this on a rank, ms, and decode gets more ticks. None: whatever
    /// it is.
    pub itl_limit_ms: Option<f64>,
    /// More time to first token than this on a rank, ms, and prompts get more ticks: that comes first,
    /// for a queue that grows has no end. None: whatever it is.
    pub ttft_limit_ms: Option<f64>,
    /// How far below a limit a number must be before ticks go the other way, as a part of the limit,
    /// 0 to 0.9.
    pub hysteresis: f64,
    /// How long a change shows in the numbers before the next one, ms: at least what they are taken
    /// over, 5 s where the host measures them.
    pub settle_ms: u32,
    /// At the shortest interval, and prompts still over their limit: turn the delayer off. False: it is
    /// always on.
    pub switch_delayer: bool,
    /// The number that `itl_limit_ms` is of: `itl_ms_mean`, `_p50`, `_p90` or `_p99` as the host
    /// measures it, or one of the engine's own, in ms.
    pub itl_stat: String,
    /// The same for `ttft_limit_ms`.
    pub ttft_stat: String,
    /// The longest that a prompt waits for others, ms; at least 1. None: as the engine has it, also if
    /// that was set here before.
    pub max_queue_ms: Option<u32>,
    /// With more requests waiting on a rank than this, the interval is the shortest at once; it is back
    /// when none of the engine has more than half of that. None: whatever waits.
    pub relax_waiting: Option<u32>,
    /// The engines' number of waiting requests of a rank: the name of a metric.
    pub waiting_stat: String,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            placement: Placement::default(),
            tick_ms: 1000,
            prefill_decode_interval: 10,
            min_interval: 0,
            max_interval: 40,
            itl_limit_ms: None,
            ttft_limit_ms: None,
            hysteresis: 0.2,
            settle_ms: 5000,
            switch_delayer: true,
            itl_stat: "itl_ms_p90".to_owned(),
            ttft_stat: "ttft_ms_p90".to_owned(),
            max_queue_ms: None,
            relax_waiting: None,
            waiting_stat: "pointsman_engine_requests_waiting".to_owned(),
        }
    }
}

impl Config {
    /// Tells this beginning from others: the low byte of the interval.
    pub(crate) fn begun(&self) -> u8 {
        (self.prefill_decode_interval & 0xFF) as u8
    }

    /// Whether the interval follows what is measured.
    pub(crate) fn has_limits(&self) -> bool {
        self.itl_limit_ms.is_some() || self.ttft_limit_ms.is_some()
    }

    /// What is wrong with it.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.tick_ms < 10 {
            return Err(format!(
                "tick_ms: wanted at least 10, found {}",
                self.tick_ms
            ));
        }
        let (low, high) = (self.min_interval, self.max_interval);
        if low > high || high > MOST_TICKS {
            return Err(format!(
                "min_interval = {low}, max_interval = {high}: wanted the first no greater than the \
                 second, and that at most {MOST_TICKS}"
            ));
        }
        let interval = self.prefill_decode_interval;
        let (least, most) = if self.has_limits() {
            (low, high)
        } else {
            (0, MOST_TICKS)
        };
        if !(least..=most).contains(&interval) {
            return Err(format!(
                "prefill_decode_interval: wanted {least} to {most}, found {interval}"
            ));
        }
        for (name, limit) in [
            ("itl_limit_ms", self.itl_limit_ms),
            ("ttft_limit_ms", self.ttft_limit_ms),
        ] {
            if limit.is_some_and(|limit| !limit.is_finite() || limit <= 0.0) {
                let found = limit.unwrap_or_default();
                return Err(format!("{name}: wanted more than 0 ms, found {found}"));
            }
        }
        if self.max_queue_ms == Some(0) {
            return Err(
                "max_queue_ms: wanted at least 1, found 0: no prompt would ever be held".to_owned(),
            );
        }
        if !(0.0..=0.9).contains(&self.hysteresis) {
            let found = self.hysteresis;
            return Err(format!("hysteresis: wanted 0 to 0.9, found {found}"));
        }
        Ok(())
    }
}
