//! Real threads over one core, each with a worker of its own, as in the proxy.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

mod common;

use common::Bench;
use pointsman_core::{
    Core, Fallback, Incoming, Key, Keys, Limits, Load, ManualClock, Outcome, Target, Ticket, Tie,
    Weights, Worker, decide, splitmix64,
};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

const THREADS: u64 = 4;
const TURNS: u64 = 5000;
const SESSIONS: u64 = 6;
const TARGETS: usize = 5;

/// Where each session's requests in flight are.
type Running = [Mutex<HashMap<Target, u32>>; SESSIONS as usize];

fn enter(running: &Running, session: u64, target: Target) {
    let mut here = running[session as usize].lock().unwrap();
    *here.entry(target).or_default() += 1;
    assert_eq!(here.len(), 1, "session {session} runs on {here:?} at once");
}

fn leave(running: &Running, session: u64, target: Target) {
    let mut here = running[session as usize].lock().unwrap();
    let count = here.get_mut(&target).unwrap();
    *count -= 1;
    if *count == 0 {
        here.remove(&target);
    }
}

/// Keeps to the owner, else binds.
fn sticky(ask: &pointsman_core::Ask) -> pointsman_core::Decision {
    let keys = Keys::NONE.with(Key::Session).with(Key::Siblings);
    let owner = ask.request().owner.map(|owner| owner.target);
    let target = owner.or_else(|| {
        // Another seed, another target: threads that race do not agree by chance.
        let least = ask.least(
            Weights::default(),
            Tie::Hash(ask.request().seed),
            None,
            None,
        );
        least.map(|choice| choice.target)
    });
    target.map_or(pointsman_core::Decision::Abstain(0), |target| {
        common::bind(target, keys)
    })
}

fn turns(core: &Arc<Core>, thread: u64, running: Option<&Running>) {
    let policy = common::policy(Keys::NONE.with(Key::Session).with(Key::Siblings));
    let worker = Worker::new(core.clone(), policy);
    let mut live: Vec<(u64, Ticket)> = Vec::new();
    for turn in 0..TURNS {
        let chance = splitmix64(thread << 32 | turn);
        let session = chance % SESSIONS;
        let incoming = Incoming {
            session: Some(session),
            parent: (chance & 0x100 != 0).then_some(1000 + session % 2),
            seed: chance,
            prompt_tokens: 10,
            ..Incoming::default()
        };
        // Where sessions are watched a request has no parent: its group would move it.
        let incoming = Incoming {
            parent: incoming.parent.filter(|_| running.is_none()),
            ..incoming
        };
        let mut router = common::answering(|ask| Ok(sticky(ask)));
        match decide(&worker, &mut router, Fallback::LeastLoad, &incoming) {
            Outcome::Routed(ticket) => {
                if let Some(running) = running {
                    enter(running, session, ticket.target());
                }
                live.push((session, ticket));
            }
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
        while live.len() > (chance >> 16) as usize % 4 {
            let (session, mut ticket) = live.swap_remove((chance >> 24) as usize % live.len());
            if let Some(running) = running {
                leave(running, session, ticket.target());
            }
            match (chance >> 32) % 5 {
                0 => ticket.fail(),
                1 => ticket.cancel(),
                2 => ticket.refused(),
                3 if running.is_none() => {
                    ticket.output();
                    ticket.fail();
                }
                _ => ticket.finish(),
            }
        }
        if running.is_none() && chance >> 56 == 0 {
            core.end_session(session);
            core.sweep();
        }
    }
}

fn storm(max: usize, running: Option<&Running>) -> (Arc<Core>, Arc<ManualClock>) {
    let limits = Limits {
        max,
        ..Limits::default()
    };
    let bench = Bench::make(TARGETS, Keys::NONE, limits);
    let core = &bench.core;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || turns(core, thread, running));
        }
    });
    (bench.core.clone(), bench.clock.clone())
}

fn is_quiet(core: &Core, clock: &ManualClock) {
    assert!(core.bindings().len() <= core.bindings().limits().max);
    let loads = || {
        let fleet = core.fleet.snapshot();
        (0..TARGETS as Target)
            .map(|t| fleet.ledger().load(t))
            .collect::<Vec<_>>()
    };
    for load in loads() {
        let none = Load {
            sessions: load.sessions,
            ..Load::default()
        };
        assert_eq!(load, none);
    }
    clock.advance(Limits::default().ttl_ms);
    core.sweep();
    assert!(core.bindings().is_empty());
    assert_eq!(loads(), [Load::default(); TARGETS]);
}

#[test]
fn case_9_turns_that_race_keep_each_session_on_one_target_at_a_time() {
    let running = Running::default();
    let (core, clock) = storm(65_536, Some(&running));
    is_quiet(&core, &clock);
}

#[test]
fn workers_that_hammer_one_small_table_leave_nothing_behind() {
    for max in [1, 4, 16] {
        let (core, clock) = storm(max, None);
        is_quiet(&core, &clock);
    }
}
