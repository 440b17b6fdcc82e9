use super::*;
use std::collections::BTreeMap;

/// Ranks of engines, by target.
#[derive(Default)]
struct Fleet {
    ranks: Vec<(&'static str, Result<Rank, Failure>)>,
    gone: Vec<Target>,
    cells: BTreeMap<u64, u64>,
    now_ms: u64,
    sets: Vec<(Target, String, i64)>,
    asked: Vec<String>,
    log: Vec<(Level, String)>,
    memory: Memory,
    knob_calls: Vec<Target>,
    /// numbers that are not there are unknown
    unknown: bool,
}

#[derive(Clone)]
struct Rank {
    knobs: BTreeMap<&'static str, i64>,
    stats: BTreeMap<&'static str, f64>,
}

fn rank(interval: i64) -> Result<Rank, Failure> {
    let knobs = [
        (DELAYER, 0),
        (INTERVAL, interval),
        (QUEUE, -1),
        ("other", 7),
    ];
    Ok(Rank {
        knobs: knobs.into(),
        stats: BTreeMap::new(),
    })
}

impl Fleet {
    fn of(ranks: Vec<(&'static str, Result<Rank, Failure>)>) -> Fleet {
        Fleet {
            ranks,
            ..Fleet::default()
        }
    }

    fn rank(&mut self, at: Target) -> Result<&mut Rank, Failure> {
        match self.ranks.get_mut(at as usize) {
            Some((_, Ok(rank))) => Ok(rank),
            Some((_, Err(failure))) => Err(failure.clone()),
            None => Err(Failure::Unknown),
        }
    }

    fn tick(&mut self, config: &Config) -> Vec<(Target, String, i64)> {
        self.now_ms += 1000;
        let mut memory = std::mem::take(&mut self.memory);
        tend(config, self.now_ms, &mut memory, self);
        self.memory = memory;
        std::mem::take(&mut self.sets)
    }

    fn intervals(&mut self, config: &Config) -> Vec<(Target, i64)> {
        let sets = self.tick(config);
        let of = sets.iter().filter(|(_, name, _)| name == INTERVAL);
        of.map(|(target, _, value)| (*target, *value)).collect()
    }

    /// What was said since, of this level.
    fn said(&mut self, level: Level) -> Vec<String> {
        let all = std::mem::take(&mut self.log).into_iter();
        all.filter(|(of, _)| *of == level)
            .map(|(_, line)| line)
            .collect()
    }

    fn shows(&mut self, at: Target, stat: &'static str, value: f64) {
        self.rank(at).unwrap().stats.insert(stat, value);
    }
}

impl Engines for Fleet {
    fn targets(&mut self) -> Vec<(Target, String)> {
        let all = (0..).zip(&self.ranks);
        let there = all.filter(|(target, _)| !self.gone.contains(target));
        there
            .map(|(target, (endpoint, _))| (target, (*endpoint).to_owned()))
            .collect()
    }

