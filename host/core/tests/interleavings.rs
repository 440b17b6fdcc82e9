//! The concurrent table under every interleaving, with `loom`.
//!
//! These are core's own sources, compiled once more with loom's mutexes and atomics in the place of
//! std's: see `sync`. Each test is a race of two threads, each with a worker of its own, over one
//! core; loom runs it once for every order of its locks and atomics that at most [`PREEMPTIONS`]
//! forced switches can make, and for every value that a relaxed load may see.
//!
//! Checked: that a session's requests in flight are on one target under one claim, that none of them
//! loses its lease, that the gauges return to zero, that the table keeps its bound, and that no order
//! deadlocks. A program of its own, not a list of `#[test]`s: the sources' unit tests would come along,
//! and they know nothing of loom.
//!
//! Not checked: more than two threads; more than that many switches; the fleet's snapshot, which is an
//! `ArcSwap` (a crate with a model check of its own) and changes as one step here; a table of many
//! shards in which a thread evicts from a shard that another one holds (it looks elsewhere, then places
//! unbound; `tests/properties.rs` runs it on real threads).

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "core's sources, of which a test uses a part"
)]
#![allow(missing_docs, clippy::unwrap_used, reason = "a test")]

/// What the scheduler sees of core.
mod sync {
    pub(crate) use loom::sync::atomic;
    pub(crate) use loom::sync::{Mutex, MutexGuard};
}

#[path = "../src/ask.rs"]
mod ask;
#[path = "../src/bindings.rs"]
mod bindings;
#[path = "../src/cells.rs"]
mod cells;
#[path = "../src/clock.rs"]
mod clock;
#[path = "../src/commit.rs"]
mod commit;
#[path = "../src/core.rs"]
mod core;
#[path = "../src/decide.rs"]
mod decide;
#[path = "../src/entry.rs"]
mod entry;
#[path = "../src/fleet.rs"]
mod fleet;
#[path = "../src/hash.rs"]
mod hash;
#[path = "../src/image.rs"]
mod image;
#[path = "../src/kernel.rs"]
mod kernel;
#[path = "../src/latency.rs"]
mod latency;
#[path = "../src/ledger.rs"]
mod ledger;
#[path = "../src/measured.rs"]
mod measured;
#[path = "../src/moment.rs"]
mod moment;
#[path = "../src/places.rs"]
mod places;
#[path = "../src/prompt.rs"]
mod prompt;
#[path = "../src/shard.rs"]
mod shard;
#[path = "../src/ticket.rs"]
mod ticket;
#[path = "../src/types.rs"]
mod types;
#[path = "../src/view.rs"]
mod view;

use ask::{Ask, Incoming};
use bindings::Limits;
use clock::ManualClock;
use core::{Core, Policy, Worker};
use decide::{Failure, Fallback, Outcome, Router, decide};
use fleet::{Roles, TargetSpec};
use hash::Scope;
use std::rc::Rc;
use std::sync::Arc;
use ticket::Ticket;
use types::{Decision, Endpoint, Key, Keys, Load, Phase, Route, Target};

const PREEMPTIONS: usize = 4;
const TTL: u64 = 1000;

/// One core, as each thread of a race sees it.
#[derive(Clone)]
struct Race {
    core: Arc<Core>,
    clock: Arc<ManualClock>,
}

/// Keeps to the owner, else binds the session to its target.
struct Prefers(Target);

impl Router for Prefers {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        let owner = ask.request().owner.filter(|owner| owner.eligible);
        Ok(Decision::To(Route {
            target: owner.map_or(self.0, |owner| owner.target),
            bind: Keys::NONE.with(Key::Session),
            rebind: Keys::NONE.with(Key::Session),
            charge: None,
            reason: 0,
        }))
    }
}

impl Race {
    fn new(max: usize) -> Race {
        let clock = Arc::new(ManualClock::default());
        let limits = Limits {
            max,
            ttl_ms: TTL,
            ..Limits::default()
        };
        let core = Arc::new(Core::new(limits, clock.clone()));
        for name in ["a/0", "a/1"] {
            core.fleet.add(TargetSpec {
                endpoint: Endpoint {
                    name: name.to_owned(),
                    url: String::new(),
                    rank: 0,
                    labels: Vec::new(),
                },
                roles: Roles::ALL,
                models: None,
            });
        }
        Race { core, clock }
    }

