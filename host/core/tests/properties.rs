//! Whatever happens in whatever order, nothing is lost, nothing is counted twice, and the table keeps
//! its bounds.
//!
//! A history of random steps runs against one core. After each step the gauges are compared with what
//! follows from the requests in flight and from the bindings that can be looked up, and every binding
//! that changed must be one that the step may change. Steps may also fall between a question to the
//! policy and its answer: what another worker does meanwhile.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

mod common;

use common::Bench;
use pointsman_core::{
    Ask, Charge, Decision, Explicit, Failure, Incoming, Key, Keys, Limits, Load, Outcome, Phase,
    Rejection, Route, Scope, Shared, Target, Ticket, Tie, Weights, WhenFull,
};
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;

const MODELS: u64 = 2;
const SESSIONS: u64 = 5;
const PARENTS: u64 = 3;
const CUSTOM: u64 = 2;
const TTL: u64 = 1000;
/// One short of a new block of counters, so that a history grows the ledger.
const TARGETS: usize = 62;

/// What the policy answers.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Owner,
    To(u8),
    Least,
    Reject(u16),
    Abstain,
    Trap,
}

#[derive(Clone, Debug)]
struct Request {
    session: Option<u64>,
    parent: Option<u64>,
    custom: Option<u64>,
    model: u64,
    prompt: u32,
    shared: u32,
    explicit: Option<u8>,
    answer: Answer,
    look: u8,
    bind: u8,
    rebind: u8,
    charge: Option<u32>,
    reason: u8,
    meanwhile: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Send(Box<Request>),
    Retry(usize),
    Dispatched(usize),
    Output(usize),
    Finish(usize),
    Fail(usize),
    Refused(usize),
    Cancel(usize),
    Final(u64),
    Stand(u8, Change),
    Add,
    Advance(u64),
    Sweep,
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Down,
    Up,
    Drain,
    Undrain,
    Remove,
}

/// A key of the table.
type Name = (u64, Key, u64);
type Bound = HashMap<Name, Target>;

struct Live {
    serial: u64,
    ticket: Ticket,
    request: Request,
    tried: Vec<Target>,
    names: Vec<Name>,
    accepted: bool,
    /// by the model, not by the ticket
    charge: Charge,
}

struct World {
    bench: Bench,
    live: RefCell<Vec<Live>>,
    /// requests in flight that certainly hold a lease on what the key is bound to now
    leases: RefCell<HashMap<Name, Vec<u64>>>,
    /// just before the step
    before: RefCell<Bound>,
    serial: Cell<u64>,
    targets: Cell<usize>,
    /// time went by without a sweep
    stale: Cell<bool>,
}

fn names(request: &Request) -> Vec<Name> {
    [
        (Key::Session, request.session),
        (Key::Siblings, request.parent),
        (Key::Session, request.parent),
        (Key::Custom, request.custom),
    ]
    .into_iter()
    .filter_map(|(key, identity)| Some((request.model, key, identity?)))
    .collect()
}

fn every_name() -> impl Iterator<Item = Name> {
    let of =
        |key, n: u64| (0..MODELS).flat_map(move |model| (0..n).map(move |id| (model, key, id)));
    of(Key::Session, SESSIONS)
        .chain(of(Key::Siblings, SESSIONS))
        .chain(of(Key::Custom, CUSTOM))
}

impl World {
    fn new(limits: Limits) -> World {
        let world = World {
            bench: Bench::make(TARGETS, Keys::from_bits(15), limits),
            live: RefCell::default(),
            leases: RefCell::default(),
            before: RefCell::default(),
            serial: Cell::new(0),
            targets: Cell::new(TARGETS),
            stale: Cell::new(false),
        };
        // Five are enough to choose from.
        let rest: Vec<Target> = (2..59).collect();
        world.bench.core.fleet.set(&rest, |s| s.removed = true);
        world
    }

    fn target(&self, n: u8) -> Target {
        let last = u32::try_from(self.targets.get()).unwrap() - 1;
        [0, 1, last, last - 1, last - 2, last + 7][usize::from(n % 6)]
    }

    fn bound(&self) -> Bound {
        every_name()
            .filter_map(|name @ (model, key, id)| {
                let scope = Scope::new(0, Phase::Serve, model);
                Some((name, self.bench.core.bound(scope, key, id)?))
            })
            .collect()
    }

    fn mark(&self) {
        self.before.replace(self.bound());
    }

