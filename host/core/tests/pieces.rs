//! A table whose pieces are kept elsewhere decides as one in memory does, whatever happens.

#![allow(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

use pointsman_core::{
    Ask, Core, Decision, Endpoint, Failure, Fallback, Incoming, Key, Keys, Limits, ManualClock,
    Outcome, Pieces, Policy, Roles, Route, Router, Shared, Step, Target, TargetSpec, Ticket, Tie,
    Weights, Worker, decide,
};
use proptest::prelude::*;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

const TARGETS: Target = 3;

/// The owner, else the group's target, else in turn; binds session and group, and moves what is gone.
struct Follow;

impl Router for Follow {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        let cost = Weights {
            request: 1,
            ..Weights::default()
        };
        let request = *ask.request();
        let group = ask.lookup(Key::Siblings);
        let eligible = |b: Option<pointsman_core::Binding>| b.filter(|b| b.eligible);
        let own = eligible(request.owner)
            .or(eligible(group))
            .map(|b| b.target);
        let placed = ask.least(cost, Tie::Turn(request.seed), None, None);
        let Some(target) = request
            .explicit
            .or(own)
            .or(placed.map(|choice| choice.target))
        else {
            return Ok(Decision::Abstain(0));
        };
        let both = Keys::NONE.with(Key::Session).with(Key::Siblings);
        let gone = |b: Option<pointsman_core::Binding>| b.is_some_and(|b| !b.eligible);
        let mut rebind = Keys::NONE;
        if gone(request.owner) {
            rebind = rebind.with(Key::Session);
        }
        if gone(group) {
            rebind = rebind.with(Key::Siblings);
        }
        Ok(Decision::To(Route {
            target,
            bind: both,
            rebind,
            charge: None,
            reason: 0,
        }))
    }
}

struct Bench {
    core: Arc<Core>,
    clock: Arc<ManualClock>,
    worker: Rc<Worker>,
    /// none: the table is in memory
    store: Option<HashMap<usize, Vec<u8>>>,
    flights: Vec<Option<Ticket>>,
}

impl Bench {
    fn new(in_pieces: bool) -> Bench {
        let clock = Arc::new(ManualClock::default());
        let limits = Limits {
            ttl_ms: 100,
            ..Limits::default()
        };
        let core = Arc::new(if in_pieces {
            let pieces = Pieces {
                count: 3,
                most: 64,
                lease_ms: u64::MAX,
            };
            Core::in_pieces(limits, pieces, clock.clone())
        } else {
            Core::new(limits, clock.clone())
        });
        for rank in 0..TARGETS {
            core.fleet.add(TargetSpec {
                endpoint: Endpoint {
                    name: format!("t/{rank}"),
                    url: "http://t".to_owned(),
                    rank,
                    labels: Vec::new(),
                },
                roles: Roles::ALL,
                models: None,
            });
        }
        let policy = Policy {
            name: "test".to_owned(),
            version: "0".to_owned(),
            reasons: vec!["said".to_owned()],
            keys: Keys::from_bits(0b111),
        };
        Bench {
            worker: Worker::new(core.clone(), policy),
            core,
            clock,
            store: in_pieces.then(HashMap::new),
            flights: Vec::new(),
        }
    }

    fn bring(&self, pieces: &[usize]) {
        for piece in pieces {
            if let Some(store) = &self.store {
                let image = store.get(piece).cloned().unwrap_or_default();
                self.core.bring(*piece, &image).unwrap();
            }
        }
    }

    fn keep(&mut self, pieces: &[usize]) {
        for piece in pieces {
            if let Some(store) = &mut self.store {
                store.insert(*piece, self.core.image(*piece));
                self.core.leave(*piece);
            }
        }
    }

    fn send(&mut self, incoming: &Incoming) -> Option<Target> {
        let pieces = self.worker.pieces(incoming);
        self.bring(&pieces);
        let outcome = decide(&self.worker, &mut Follow, Fallback::LeastLoad, incoming);
        self.keep(&pieces);
        let ticket = match outcome {
            Outcome::Routed(ticket) => Some(ticket),
            Outcome::Refused(_) => None,
        };
        let target = ticket.as_ref().map(Ticket::target);
        self.flights.push(ticket);
        target
    }

    fn step(&mut self, flight: usize, step: Step) {
        let Some(mut ticket) = self.flights.get_mut(flight).and_then(Option::take) else {
            return;
        };
        if self.store.is_some() {
            for piece in ticket.pieces() {
                self.bring(&[piece]);
                ticket.step_in(step, piece);
                self.keep(&[piece]);
            }
            ticket.step(step);
            if matches!(step, Step::Dispatched | Step::Output) {
                self.flights[flight] = Some(ticket);
            }
            return;
        }
        match step {
            Step::Dispatched => ticket.dispatched(),
            Step::Output => ticket.output(),
            Step::Finished => return ticket.finish(),
            Step::Failed => return ticket.fail(),
            Step::Refused => return ticket.refused(),
            Step::Cancelled => return ticket.cancel(),
        }
        self.flights[flight] = Some(ticket);
    }

    fn bound(&mut self, session: u64) -> Option<Target> {
        let scope = Incoming::default().scope();
        let piece = self.core.piece_of(scope, Key::Session, session);
        self.bring(&[piece]);
        let bound = self.core.bound(scope, Key::Session, session);
        self.keep(&[piece]);
        bound
    }

