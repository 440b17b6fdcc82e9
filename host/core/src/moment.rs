//! One decision with all that it depended on, so that another policy can be asked the same later: on
//! recorded traffic before it decides, or offline.

use crate::ask::{Ask, Explicit, Facts, Incoming};
use crate::bindings::{Limits, Put, WhenFull};
use crate::clock::ManualClock;
use crate::core::{Core, Policy, Worker};
use crate::decide::{Fallback, Outcome, Router, decide};
use crate::fleet::{Fleet, Snapshot};
use crate::hash::Scope;
use crate::prompt::{Prompt, Shared};
use crate::types::{Key, Load, Target};
use serde::{Deserialize, Serialize};
use std::rc::Rc;
use std::sync::Arc;

/// Numbers and values of each kind that are kept of one decision; a policy reads a handful.
const MAX_READ: usize = 64;
/// Bytes of a header or a body's value that are kept; the rest is cut off.
const MAX_VALUE: usize = 256;

/// Where a key was bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// the target
    pub target: Target,
    /// requests in flight there under it
    pub in_flight: u32,
}

/// What the policy read of its numbers and of the raw request: each as it was at the first look.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Read {
    /// lane, ticket
    pub lanes: Vec<(u32, u64)>,
    /// cell, number
    pub cells: Vec<(u64, u64)>,
    /// name, value
    pub headers: Vec<(String, Option<String>)>,
    /// JSON pointer, value
    pub body: Vec<(String, Option<String>)>,
}

impl Read {
    pub(crate) fn lane(&mut self, lane: u32, ticket: u64) {
        first(&mut self.lanes, lane, || ticket);
    }

    pub(crate) fn cell(&mut self, cell: u64, number: u64) {
        first(&mut self.cells, cell, || number);
    }

    pub(crate) fn header(&mut self, name: &str, value: Option<&str>) {
        first(&mut self.headers, cut(name), || value.map(cut));
    }

    pub(crate) fn body(&mut self, pointer: &str, value: Option<&str>) {
        first(&mut self.body, cut(pointer), || value.map(cut));
    }
}

fn first<K: PartialEq, V>(list: &mut Vec<(K, V)>, key: K, value: impl FnOnce() -> V) {
    if list.len() < MAX_READ && !list.iter().any(|(known, _)| *known == key) {
        list.push((key, value()));
    }
}

fn cut(text: &str) -> String {
    let (kept, _) = text.split_at(text.floor_char_boundary(MAX_VALUE));
    kept.to_owned()
}

/// The raw request, as far as it was read.
#[derive(Debug)]
struct Kept {
    read: Read,
    max_output_tokens: Option<u32>,
}

impl Facts for Kept {
    fn header(&self, name: &str) -> Option<String> {
        let (_, value) = (self.read.headers.iter()).find(|(known, _)| known == name)?;
        value.clone()
    }

    fn body(&self, pointer: &str) -> Option<String> {
        let (_, value) = (self.read.body.iter()).find(|(known, _)| known == pointer)?;
        value.clone()
    }

    fn max_output_tokens(&self) -> Option<u32> {
        self.max_output_tokens
    }
}

/// What came of a decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// where the request went
    pub target: Option<Target>,
    /// or the status that it got instead
    pub status: Option<u16>,
    /// the policy's word
    pub reason: Option<String>,
    /// why the fallback had to decide: [`crate::Failure::cause`]
    pub failure: Option<String>,
}

impl Answer {
    /// Of an outcome.
    pub fn of(outcome: &Outcome) -> Answer {
        let (target, status, reason, failure) = match outcome {
            Outcome::Routed(ticket) => {
                let verdict = ticket.verdict();
                (
                    Some(ticket.target()),
                    None,
                    &verdict.reason,
                    &verdict.failure,
                )
            }
            Outcome::Refused(refusal) => (
                None,
                Some(refusal.status),
                &refusal.reason,
                &refusal.failure,
            ),
        };
        Answer {
            target,
            status,
            reason: reason.clone(),
            failure: failure.as_ref().map(|failure| failure.cause().to_owned()),
        }
    }

    /// Why, in a word: `fallback:` and the cause where the policy failed.
    pub fn word(&self) -> String {
        match (&self.failure, &self.reason) {
            (Some(cause), _) => format!("fallback:{cause}"),
            (None, Some(reason)) => reason.clone(),
            (None, None) => "none".to_owned(),
        }
    }