    /// Every binding that changed since the mark must be one that may; one that stands under no
    /// request may also go if `idle` ones may.
    fn changed(
        &self,
        what: &str,
        idle: bool,
        may: impl Fn(Name, Option<Target>, Option<Target>) -> bool,
    ) {
        let (before, after) = (self.before.take(), self.bound());
        let mut leases = self.leases.borrow_mut();
        for name in every_name() {
            let (was, is) = (before.get(&name).copied(), after.get(&name).copied());
            if was == is {
                continue;
            }
            let leased = leases.get(&name).is_some_and(|l| !l.is_empty());
            let gone = idle && !leased && is.is_none();
            assert!(
                gone || may(name, was, is),
                "{what}: {name:?} {was:?} -> {is:?}"
            );
            leases.remove(&name);
        }
    }

    fn step(&self, step: &Step) {
        self.mark();
        let none = |_: Name, _: Option<Target>, _: Option<Target>| false;
        match step {
            Step::Send(request) => self.send(request, Vec::new()),
            Step::Retry(n) => {
                if let Some(live) = self.take(*n) {
                    let (request, mut tried) = (live.request.clone(), live.tried.clone());
                    tried.push(live.ticket.target());
                    self.end(live, Ticket::fail);
                    self.send(&request, tried);
                }
            }
            Step::Dispatched(n) => self.advance(*n, false),
            Step::Output(n) => self.advance(*n, true),
            Step::Finish(n) => self.take(*n).into_iter().for_each(|mut live| {
                live.accepted = true;
                self.end(live, Ticket::finish);
            }),
            Step::Fail(n) => self
                .take(*n)
                .into_iter()
                .for_each(|live| self.end(live, Ticket::fail)),
            Step::Refused(n) => {
                (self.take(*n).into_iter()).for_each(|live| self.end(live, Ticket::refused))
            }
            Step::Cancel(n) => {
                (self.take(*n).into_iter()).for_each(|live| self.end(live, Ticket::cancel))
            }
            Step::Final(session) => {
                self.bench.core.end_session(*session);
                self.changed("final", false, |(_, key, id), _, is| {
                    key == Key::Session && id == *session && is.is_none()
                });
                assert!(
                    self.bound()
                        .keys()
                        .all(|(_, key, id)| (*key, *id) != (Key::Session, *session))
                );
            }
            Step::Stand(n, change) => {
                self.bench
                    .core
                    .fleet
                    .set(&[self.target(*n)], |s| match change {
                        Change::Down => s.healthy = false,
                        Change::Up => s.healthy = true,
                        Change::Drain => s.draining = true,
                        Change::Undrain => s.draining = false,
                        Change::Remove => s.removed = true,
                    });
                self.changed("fleet", false, none);
            }
            Step::Add => {
                self.bench.add(&format!("t/{}", self.targets.get()));
                self.targets.set(self.targets.get() + 1);
                self.changed("add", false, none);
            }
            Step::Advance(ms) => {
                self.bench.clock.advance(*ms);
                self.stale.set(true);
                self.changed("time", true, none);
            }
            Step::Sweep => {
                self.bench.core.sweep();
                self.stale.set(false);
                self.changed("sweep", false, none);
            }
        }
    }

    fn take(&self, n: usize) -> Option<Live> {
        let mut live = self.live.borrow_mut();
        (!live.is_empty()).then(|| {
            let at = n % live.len();
            live.swap_remove(at)
        })
    }

    fn advance(&self, n: usize, output: bool) {
        let Some(mut live) = self.take(n) else { return };
        if output {
            live.ticket.output();
            live.charge.prefill_tokens = 0;
        } else {
            live.ticket.dispatched();
        }
        live.accepted = true;
        self.changed("accepted", false, |_, _, _| false);
        self.live.borrow_mut().push(live);
    }

    fn end(&self, live: Live, end: impl FnOnce(Ticket)) {
        let (names, target, accepted) = (live.names, live.ticket.target(), live.accepted);
        self.leases
            .borrow_mut()
            .values_mut()
            .for_each(|l| l.retain(|s| *s != live.serial));
        end(live.ticket);
        self.changed("end", false, |name, was, is| {
            // Undone, or broken off: never to a target that it was not on before, nor for others.
            names.contains(&name) && was == Some(target) && (is.is_none() || !accepted)
        });
    }

