//! A small fleet, and a router that answers what the test says.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's helper fails the test"
)]
#![allow(dead_code, reason = "each test uses a part of it")]

use pointsman_core::{
    Ask, Core, Decision, Endpoint, Failure, Fallback, Incoming, Key, Keys, Limits, Load,
    ManualClock, Outcome, Phase, Policy, Request, Roles, Route, Router, Scope, Target, TargetSpec,
    Ticket, Worker, decide,
};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

pub struct Bench {
    pub core: Arc<Core>,
    pub clock: Arc<ManualClock>,
    pub fallback: Fallback,
    worker: Rc<Worker>,
}

struct Answer<F>(F);

/// A router that answers what the function says.
pub fn answering(answer: impl FnMut(&Ask) -> Result<Decision, Failure>) -> impl Router {
    Answer(answer)
}

/// A policy that follows these keys.
pub fn policy(keys: Keys) -> Policy {
    Policy {
        name: "test".to_owned(),
        version: "0".to_owned(),
        reasons: vec!["said".to_owned()],
        keys,
    }
}

impl<F: FnMut(&Ask) -> Result<Decision, Failure>> Router for Answer<F> {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        (self.0)(ask)
    }
}

impl Bench {
    pub fn new(targets: usize) -> Bench {
        let keys = Keys::NONE.with(Key::Session).with(Key::Siblings);
        Bench::make(targets, keys, Limits::default())
    }

    pub fn with_keys(targets: usize, keys: Keys) -> Bench {
        Bench::make(targets, keys, Limits::default())
    }

    pub fn limited(limits: Limits) -> Bench {
        let keys = Keys::NONE.with(Key::Session).with(Key::Siblings);
        Bench::make(2, keys, limits)
    }

    pub fn make(targets: usize, keys: Keys, limits: Limits) -> Bench {
        let clock = Arc::new(ManualClock::default());
        let core = Arc::new(Core::new(limits, clock.clone()));
        let worker = Worker::new(core.clone(), policy(keys));
        let bench = Bench {
            core,
            clock,
            fallback: Fallback::LeastLoad,
            worker,
        };
        for n in 0..targets {
            bench.add(&format!("t/{n}"));
        }
        bench
    }

    pub fn add(&self, name: &str) -> Target {
        self.core.fleet.add(TargetSpec {
            endpoint: Endpoint {
                name: name.to_owned(),
                url: "http://t".to_owned(),
                rank: 0,
                labels: Vec::new(),
            },
            roles: Roles::ALL,
            models: None,
        })
    }

    pub fn decide(
        &self,
        incoming: &Incoming,
        answer: impl FnMut(&Ask) -> Result<Decision, Failure>,
    ) -> Outcome {
        decide(&self.worker, &mut Answer(answer), self.fallback, incoming)
    }

    pub fn send_with(
        &self,
        incoming: &Incoming,
        answer: impl FnMut(&Ask) -> Result<Decision, Failure>,
    ) -> Ticket {
        match self.decide(incoming, answer) {
            Outcome::Routed(ticket) => ticket,
            Outcome::Refused(refusal) => panic!("{refusal:?}"),
        }
    }

    pub fn send(&self, incoming: &Incoming, answer: Decision) -> Ticket {
        self.send_with(incoming, |_| Ok(answer))
    }

    /// What a policy is shown of such a request.
    pub fn shown(&self, incoming: &Incoming) -> Request {
        let shown = Cell::new(None);
        drop(self.decide(incoming, |ask| {
            shown.set(Some(*ask.request()));
            Ok(Decision::Abstain(0))
        }));
        shown.get().unwrap()
    }

    pub fn load(&self, target: Target) -> Load {
        self.core.fleet.snapshot().ledger().load(target)
    }

    pub fn bound(&self, key: Key, identity: u64) -> Option<Target> {
        self.core
            .bound(Scope::new(0, Phase::Serve, 0), key, identity)
    }

    pub fn down(&self, target: Target) {
        self.core.fleet.set(&[target], |s| s.healthy = false);
    }

    pub fn up(&self, target: Target) {
        self.core.fleet.set(&[target], |s| s.healthy = true);
    }
}

fn route(target: Target, bind: Keys, rebind: Keys) -> Decision {
    Decision::To(Route {
        target,
        bind,
        rebind,
        charge: None,
        reason: 0,
    })
}

pub fn to(target: Target) -> Decision {
    route(target, Keys::NONE, Keys::NONE)
}

pub fn bind(target: Target, keys: Keys) -> Decision {
    route(target, keys, Keys::NONE)
}

pub fn rebind(target: Target, keys: Keys) -> Decision {
    route(target, Keys::NONE, keys)
}