    fn knobs(&mut self, at: Target) -> Result<Vec<Knob>, Failure> {
        self.knob_calls.push(at);
        let knob = |(name, value): (&&'static str, &i64)| Knob {
            name: (*name).to_owned(),
            unit: String::new(),
            low: -1,
            high: 30,
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

    fn stat(&mut self, at: Target, name: &str) -> Result<f64, Failure> {
        self.asked.push(name.to_owned());
        let found = self.rank(at)?.stats.get(name).copied();
        if self.unknown {
            return found.ok_or(Failure::Unknown);
        }
        found.ok_or_else(|| Failure::Unavailable("nothing was measured".to_owned()))
    }

    fn kept(&mut self, cell: u64) -> u64 {
        self.cells.get(&cell).copied().unwrap_or_default()
    }

    fn keep(&mut self, cell: u64, value: u64) {
        self.cells.insert(cell, value);
    }

    fn log(&mut self, level: Level, message: &str) {
        self.log.push((level, message.to_owned()));
    }
}

#[test]
fn what_differs_is_set_once_and_again_after_an_engine_was_started_anew() {
    let config = Config {
        max_queue_ms: Some(20),
        ..Config::default()
    };
    let mut fleet = Fleet::of(vec![("a", rank(0)), ("b", rank(10))]);
    let set = |target, name: &str, value| (target, name.to_owned(), value);
    let first = [
        set(0, DELAYER, 1),
        set(0, INTERVAL, 10),
        set(0, QUEUE, 20),
        set(1, DELAYER, 1),
        set(1, QUEUE, 20),
    ];
    assert_eq!(fleet.tick(&config), first);
    assert_eq!(fleet.tick(&config), []);
    fleet.ranks[1].1 = rank(0);
    assert_eq!(fleet.tick(&config).len(), 3);
    assert_eq!(fleet.asked, [""; 0], "no limits, no questions");
}

#[test]
fn engines_that_are_others_or_gone_or_lack_a_knob_are_left_alone() {
    let bare = Ok(Rank {
        knobs: BTreeMap::new(),
        stats: BTreeMap::new(),
    });
    let gone = Err(Failure::Unavailable("no route".to_owned()));
    let mut fleet = Fleet::of(vec![
        ("others", Err(Failure::Denied)),
        ("gone", gone),
        ("bare", bare),
        ("a", rank(0)),
        ("removed", Err(Failure::Unknown)),
        ("b", rank(0)),
    ]);
    let sets = fleet.tick(&Config::default());
    let at: Vec<Target> = sets.iter().map(|(target, ..)| *target).collect();
    assert_eq!(at, [3, 3, 5, 5]);
    let said = [
        "bare: has neither prefill_delayer nor prefill_decode_interval: its driver cannot set them",
        "gone: no route",
    ];
    assert_eq!(fleet.said(Level::Warn), said);
    fleet.tick(&Config::default());
    assert_eq!(fleet.said(Level::Warn), [""; 0], "each once");
}

#[test]
fn what_is_decided_is_said_with_what_was_seen() {
    let config = Config {
        itl_limit_ms: Some(50.0),
        settle_ms: 1000,
        ..Config::default()
    };
    let mut fleet = Fleet::of(vec![("a", rank(10))]);
    fleet.tick(&config);
    fleet.shows(0, "itl_ms_p90", 60.25);
    fleet.tick(&config);
    let said = [
        "a: delayer on, interval 10",
        "a: delayer on, interval 15 (ITL 60.2 ms)",
    ];
    assert_eq!(fleet.said(Level::Info), said);
    fleet.shows(0, "itl_ms_p90", 45.0);
    fleet.tick(&config);
    assert_eq!(fleet.said(Level::Info), [""; 0], "nothing moved");
}

#[test]
fn an_engine_that_does_not_answer_is_looked_at_ever_more_rarely_and_then_as_before() {
    let silent = || Err(Failure::Unavailable("no route".to_owned()));
    let mut fleet = Fleet::of(vec![("a", silent()), ("a", silent()), ("b", rank(10))]);
    let mut looks = Vec::new();
    for tick in 0..40 {
        fleet.knob_calls.clear();
        fleet.tick(&Config::default());
        if fleet.knob_calls.contains(&0) {
            looks.push(tick);
            assert!(!fleet.knob_calls.contains(&1), "one rank tells");
        }
        assert!(fleet.knob_calls.contains(&2));
    }
    assert_eq!(looks, [0, 1, 2, 5, 12, 22, 32]);
    fleet.ranks[0].1 = rank(0);
    fleet.ranks[1].1 = rank(0);
    while fleet.rank(1).unwrap().knobs[INTERVAL] != 10 {
        fleet.tick(&Config::default());
    }
    assert!(
        fleet
            .said(Level::Info)
            .contains(&"a: as it should be again".to_owned())
    );
    fleet.ranks[0].1 = rank(0);
    assert_eq!(
        fleet.tick(&Config::default()).len(),
        2,
        "with the next tick"
    );
}

#[test]
fn a_number_that_nobody_knows_is_said() {
    let config = Config {
        itl_limit_ms: Some(50.0),
        itl_stat: "nosuch".to_owned(),
        ..Config::default()
    };
    let mut fleet = Fleet::of(vec![("a", rank(10))]);
    fleet.unknown = true;
    fleet.tick(&config);
    let said = ["a: knows no number \"nosuch\": itl_limit_ms has no effect"];
    assert_eq!(fleet.said(Level::Warn), said);
}

#[test]
fn each_engine_follows_the_worst_of_its_own_ranks_and_all_of_them_are_set_alike() {
    let config = Config {
        itl_limit_ms: Some(50.0),
        settle_ms: 1000,
        ..Config::default()
    };
    let mut fleet = Fleet::of(vec![("a", rank(10)), ("b", rank(10)), ("a", rank(10))]);
    assert_eq!(fleet.intervals(&config), []);
    fleet.shows(0, "itl_ms_p90", 45.0);
    fleet.shows(1, "itl_ms_p90", 30.0);
    fleet.shows(2, "itl_ms_p90", 60.0);
    assert_eq!(fleet.intervals(&config), [(0, 15), (2, 15), (1, 9)]);
    // A rank that fell silent says nothing; one that is removed is nobody's.
    fleet.rank(2).unwrap().stats.clear();
    fleet.gone = vec![1];
    assert_eq!(fleet.intervals(&config), []);
    // Started anew, it gets what it had.
    fleet.ranks[2].1 = rank(0);
    assert_eq!(fleet.intervals(&config), [(2, 15)]);
    assert!(fleet.asked.iter().all(|name| name == "itl_ms_p90"));
}

#[test]
fn what_is_kept_survives_a_new_instance_and_another_configured_interval_begins_anew() {
    let config = Config {
        itl_limit_ms: Some(50.0),
        settle_ms: 1000,
        ..Config::default()
    };
    let mut fleet = Fleet::of(vec![("a", rank(10))]);
    fleet.tick(&config);
    fleet.shows(0, "itl_ms_p90", 60.0);
    assert_eq!(fleet.intervals(&config), [(0, 15)]);
    fleet.memory = Memory::default();
    fleet.shows(0, "itl_ms_p90", 45.0);
    assert_eq!(fleet.intervals(&config), []);
    let other = Config {
        prefill_decode_interval: 2,
        ..config
    };
    assert_eq!(fleet.intervals(&other), [(0, 2)]);
}

#[test]
fn a_knob_is_set_within_what_the_engine_allows() {
    let config = Config {
        prefill_decode_interval: 99,
        ..Config::default()
    };
    let mut fleet = Fleet::of(vec![("a", rank(0))]);
    assert_eq!(fleet.intervals(&config), [(0, 30)]);
    assert_eq!(fleet.intervals(&config), []);
}

#[test]
fn while_prompts_pile_up_the_interval_is_0_and_it_does_not_flap() {
    let config = Config {
        relax_waiting: Some(8),
        ..Config::default()
    };
    let mut fleet = Fleet::of(vec![("a", rank(10)), ("a", rank(10))]);
    let mut waiting = |n| {
        fleet.shows(1, "pointsman_engine_requests_waiting", n);
        fleet.intervals(&config)
    };
    assert_eq!(waiting(8.0), []);
    assert_eq!(waiting(9.0), [(0, 0), (1, 0)]);
    assert_eq!(waiting(5.0), []);
    assert_eq!(waiting(4.0), [(0, 10), (1, 10)]);
    assert_eq!(waiting(5.0), []);
}
