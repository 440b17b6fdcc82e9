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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    /// And for what has no past.
    fn placeable(self) -> bool {
        self.serving() && !self.draining
    }
}

#[derive(Clone, Debug)]
struct Member {
    /// none: removed so long ago that nobody asks
    spec: Option<Arc<TargetSpec>>,
    name: u64,
    standing: Standing,
}

impl Member {
    fn serves(&self, phase: Phase, model: u64) -> bool {
        self.standing.serving() && self.does(phase) && self.has(model)
    }

    fn does(&self, phase: Phase) -> bool {
        self.spec.as_ref().is_some_and(|spec| spec.roles.has(phase))
    }

    fn has(&self, model: u64) -> bool {
        model == NO_MODEL || self.models().is_none_or(|models| models.contains(&model))
    }

    fn models(&self) -> Option<&BTreeSet<u64>> {
        self.spec.as_ref()?.models.as_ref()
    }
}

/// The fleet at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    members: Vec<Member>,
    /// shared until a target comes or goes
    by_name: Arc<HashMap<String, Target>>,
    ledger: Ledger,
    /// the hash of each target's name; likewise
    names: Arc<Vec<u64>>,
    /// the placement sets of each phase, for models that no target names
    unnamed: [Places; 3],
    /// and for those that one does
    named: HashMap<u64, [Places; 3]>,
    /// all of them together
    everywhere: Places,
}

impl Snapshot {
    /// The target of a name "endpoint/rank" that is part of the fleet.
    pub fn find(&self, name: &str) -> Option<Target> {
        self.by_name.get(name).copied()
    }

    /// Who a target is; also of one that was removed, as long as something may be outstanding there.
    pub fn spec(&self, target: Target) -> Option<&Arc<TargetSpec>> {
        self.members.get(target as usize)?.spec.as_ref()
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
        (self.members.iter().zip(0..))
            .filter(|(m, _)| !m.standing.removed)
            .filter_map(|(m, id)| Some((id, m.spec.as_ref()?)))
    }

    /// Every target that is not part of the fleet any more, and still has requests in flight.
    pub fn leaving(&self) -> impl Iterator<Item = (Target, &Arc<TargetSpec>)> {
        (self.members.iter().zip(0..))
            .filter(|(m, id)| m.standing.removed && self.ledger.load(*id).requests > 0)
            .filter_map(|(m, id)| Some((id, m.spec.as_ref()?)))
    }

    /// Every target there ever was, in order, and its condition.
    pub fn members(&self) -> impl Iterator<Item = (Option<&Arc<TargetSpec>>, Standing)> {
        self.members.iter().map(|m| (m.spec.as_ref(), m.standing))
    }

    /// A fleet of these, in the order of their numbers; nothing is outstanding.
    pub fn of(members: impl IntoIterator<Item = (Option<TargetSpec>, Standing)>) -> Snapshot {
        let members = (members.into_iter())
            .map(|(spec, standing)| Member {
                name: (spec.as_ref()).map_or(0, |spec| hash_text(&spec.endpoint.name)),
                spec: spec.map(Arc::new),
                standing,
            })
            .collect();
        let mut fleet = Snapshot {
            members,
            ..Snapshot::default()
        };
        fleet.ledger.grow(fleet.members.len());
        fleet.index();
        fleet.rebuild();
        fleet
    }

    /// The same targets, with counters of their own.
    pub(crate) fn with_loads(&self, loads: &[(Target, Load)]) -> Snapshot {
        Snapshot {
            ledger: Ledger::reading(self.members.len(), loads),
            ..self.clone()
        }
    }