    fn send(&self, request: &Request, tried: Vec<Target>) {
        let explicit = request.explicit.map(|n| self.target(n));
        let incoming = Incoming {
            model: request.model,
            session: request.session,
            parent: request.parent,
            custom: request.custom,
            prompt_tokens: request.prompt,
            shared: Shared::Given(request.shared),
            attempt: u32::try_from(tried.len()).unwrap(),
            explicit: explicit.map_or(Explicit::None, Explicit::Target),
            tried: tried.clone(),
            ..Incoming::default()
        };
        self.mark();
        let outcome = self.bench.decide(&incoming, |ask| {
            let answer = self.answer(request, ask);
            request.meanwhile.iter().for_each(|step| self.step(step));
            self.mark();
            answer
        });
        let before = self.before.borrow().clone();
        let ticket = match outcome {
            Outcome::Refused(refusal) => {
                assert!((400..600).contains(&refusal.status));
                return self.changed("refused", false, |_, _, _| false);
            }
            Outcome::Routed(ticket) => ticket,
        };
        let target = ticket.target();
        assert!(!tried.contains(&target), "sent where it has failed");
        assert!(explicit.is_none_or(|wanted| wanted == target));
        let asked = Keys::from_bits(if ticket.verdict().fallback {
            0
        } else {
            request.bind | request.rebind
        });
        let claims = |(model, key, id): Name| {
            asked.has(key)
                && model == request.model
                && match key {
                    Key::Session => request.session == Some(id),
                    Key::Siblings | Key::Parent => request.parent == Some(id),
                    Key::Custom => request.custom == Some(id),
                }
        };
        let carried = names(request);
        self.changed("sent", true, |name, was, is| {
            // Time that went by while the policy was asked does not count against the request.
            let kept = was.is_none() && self.stale.get() && carried.contains(&name);
            (claims(name) || kept) && is == Some(target)
        });

        let after = self.bound();
        for name in every_name().filter(|name| claims(*name)) {
            let (was, is) = (before.get(&name), after.get(&name));
            assert!(
                is.is_some() || was.is_none(),
                "it lost its own binding {name:?}"
            );
            if is.is_none() && !self.stale.get() {
                assert_eq!(
                    self.bench.core.bindings().len(),
                    self.bench.core.bindings().limits().max
                );
            }
            if was.is_none() {
                assert!(is.is_none_or(|is| *is == target));
            }
        }
        let prefill = ticket.charge().prefill_tokens;
        let rule = [
            request.prompt,
            request.prompt.saturating_sub(request.shared),
        ];
        let said = request
            .charge
            .filter(|_| !ticket.verdict().fallback && !ticket.verdict().adopted);
        assert!(said.map_or(
            rule.contains(&u32::try_from(prefill).unwrap()),
            |said| prefill == u64::from(said)
        ));

        let serial = self.serial.get();
        self.serial.set(serial + 1);
        for name in carried
            .iter()
            .filter(|name| after.get(*name) == Some(&target))
        {
            self.leases
                .borrow_mut()
                .entry(*name)
                .or_default()
                .push(serial);
        }
        self.live.borrow_mut().push(Live {
            serial,
            ticket,
            request: request.clone(),
            tried,
            names: carried,
            accepted: false,
            charge: Charge {
                requests: 1,
                prefill_tokens: prefill,
                context_tokens: u64::from(request.prompt),
            },
        });
    }

    fn answer(&self, request: &Request, ask: &Ask) -> Result<Decision, Failure> {
        for key in Key::ALL {
            if Keys::from_bits(request.look).has(key) {
                ask.lookup(key);
            }
        }
        let to = |target| {
            Decision::To(Route {
                target: ask.request().explicit.unwrap_or(target),
                bind: Keys::from_bits(request.bind),
                rebind: Keys::from_bits(request.rebind),
                charge: request.charge,
                reason: request.reason,
            })
        };
        let least = || {
            let least = ask.least(
                Weights {
                    request: 1,
                    ..Weights::default()
                },
                Tie::Turn(0),
                None,
                None,
            );
            least.map_or(Decision::Abstain(0), |choice| to(choice.target))
        };
        match request.answer {
            Answer::Owner => Ok((ask.request().owner).map_or_else(least, |owner| to(owner.target))),
            Answer::To(n) => Ok(to(self.target(n))),
            Answer::Least => Ok(least()),
            Answer::Reject(status) => Ok(Decision::Reject(Rejection {
                status,
                retry_after_ms: None,
                reason: request.reason,
            })),
            Answer::Abstain => Ok(Decision::Abstain(request.reason)),
            Answer::Trap => Err(Failure::Trap("test".to_owned())),
        }
    }