    fn worker(&self) -> Rc<Worker> {
        let policy = Policy {
            name: "test".to_owned(),
            version: "0".to_owned(),
            reasons: vec!["said".to_owned()],
            keys: Keys::NONE.with(Key::Session),
        };
        Worker::new(self.core.clone(), policy)
    }

    fn send(&self, session: u64, prefers: Target) -> Ticket {
        let incoming = Incoming {
            session: Some(session),
            prompt_tokens: 10,
            ..Incoming::default()
        };
        let outcome = decide(
            &self.worker(),
            &mut Prefers(prefers),
            Fallback::LeastLoad,
            &incoming,
        );
        match outcome {
            Outcome::Routed(ticket) => ticket,
            Outcome::Refused(refusal) => unreachable!("{refusal:?}"),
        }
    }

    fn bound(&self, session: u64) -> Option<Target> {
        let scope = Scope::new(0, Phase::Serve, 0);
        self.core.bound(scope, Key::Session, session)
    }

    fn load(&self, target: Target) -> Load {
        self.core.fleet.snapshot().ledger().load(target)
    }

    /// Nothing in flight: only what is bound is counted, and after its time not even that.
    fn is_quiet(&self, sessions: &[u64]) {
        let bound: Vec<Target> = sessions.iter().filter_map(|s| self.bound(*s)).collect();
        assert_eq!(self.core.bindings().len(), bound.len());
        for target in [0, 1] {
            let sessions = bound.iter().filter(|at| **at == target).count();
            let wanted = Load {
                sessions: u32::try_from(sessions).unwrap(),
                ..Load::default()
            };
            assert_eq!(self.load(target), wanted);
        }
        self.clock.advance(TTL);
        self.core.sweep();
        assert!(self.core.bindings().is_empty());
        assert_eq!([self.load(0), self.load(1)], [Load::default(); 2]);
    }
}

/// Every interleaving of the two, and what must be true of their results.
fn race<A, B>(
    race: impl Fn() -> Race + Send + Sync + 'static,
    one: impl Fn(&Race) -> A + Send + Sync + Copy + 'static,
    other: impl Fn(&Race) -> B + Send + Sync + Copy + 'static,
    then: impl Fn(&Race, A, B) + Send + Sync + 'static,
) where
    A: 'static + Send,
    B: 'static,
{
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.max_branches = 100_000;
    model.check(move || {
        let race = race();
        let there = race.clone();
        let one = loom::thread::spawn(move || one(&there));
        let other = other(&race);
        let one = one.join().unwrap();
        then(&race, one, other);
    });
}

fn main() {
    let races: [(&str, fn()); 6] = [
        (
            "two first turns of a session make one binding",
            two_first_turns_of_a_session_make_one_binding,
        ),
        (
            "a claim that rolls back while another adopts it is lost to neither",
            a_claim_that_rolls_back_while_another_adopts_it_is_lost_to_neither,
        ),
        (
            "a binding that expires is swept or leased and never both",
            a_binding_that_expires_is_swept_or_leased_and_never_both,
        ),
        (
            "a full table evicts no session that is being leased",
            a_full_table_evicts_no_session_that_is_being_leased,
        ),
        (
            "the end of a session and its last turn leave nothing half done",
            the_end_of_a_session_and_its_last_turn_leave_nothing_half_done,
        ),
        (
            "a target that comes meanwhile loses no count",
            a_target_that_comes_meanwhile_loses_no_count,
        ),
    ];
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    for (name, race) in races {
        if wanted
            .as_ref()
            .is_none_or(|wanted| name.contains(&wanted.replace('_', " ")))
        {
            race();
            println!("{name} ... ok");
        }
    }
}

