//! What a worker thread has of its own: the policy's warm instance, the upstream connections, its counts.

use crate::answer::Answer;
use crate::explain::{Explained, Words};
use crate::metrics::Tally;
use crate::reload::Roster;
use crate::settings::Settings;
use crate::table::Table;
use crate::upstream::Upstream;
use crate::witnesses::Witnesses;
use http::header::HeaderName;
use pointsman_core::{
    Core, Event, Failure, Incoming, Outcome, Router, Source, Target, Wants, Worker, decide,
    decide_taped,
};
use pointsman_request::{Identifier, Learner};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What all threads share. Nothing here is written by a request, but for what `core` counts and
/// `learner` learns.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) identifier: Identifier,
    pub(crate) explicit_header: Option<HeaderName>,
    /// hash of the route's name
    pub(crate) route: u64,
    pub(crate) engines: Roster,
    pub(crate) learner: Learner,
    pub(crate) core: Arc<Core>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) witnesses: Witnesses,
}

/// Between two lines of the log about failures of one cause.
const SAY_EACH: Duration = Duration::from_secs(1);
/// Decisions that may be taped at once.
const TAPE_BURST: u32 = 64;

/// See the module.
pub(crate) struct Site {
    pub(crate) shared: Arc<Shared>,
    pub(crate) tally: Arc<Tally>,
    upstreams: Table,
    asker: RefCell<Asker>,
    thread: usize,
    ids: Cell<u64>,
    seats: Cell<usize>,
    held: Cell<usize>,
    /// when a failure of each cause was last put into the log
    said: RefCell<HashMap<&'static str, Instant>>,
    /// when the next decision is due to be taped
    taped: Cell<Option<Instant>>,
}

/// Who is asked, of one generation.
struct Asker {
    generation: u64,
    words: Words,
    worker: Rc<Worker>,
    router: Box<dyn Router>,
    wants: Wants,
    /// the fleet's generation that it was told of
    fleet: u64,
}

/// The policy's instance that routed a request: the one that is told what becomes of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Listener {
    generation: u64,
    pub(crate) wants: Wants,
}

/// One attempt's decision.
pub(crate) struct Decided {
    pub(crate) outcome: Outcome,
    pub(crate) explained: Explained,
    pub(crate) listener: Listener,
}

impl Asker {
    fn new(shared: &Shared) -> Asker {
        // Read first: a replacement or a change in between is then seen with the next request.
        let generation = shared.source.generation();
        let fleet = shared.core.fleet.generation();
        let (policy, router) = shared.source.router();
        Asker {
            generation,
            words: Words::new(&policy.name),
            worker: Worker::new(shared.core.clone(), policy),
            wants: router.wants(),
            router,
            fleet,
        }
    }

    /// Tells it that the fleet has changed, if it has and that is wanted.
    fn see_fleet(&mut self, site: &Site) {
        if self.wants.fleet_changed {
            let now = site.shared.core.fleet.generation();
            if std::mem::replace(&mut self.fleet, now) != now {
                self.observe(site, Event::FleetChanged);
            }
        }
    }

    fn observe(&mut self, site: &Site, event: Event) {
        if let Err(failure) = self.router.observe(event, &self.worker.overview()) {
            site.policy_failed(&self.words.policy, self.generation, &failure);
        }
    }
}

impl Site {
    pub(crate) fn new(shared: Arc<Shared>, tally: Arc<Tally>, thread: usize) -> Rc<Site> {
        let engines = shared.engines.subscribe();
        let upstreams = Table::new(engines, &shared.settings, tally.clone());
        Rc::new(Site {
            asker: RefCell::new(Asker::new(&shared)),
            shared,
            tally,
            upstreams,
            thread,
            ids: Cell::new(0),
            seats: Cell::new(0),
            held: Cell::new(0),
            said: RefCell::default(),
            taped: Cell::default(),
        })
    }

