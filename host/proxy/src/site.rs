//! What a worker thread has of its own: the policy's warm instance, the upstream connections, its counts.

use crate::answer::Answer;
use crate::engines::Engines;
use crate::explain::Explained;
use crate::identify::Identifier;
use crate::metrics::Tally;
use crate::settings::Settings;
use crate::upstream::Upstream;
use http::header::HeaderName;
use pointsman_core::{Core, Failure, Incoming, Outcome, Router, Source, Target, Worker, decide};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

/// What all threads share. Nothing here is written by a request, but for what `core` counts.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) identifier: Identifier,
    pub(crate) explicit_header: Option<HeaderName>,
    /// hash of the route's name
    pub(crate) route: u64,
    pub(crate) engines: Engines,
    pub(crate) core: Arc<Core>,
    pub(crate) source: Arc<dyn Source>,
}

/// See the module.
pub(crate) struct Site {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tally: Arc<Tally>,
    upstreams: Vec<Rc<Upstream>>,
    asker: RefCell<Asker>,
    thread: usize,
    ids: Cell<u64>,
    seats: Cell<usize>,
    held: Cell<usize>,
}

/// Who is asked, of one generation.
struct Asker {
    generation: u64,
    name: Rc<str>,
    worker: Rc<Worker>,
    router: Box<dyn Router>,
}

impl Asker {
    fn new(shared: &Shared) -> Asker {
        // Read first: a replacement in between is then seen with the next request.
        let generation = shared.source.generation();
        let (policy, router) = shared.source.router();
        Asker {
            generation,
            name: Rc::from(policy.name.as_str()),
            worker: Worker::new(shared.core.clone(), policy),
            router,
        }
    }
}

impl Site {
    pub(crate) fn new(shared: Arc<Shared>, tally: Arc<Tally>, thread: usize) -> Rc<Site> {
        let upstreams = (shared.engines.iter())
            .map(|engine| Upstream::new(engine.clone(), &shared.settings, tally.clone()))
            .map(Rc::new)
            .collect();
        Rc::new(Site {
            asker: RefCell::new(Asker::new(&shared)),
            shared,
            tally,
            upstreams,
            thread,
            ids: Cell::new(0),
            seats: Cell::new(0),
            held: Cell::new(0),
        })
    }

    /// Eligible, ask, commit: one attempt's decision, and its words.
    pub(crate) fn decide(&self, incoming: &Incoming) -> (Outcome, Explained) {
        let mut asker = self.asker.borrow_mut();
        if asker.generation != self.shared.source.generation() {
            *asker = Asker::new(&self.shared);
        }
        let Asker {
            name,
            worker,
            router,
            ..
        } = &mut *asker;
        let began = Instant::now();
        let outcome = decide(
            worker,
            router.as_mut(),
            self.shared.settings.fallback,
            incoming,
        );
        self.tally.decision(began.elapsed());
        let (explained, failure) = match &outcome {
            Outcome::Routed(ticket) => {
                let verdict = ticket.verdict();
                verdict
                    .affinity
                    .iter()
                    .for_each(|&affinity| self.tally.affinity(affinity));
                if verdict.parent_ignored {
                    self.tally.parent_ignored();
                }
                let explained = Explained::routed(name.clone(), ticket, incoming.attempt);
                (explained, verdict.failure.as_ref())
            }
            Outcome::Refused(refusal) => {
                let explained = Explained::refused(name.clone(), refusal, incoming.attempt);
                (explained, refusal.failure.as_ref())
            }
        };
        if let Some(failure) = failure {
            self.failed(name, failure);
        }
        (outcome, explained)
    }

    fn failed(&self, policy: &str, failure: &Failure) {
        self.tally.policy_failure(policy, failure.cause());
        tracing::debug!(policy, %failure, "the fallback decided");
    }

    /// The policy that is asked now.
    pub(crate) fn policy(&self) -> Rc<str> {
        self.asker.borrow().name.clone()
    }

    /// The connections to a target's engine.
    pub(crate) fn upstream(&self, target: Target) -> Option<&Rc<Upstream>> {
        self.upstreams.get(self.shared.engines.place_of(target)?)
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn sweep(&self) {
        self.upstreams.iter().for_each(|upstream| upstream.sweep());
    }

    /// An id for a request that brings none: its seed.
    pub(crate) fn request_id(&self) -> String {
        let number = self.ids.get().wrapping_add(1);
        self.ids.set(number);
        let nonce = self.shared.settings.nonce;
        format!("{nonce:x}-{:x}-{number:x}", self.thread)
    }

    /// Room for one more request in flight.
    pub(crate) fn seat(self: &Rc<Self>) -> Result<Seat, Answer> {
        if self.seats.get() >= self.shared.settings.limits.requests {
            return Err(Answer::overload());
        }
        self.seats.set(self.seats.get() + 1);
        Ok(Seat(self.clone()))
    }

    /// An account of the memory that a body takes, empty.
    pub(crate) fn hold(self: &Rc<Self>) -> Held {
        Held {
            site: self.clone(),
            bytes: 0,
        }
    }
}

/// A request in flight.
pub(crate) struct Seat(Rc<Site>);

impl Seat {
    pub(crate) fn site(&self) -> &Rc<Site> {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.seats.set(self.0.seats.get().saturating_sub(1));
    }
}

/// Memory of a body that is kept.
pub(crate) struct Held {
    site: Rc<Site>,
    bytes: usize,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Held").field(&self.bytes).finish()
    }
}

impl Held {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Accounts for `bytes` more. False: that is more than the thread may hold.
    pub(crate) fn more(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        let all = self.site.held.get() + bytes;
        self.site.held.set(all);
        all <= self.site.shared.settings.limits.inspect_total_bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.site
            .held
            .set(self.site.held.get().saturating_sub(self.bytes));
    }
}