    fn sweep(&mut self) {
        for piece in 0..self.core.pieces() {
            self.bring(&[piece]);
            self.core.sweep_piece(piece);
            self.keep(&[piece]);
        }
    }

    fn loads(&self) -> Vec<pointsman_core::Load> {
        let fleet = self.core.fleet.snapshot();
        (0..TARGETS)
            .map(|target| fleet.ledger().load(target))
            .collect()
    }
}

#[derive(Clone, Debug)]
enum Op {
    Send { session: u64, parent: Option<u64> },
    Step(usize, Step),
    Down(Target, bool),
    Wait(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let step = prop_oneof![
        Just(Step::Dispatched),
        Just(Step::Output),
        Just(Step::Finished),
        Just(Step::Failed),
        Just(Step::Refused),
        Just(Step::Cancelled),
    ];
    prop_oneof![
        4 => (1_u64..6, prop::option::of(6_u64..8))
            .prop_map(|(session, parent)| Op::Send { session, parent }),
        5 => (0_usize..12, step).prop_map(|(flight, step)| Op::Step(flight, step)),
        1 => (0..TARGETS, any::<bool>()).prop_map(|(target, down)| Op::Down(target, down)),
        1 => (1_u64..150).prop_map(Op::Wait),
    ]
}

proptest! {
    #[test]
    fn pieces_decide_as_a_table_in_memory_does(ops in prop::collection::vec(op(), 1..60)) {
        let mut benches = [Bench::new(false), Bench::new(true)];
        for (n, op) in (0..).zip(&ops) {
            let [there, here] = benches.each_mut().map(|bench| match op {
                Op::Send { session, parent } => bench.send(&Incoming {
                    seed: n,
                    session: Some(*session),
                    parent: *parent,
                    prompt_tokens: 10,
                    shared: Shared::Given(4),
                    ..Incoming::default()
                }),
                Op::Step(back, step) => {
                    let flight = bench.flights.len().checked_sub(back + 1);
                    flight.inspect(|flight| bench.step(*flight, *step)).map(|_| 0)
                }
                Op::Down(target, down) => {
                    bench.core.fleet.set(&[*target], |standing| standing.healthy = !*down);
                    None
                }
                Op::Wait(ms) => {
                    bench.clock.advance(*ms);
                    bench.sweep();
                    None
                }
            });
            prop_assert_eq!(there, here, "{:?}", op);
            prop_assert_eq!(benches[0].loads(), benches[1].loads(), "{:?}", op);
            for session in 1..6 {
                let [there, here] = benches.each_mut().map(|bench| bench.bound(session));
                prop_assert_eq!(there, here, "session {} after {:?}", session, op);
            }
        }
        // Pieces are not brought for those that are dropped.
        for flight in benches[1].flights.drain(..).flatten() {
            flight.forget();
        }
    }
}

#[test]
fn leases_of_holders_that_vanished_are_not_believed_for_ever_and_bad_images_are_refused() {
    let clock = Arc::new(ManualClock::default());
    let pieces = Pieces {
        count: 1,
        most: 1,
        lease_ms: 50,
    };
    let core = Core::in_pieces(Limits::default(), pieces, clock.clone());
    assert!(core.bring(0, &[9, 9]).is_err());
    assert!(core.bring(0, &[1, 9]).is_err());
    let mut bench = Bench::new(true);
    bench.core = Arc::new(core);
    bench.clock = clock;
    let spec = |rank| TargetSpec {
        endpoint: Endpoint {
            name: format!("t/{rank}"),
            url: String::new(),
            rank,
            labels: Vec::new(),
        },
        roles: Roles::ALL,
        models: None,
    };
    bench.core.fleet.add(spec(0));
    bench.worker = Worker::new(bench.core.clone(), bench.worker.policy().clone());
    let of = |session| Incoming {
        session: Some(session),
        ..Incoming::default()
    };
    bench.send(&of(1));
    bench.flights.pop().flatten().unwrap().forget();
    // The piece has room for one, and that one seems to be in flight.
    bench.send(&of(2));
    assert_eq!(bench.bound(2), None);
    bench.clock.advance(50);
    bench.send(&of(3));
    assert_eq!((bench.bound(3), bench.bound(1)), (Some(0), None));
    bench.flights.drain(..).flatten().for_each(Ticket::forget);
}

#[test]
fn the_head_of_a_sticky_turn_touches_the_table_only_while_there_is_something_to_confirm() {
    let mut bench = Bench::new(true);
    let turn = Incoming {
        session: Some(1),
        ..Incoming::default()
    };
    let opens = |bench: &Bench, flight: usize| {
        let ticket = bench.flights[flight].as_ref().unwrap();
        ticket.changes_table(Step::Dispatched)
    };
    bench.send(&turn);
    assert!(opens(&bench, 0), "a first turn binds");
    bench.send(&turn);
    assert!(opens(&bench, 1), "no engine has accepted the first one yet");
    bench.step(0, Step::Dispatched);
    bench.step(1, Step::Finished);
    bench.step(0, Step::Finished);
    bench.send(&turn);
    assert!(
        !opens(&bench, 2),
        "the same prompt under a confirmed binding"
    );
    // It fails: what was confirmed before stays.
    bench.step(2, Step::Failed);
    assert!(bench.bound(1).is_some());
    let mut chain = pointsman_core::ChainBuilder::default();
    chain.message(b"more", 4);
    let more = Incoming {
        shared: Shared::Chain(chain.build()),
        ..turn
    };
    bench.send(&more);
    assert!(opens(&bench, 3), "another prompt is to be remembered");
}