    fn check(&self) {
        let live = self.live.borrow();
        let bound = self.bound();
        for target in 0..u32::try_from(self.targets.get()).unwrap() {
            let here = live.iter().filter(|live| live.ticket.target() == target);
            let is_session =
                |((_, key, _), at): &(&Name, &Target)| **at == target && *key == Key::Session;
            let mut wanted = here.fold(Load::default(), |sum, live| Load {
                requests: sum.requests + live.charge.requests,
                prefill_tokens: sum.prefill_tokens + live.charge.prefill_tokens,
                context_tokens: sum.context_tokens + live.charge.context_tokens,
                sessions: 0,
            });
            wanted.sessions = u32::try_from(bound.iter().filter(is_session).count()).unwrap();
            let found = self.bench.load(target);
            if self.stale.get() {
                assert!(
                    (wanted.sessions..1000).contains(&found.sessions),
                    "{target}: {found:?}"
                );
                wanted.sessions = found.sessions;
            }
            assert_eq!(found, wanted, "target {target}");
        }
        let bindings = self.bench.core.bindings();
        assert!(bindings.len() <= bindings.limits().max);
        assert!(bindings.len() >= bound.len());
        assert!(self.stale.get() || bindings.len() == bound.len());
        assert!(
            bound.values().all(|at| (*at as usize) < self.targets.get()),
            "bound to nobody"
        );

        let leases = self.leases.borrow();
        for (name, target) in &bound {
            let at_most = (live.iter())
                .filter(|live| live.ticket.target() == *target)
                .map(|live| live.names.iter().filter(|n| *n == name).count())
                .sum();
            let at_least = leases.get(name).map_or(0, Vec::len);
            let found = self.in_flight(*name) as usize;
            assert!(
                (at_least..=at_most).contains(&found),
                "{name:?}: {at_least} <= {found} <= {at_most}"
            );
        }
    }

    /// The leases that a policy is shown. A refusal changes nothing.
    fn in_flight(&self, (model, key, id): Name) -> u32 {
        let mut incoming = Incoming {
            model,
            ..Incoming::default()
        };
        match key {
            Key::Session => incoming.session = Some(id),
            Key::Siblings | Key::Parent => incoming.parent = Some(id),
            Key::Custom => incoming.custom = Some(id),
        }
        let shown = Cell::new(0);
        let refusal = self.bench.decide(&incoming, |ask| {
            shown.set(ask.lookup(key).map_or(0, |binding| binding.in_flight));
            Ok(Decision::Reject(Rejection {
                status: 400,
                retry_after_ms: None,
                reason: 0,
            }))
        });
        assert!(matches!(refusal, Outcome::Refused(_)));
        shown.get()
    }

    /// Ends everything, each request in another way.
    fn close(self) {
        for n in 0.. {
            self.mark();
            let Some(mut live) = self.take(n) else { break };
            match n % 3 {
                0 => self.end(live, Ticket::cancel),
                1 => self.end(live, Ticket::fail),
                _ => {
                    live.accepted = true;
                    self.end(live, Ticket::finish);
                }
            }
        }
        self.check();
        assert!(self.bound().keys().all(|name| self.in_flight(*name) == 0));
        self.bench.clock.advance(TTL);
        self.bench.core.sweep();
        assert!(self.bench.core.bindings().is_empty());
        for target in 0..u32::try_from(self.targets.get()).unwrap() {
            assert_eq!(self.bench.load(target), Load::default(), "target {target}");
        }
    }
}

fn answer() -> impl Strategy<Value = Answer> {
    prop_oneof![
        4 => Just(Answer::Owner),
        4 => (0..6u8).prop_map(Answer::To),
        3 => Just(Answer::Least),
        1 => prop_oneof![Just(429), Just(503), Just(200)].prop_map(Answer::Reject),
        1 => Just(Answer::Abstain),
        1 => Just(Answer::Trap),
    ]
}

fn request(meanwhile: BoxedStrategy<Vec<Step>>) -> impl Strategy<Value = Request> {
    let identities = (
        proptest::option::weighted(0.9, 0..SESSIONS),
        proptest::option::of(0..PARENTS),
        proptest::option::of(0..CUSTOM),
        0..MODELS,
    );
    let bits = || prop_oneof![3 => Just(1u8), 3 => Just(3u8), 1 => Just(0), 1 => 0..16u8];
    (
        identities,
        (0..2000u32, 0..2000u32),
        proptest::option::weighted(0.1, 0..6u8),
        (
            answer(),
            prop_oneof![3 => Just(15u8), 1 => 0..16u8],
            bits(),
            bits(),
        ),
        (
            proptest::option::weighted(0.2, any::<u32>()),
            prop_oneof![9 => Just(0u8), 1 => Just(9)],
        ),
        meanwhile,
    )
        .prop_map(
            |(identities, tokens, explicit, said, more, meanwhile)| Request {
                session: identities.0,
                parent: identities.1.filter(|parent| identities.0 != Some(*parent)),
                custom: identities.2,
                model: identities.3,
                prompt: tokens.0,
                shared: tokens.1,
                explicit,
                answer: said.0,
                look: said.1,
                bind: said.2,
                rebind: said.3,
                charge: more.0,
                reason: more.1,
                meanwhile,
            },
        )
}

