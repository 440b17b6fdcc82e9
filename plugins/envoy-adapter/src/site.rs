//! What a VM has: the configured fleet, the policy, and its views of the shared state.

use crate::cells::Cells;
use crate::config::{Config, Fallback};
use crate::fleet::{self, Standings, Way, Ways};
use crate::loads::Loads;
use crate::rows::Change;
use crate::shared::{Cas, Shared};
use pointsman_core::{
    Clock, Core, Incoming, Key, Outcome, Piece, Pieces, Policy, Router, Scope, Step, Target,
    Ticket, Worker, decide, hash_text,
};
use pointsman_request::Identifier;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bindings in one value of the store.
const BUCKET: usize = 16;
/// Up to so many bindings are one value, so that eviction takes exactly the one idle longest.
const ONE_BUCKET: usize = 64;
/// Values that are swept at once.
const SWEPT: usize = 64;
/// Scopes in which sessions may be bound.
const MAX_SCOPES: usize = 1024;
const SCOPES: &str = "pointsman/scopes";
/// The test's clock, where it is set.
const CLOCK: &str = "pointsman/test/clock";
/// Requests that are over, for tests.
const ENDED: &str = "pointsman/test/ended";

/// Time as Envoy tells it, handed on to the core.
#[derive(Debug, Default)]
struct Told(AtomicU64);

impl Clock for Told {
    fn now_ms(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// See the module.
pub struct Site<S> {
    pub(crate) shared: S,
    pub(crate) config: Config,
    pub(crate) identifier: Identifier,
    pub(crate) route: u64,
    pub(crate) core: Arc<Core>,
    pub(crate) worker: Rc<Worker>,
    pub(crate) loads: Loads,
    pub(crate) cells: Cells,
    ways: Ways,
    standings: Standings,
    clock: Arc<Told>,
    wall_ms: Cell<u64>,
    scopes: RefCell<HashSet<u64>>,
    swept: Cell<usize>,
    /// whether the loads of this moment are in the ledger
    fresh: Cell<bool>,
}

impl<S> std::fmt::Debug for Site<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
}

/// A piece that was brought in, to be stored again.
struct Brought {
    piece: Piece,
    image: Vec<u8>,
    cas: Option<Cas>,
    sessions: Vec<Target>,
}

impl<S: Shared> Site<S> {
    /// `vm` tells this VM from all others that share the store.
    ///
    /// # Errors
    /// What is wrong with the configuration, for the operator.
    pub fn new(
        config: Config,
        policy: Policy,
        shared: S,
        vm: u64,
        wall_ms: u64,
    ) -> Result<Site<S>, String> {
        let clock = Arc::new(Told::default());
        clock.0.store(wall_ms, Relaxed);
        let max = config.bindings.max;
        let (count, most) = if max <= ONE_BUCKET {
            (1, max)
        } else {
            (max.div_ceil(BUCKET), BUCKET)
        };
        let pieces = Pieces {
            count,
            most,
            lease_ms: config.bindings.lease_ms,
        };
        let limits = config.bindings.limits();
        let core = Arc::new(Core::in_pieces(limits, pieces, clock.clone()));
        let ways = fleet::fill(&core, &config, &shared)?;
        let session =
            (config.session.as_ref()).map_or_else(pointsman_request::Session::default, Into::into);
        let site = Site {
            identifier: Identifier::new(&session).map_err(|error| error.to_string())?,
            route: hash_text(&config.route),
            cells: Cells::new(&policy.name),
            worker: Worker::new(core.clone(), policy),
            loads: Loads::new(ways.len(), vm),
            ways,
            core,
            shared,
            config,
            standings: Standings::default(),
            clock,
            wall_ms: Cell::new(wall_ms),
            scopes: RefCell::default(),
            swept: Cell::new(usize::try_from(vm % 4096).unwrap_or(0)),
            fresh: Cell::new(false),
        };
        site.create();
        Ok(site)
    }

    /// The pieces must be there before two VMs want to create one at once: for a value that is absent
    /// the store knows no compare-and-set. Envoy configures a first VM before it starts any other.
    fn create(&self) {
        for piece in 0..self.core.pieces() {
            let key = key_of(piece);
            if self.shared.get(&key).0.is_none() {
                self.shared.set(&key, &self.core.image(piece), None);
            }
        }
    }

    /// What time it is. To be called before anything that happens.
    pub fn tell(&self, wall_ms: u64) {
        self.wall_ms.set(wall_ms);
        let mut now = wall_ms;
        if self.config.test.is_some() {
            if let (Some(value), _) = self.shared.get(CLOCK) {
                now = value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
            }
            self.standings.follow(&self.shared, &self.core);
        }
        self.clock.0.store(now, Relaxed);
        self.fresh.set(false);
    }

