//! The targets, and who of them may take a request. The one place that decides eligibility.
//!
//! Changes (health, drain, membership) are rare: each builds a new [`Snapshot`] that readers pick up
//! with their next request. Loads are counters shared by all snapshots.

use crate::hash::{NO_MODEL, hash_text};
use crate::ledger::Ledger;
use crate::places::Places;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::{Endpoint, Load, Phase, Target};
use arc_swap::ArcSwap;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError};

/// The phases that a target serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Roles([bool; 3]);

impl Roles {
    /// Every phase: an aggregated pool that answers all roles.
    pub const ALL: Roles = Roles([true; 3]);

    /// One phase.
    pub fn only(phase: Phase) -> Roles {
        Roles(std::array::from_fn(|at| at == phase.index()))
    }

    fn has(self, phase: Phase) -> bool {
        self.0.get(phase.index()).copied().unwrap_or(false)
    }
}

/// What the operator says of a target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TargetSpec {
    /// who it is
    pub endpoint: Endpoint,
    /// the phases it serves
    pub roles: Roles,
    /// hashes of the models it serves; none: every model
    pub models: Option<BTreeSet<u64>>,
}

/// What is known of a target's condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "four independent facts, from four sources"
)]
pub struct Standing {
    /// the health check passes
    pub healthy: bool,
    /// the circuit breaker lets requests through
    pub closed: bool,
    /// takes no new session, keeps those it owns
    pub draining: bool,
    /// no longer part of the fleet
    pub removed: bool,
}

impl Standing {
    const NEW: Standing = Standing {
        healthy: true,
        closed: true,
        draining: false,
        removed: false,
    };

    /// May be asked for anything at all.
    fn serving(self) -> bool {
        self.healthy && self.closed && !self.removed
    }
}

#[derive(Clone, Debug)]
struct Member {
    spec: Arc<TargetSpec>,
    name: u64,
    standing: Standing,
}

impl Member {
    fn serves(&self, phase: Phase, model: u64) -> bool {
        self.standing.serving() && self.spec.roles.has(phase) && self.has(model)
    }

    fn has(&self, model: u64) -> bool {
        model == NO_MODEL
            || (self.spec.models.as_ref()).is_none_or(|models| models.contains(&model))
    }
}

/// The fleet at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    members: Vec<Member>,
    by_name: HashMap<String, Target>,
    ledger: Ledger,
    /// the hash of each target's name
    names: Vec<u64>,
    /// the placement sets of each phase, for models that no target names
    unnamed: [Places; 3],
    /// and for those that one does
    named: HashMap<u64, [Places; 3]>,
}

impl Snapshot {
    /// The target of a name "endpoint/rank" that is part of the fleet.
    pub fn find(&self, name: &str) -> Option<Target> {
        self.by_name.get(name).copied()
    }

    /// Who a target is; also of one that was removed.
    pub fn spec(&self, target: Target) -> Option<&Arc<TargetSpec>> {
        self.members.get(target as usize).map(|m| &m.spec)
    }

    /// The condition of a target.
    pub fn standing(&self, target: Target) -> Option<Standing> {
        self.members.get(target as usize).map(|m| m.standing)
    }

    /// Whether any target that is part of the fleet has a model, in whatever condition it is. A fleet
    /// without targets may yet get one that has.
    pub fn knows(&self, model: u64) -> bool {
        let mut all = self
            .members
            .iter()
            .filter(|m| !m.standing.removed)
            .peekable();
        all.peek().is_none() || all.any(|m| m.has(model))
    }

    /// Every target that is part of the fleet, in order.
    pub fn targets(&self) -> impl Iterator<Item = (Target, &Arc<TargetSpec>)> {
        self.members
            .iter()
            .zip(0..)
            .filter(|(m, _)| !m.standing.removed)
            .map(|(m, id)| (id, &m.spec))
    }

    /// Every target there ever was, in order, and its condition.
    pub fn members(&self) -> impl Iterator<Item = (&Arc<TargetSpec>, Standing)> {
        self.members.iter().map(|m| (&m.spec, m.standing))
    }

    /// A fleet of these, in the order of their numbers; nothing is outstanding.
    pub fn of(members: impl IntoIterator<Item = (TargetSpec, Standing)>) -> Snapshot {
        let members = (members.into_iter())
            .map(|(spec, standing)| Member {
                name: hash_text(&spec.endpoint.name),
                spec: Arc::new(spec),
                standing,
            })
            .collect();
        let mut fleet = Snapshot {
            members,
            ..Snapshot::default()
        };
        fleet.ledger.grow(fleet.members.len());
        fleet.rebuild();
        fleet
    }

    /// The same targets, with counters of their own.
    pub(crate) fn with_loads(&self, loads: &[Load]) -> Snapshot {
        let mut fleet = self.clone();
        fleet.ledger = Ledger::reading(loads);
        fleet.ledger.grow(fleet.members.len());
        fleet
    }

