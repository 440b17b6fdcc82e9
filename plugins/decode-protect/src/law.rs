//! What an engine is set to next, by what was measured there. A function without state or clock.
//!
//! | measured | then |
//! |---|---|
//! | too many prompts wait | the shortest interval at once, until half as many do |
//! | TTFT over its limit | half the interval; at the shortest, the delayer goes off |
//! | ITL over its limit, TTFT well below its own | the delayer on, half as much interval again |
//! | ITL well below its limit | an interval shorter by a tick: decode has more than it needs |
//! | TTFT well below its limit, ITL has none | the delayer on, a longer interval up to the configured one |
//! | anything else | stays |
//!
//! Well below: by `hysteresis`. Between two changes `settle_ms` pass, so that the second one sees what
//! the first one did. Without limits the interval is the configured one.

use crate::config::{Config, MOST_TICKS};

/// What an engine is to be set to. The host keeps it as a number, so that another instance of the
/// policy goes on with it, and an engine that was started anew gets it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) delayer: bool,
    /// ticks, at most [`MOST_TICKS`]
    pub(crate) interval: u32,
    /// prompts piled up, and have not gone yet
    pub(crate) relaxed: bool,
    /// Of the configured interval, the low byte: with another one it begins anew.
    pub(crate) begun: u8,
    /// when the limits last changed it, ms
    pub(crate) since_ms: u64,
}

const THERE: u64 = 1 << 63;
const DELAYER: u64 = 1 << 62;
const RELAXED: u64 = 1 << 61;
const INTERVAL_AT: u32 = 44;
const BEGUN_AT: u32 = 36;
/// Two years. After that a change looks older than it is, and the next one comes sooner.
const TIME: u64 = (1 << BEGUN_AT) - 1;

impl Setting {
    /// Where it begins.
    pub(crate) fn first(config: &Config, now_ms: u64) -> Setting {
        Setting {
            delayer: true,
            interval: config.prefill_decode_interval.min(MOST_TICKS),
            relaxed: false,
            begun: config.begun(),
            since_ms: now_ms,
        }
    }

    /// As the host keeps it; never 0.
    pub(crate) fn packed(self) -> u64 {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        THERE
            | flag(self.delayer, DELAYER)
            | flag(self.relaxed, RELAXED)
            | u64::from(self.interval.min(MOST_TICKS)) << INTERVAL_AT
            | u64::from(self.begun) << BEGUN_AT
            | self.since_ms & TIME
    }

    /// None: nothing was kept.
    pub(crate) fn unpacked(kept: u64) -> Option<Setting> {
        let interval = (kept & (RELAXED - 1)) >> INTERVAL_AT;
        (kept & THERE != 0).then(|| Setting {
            delayer: kept & DELAYER != 0,
            interval: u32::try_from(interval)
                .unwrap_or(MOST_TICKS)
                .min(MOST_TICKS),
            relaxed: kept & RELAXED != 0,
            begun: (kept >> BEGUN_AT & 0xFF) as u8,
            since_ms: kept & TIME,
        })
    }
}

/// The worst of an engine's ranks; none: nobody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) ttft_ms: Option<f64>,
    pub(crate) itl_ms: Option<f64>,
    pub(crate) waiting: Option<f64>,
}

/// For the log: ` (TTFT 12.0 ms, ITL 7.5 ms)`, what is known.
impl std::fmt::Display for Seen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let known = [
            self.ttft_ms.map(|ms| format!("TTFT {ms:.1} ms")),
            self.itl_ms.map(|ms| format!("ITL {ms:.1} ms")),
            self.waiting.map(|n| format!("{n} waiting")),
        ];
        let known: Vec<String> = known.into_iter().flatten().collect();
        match known.is_empty() {
            true => Ok(()),
            false => write!(f, " ({})", known.join(", ")),
        }
    }
}

/// Where a number is, seen from its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// no limit, or nothing was measured
    Unknown,
    Over,
    /// between: neither
    Near,
    WellBelow,
}

impl Place {
    fn of(number: Option<f64>, limit: Option<f64>, hysteresis: f64) -> Place {
        match (number, limit) {
            (Some(number), Some(limit)) if number > limit => Place::Over,
            (Some(number), Some(limit)) if number < limit * (1.0 - hysteresis) => Place::WellBelow,
            (Some(_), Some(_)) => Place::Near,
            _ => Place::Unknown,
        }
    }
}

/// See the module.
pub(crate) fn next(config: &Config, now: Setting, seen: &Seen, now_ms: u64) -> Setting {
    if piles_up(config, now, seen) {
        let interval = if config.has_limits() {
            config.min_interval
        } else {
            0
        };
        return Setting {
            interval,
            relaxed: true,
            ..now
        };
    }
    if !config.has_limits() {
        return Setting::first(config, now.since_ms);
    }
    if now.relaxed {
        return Setting::first(config, now_ms);
    }
    // Another configuration may have other bounds.
    let bounded = |interval: u32| interval.clamp(config.min_interval, config.max_interval);
    let now = Setting {
        interval: bounded(now.interval),
        delayer: now.delayer || !config.switch_delayer,
        ..now
    };
    // A host that was started anew counts from 0 again: later than now is not settling.
    let age = now_ms.checked_sub(now.since_ms);
    if age.is_some_and(|age| age < u64::from(config.settle_ms)) {
        return now;
    }
    let more = now.interval.saturating_add((now.interval / 2).max(1));
    let ttft = Place::of(seen.ttft_ms, config.ttft_limit_ms, config.hysteresis);
    let itl = Place::of(seen.itl_ms, config.itl_limit_ms, config.hysteresis);
    let (delayer, interval) = match (ttft, itl) {
        (Place::Over, _) if now.interval > config.min_interval => (now.delayer, now.interval / 2),
        (Place::Over, _) => (!config.switch_delayer, now.interval),
        (Place::WellBelow | Place::Unknown, Place::Over) => (true, more),
        (_, Place::WellBelow) => (now.delayer, now.interval.saturating_sub(1)),
        (Place::WellBelow, Place::Unknown) if config.itl_limit_ms.is_none() => {
            let wanted = config.prefill_decode_interval;
            (true, more.min(wanted.max(now.interval)))
        }
        _ => (now.delayer, now.interval),
    };
    let interval = bounded(interval);
    if (delayer, interval) == (now.delayer, now.interval) {
        return now;
    }
    Setting {
        delayer,
        interval,
        since_ms: now_ms,
        ..now
    }
}

/// While relaxed it takes half as many to stay so: otherwise it would go back and forth with every tick.
fn piles_up(config: &Config, now: Setting, seen: &Seen) -> bool {
    let Some(limit) = config.relax_waiting else {
        return false;
    };
    let limit = if now.relaxed { limit / 2 } else { limit };
    seen.waiting.is_some_and(|n| n > f64::from(limit))
}

#[cfg(test)]
mod tests;