fn two_first_turns_of_a_session_make_one_binding() {
    // Tickets stay with their threads; what each saw while both were in flight comes out.
    let turn = |prefers| {
        move |race: &Race| {
            let mut ticket = race.send(1, prefers);
            let (target, bound) = (ticket.target(), race.bound(1));
            assert_eq!(bound, Some(target), "under its own lease");
            ticket.dispatched();
            ticket.finish();
            target
        }
    };
    race(
        || Race::new(8),
        turn(0),
        turn(1),
        |race, one, other| {
            assert_eq!(one, other);
            assert_eq!(race.bound(1), Some(one));
            race.is_quiet(&[1]);
        },
    );
}

fn a_claim_that_rolls_back_while_another_adopts_it_is_lost_to_neither() {
    race(
        || Race::new(8),
        |race| {
            let ticket = race.send(1, 0);
            ticket.fail();
        },
        |race| {
            let mut ticket = race.send(1, 1);
            let target = ticket.target();
            assert_eq!(
                race.bound(1),
                Some(target),
                "the other one's failure took it away"
            );
            ticket.dispatched();
            assert_eq!(race.bound(1), Some(target));
            ticket.finish();
            target
        },
        |race, (), target| {
            assert_eq!(race.bound(1), Some(target));
            race.is_quiet(&[1]);
        },
    );
}

fn a_binding_that_expires_is_swept_or_leased_and_never_both() {
    race(
        || {
            let race = Race::new(8);
            race.send(1, 0).finish();
            race.clock.advance(TTL - 1);
            race
        },
        |race| {
            race.clock.advance(1);
            race.core.sweep();
        },
        |race| {
            let ticket = race.send(1, 1);
            let target = ticket.target();
            assert_eq!(race.bound(1), Some(target));
            ticket.finish();
            target
        },
        |race, (), target| {
            assert_eq!(race.bound(1), Some(target));
            race.is_quiet(&[1]);
        },
    );
}

fn a_full_table_evicts_no_session_that_is_being_leased() {
    race(
        || {
            let race = Race::new(1);
            race.send(1, 0).finish();
            race
        },
        |race| {
            let ticket = race.send(2, 1);
            assert!(
                race.core.bindings().len() <= 2,
                "one, and one that is about to be given back"
            );
            let bound = race.bound(2);
            assert!(bound.is_none_or(|at| at == ticket.target()));
            ticket.finish();
            bound.is_some()
        },
        |race| {
            let ticket = race.send(1, 0);
            let bound = race.bound(1);
            // Evicted first, and the other one in flight: placed and not remembered.
            assert!(bound.is_none_or(|at| at == ticket.target()));
            ticket.finish();
            bound.is_some()
        },
        |race, other, kept| {
            assert!(other || kept, "there was room for one of them");
            assert_eq!(race.core.bindings().len(), 1);
            race.is_quiet(&[1, 2]);
        },
    );
}

fn the_end_of_a_session_and_its_last_turn_leave_nothing_half_done() {
    race(
        || {
            let race = Race::new(8);
            race.send(1, 0).finish();
            race
        },
        |race| race.core.end_session(1),
        |race| {
            let mut ticket = race.send(1, 1);
            ticket.dispatched();
            ticket.fail();
        },
        |race, (), ()| {
            assert_eq!(race.bound(1), None);
            race.is_quiet(&[1]);
        },
    );
}

fn a_target_that_comes_meanwhile_loses_no_count() {
    // The other worker knows the fleet without the block of counters that the new target is in.
    race(
        || {
            let race = Race::new(1);
            for n in 2..64 {
                race.core.fleet.add(TargetSpec {
                    endpoint: Endpoint {
                        name: format!("b/{n}"),
                        url: String::new(),
                        rank: 0,
                        labels: Vec::new(),
                    },
                    roles: Roles::ALL,
                    models: None,
                });
            }
            race
        },
        |race| {
            let new = race.core.fleet.add(TargetSpec {
                endpoint: Endpoint {
                    name: "c/0".to_owned(),
                    url: String::new(),
                    rank: 0,
                    labels: Vec::new(),
                },
                roles: Roles::ALL,
                models: None,
            });
            race.send(1, new).finish();
        },
        |race| race.send(2, 0).finish(),
        |race, (), ()| {
            race.is_quiet(&[1, 2]);
            assert_eq!(race.load(64), Load::default());
        },
    );
}
