//! One look at all engines.

#![cfg_attr(
    not(any(test, target_arch = "wasm32")),
    allow(dead_code, reason = "engines are there for the component alone")
)]

use crate::Config;
use pointsman_sdk::engine::{Failure, Knob};
use pointsman_sdk::prelude::*;

const DELAYER: &str = "prefill_delayer";
const INTERVAL: &str = "prefill_decode_interval";
const QUEUE: &str = "max_queue_ms";

/// The calls of the contract that it needs.
pub(crate) trait Engines {
    fn knobs(&mut self, at: Target) -> Result<Vec<Knob>, Failure>;
    fn set(&mut self, at: Target, name: &str, value: i64) -> Result<(), Failure>;
    fn stat(&mut self, at: Target, name: &str) -> Result<f64, Failure>;
    fn warn(&mut self, message: &str);
}

/// Those of the component's host.
#[cfg(target_arch = "wasm32")]
pub(crate) struct Host;

#[cfg(target_arch = "wasm32")]
impl Engines for Host {
    fn knobs(&mut self, at: Target) -> Result<Vec<Knob>, Failure> {
        pointsman_sdk::engine::knobs(at)
    }

    fn set(&mut self, at: Target, name: &str, value: i64) -> Result<(), Failure> {
        pointsman_sdk::engine::knob_set(Some(at), name, value)
    }

    fn stat(&mut self, at: Target, name: &str) -> Result<f64, Failure> {
        pointsman_sdk::engine::stat(at, name)
    }

    fn warn(&mut self, message: &str) {
        pointsman_sdk::bindings::pointsman::policy::log::write(Level::Warn, message);
    }
}

/// Sets what differs from what is wanted. Targets are numbered from 0; the first that nobody knows
/// ends the fleet. An engine that does not answer is looked at again with the next tick.
pub(crate) fn tend(config: &Config, engines: &mut impl Engines) {
    let mut all = Vec::new();
    for target in 0.. {
        match engines.knobs(target) {
            Ok(knobs) => all.push((target, knobs)),
            Err(Failure::Unknown) => break,
            // Another policy's.
            Err(Failure::Denied) => {}
            Err(Failure::Unavailable(why)) => engines.warn(&format!("target {target}: {why}")),
        }
    }
    let interval = if piles_up(config, &all, engines) {
        0
    } else {
        config.prefill_decode_interval
    };
    let mut wanted = vec![(DELAYER, 1), (INTERVAL, i64::from(interval))];
    wanted.extend(config.max_queue_ms.map(|ms| (QUEUE, i64::from(ms))));
    for (target, knobs) in &all {
        for (name, value) in &wanted {
            let differs = |knob: &&Knob| knob.name == *name && knob.value != *value;
            if knobs.iter().any(|knob| differs(&knob))
                && let Err(failure) = engines.set(*target, name, *value)
            {
                engines.warn(&format!("target {target}: {name} = {value}: {failure:?}"));
            }
        }
    }
}