    /// Whether both send the request to the same place, for whatever reason.
    pub fn agrees(&self, other: &Answer) -> bool {
        (self.target, self.status) == (other.target, other.status)
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Moment {
    /// the policy's name: its numbers were read
    pub policy: String,
    /// when, in ms of the core's clock
    pub at_ms: u64,
    /// the targets, in whatever condition they were
    pub fleet: Arc<Snapshot>,
    /// what was outstanding, of those where anything was
    pub loads: Vec<(Target, Load)>,
    /// the request; what was read of the raw one is in [`Moment::read`]
    pub incoming: Incoming,
    /// the most tokens the client wanted back
    pub max_output_tokens: Option<u32>,
    /// where the request's keys were bound, also those that the policy did not look at, by
    /// [`Key::index`]
    pub bound: [Option<Bound>; 4],
    /// see [`Read`]
    pub read: Read,
    /// what came of it
    pub answer: Answer,
}

impl Moment {
    /// Before the policy is asked.
    pub(crate) fn begin(ask: &Ask, incoming: &Incoming) -> Moment {
        let fleet = Arc::clone(&ask.fleet);
        let ledger = fleet.ledger();
        Moment {
            policy: ask.worker.policy.name.clone(),
            at_ms: ask.now,
            loads: (fleet.members().zip(0..))
                .map(|(_, target)| (target, ledger.load(target)))
                .filter(|(_, load)| *load != Load::default())
                .collect(),
            incoming: Incoming {
                shared: Shared::Given(ask.request.shared_tokens),
                facts: None,
                ..incoming.clone()
            },
            max_output_tokens: (incoming.facts.as_ref()).and_then(|f| f.max_output_tokens()),
            bound: Key::ALL.map(|key| {
                let at = ask.scope.key(key, incoming.identity(key)?);
                let mut locked = ask.worker.core.bindings.lock([at]);
                let held = &locked.shard(at)?.get(at, ask.now)?.held;
                Some(Bound {
                    target: held.target,
                    in_flight: held.leases,
                })
            }),
            fleet,
            read: Read::default(),
            answer: Answer::default(),
        }
    }

    /// Asks another policy, or the same, in this moment. A policy of another name finds its numbers
    /// at 0; of the raw request it can read what was read at the time.
    pub fn replay(&self, policy: &Policy, router: &mut dyn Router, fallback: Fallback) -> Outcome {
        let worker = self.stage(policy.clone());
        let facts = Kept {
            read: self.read.clone(),
            max_output_tokens: self.max_output_tokens,
        };
        let incoming = Incoming {
            facts: Some(Arc::new(facts)),
            ..self.incoming.clone()
        };
        decide(&worker, router, fallback, &incoming)
    }

    /// The state of the host as it was, as far as this decision could see it.
    fn stage(&self, policy: Policy) -> Rc<Worker> {
        let clock = ManualClock::default();
        clock.advance(self.at_ms);
        let limits = Limits {
            max: 2 * Key::ALL.len(),
            ttl_ms: u64::MAX,
            when_full: WhenFull::PlaceUnbound,
        };
        let mut core = Core::new(limits, Arc::new(clock));
        core.fleet = Fleet::at(self.fleet.with_loads(&self.loads));
        let incoming = &self.incoming;
        let scope = Scope::new(incoming.route, incoming.phase, incoming.model);
        for (key, bound) in Key::ALL.into_iter().zip(self.bound) {
            if let (Some(identity), Some(bound)) = (incoming.identity(key), bound) {
                let session = matches!(key, Key::Session | Key::Parent);
                let put = Put {
                    target: bound.target,
                    leases: bound.in_flight,
                    session,
                    idle_until: u64::MAX,
                    prompt: session.then(|| Prompt::ran_on(bound.target)),
                };
                core.bindings.put(scope.key(key, identity), put);
            }
        }
        if policy.name == self.policy {
            let cells = core.cells(&policy.name);
            cells.put(&self.read.lanes, &self.read.cells);
        }
        Worker::new(Arc::new(core), policy)
    }

    /// Whether the client named its target.
    pub fn explicit(&self) -> Option<Target> {
        match self.incoming.explicit {
            Explicit::Target(target) => Some(target),
            Explicit::None | Explicit::Unknown => None,
        }
    }
}
