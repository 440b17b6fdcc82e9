//! A bench to try a policy on: the host's own fleet, bindings and decision transaction, a clock that
//! stands until it is moved, and no engine. Feature `native`.
//!
//! ```
//! # use pointsman_sdk::prelude::*;
//! # struct Sticky;
//! # impl Policy for Sticky {
//! #     type Config = std::collections::BTreeMap<String, String>;
//! #     const NAME: &'static str = "sticky";
//! #     const VERSION: &'static str = "0.1.0";
//! #     const REASONS: &'static [&'static str] = &["placed", "owner", "nobody"];
//! #     fn new(_: Self::Config) -> Result<Self, String> { Ok(Sticky) }
//! #     fn keys(&self) -> Keys { Keys::SESSION }
//! #     fn route(&self, request: &Request, host: &mut impl Host) -> Decision {
//! #         if let Some(owner) = request.owner.filter(|owner| owner.eligible) {
//! #             return Route::to(owner.target, 1).into();
//! #         }
//! #         match host.least(Weights::requests(1), Tie::Turn(0), None, None) {
//! #             Some(best) => Route::to(best.target, 0).bind(Keys::SESSION).into(),
//! #             None => Decision::Abstain(2),
//! #         }
//! #     }
//! # }
//! use pointsman_sdk::testing::{Bench, session};
//!
//! let mut bench = Bench::<Sticky>::new("{}")?.with(["a/0", "a/1"]);
//! bench.load("a/0", 3, 9_000);
//!
//! let first = bench.send(session("s1").tokens(4_000));
//! assert_eq!(first, "a/1 placed");
//! first.finish();
//!
//! bench.load("a/1", 8, 0);
//! assert_eq!(bench.send(session("s1")), "a/1 owner");
//! # Ok::<(), String>(())
//! ```
//!
//! A name of no target panics: that is the test's own mistake.

mod sent;
mod turn;

pub use sent::Sent;
pub use turn::{Turn, anonymous, session};

use crate::native::Shown;
use crate::{Host, Load, Native, Policy};
use pointsman_core::{
    Charge, Core, Endpoint, Explicit, Fallback, Incoming, Key, Limits, ManualClock, Outcome, Roles,
    Scope, Shared, Standing, Target, TargetSpec, Worker, decide, hash_text,
};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub struct Bench<P> {
    core: Arc<Core>,
    clock: Arc<ManualClock>,
    worker: Rc<Worker>,
    policy: Native<P>,
    fallback: Fallback,
    /// what others hold on each target
    others: HashMap<Target, Charge>,
    /// in flight until they are ended, also where the test keeps no handle
    sent: Vec<Sent>,
}

impl<P: Policy> Bench<P> {
    /// An empty fleet, and the policy with its configuration: JSON, or the empty text.
    ///
    /// # Errors
    /// What the operator would read about a wrong configuration.
    pub fn new(config: &str) -> Result<Bench<P>, String> {
        let policy = Native::new(config)?;
        let clock = Arc::new(ManualClock::default());
        let core = Arc::new(Core::new(Limits::default(), clock.clone()));
        Ok(Bench {
            worker: Worker::new(core.clone(), policy.policy()),
            core,
            clock,
            policy,
            fallback: Fallback::default(),
            others: HashMap::new(),
            sent: Vec::new(),
        })
    }

