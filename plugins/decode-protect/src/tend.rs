//! Looks at every engine, and sets what differs from what is wanted there.

use crate::config::Config;
use crate::law::{Seen, Setting, next};
use pointsman_sdk::engine::{Failure, Knob};
#[cfg(target_arch = "wasm32")]
use pointsman_sdk::{Host as _, engine, observing};
use pointsman_sdk::{Level, Target};
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
    fn log(&mut self, level: Level, message: &str);
}

/// What this instance remembers of each engine: for people, and so that one which does not answer holds
/// up the others ever less. Nothing depends on it that must survive.
pub(crate) type Memory = BTreeMap<String, One>;

#[derive(Debug, Default)]
pub(crate) struct One {
    /// said once, until it is another one or over
    problem: Option<String>,
    /// looks in a row that it did not answer
    silent: u32,
    /// not looked at before, ms
    quiet_until_ms: u64,
}

/// Longest pause after an engine did not answer, in ticks.
const LONGEST_QUIET: u64 = 10;

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

    fn log(&mut self, level: Level, message: &str) {
        observing().log(level, message);
    }
}

/// See the module. An engine that does not answer is looked at again, in ever longer pauses.
pub(crate) fn tend(config: &Config, now_ms: u64, memory: &mut Memory, engines: &mut impl Engines) {
    let mut all: BTreeMap<String, Vec<Target>> = BTreeMap::new();
    for (target, endpoint) in engines.targets() {
        all.entry(endpoint).or_default().push(target);
    }
    memory.retain(|endpoint, _| all.contains_key(endpoint));
    for (endpoint, ranks) in &all {
        let one = memory.entry(endpoint.clone()).or_default();
        if now_ms < one.quiet_until_ms {
            continue;
        }
        let look = Look {
            config,
            now_ms,
            endpoint,
        };
        let problem = look.at(ranks, engines);
        one.silent = match &problem {
            Some(Problem::Silent(_)) => one.silent.saturating_add(1),
            _ => 0,
        };
        let doubled = 1 << one.silent.saturating_sub(1).min(8);
        let quiet = (doubled - 1).min(LONGEST_QUIET) * u64::from(config.tick_ms);
        one.quiet_until_ms = now_ms.saturating_add(quiet);
        let problem = problem.map(|(Problem::Silent(why) | Problem::Odd(why))| why);
        if problem != one.problem {
            match &problem {
                Some(why) => engines.log(Level::Warn, &format!("{endpoint}: {why}")),
                None => engines.log(Level::Info, &format!("{endpoint}: as it should be again")),
            }
            one.problem = problem;
        }
    }
}

/// What keeps an engine from being what is wanted.
enum Problem {
    /// it does not answer
    Silent(String),
    /// it does, but not with what is needed
    Odd(String),
}

/// At one engine. Its ranks decide together about prefill, and so are set alike.
struct Look<'a> {
    config: &'a Config,
    now_ms: u64,
    endpoint: &'a str,
}

impl Look<'_> {
    fn at(&self, ranks: &[Target], engines: &mut impl Engines) -> Option<Problem> {
        let mut found = Vec::new();
        for &target in ranks {
            match engines.knobs(target) {
                Ok(knobs) => found.push((target, knobs)),
                // Another policy's, or gone by now.
                Err(Failure::Denied | Failure::Unknown) => {}
                // The other ranks would cost as much time.
                Err(Failure::Unavailable(why)) => return Some(Problem::Silent(why)),
            }
        }
        let &(first, _) = found.first()?;
        let is_ours = |knob: &Knob| knob.name == DELAYER || knob.name == INTERVAL;
        if !found.iter().any(|(_, knobs)| knobs.iter().any(is_ours)) {
            let why = format!("has neither {DELAYER} nor {INTERVAL}: its driver cannot set them");
            return Some(Problem::Odd(why));
        }
        let mut problem = None;
        let seen = self.seen(&found, &mut problem, engines);
        let wanted = self.decide(first, &seen, engines);
        let mut values = vec![
            (DELAYER, i64::from(wanted.delayer)),
            (INTERVAL, i64::from(wanted.interval)),
        ];
        values.extend(self.config.max_queue_ms.map(|ms| (QUEUE, i64::from(ms))));
        for (target, knobs) in &found {
            for (name, value) in &values {
                let Some(knob) = knobs.iter().find(|knob| knob.name == *name) else {
                    continue;
                };
                let value = (*value).max(knob.low).min(knob.high);
                if knob.value != value
                    && let Err(failure) = engines.set(*target, name, value)
                {
                    problem = Some(Problem::Odd(format!("{name} = {value}: {failure:?}")));
                }
            }
        }
        problem
    }

    /// What it is to be set to; the host keeps that, and the log says when it changes. The first rank's
    /// number stands for the engine: it stays when engines come and go.
    fn decide(&self, first: Target, seen: &Seen, engines: &mut impl Engines) -> Setting {
        let cell = u64::from(first);
        let kept = Setting::unpacked(engines.kept(cell));
        let kept = kept.filter(|kept| kept.begun == self.config.begun());
        let wanted = match kept {
            Some(now) => next(self.config, now, seen, self.now_ms),
            None => Setting::first(self.config, self.now_ms),
        };
        if kept == Some(wanted) {
            return wanted;
        }
        engines.keep(cell, wanted.packed());
        let changes =
            |kept: &Setting| (kept.delayer, kept.interval) != (wanted.delayer, wanted.interval);
        if kept.as_ref().is_none_or(changes) {
            let delayer = if wanted.delayer { "on" } else { "off" };
            let (endpoint, interval) = (self.endpoint, wanted.interval);
            let line = format!("{endpoint}: delayer {delayer}, interval {interval}{seen}");
            engines.log(Level::Info, &line);
        }
        wanted
    }

    /// Asks for what the configuration has limits on, and nothing else: it may cost the engine something.
    fn seen(
        &self,
        ranks: &[(Target, Vec<Knob>)],
        problem: &mut Option<Problem>,
        engines: &mut impl Engines,
    ) -> Seen {
        let mut worst = |limit: &str, wanted: bool, name: &str| {
            let mut worst = None;
            for (target, _) in ranks.iter().filter(|_| wanted) {
                match engines.stat(*target, name) {
                    Ok(number) if !number.is_nan() => {
                        worst = Some(worst.map_or(number, |worst: f64| worst.max(number)));
                    }
                    Err(Failure::Unknown) => {
                        let why = format!("knows no number {name:?}: {limit} has no effect");
                        *problem = Some(Problem::Odd(why));
                    }
                    // Nothing was measured, or it is not a number.
                    _ => {}
                }
            }
            worst
        };
        let config = self.config;
        Seen {
            ttft_ms: worst(
                "ttft_limit_ms",
                config.ttft_limit_ms.is_some(),
                &config.ttft_stat,
            ),
            itl_ms: worst(
                "itl_limit_ms",
                config.itl_limit_ms.is_some(),
                &config.itl_stat,
            ),
            waiting: worst(
                "relax_waiting",
                config.relax_waiting.is_some(),
                &config.waiting_stat,
            ),
        }
    }
}

#[cfg(test)]
mod tests;