    /// Every second or so.
    pub fn tick(&self, wall_ms: u64) {
        self.tell(wall_ms);
        self.standings.follow(&self.shared, &self.core);
        self.loads.beat(&self.shared, wall_ms);
        let from = self.swept.get();
        let pieces = self.core.pieces();
        for n in 0..SWEPT.min(pieces) {
            self.sweep((from + n) % pieces);
        }
        self.swept.set((from + SWEPT) % pieces);
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        self.worker.policy()
    }

    /// Bodies above this many bytes are not read.
    pub fn inspect_bytes(&self) -> usize {
        self.config.inspect_bytes
    }

    /// How a target is reached.
    pub fn way(&self, target: Target) -> Option<&Way> {
        self.ways.get(target as usize)?.as_ref()
    }

    /// A target's name.
    pub(crate) fn name(&self, target: Target) -> String {
        let fleet = self.core.fleet.snapshot();
        let spec = fleet.spec(target);
        spec.map_or_else(|| target.to_string(), |spec| spec.endpoint.name.clone())
    }

    /// Sees to it that the ledger has the loads of this decision.
    pub fn bring_loads(&self) {
        if !self.fresh.replace(true) {
            let fleet = self.core.fleet.snapshot();
            self.loads.bring(&self.shared, fleet.ledger());
        }
    }

    fn fallback(&self) -> pointsman_core::Fallback {
        match self.config.fallback {
            Fallback::LeastLoad => pointsman_core::Fallback::LeastLoad,
            Fallback::Reject => pointsman_core::Fallback::Reject,
        }
    }

    /// Decides, and makes the decision true for all threads: again, if another one was first with one
    /// of the request's keys.
    pub(crate) fn decide(&self, router: &mut dyn Router, incoming: &Incoming) -> Decided {
        loop {
            let brought: Vec<Brought> = (self.worker.pieces(incoming).into_iter())
                .map(|piece| self.bring(piece))
                .collect();
            self.fresh.set(false);
            let outcome = decide(&self.worker, router, self.fallback(), incoming);
            let ticket = match outcome {
                Outcome::Refused(_) => None,
                Outcome::Routed(ref ticket) => Some(ticket),
            };
            match self.store(&brought) {
                Ok(changes) => {
                    let charged = ticket.map(|t| Change::charged(t.target(), t.charge()));
                    let changes: Vec<Change> = changes.into_iter().chain(charged).collect();
                    self.count(changes.iter().copied());
                    self.know(incoming);
                    let before = brought.into_iter().map(|b| (b.piece, b.image)).collect();
                    return Decided {
                        outcome,
                        before,
                        changes,
                    };
                }
                // Nothing of it was stored: what it says of the table was never true.
                Err(stored) => {
                    if let Outcome::Routed(ticket) = outcome {
                        for piece in stored {
                            self.alter(piece, |_| ticket.step_in(Step::Refused, piece));
                        }
                        ticket.forget();
                    }
                }
            }
        }
    }

    /// What a second attempt would be decided as, had the first one failed and its `changes` been taken
    /// back. Nothing of it stays.
    pub(crate) fn try_decide(
        &self,
        router: &mut dyn Router,
        incoming: &Incoming,
        before: &[(Piece, Vec<u8>)],
        changes: &[Change],
    ) -> Option<Target> {
        for (piece, image) in before {
            let _ = self.core.bring(*piece, image);
        }
        self.bring_loads();
        let fleet = self.core.fleet.snapshot();
        for change in changes {
            let load = fleet.ledger().load(change.target);
            fleet.ledger().put(change.target, change.undone().of(load));
        }
        let outcome = decide(&self.worker, router, self.fallback(), incoming);
        for (piece, _) in before {
            self.core.leave(*piece);
        }
        self.fresh.set(false);
        match outcome {
            Outcome::Refused(_) => None,
            Outcome::Routed(ticket) => {
                let target = ticket.target();
                ticket.forget();
                Some(target)
            }
        }
    }

    /// Something happened to a request in flight.
    pub(crate) fn step(&self, ticket: &mut Ticket, step: Step) {
        if ticket.changes_table(step) {
            for piece in ticket.pieces() {
                self.alter(piece, |_| ticket.step_in(step, piece));
            }
        }
        let held = Change::charged(ticket.target(), ticket.charge());
        ticket.step(step);
        let holds = Change::charged(ticket.target(), ticket.charge());
        self.count([held.undone(), holds].into_iter());
    }

    /// The session is over, in every phase and model.
    pub(crate) fn end_session(&self, session: u64) {
        let (scopes, _) = self.shared.get(SCOPES);
        for scope in scopes_in(&scopes.unwrap_or_default()) {
            let scope = Scope::from_bits(scope);
            let piece = self.core.piece_of(scope, Key::Session, session);
            self.alter(piece, |core| core.unbind(scope, session));
        }
    }

