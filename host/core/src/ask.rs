//! What a policy may see while it decides one request, and what the host remembers of what it saw.

use crate::core::{LocalFleet, Worker};
use crate::entry::Entry;
use crate::hash::Scope;
use crate::kernel::Field;
use crate::moment::Read;
use crate::prompt::Shared;
use crate::types::{Binding, Choice, Key, Phase, Request, Sums, Table, Target, Tie, Weights};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// The raw request, for `interface facts`.
pub trait Facts: Send + Sync {
    /// A header's value; none: absent, or not UTF-8.
    fn header(&self, name: &str) -> Option<String>;
    /// A value in the JSON body: strings as they are, everything else as JSON text.
    fn body(&self, pointer: &str) -> Option<String>;
    /// The most tokens the client wants back.
    fn max_output_tokens(&self) -> Option<u32>;
    /// Bytes that it keeps in memory.
    fn held_bytes(&self) -> usize {
        0
    }
}

/// A target that the client names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Explicit {
    /// it names none
    #[default]
    None,
    /// one that is not part of the fleet
    Unknown,
    /// this one
    Target(Target),
}

/// A request before its decision, as the data plane understood it.
#[derive(Clone)]
pub struct Incoming {
    /// hash of the route's name
    pub route: u64,
    /// the pool it is for
    pub phase: Phase,
    /// hash of the model's name
    pub model: u64,
    /// hash of the request id
    pub seed: u64,
    /// 0 first; counts the retries
    pub attempt: u32,
    /// hash of the session id
    pub session: Option<u64>,
    /// hash of the parent's session id
    pub parent: Option<u64>,
    /// hash of the operator's own identity
    pub custom: Option<u64>,
    /// estimate of the whole prompt
    pub prompt_tokens: u32,
    /// how to know the part shared with the session's previous prompt
    pub shared: Shared,
    /// the client's own choice
    pub explicit: Explicit,
    /// targets that failed this request
    pub tried: Vec<Target>,
    /// the raw request
    pub facts: Option<Arc<dyn Facts>>,
}

impl std::fmt::Debug for Incoming {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Incoming")
            .field("seed", &self.seed)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}

impl Default for Incoming {
    fn default() -> Self {
        Incoming {
            route: 0,
            phase: Phase::Serve,
            model: 0,
            seed: 0,
            attempt: 0,
            session: None,
            parent: None,
            custom: None,
            prompt_tokens: 0,
            shared: Shared::Given(0),
            explicit: Explicit::None,
            tried: Vec::new(),
            facts: None,
        }
    }
}

impl Incoming {
    /// Where its keys are valid.
    pub fn scope(&self) -> Scope {
        Scope::new(self.route, self.phase, self.model)
    }

    pub(crate) fn identity(&self, key: Key) -> Option<u64> {
        match key {
            Key::Session => self.session,
            Key::Siblings | Key::Parent => self.parent,
            Key::Custom => self.custom,
        }
    }
}

/// What a decision was shown of a key.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) looked: bool,
    pub(crate) revision: Option<u64>,
    pub(crate) target: Option<Target>,
}

/// One question to a policy. It answers the policy's host calls and keeps what it was shown.
pub struct Ask {
    pub(crate) worker: Rc<Worker>,
    pub(crate) fleet: LocalFleet,
    pub(crate) request: Request,
    pub(crate) scope: Scope,
    pub(crate) keys: [Option<u64>; 4],
    seen: [Cell<Seen>; 4],
    pub(crate) ran_on: Option<Target>,
    pub(crate) now: u64,
    tried: Vec<Target>,
    facts: Option<Arc<dyn Facts>>,
    /// what the policy reads; none: it is not kept
    tape: Option<Box<RefCell<Read>>>,
}

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Ask").field("request", &self.request)).finish_non_exhaustive()
    }
}

impl Ask {
    /// Looks up the session and makes the record that the policy is shown.
    pub fn begin(worker: &Rc<Worker>, incoming: &Incoming) -> Ask {
        let scope = incoming.scope();
        let fleet = worker.fleet();
        let keys = worker.keys(scope, incoming);
        let (mut ran_on, mut shared) = (None, incoming.shared.tokens(None));
        let mut ask = Ask {
            now: worker.core.now_ms(),
            worker: worker.clone(),
            fleet,
            request: Request {
                phase: incoming.phase,
                attempt: incoming.attempt,
                seed: incoming.seed,
                model: incoming.model,
                session: incoming.session,
                parent: incoming.parent,
                prompt_tokens: incoming.prompt_tokens,
                shared_tokens: 0,
                explicit: match incoming.explicit {
                    Explicit::Target(target) => Some(target),
                    Explicit::None | Explicit::Unknown => None,
                },
                owner: None,
            },
            scope,
            keys,
            seen: Default::default(),
            ran_on: None,
            tried: incoming.tried.clone(),
            facts: incoming.facts.clone(),
            tape: None,
        };
        ask.request.owner = ask.see(Key::Session, |entry| {
            let prompt = entry.prompt();
            ran_on = prompt.map(|prompt| prompt.ran_on);
            shared = incoming.shared.tokens(prompt);
        });
        ask.ran_on = ran_on;
        ask.request.shared_tokens = shared.min(incoming.prompt_tokens);
        ask
    }