    /// With these targets, "endpoint/rank", for every phase and model.
    #[must_use]
    pub fn with<'a>(self, names: impl IntoIterator<Item = &'a str>) -> Self {
        for name in names {
            self.add(name, &[]);
        }
        self
    }

    /// With the fallback that rejects, where the default is the least loaded.
    #[must_use]
    pub fn rejecting(mut self) -> Self {
        self.fallback = Fallback::Reject;
        self
    }

    /// Adds a target with the operator's labels.
    pub fn add(&self, name: &str, labels: &[(&str, &str)]) {
        let (endpoint, rank) = name.rsplit_once('/').unwrap_or((name, "0"));
        self.core.fleet.add(TargetSpec {
            endpoint: Endpoint {
                name: name.to_owned(),
                url: format!("http://{endpoint}"),
                rank: rank.parse().unwrap_or(0),
                labels: labels
                    .iter()
                    .map(|&(key, value)| (key.to_owned(), value.to_owned()))
                    .collect(),
            },
            roles: Roles::ALL,
            models: None,
        });
    }

    /// Another policy, or another configuration, over the same state: what a hot swap does.
    ///
    /// # Errors
    /// As [`Bench::new`].
    pub fn swap<Q: Policy>(self, config: &str) -> Result<Bench<Q>, String> {
        let policy = Native::new(config)?;
        Ok(Bench {
            worker: Worker::new(self.core.clone(), policy.policy()),
            policy,
            core: self.core,
            clock: self.clock,
            fallback: self.fallback,
            others: self.others,
            sent: self.sent,
        })
    }

    /// Decides a request; it is in flight from now on, until the test ends it.
    #[track_caller]
    pub fn send(&mut self, turn: Turn) -> Sent {
        let incoming = Incoming {
            phase: turn.phase,
            model: hash_text(&turn.model),
            seed: hash_text(&format!("r{}", self.sent.len())),
            attempt: u32::try_from(turn.tried.len()).unwrap_or(u32::MAX),
            session: turn.session.as_deref().map(hash_text),
            parent: turn.parent.as_deref().map(hash_text),
            prompt_tokens: turn.tokens,
            shared: Shared::Given(turn.shared),
            explicit: match &turn.explicit {
                None => Explicit::None,
                Some(name) => match self.core.fleet.snapshot().find(name) {
                    Some(target) => Explicit::Target(target),
                    None => Explicit::Unknown,
                },
            },
            tried: turn.tried.iter().map(|name| self.target(name)).collect(),
            facts: turn.facts(),
            ..Incoming::default()
        };
        let sent = match decide(&self.worker, &mut self.policy, self.fallback, &incoming) {
            Outcome::Routed(ticket) => Sent::routed(ticket),
            Outcome::Refused(refusal) => Sent::refused(refusal),
        };
        self.sent.push(sent.clone());
        sent
    }

    /// The host as [`Policy::observe`] meets it, for what a policy does in its tick: see
    /// `pointsman_sdk::observing`.
    pub fn observing(&self) -> impl Host + use<P> {
        let cells = self.core.cells(P::NAME);
        Shown::fleet(self.worker.overview(), cells)
    }

    /// Sets what others hold on a target; the requests of the test come on top.
    #[track_caller]
    pub fn load(&mut self, name: &str, requests: u32, prefill_tokens: u64) {
        let target = self.target(name);
        let snapshot = self.core.fleet.snapshot();
        let new = Charge {
            requests,
            prefill_tokens,
            context_tokens: 0,
        };
        let old = self.others.insert(target, new).unwrap_or_default();
        snapshot.ledger().charge(target, new);
        snapshot.ledger().release(target, old);
    }

    /// What is outstanding on a target.
    #[track_caller]
    pub fn load_of(&self, name: &str) -> Load {
        let target = self.target(name);
        self.core.fleet.snapshot().ledger().load(target).into()
    }

    /// Where a session is bound, for the default phase and model.
    pub fn bound(&self, session: &str) -> Option<String> {
        self.bound_key(Key::Session, session)
    }

    /// Where the children of a parent are bound, taken together.
    pub fn group(&self, parent: &str) -> Option<String> {
        self.bound_key(Key::Siblings, parent)
    }

    /// The health check of a target fails.
    #[track_caller]
    pub fn down(&self, name: &str) {
        self.set(name, |s| s.healthy = false);
    }

    /// It passes again.
    #[track_caller]
    pub fn up(&self, name: &str) {
        self.set(name, |s| s.healthy = true);
    }

    /// A target takes no new session.
    #[track_caller]
    pub fn drain(&self, name: &str) {
        self.set(name, |s| s.draining = true);
    }

    /// It takes new ones again.
    #[track_caller]
    pub fn undrain(&self, name: &str) {
        self.set(name, |s| s.draining = false);
    }

    /// A target is no longer part of the fleet.
    #[track_caller]
    pub fn remove(&self, name: &str) {
        self.set(name, |s| s.removed = true);
    }

    /// Time passes; bindings that are idle for an hour are gone.
    pub fn advance(&self, ms: u64) {
        self.clock.advance(ms);
        self.core.sweep();
    }

    #[track_caller]
    fn target(&self, name: &str) -> Target {
        let found = self.core.fleet.snapshot().find(name);
        #[expect(clippy::panic, reason = "the test's own mistake")]
        found.unwrap_or_else(|| panic!("no target is named {name:?}: add it with Bench::with"))
    }

    #[track_caller]
    fn set(&self, name: &str, change: impl Fn(&mut Standing)) {
        self.core.fleet.set(&[self.target(name)], change);
    }

    fn bound_key(&self, key: Key, identity: &str) -> Option<String> {
        let scope = Scope::new(0, turn::PHASE, hash_text(turn::MODEL));
        let target = self.core.bound(scope, key, hash_text(identity))?;
        let snapshot = self.core.fleet.snapshot();
        Some(snapshot.spec(target)?.endpoint.name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decision, Keys, Request, Weights};

    struct Nothing;

    impl Policy for Nothing {
        type Config = std::collections::BTreeMap<String, String>;
        const NAME: &'static str = "nothing";
        const VERSION: &'static str = "0.1.0";
        const REASONS: &'static [&'static str] = &["nothing"];

        fn new(_: Self::Config) -> Result<Self, String> {
            Ok(Nothing)
        }

        fn keys(&self) -> Keys {
            Keys::SESSION
        }

        fn route(&self, _: &Request, host: &mut impl Host) -> Decision {
            host.swap(1, 0, 5);
            Decision::Abstain(0)
        }
    }

    #[test]
    fn an_event_sees_the_fleet_and_the_policys_numbers_and_no_request() -> Result<(), String> {
        let mut bench = Bench::<Nothing>::new("")?.with(["a/0", "a/1", "b/0"]);
        bench.send(session("s").header("x", "y"));
        bench.load("a/1", 4, 9);
        bench.remove("a/0");
        let mut host = bench.observing();
        assert_eq!(host.columns().target, [1, 2]);
        assert_eq!(host.describe(1).map(|e| e.name).as_deref(), Some("a/1"));
        assert_eq!(host.load_of(1).map(|load| load.requests), Some(4));
        let least = host.least(Weights::requests(1), crate::Tie::Turn(0), None, None);
        assert_eq!(least.map(|choice| choice.target), Some(2));
        assert_eq!((host.get(1), host.swap(1, 5, 6)), (5, 5));
        assert_eq!(bench.observing().get(1), 6);
        assert!(host.lookup(crate::Key::Session).is_none() && host.header("x").is_none());
        Ok(())
    }
}