    /// The counters of all targets.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// May a request without a past be placed there?
    pub(crate) fn places(&self, target: Target, phase: Phase, model: u64) -> bool {
        self.members
            .get(target as usize)
            .is_some_and(|m| m.serves(phase, model) && !m.standing.draining)
    }

    /// May a session that is bound there go on there? Draining does not end what is owned.
    pub(crate) fn keeps(&self, target: Target, phase: Phase, model: u64) -> bool {
        self.members
            .get(target as usize)
            .is_some_and(|m| m.serves(phase, model))
    }

    /// Where a request without a past may go.
    pub(crate) fn placement(&self, phase: Phase, model: u64) -> &Places {
        let [serve, prefill, decode] = self.named.get(&model).unwrap_or(&self.unnamed);
        match phase {
            Phase::Serve => serve,
            Phase::Prefill => prefill,
            Phase::Decode => decode,
        }
    }

    pub(crate) fn names(&self) -> &[u64] {
        &self.names
    }

    fn rebuild(&mut self) {
        self.names = self.members.iter().map(|m| m.name).collect();
        self.by_name = (self.members.iter().zip(0..))
            .filter(|(m, _)| !m.standing.removed)
            .map(|(m, id)| (m.spec.endpoint.name.clone(), id))
            .collect();
        let models: BTreeSet<u64> = (self.members.iter())
            .filter_map(|m| m.spec.models.as_ref())
            .flatten()
            .copied()
            .chain([NO_MODEL])
            .collect();
        self.named = models
            .into_iter()
            .map(|model| (model, self.views(|m, phase| m.serves(phase, model))))
            .collect();
        self.unnamed = self.views(|m, phase| {
            m.standing.serving() && m.spec.roles.has(phase) && m.spec.models.is_none()
        });
    }

    fn views(&self, serves: impl Fn(&Member, Phase) -> bool) -> [Places; 3] {
        Phase::ALL.map(|phase| {
            (self.members.iter().zip(0..))
                .filter(|(m, _)| !m.standing.draining && serves(m, phase))
                .map(|(_, id)| id)
                .collect()
        })
    }
}

/// The fleet, as it changes.
#[derive(Debug, Default)]
pub struct Fleet {
    now: ArcSwap<Snapshot>,
    generation: AtomicU64,
    writing: Mutex<()>,
}

impl Fleet {
    /// As it was at some moment.
    pub(crate) fn at(snapshot: Snapshot) -> Fleet {
        Fleet {
            now: ArcSwap::from_pointee(snapshot),
            ..Fleet::default()
        }
    }

    /// Has the targets of another fleet from now on, in their condition there; what is outstanding on
    /// them remains this one's own.
    pub fn mirror(&self, of: &Snapshot) {
        self.change(|fleet| {
            fleet.members.clone_from(&of.members);
            fleet.ledger.grow(fleet.members.len());
        });
    }

    /// The fleet at this moment.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.now.load_full()
    }

    /// Moves with every change; a reader that saw it need not load the snapshot again.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Adds a target and gives it the next number. A name that is already part of the fleet is
    /// replaced: the old target counts as removed.
    pub fn add(&self, spec: TargetSpec) -> Target {
        self.change(|fleet| {
            if let Some(old) = fleet.find(&spec.endpoint.name) {
                stand(fleet, old, |s| s.removed = true);
            }
            let id = Target::try_from(fleet.members.len()).unwrap_or(Target::MAX);
            fleet.members.push(Member {
                name: hash_text(&spec.endpoint.name),
                spec: Arc::new(spec),
                standing: Standing::NEW,
            });
            fleet.ledger.grow(fleet.members.len());
            id
        })
    }

    /// Changes the condition of targets; one new snapshot for all of them. Returns whether anything
    /// changed.
    pub fn set(&self, targets: &[Target], change: impl Fn(&mut Standing)) -> bool {
        let before = self.snapshot();
        let moves = targets.iter().any(|&target| {
            before.standing(target).is_some_and(|was| {
                let mut new = was;
                change(&mut new);
                new != was
            })
        });
        if moves {
            self.change(|fleet| {
                for &target in targets {
                    stand(fleet, target, &change);
                }
            });
        }
        moves
    }

    // Of bound sessions every snapshot may hear that is older than their target: another worker's, who
    // evicts one. So they are counted in the newest. To be called under the lock of the binding.

    /// One more session is bound to the target.
    pub(crate) fn session_bound(&self, target: Target) {
        self.now.load().ledger.session_bound(target);
    }

    /// One fewer.
    pub(crate) fn session_gone(&self, target: Target) {
        self.now.load().ledger.session_gone(target);
    }

    fn change<R>(&self, change: impl FnOnce(&mut Snapshot) -> R) -> R {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = Snapshot::clone(&self.now.load());
        let result = change(&mut next);
        next.rebuild();
        self.now.store(Arc::new(next));
        self.generation.fetch_add(1, Ordering::Release);
        result
    }
}

fn stand(fleet: &mut Snapshot, target: Target, change: impl Fn(&mut Standing)) {
    if let Some(member) = fleet.members.get_mut(target as usize) {
        change(&mut member.standing);
    }
}