    /// Keeps what the policy reads.
    pub(crate) fn taped(mut self) -> Ask {
        self.tape = Some(Box::default());
        self
    }

    /// What it has read since.
    pub(crate) fn read(&self) -> Read {
        (self.tape.as_ref()).map_or_else(Read::default, |tape| tape.take())
    }

    fn keep(&self, what: impl FnOnce(&mut Read)) {
        if let Some(tape) = &self.tape {
            what(&mut tape.borrow_mut());
        }
    }

    /// The record for `route`.
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// The word for a reason number.
    pub fn reason(&self, reason: u8) -> Option<&str> {
        (self.worker.policy.reasons.get(usize::from(reason))).map(String::as_str)
    }

    /// Where a key is bound; none: not bound, not named by the policy, or not an identity of this
    /// request.
    pub fn lookup(&self, key: Key) -> Option<Binding> {
        // The session was shown with the request: a second look must not show another claim.
        if key == Key::Session {
            return self.request.owner;
        }
        self.see(key, |_| ())
    }

    /// What this decision was shown of a key.
    pub(crate) fn seen(&self, key: Key) -> Seen {
        (self.seen.get(key.index())).map_or_else(Seen::default, Cell::get)
    }

    fn see(&self, key: Key, also: impl FnOnce(&Entry)) -> Option<Binding> {
        let seen = self.seen.get(key.index())?;
        seen.set(Seen {
            looked: true,
            ..Seen::default()
        });
        let at = self.keys.get(key.index()).copied().flatten()?;
        let mut locked = self.worker.core.bindings.lock([at]);
        let entry = locked.shard(at).and_then(|shard| shard.get(at, self.now));
        if let Some(entry) = entry {
            also(entry);
        }
        seen.set(Seen {
            looked: true,
            revision: entry.map(|e| e.held.revision),
            target: entry.map(|e| e.held.target),
        });
        let found = entry.map(|e| (e.held.target, e.held.leases));
        drop(locked);
        found.map(|(target, in_flight)| Binding {
            target,
            eligible: self.takes(key, target),
            in_flight,
        })
    }

    /// May this request go to a target that `key` is bound to?
    pub(crate) fn takes(&self, key: Key, target: Target) -> bool {
        let (phase, model) = (self.request.phase, self.request.model);
        !self.tried.contains(&target)
            && match key {
                Key::Session => self.fleet.keeps(target, phase, model),
                _ => self.fleet.places(target, phase, model),
            }
    }

    /// May this request go to `target`: as a placement, or because its session lives there?
    pub(crate) fn may_go(&self, target: Target) -> bool {
        let owns = |o: Binding| o.eligible && o.target == target;
        self.takes(Key::Siblings, target) || self.request.owner.is_some_and(owns)
    }

    /// Whether anybody may take a request without a past now.
    pub(crate) fn has_placement(&self) -> bool {
        !(self.fleet.placement(self.request.phase, self.request.model)).is_empty()
    }

    fn field(&self) -> Field<'_> {
        Field {
            places: (self.fleet).placement(self.request.phase, self.request.model),
            ledger: self.fleet.ledger(),
            names: self.fleet.names(),
            tried: &self.tried,
        }
    }

    /// The lowest score in the placement set among those with fewer than `below` requests. Targets
    /// that this request has tried keep their places, and are not chosen.
    pub fn least(
        &self,
        cost: Weights,
        tie: Tie,
        except: Option<Target>,
        below: Option<u32>,
    ) -> Option<Choice> {
        self.field().least(cost, tie, except, below)
    }

    /// Sums over the placement set without the targets that this request has tried.
    pub fn totals(&self) -> Sums {
        self.field().totals()
    }

    /// The placement set as columns.
    pub fn columns(&self) -> Table {
        self.field().columns()
    }

    /// The next number of a lane.
    pub fn ticket(&self, lane: u32) -> u64 {
        let ticket = self.worker.cells.ticket(lane);
        self.keep(|read| read.lane(lane, ticket));
        ticket
    }

    /// What a cell holds.
    pub fn get(&self, cell: u64) -> u64 {
        let number = self.worker.cells.get(cell);
        self.keep(|read| read.cell(cell, number));
        number
    }

    /// Sets a cell if it holds `expected`; returns what it held.
    pub fn swap(&self, cell: u64, expected: u64, new: u64) -> u64 {
        let was = self.worker.cells.swap(cell, expected, new);
        self.keep(|read| read.cell(cell, was));
        was
    }

    /// The time of this decision, in ms.
    pub fn now_ms(&self) -> u64 {
        self.now
    }

    /// See [`Facts::header`].
    pub fn header(&self, name: &str) -> Option<String> {
        let value = self.facts.as_ref().and_then(|facts| facts.header(name));
        self.keep(|read| read.header(name, value.as_deref()));
        value
    }

    /// See [`Facts::body`].
    pub fn body(&self, pointer: &str) -> Option<String> {
        let value = self.facts.as_ref().and_then(|facts| facts.body(pointer));
        self.keep(|read| read.body(pointer, value.as_deref()));
        value
    }

    /// See [`Facts::max_output_tokens`].
    pub fn max_output_tokens(&self) -> Option<u32> {
        self.facts.as_ref()?.max_output_tokens()
    }
}