    /// The counters of all targets.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// May a request without a past be placed there?
    pub(crate) fn places(&self, target: Target, phase: Phase, model: u64) -> bool {
        self.members
            .get(target as usize)
            .is_some_and(|m| m.serves(phase, model) && m.standing.placeable())
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

    /// Where some request without a past may go, of whatever phase and model.
    pub(crate) fn everywhere(&self) -> &Places {
        &self.everywhere
    }

    pub(crate) fn names(&self) -> &[u64] {
        &self.names
    }

    /// What depends on who is there, in whatever condition.
    fn index(&mut self) {
        self.names = Arc::new(self.members.iter().map(|m| m.name).collect());
        let by_name = (self.targets())
            .map(|(id, spec)| (spec.endpoint.name.clone(), id))
            .collect();
        self.by_name = Arc::new(by_name);
    }

    /// What depends on their condition.
    fn rebuild(&mut self) {
        // Whoever was removed is looked at once, however many they are.
        let live: Vec<(Target, &Member)> = (self.members.iter().zip(0..))
            .filter(|(m, _)| !m.standing.removed)
            .map(|(m, id)| (id, m))
            .collect();
        let models: BTreeSet<u64> = (live.iter())
            .filter_map(|(_, m)| m.models())
            .flatten()
            .copied()
            .chain([NO_MODEL])
            .collect();
        self.named = models
            .into_iter()
            .map(|model| (model, views(&live, |m, phase| m.serves(phase, model))))
            .collect();
        self.everywhere = (live.iter())
            .filter(|(_, m)| m.standing.placeable())
            .map(|(id, _)| *id)
            .collect();
        self.unnamed = views(&live, |m, phase| m.does(phase) && m.models().is_none());
    }

    /// Of those that were removed and have nothing left, only the number stays.
    fn forget(&mut self) {
        for (member, id) in self.members.iter_mut().zip(0..) {
            let load = self.ledger.load(id);
            if member.standing.removed && load.requests == 0 && load.sessions == 0 {
                member.spec = None;
            }
        }
    }
}

fn views(live: &[(Target, &Member)], serves: impl Fn(&Member, Phase) -> bool) -> [Places; 3] {
    Phase::ALL.map(|phase| {
        (live.iter())
            .filter(|(_, m)| m.standing.placeable() && serves(m, phase))
            .map(|(id, _)| *id)
            .collect()
    })
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
        self.revise(|revision| {
            (revision.moves, revision.members) = (true, true);
            let fleet = &mut revision.next;
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
        self.revise(|revision| revision.add(spec))
    }

    /// Makes several changes one: readers see all of them or none. Readers wait for nothing, other
    /// writers for the end of `revise`.
    pub fn revise<R>(&self, revise: impl FnOnce(&mut Revision) -> R) -> R {
        let _one_at_a_time = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut revision = Revision {
            next: Snapshot::clone(&self.now.load()),
            moves: false,
            members: false,
        };
        let result = revise(&mut revision);
        if revision.moves {
            if revision.members {
                revision.next.index();
            }
            self.publish(revision.next);
        }
        result
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
            self.revise(|revision| {
                for &target in targets {
                    revision.set(target, &change);
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

    fn publish(&self, mut next: Snapshot) {
        next.rebuild();
        self.now.store(Arc::new(next));
        self.generation.fetch_add(1, Ordering::Release);
    }
}

/// Changes of the fleet that nobody sees yet.
#[derive(Debug)]
pub struct Revision {
    next: Snapshot,
    moves: bool,
    /// not only in the condition of targets
    members: bool,
}

impl Revision {
    /// The condition of a target, with the changes made so far.
    pub fn standing(&self, target: Target) -> Option<Standing> {
        self.next.standing(target)
    }

    /// See [`Fleet::add`].
    pub fn add(&mut self, spec: TargetSpec) -> Target {
        if let Some(old) = self.next.by_name.get(&spec.endpoint.name) {
            self.remove(*old);
        }
        let members = &mut self.next.members;
        let id = Target::try_from(members.len()).unwrap_or(Target::MAX);
        Arc::make_mut(&mut self.next.by_name).insert(spec.endpoint.name.clone(), id);
        members.push(Member {
            name: hash_text(&spec.endpoint.name),
            spec: Some(Arc::new(spec)),
            standing: Standing::NEW,
        });
        self.next.ledger.grow(members.len());
        (self.moves, self.members) = (true, true);
        id
    }

    /// Takes targets out of the fleet. What is in flight there goes on; what is bound there is placed
    /// anew. Their numbers are never given again.
    pub fn remove(&mut self, target: Target) {
        self.set(target, |standing| standing.removed = true);
    }

    /// Says anew who a target is. What is bound there stays, also in flight.
    pub fn respec(&mut self, target: Target, spec: TargetSpec) {
        if let Some(member) = self.next.members.get_mut(target as usize) {
            member.name = hash_text(&spec.endpoint.name);
            member.spec = Some(Arc::new(spec));
            (self.moves, self.members) = (true, true);
        }
    }

    /// Changes the condition of a target.
    pub fn set(&mut self, target: Target, change: impl FnOnce(&mut Standing)) {
        if let Some(member) = self.next.members.get_mut(target as usize) {
            let was = member.standing;
            change(&mut member.standing);
            self.moves |= member.standing != was;
            self.members |= member.standing.removed != was.removed;
        }
    }

    /// Lets go of what is known of targets that were removed before this revision, and have neither
    /// requests nor sessions left: fleets come and go for years.
    pub fn forget(&mut self) {
        self.next.forget();
    }
}
