//! Everything that all workers share, and what each worker has of its own.

use crate::ask::Incoming;
use crate::bindings::{Bindings, Limits, Pieces};
use crate::cells::Cells;
use crate::clock::Clock;
use crate::fleet::{Fleet, Snapshot};
use crate::hash::Scope;
use crate::measured::Measured;
use crate::sync::Mutex;
use crate::types::{Key, Keys, Target};
use crate::view::Overview;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::{Arc, PoisonError};

/// Scopes in which a session was bound; those beyond this many are not remembered, and the end of a
/// session does not reach them.
const MAX_SCOPES: usize = 1024;
/// Policy names beyond this many share one set of cells.
const MAX_NAMES: usize = 256;

/// The state of one host: fleet, bindings, the policies' numbers.
pub struct Core {
    /// who may take a request, and what is outstanding
    pub fleet: Fleet,
    /// how fast those targets answer of which somebody wants to know
    pub measured: Measured,
    pub(crate) bindings: Bindings,
    clock: Arc<dyn Clock>,
    cells: Mutex<HashMap<String, Arc<Cells>>>,
    scopes: Mutex<HashSet<Scope>>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

impl Core {
    /// An empty fleet.
    pub fn new(limits: Limits, clock: Arc<dyn Clock>) -> Core {
        Core {
            fleet: Fleet::default(),
            measured: Measured::default(),
            bindings: Bindings::new(limits),
            clock,
            cells: Mutex::default(),
            scopes: Mutex::default(),
        }
    }

    /// A core beside this one, with the same limits, clock and targets, and with copies of its bindings
    /// and of the policies' numbers; nothing is outstanding.
    pub fn beside(&self) -> Core {
        let core = Core::new(self.bindings.limits(), self.clock.clone());
        core.fleet.mirror(&self.fleet.snapshot());
        self.bindings
            .copy_to(&core.bindings, self.now_ms(), &core.fleet);
        let known = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        known.iter().for_each(|&scope| core.know(scope));
        drop(known);
        let cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = (cells.iter()).map(|(name, cells)| (name.clone(), Arc::new(cells.copy())));
        *core.cells.lock().unwrap_or_else(PoisonError::into_inner) = copies.collect();
        drop(cells);
        core
    }

    /// An empty fleet, and a table that is kept elsewhere: see [`crate::Pieces`].
    pub fn in_pieces(limits: Limits, pieces: Pieces, clock: Arc<dyn Clock>) -> Core {
        Core {
            bindings: Bindings::in_pieces(limits, pieces),
            ..Core::new(limits, clock)
        }
    }

    /// Now, in ms.
    pub fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    /// The affinity table.
    pub fn bindings(&self) -> &Bindings {
        &self.bindings
    }

    /// Where an identity is bound in a scope; none: not bound, or its time is over.
    pub fn bound(&self, scope: Scope, key: Key, identity: u64) -> Option<Target> {
        let key = scope.key(key, identity);
        let mut locked = self.bindings.lock([key]);
        let entry = locked.shard(key)?.get(key, self.now_ms())?;
        Some(entry.held.target)
    }

    /// Unbinds a session in every scope. Requests in flight end normally and touch no binding.
    pub fn end_session(&self, session: u64) {
        let scopes: Vec<Scope> = {
            let scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
            scopes.iter().copied().collect()
        };
        for scope in scopes {
            self.unbind(scope, session);
        }
    }

    /// Unbinds a session in one scope.
    pub fn unbind(&self, scope: Scope, session: u64) {
        let key = scope.key(Key::Session, session);
        self.bindings.lock([key]).remove(key, &self.fleet);
    }

    /// Removes the bindings whose time is over; returns how many. To be called every second or so.
    pub fn sweep(&self) -> usize {
        self.bindings.sweep(self.now_ms(), &self.fleet)
    }

    /// The numbers kept for a policy's name.
    pub fn cells(&self, policy: &str) -> Arc<Cells> {
        let mut cells = self.cells.lock().unwrap_or_else(PoisonError::into_inner);
        let name = if cells.len() < MAX_NAMES || cells.contains_key(policy) {
            policy
        } else {
            ""
        };
        cells.entry(name.to_owned()).or_default().clone()
    }

    fn know(&self, scope: Scope) {
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        if scopes.len() < MAX_SCOPES {
            scopes.insert(scope);
        }
    }
}

/// What the host must know of a policy to ask it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// its name: the owner of its cells
    pub name: String,
    /// its version
    pub version: String,
    /// the word for each reason number
    pub reasons: Vec<String>,
    /// the identities it follows or binds
    pub keys: Keys,
}

/// A snapshot of the fleet, counted by one thread alone: a request then touches no counter that the
/// threads share.
pub(crate) type LocalFleet = Rc<Arc<Snapshot>>;

/// One thread's side of a [`Core`], for one policy: nothing here is shared with other threads.
#[derive(Debug)]
pub struct Worker {
    pub(crate) core: Arc<Core>,
    pub(crate) policy: Policy,
    pub(crate) cells: Arc<Cells>,
    fleet: RefCell<(u64, LocalFleet)>,
    scopes: RefCell<HashSet<Scope>>,
}

impl Worker {
    /// For the policy that this thread asks.
    pub fn new(core: Arc<Core>, policy: Policy) -> Rc<Worker> {
        let cells = core.cells(&policy.name);
        let fleet = RefCell::new((core.fleet.generation(), Rc::new(core.fleet.snapshot())));
        Rc::new(Worker {
            core,
            policy,
            cells,
            fleet,
            scopes: RefCell::default(),
        })
    }

    /// The state shared by all workers.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The policy that is asked.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The keys of the table that the policy follows or binds, of a request.
    pub(crate) fn keys(&self, scope: Scope, incoming: &Incoming) -> [Option<u64>; 4] {
        Key::ALL.map(|key| {
            let declared = self.policy.keys.has(key);
            let identity = declared.then(|| incoming.identity(key))??;
            Some(scope.key(key, identity))
        })
    }

    /// The fleet now, for an event.
    pub fn overview(&self) -> Overview {
        Overview(self.fleet())
    }

    /// The fleet now.
    pub(crate) fn fleet(&self) -> LocalFleet {
        let generation = self.core.fleet.generation();
        let mut seen = self.fleet.borrow_mut();
        if seen.0 != generation {
            *seen = (generation, Rc::new(self.core.fleet.snapshot()));
        }
        seen.1.clone()
    }

    /// Remembers a scope in which a session is bound, for its end.
    pub(crate) fn know(&self, scope: Scope) {
        let mut scopes = self.scopes.borrow_mut();
        if !scopes.contains(&scope) && scopes.len() < MAX_SCOPES {
            scopes.insert(scope);
            self.core.know(scope);
        }
    }
}
