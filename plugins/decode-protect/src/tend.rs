//! Looks at every engine, and sets what differs from what is wanted there.

use crate::config::Config;
use crate::law::{Seen, Setting, next};
use pointsman_sdk::Target;
use pointsman_sdk::engine::{Failure, Knob};
#[cfg(target_arch = "wasm32")]
use pointsman_sdk::{Host as _, Level, engine, observing};
use std::collections::BTreeMap;

const DELAYER: &str = "prefill_delayer";
const INTERVAL: &str = "prefill_decode_interval";
const QUEUE: &str = "max_queue_ms";

/// The calls of the contract that it needs.
pub(crate) trait Engines {
    /// Every target of the fleet, and its endpoint.
    fn targets(&mut self) -> Vec<(Target, String)>;
    fn knobs(&mut self, at: Target) -> Result<Vec<Knob>, Failure>;
    fn set(&mut self, at: Target, name: &str, value: i64) -> Result<(), Failure>;
    fn stat(&mut self, at: Target, name: &str) -> Result<f64, Failure>;
    /// What the host keeps for this number.
    fn kept(&mut self, cell: u64) -> u64;
    fn keep(&mut self, cell: u64, value: u64);
    fn warn(&mut self, message: &str);
}

/// Those of the component's host.
#[cfg(target_arch = "wasm32")]
pub(crate) struct Host;

#[cfg(target_arch = "wasm32")]
impl Engines for Host {
    fn targets(&mut self) -> Vec<(Target, String)> {
        let mut host = observing();
        let endpoint = |target| {
            let name = host.describe(target)?.name;
            let (endpoint, _) = name.rsplit_once('/')?;
            Some((target, endpoint.to_owned()))
        };
        let all = observing().columns().target;
        all.into_iter().filter_map(endpoint).collect()
    }

    fn knobs(&mut self, at: Target) -> Result<Vec<Knob>, Failure> {
        engine::knobs(at)
    }

    fn set(&mut self, at: Target, name: &str, value: i64) -> Result<(), Failure> {
        engine::knob_set(Some(at), name, value)
    }

    fn stat(&mut self, at: Target, name: &str) -> Result<f64, Failure> {
        engine::stat(at, name)
    }

    fn kept(&mut self, cell: u64) -> u64 {
        observing().get(cell)
    }

    fn keep(&mut self, cell: u64, value: u64) {
        // Nobody else writes: there is one control instance.
        let mut host = observing();
        let before = host.get(cell);
        host.swap(cell, before, value);
    }

    fn warn(&mut self, message: &str) {
        observing().log(Level::Warn, message);
    }
}

/// See the module. An engine that does not answer is looked at again with the next tick.
pub(crate) fn tend(config: &Config, now_ms: u64, engines: &mut impl Engines) {
    let mut all: BTreeMap<String, Vec<Target>> = BTreeMap::new();
    for (target, endpoint) in engines.targets() {
        all.entry(endpoint).or_default().push(target);
    }
    for ranks in all.values() {
        one(config, now_ms, ranks, engines);
    }
}

/// One engine. Its ranks decide together about prefill, and so are set alike.
fn one(config: &Config, now_ms: u64, ranks: &[Target], engines: &mut impl Engines) {
    let mut found = Vec::new();
    for &target in ranks {
        match engines.knobs(target) {
            Ok(knobs) => found.push((target, knobs)),
            // Another policy's.
            Err(Failure::Denied) => {}
            Err(Failure::Unknown) => {}
            Err(Failure::Unavailable(why)) => engines.warn(&format!("target {target}: {why}")),
        }
    }
    let Some(&(first, _)) = found.first() else {
        return;
    };
    // The first rank's number stands for the engine: it stays when engines come and go.
    let cell = u64::from(first);
    let kept = Setting::unpacked(engines.kept(cell));
    let seen = seen(config, &found, engines);
    let wanted = match kept {
        Some(now) => next(config, now, &seen, now_ms),
        None => Setting::first(config, now_ms),
    };
    if kept != Some(wanted) {
        engines.keep(cell, wanted.packed());
    }
    let mut values = vec![
        (DELAYER, i64::from(wanted.delayer)),
        (INTERVAL, i64::from(wanted.interval)),
    ];
    values.extend(config.max_queue_ms.map(|ms| (QUEUE, i64::from(ms))));
    for (target, knobs) in &found {
        for (name, value) in &values {
            let Some(knob) = knobs.iter().find(|knob| knob.name == *name) else {
                continue;
            };
            let value = (*value).max(knob.low).min(knob.high);
            if knob.value != value
                && let Err(failure) = engines.set(*target, name, value)
            {
                engines.warn(&format!("target {target}: {name} = {value}: {failure:?}"));
            }
        }
    }
}

/// Asks for what the configuration has limits on, and nothing else: it may cost the engine something.
fn seen(config: &Config, ranks: &[(Target, Vec<Knob>)], engines: &mut impl Engines) -> Seen {
    let mut worst = |wanted: bool, name: &str| {
        let ranks = ranks.iter().filter(|_| wanted);
        let known = ranks.filter_map(|(target, _)| engines.stat(*target, name).ok());
        known.filter(|number| !number.is_nan()).reduce(f64::max)
    };
    Seen {
        ttft_ms: worst(config.ttft_limit_ms.is_some(), &config.ttft_stat),
        itl_ms: worst(config.itl_limit_ms.is_some(), &config.itl_stat),
        waiting: worst(config.relax_waiting.is_some(), &config.waiting_stat),
    }
}

#[cfg(test)]
mod tests;
