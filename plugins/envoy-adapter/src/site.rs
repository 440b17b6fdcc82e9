//! What a VM has: the configured fleet, the policy, and its views of the shared state.

use crate::cells::Cells;
use crate::config::Config;
use crate::fleet::{self, Standings, Way, Ways};
use crate::loads::Loads;
use crate::rows::Change;
use crate::shared::Shared;
use crate::table;
use http::HeaderName;
use pointsman_core::{Clock, Core, Pieces, Policy, Target, Worker, hash_text};
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
    /// the header with which a client names its target
    pub(crate) explicit: Option<HeaderName>,
    pub(crate) route: u64,
    pub(crate) core: Arc<Core>,
    pub(crate) worker: Rc<Worker>,
    pub(crate) loads: Loads,
    pub(crate) cells: Cells,
    ways: Ways,
    standings: Standings,
    clock: Arc<Told>,
    wall_ms: Cell<u64>,
    pub(crate) scopes: RefCell<HashSet<u64>>,
    swept: Cell<usize>,
    /// whether the loads of this moment are in the ledger
    pub(crate) fresh: Cell<bool>,
}

impl<S> std::fmt::Debug for Site<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Site").finish_non_exhaustive()
    }
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
            explicit: HeaderName::try_from(config.explicit_header.as_str()).ok(),
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
            let key = table::key_of(piece);
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
        self.forget_loads();
    }

    /// What is known of the loads is of a moment ago.
    pub(crate) fn forget_loads(&self) {
        self.fresh.set(false);
        self.loads.forget();
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

    /// Whether an answer's `x-envoy-attempt-count` is Envoy's.
    pub fn counts_attempts(&self) -> bool {
        self.config.counts_attempts
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

    pub(crate) fn count(&self, changes: &[Change]) {
        self.loads.add(&self.shared, changes, self.wall_ms.get());
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