fn step(depth: u32) -> BoxedStrategy<Step> {
    let meanwhile = if depth == 0 {
        Just(Vec::new()).boxed()
    } else {
        prop_oneof![
            2 => Just(Vec::new()),
            1 => proptest::collection::vec(step(depth - 1), 1..4),
        ]
        .boxed()
    };
    let n = || 0..8usize;
    let change = prop_oneof![
        1 => Just(Change::Down),
        3 => Just(Change::Up),
        1 => Just(Change::Drain),
        2 => Just(Change::Undrain),
        1 => Just(Change::Remove),
    ];
    prop_oneof![
        10 => request(meanwhile).prop_map(|request| Step::Send(Box::new(request))),
        2 => n().prop_map(Step::Retry),
        2 => n().prop_map(Step::Dispatched),
        2 => n().prop_map(Step::Output),
        3 => n().prop_map(Step::Finish),
        2 => n().prop_map(Step::Fail),
        1 => n().prop_map(Step::Refused),
        1 => n().prop_map(Step::Cancel),
        1 => (0..SESSIONS).prop_map(Step::Final),
        2 => (0..6u8, change).prop_map(|(n, change)| Step::Stand(n, change)),
        1 => Just(Step::Add),
        1 => (0..TTL + 1).prop_map(Step::Advance),
        1 => Just(Step::Sweep),
    ]
    .boxed()
}

fn limits() -> impl Strategy<Value = Limits> {
    // One shard, small enough to be full at all times; many shards.
    let max = prop_oneof![4 => 1..5usize, 2 => 5..20usize, 1 => Just(65_536)];
    let when_full = prop_oneof![Just(WhenFull::PlaceUnbound), Just(WhenFull::Reject)];
    (max, when_full).prop_map(|(max, when_full)| Limits {
        max,
        ttl_ms: TTL,
        when_full,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_whatever_happens(
        limits in limits(),
        steps in proptest::collection::vec(step(1), 1..50),
    ) {
        let world = World::new(limits);
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.close();
    }
}

/// Many shards, and full: sessions come faster than they end, and one key's room is another shard's.
#[test]
fn a_full_table_of_many_shards_keeps_its_bound() {
    let max = 1025;
    for when_full in [WhenFull::PlaceUnbound, WhenFull::Reject] {
        let keys = Keys::NONE.with(Key::Session).with(Key::Siblings);
        let limits = Limits {
            max,
            ttl_ms: TTL,
            when_full,
        };
        let bench = Bench::make(3, keys, limits);
        let (mut live, mut refused) = (Vec::new(), 0);
        for n in 0..4000u64 {
            let incoming = Incoming {
                session: Some(n),
                parent: (n % 3 == 0).then_some(100_000 + n / 9),
                ..Incoming::default()
            };
            let target = Target::try_from(n % 3).unwrap();
            match bench.decide(&incoming, |_| Ok(common::bind(target, keys))) {
                Outcome::Routed(ticket) => live.push(ticket),
                Outcome::Refused(refusal) => {
                    assert_eq!((refusal.status, when_full), (429, WhenFull::Reject));
                    refused += 1;
                }
            }
            assert!(bench.core.bindings().len() <= max);
            // Of the second thousand none ends: then all are leased.
            if !(1000..2500).contains(&n) && !live.is_empty() {
                let at = usize::try_from(pointsman_core::splitmix64(n)).unwrap() % live.len();
                live.swap_remove(at).finish();
            }
        }
        assert_eq!(bench.core.bindings().len(), max, "full");
        assert_eq!(refused > 0, when_full == WhenFull::Reject);
        drop(live);
        bench.clock.advance(TTL);
        bench.core.sweep();
        assert!(bench.core.bindings().is_empty());
        (0..3).for_each(|target| assert_eq!(bench.load(target), Load::default()));
    }
}