    /// Where an identity is bound.
    pub(crate) fn bound(&self, scope: Scope, key: Key, identity: u64) -> Option<Target> {
        let piece = self.core.piece_of(scope, key, identity);
        self.bring(piece);
        let bound = self.core.bound(scope, key, identity);
        self.core.leave(piece);
        bound
    }

    /// Removes the bindings of a piece whose time is over.
    pub(crate) fn sweep(&self, piece: Piece) {
        self.alter(piece, |core| {
            core.sweep_piece(piece);
        });
    }

    pub(crate) fn count(&self, changes: impl Iterator<Item = Change>) {
        let changes: Vec<Change> = changes.collect();
        self.loads.add(&self.shared, &changes, self.wall_ms.get());
    }

    /// Changes one piece, until nobody else changed it meanwhile.
    fn alter(&self, piece: Piece, change: impl Fn(&Core)) {
        loop {
            let brought = [self.bring(piece)];
            change(&self.core);
            if let Ok(changes) = self.store(&brought) {
                return self.count(changes.into_iter());
            }
        }
    }

    fn bring(&self, piece: Piece) -> Brought {
        let (image, cas) = self.shared.get(&key_of(piece));
        let image = image.unwrap_or_default();
        // Another version's piece begins anew.
        let _ = self.core.bring(piece, &image);
        Brought {
            piece,
            sessions: self.core.sessions_of(piece),
            image,
            cas,
        }
    }

    /// Stores what changed, and returns how the numbers of sessions did. In the error case somebody
    /// was faster with a piece: those that were stored already, whose sessions are counted.
    fn store(&self, brought: &[Brought]) -> Result<Vec<Change>, Vec<Piece>> {
        let mut changes = Vec::new();
        let mut stored = Vec::new();
        let mut lost = false;
        for one in brought {
            let image = self.core.image(one.piece);
            let same = image == one.image;
            if !lost && !same {
                if self.shared.set(&key_of(one.piece), &image, one.cas) {
                    stored.push(one.piece);
                    let now = self.core.sessions_of(one.piece);
                    let less = one.sessions.iter().map(|t| Change::session(*t, -1));
                    let more = now.iter().map(|t| Change::session(*t, 1));
                    changes.extend(less.chain(more));
                } else {
                    lost = true;
                }
            }
            self.core.leave(one.piece);
        }
        let changes = rows_by_target(changes);
        if lost {
            self.count(changes.into_iter());
            return Err(stored);
        }
        Ok(changes)
    }

    /// Lets all VMs know of a scope, so that the end of a session reaches it.
    fn know(&self, incoming: &Incoming) {
        let scope = incoming.scope().to_bits();
        if incoming.session.is_none() || !self.scopes.borrow_mut().insert(scope) {
            return;
        }
        self.shared.change(SCOPES, |mut value| {
            let known: Vec<u64> = scopes_in(&value).collect();
            if known.contains(&scope) || known.len() >= MAX_SCOPES {
                return None;
            }
            value.extend(scope.to_le_bytes());
            Some(value)
        });
    }

    /// A request is over, and its log written.
    pub fn logged(&self) {
        if self.config.test.is_some() {
            self.shared.change(ENDED, |value| {
                let ended = value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
                Some((ended + 1).to_le_bytes().to_vec())
            });
        }
    }

    /// How many are.
    pub(crate) fn ended(&self) -> u64 {
        let (value, _) = self.shared.get(ENDED);
        let value = value.unwrap_or_default();
        value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
    }

    /// Moves the test's clock.
    pub(crate) fn advance(&self, ms: u64) {
        self.shared.change(CLOCK, |value| {
            let now = value.first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
            Some((now + ms).to_le_bytes().to_vec())
        });
    }
}

/// A decision that is true, and the pieces as they were before it.
pub(crate) struct Decided {
    pub(crate) outcome: Outcome,
    pub(crate) before: Vec<(Piece, Vec<u8>)>,
    /// of the loads
    pub(crate) changes: Vec<Change>,
}

fn rows_by_target(changes: Vec<Change>) -> Vec<Change> {
    let mut sums: Vec<Change> = Vec::new();
    for change in changes {
        match sums.iter_mut().find(|sum| sum.target == change.target) {
            Some(sum) => sum.sessions += change.sessions,
            None => sums.push(change),
        }
    }
    sums.retain(|change| !change.is_nothing());
    sums
}

fn key_of(piece: Piece) -> String {
    format!("pointsman/bindings/{piece}")
}

fn scopes_in(value: &[u8]) -> impl Iterator<Item = u64> {
    let (scopes, _) = value.as_chunks::<8>();
    scopes.iter().map(|bytes| u64::from_le_bytes(*bytes))
}