    /// Counts a failure, and tells the source, which may take the policy out.
    fn policy_failed(&self, policy: &str, generation: u64, failure: &Failure) {
        let cause = failure.cause();
        self.tally.policy_failure(policy, cause);
        // Its author must learn what it was; a line a second and cause is enough for that.
        let now = Instant::now();
        let mut said = self.said.borrow_mut();
        let silent = (said.get(cause)).is_some_and(|&at| now.duration_since(at) < SAY_EACH);
        if !silent {
            said.insert(cause, now);
            tracing::warn!(policy, cause, "{failure}");
        }
        self.shared.source.failed(generation, failure);
    }

    /// Eligible, ask, commit: one attempt's decision, and its words. `asked`: the client wants them.
    pub(crate) fn decide(&self, incoming: &Incoming, asked: bool) -> Decided {
        // Before the fleet: those that are gone from here are gone from there.
        self.upstreams.follow(&self.shared.settings);
        let mut asker = self.asker.borrow_mut();
        if asker.generation != self.shared.source.generation() {
            *asker = Asker::new(&self.shared);
        }
        asker.see_fleet(self);
        let Asker {
            generation,
            words,
            worker,
            router,
            wants,
            ..
        } = &mut *asker;
        let began = Instant::now();
        let (router, fallback) = (router.as_mut(), self.shared.settings.fallback);
        let (mut outcome, moment) = if self.tapes(began) {
            decide_taped(worker, router, fallback, incoming)
        } else {
            (decide(worker, router, fallback, incoming), None)
        };
        self.tally.decision(began.elapsed());
        (self.shared.witnesses).see(incoming, &mut outcome, moment);
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
                let explained = Explained::routed(words, ticket, incoming.attempt, asked);
                (explained, verdict.failure.as_ref())
            }
            Outcome::Refused(refusal) => {
                let explained = Explained::refused(words, refusal, incoming.attempt);
                (explained, refusal.failure.as_ref())
            }
        };
        if let Some(failure) = failure {
            self.policy_failed(&words.policy, *generation, failure);
        }
        let listener = Listener {
            generation: *generation,
            wants: *wants,
        };
        Decided {
            outcome,
            explained,
            listener,
        }
    }

    /// Whether the decision that begins now is to be kept.
    fn tapes(&self, now: Instant) -> bool {
        let Some(pace) = self.shared.witnesses.recorder.pace() else {
            return false;
        };
        // The generic cell rate algorithm (ITU-T I.371): a steady pace, and a burst after silence.
        let due = self.taped.get().map_or(now, |due| due.max(now));
        let tapes = due.saturating_duration_since(now) <= pace * TAPE_BURST;
        if tapes {
            self.taped.set(Some(due + pace));
        }
        tapes
    }

    /// Tells the policy's instance that routed a request what became of it, unless it is gone.
    pub(crate) fn tell(&self, listener: Listener, event: Event) {
        // Answers are never polled or dropped while the policy decides.
        if let Ok(mut asker) = self.asker.try_borrow_mut()
            && asker.generation == listener.generation
        {
            asker.observe(self, event);
        }
    }

    /// The time, if somebody will want to know how long a request took.
    pub(crate) fn arrival(&self) -> Option<u64> {
        let wants = self.asker.borrow().wants;
        wants.finished.then(|| self.shared.core.now_ms())
    }

    /// The policy that is asked now.
    pub(crate) fn policy(&self) -> Rc<str> {
        self.asker.borrow().words.policy.clone()
    }

    /// The connections to a target's engine.
    pub(crate) fn upstream(&self, target: Target) -> Option<Rc<Upstream>> {
        self.upstreams.of(target, &self.shared.settings)
    }

    /// Whether a target is no longer part of the fleet.
    pub(crate) fn is_removed(&self, target: Target) -> bool {
        let standing = self.shared.core.fleet.snapshot().standing(target);
        standing.is_some_and(|standing| standing.removed)
    }

    /// Each second: closes connections that were idle for too long; a policy that no request asks
    /// learns that the fleet has changed.
    pub(crate) fn sweep(&self) {
        self.upstreams.follow(&self.shared.settings);
        self.upstreams.sweep();
        if let Ok(mut asker) = self.asker.try_borrow_mut()
            && asker.generation == self.shared.source.generation()
        {
            asker.see_fleet(self);
        }
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