/// Whether prompts pile up on a rank. Where an interval is 0 they did before, and it takes half as
/// many to go on: otherwise it would be set back and forth with every tick.
fn piles_up(config: &Config, all: &[(Target, Vec<Knob>)], engines: &mut impl Engines) -> bool {
    let Some(limit) = config.relax_waiting else {
        return false;
    };
    let is_zero = |knob: &Knob| knob.name == INTERVAL && knob.value == 0;
    let relaxed = all.iter().any(|(_, knobs)| knobs.iter().any(is_zero));
    let limit = if relaxed { limit / 2 } else { limit };
    let mut waiting = all
        .iter()
        .map(|(target, _)| engines.stat(*target, &config.waiting_stat));
    waiting.any(|waiting| waiting.is_ok_and(|n| n > f64::from(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Ranks of engines, by target.
    #[derive(Default)]
    struct Fleet {
        ranks: Vec<Result<Rank, Failure>>,
        sets: Vec<(Target, String, i64)>,
        warnings: Vec<String>,
    }

    #[derive(Clone)]
    struct Rank {
        knobs: BTreeMap<&'static str, i64>,
        waiting: f64,
    }

    fn rank(interval: i64, waiting: f64) -> Result<Rank, Failure> {
        let knobs = [
            (DELAYER, 0),
            (INTERVAL, interval),
            (QUEUE, -1),
            ("other", 7),
        ];
        Ok(Rank {
            knobs: knobs.into(),
            waiting,
        })
    }

    impl Fleet {
        fn rank(&mut self, at: Target) -> Result<&mut Rank, Failure> {
            match self.ranks.get_mut(at as usize) {
                Some(Ok(rank)) => Ok(rank),
                Some(Err(failure)) => Err(failure.clone()),
                None => Err(Failure::Unknown),
            }
        }

        fn tick(&mut self, config: &Config) -> Vec<(Target, String, i64)> {
            tend(config, self);
            std::mem::take(&mut self.sets)
        }
    }

    impl Engines for Fleet {
        fn knobs(&mut self, at: Target) -> Result<Vec<Knob>, Failure> {
            let knob = |(name, value): (&&'static str, &i64)| Knob {
                name: (*name).to_owned(),
                unit: String::new(),
                low: -1,
                high: 1 << 20,
                value: *value,
            };
            Ok(self.rank(at)?.knobs.iter().map(knob).collect())
        }

        fn set(&mut self, at: Target, name: &str, value: i64) -> Result<(), Failure> {
            self.sets.push((at, name.to_owned(), value));
            let rank = self.rank(at)?;
            for (knob, now) in &mut rank.knobs {
                if *knob == name {
                    *now = value;
                }
            }
            Ok(())
        }

        fn stat(&mut self, at: Target, _name: &str) -> Result<f64, Failure> {
            Ok(self.rank(at)?.waiting)
        }

        fn warn(&mut self, message: &str) {
            self.warnings.push(message.to_owned());
        }
    }

    fn intervals(sets: &[(Target, String, i64)]) -> Vec<(Target, i64)> {
        let of = sets.iter().filter(|(_, name, _)| name == INTERVAL);
        of.map(|(target, _, value)| (*target, *value)).collect()
    }

    #[test]
    fn what_differs_is_set_once_and_again_after_an_engine_was_started_anew() {
        let config = Config {
            max_queue_ms: Some(5000),
            ..Config::default()
        };
        let mut fleet = Fleet {
            ranks: vec![rank(0, 0.0), rank(10, 0.0)],
            ..Fleet::default()
        };
        let set = |target, name: &str, value| (target, name.to_owned(), value);
        let first = [
            set(0, DELAYER, 1),
            set(0, INTERVAL, 10),
            set(0, QUEUE, 5000),
            set(1, DELAYER, 1),
            set(1, QUEUE, 5000),
        ];
        assert_eq!(fleet.tick(&config), first);
        assert_eq!(fleet.tick(&config), []);
        fleet.ranks[1] = rank(0, 0.0);
        assert_eq!(fleet.tick(&config).len(), 3);
    }

    #[test]
    fn engines_that_are_others_or_gone_or_lack_a_knob_are_left_alone() {
        let bare = Ok(Rank {
            knobs: BTreeMap::new(),
            waiting: 0.0,
        });
        let gone = Err(Failure::Unavailable("no route".to_owned()));
        let ranks = vec![
            Err(Failure::Denied),
            gone,
            bare,
            rank(0, 0.0),
            Err(Failure::Unknown),
            rank(0, 0.0),
        ];
        let mut fleet = Fleet {
            ranks,
            ..Fleet::default()
        };
        let sets = fleet.tick(&Config::default());
        assert!(
            sets.iter().all(|(target, ..)| *target == 3) && sets.len() == 2,
            "{sets:?}"
        );
        assert_eq!(fleet.warnings, ["target 1: no route"]);
    }

    #[test]
    fn while_prompts_pile_up_the_interval_is_0_and_it_does_not_flap() {
        let config = Config {
            relax_waiting: Some(8),
            ..Config::default()
        };
        let mut fleet = Fleet {
            ranks: vec![rank(10, 0.0), rank(10, 8.0)],
            ..Fleet::default()
        };
        let mut waiting = |n| {
            fleet.rank(1).unwrap().waiting = n;
            intervals(&fleet.tick(&config))
        };
        assert_eq!(waiting(8.0), []);
        assert_eq!(waiting(9.0), [(0, 0), (1, 0)]);
        assert_eq!(waiting(5.0), []);
        assert_eq!(waiting(4.0), [(0, 10), (1, 10)]);
        assert_eq!(waiting(5.0), []);
    }

    #[test]
    fn a_tick_that_comes_too_often_is_refused() {
        let refused = crate::DecodeProtect::new(Config {
            tick_ms: 9,
            ..Config::default()
        });
        assert!(refused.is_err_and(|why| why.contains("tick_ms: wanted at least 10, found 9")));
    }
}
