//! The affinity table: key → target, bounded, in shards with a lock each.
//!
//! A table of at most [`ONE_SHARD`] bindings is one shard, so that eviction takes exactly the least
//! recently used; larger ones are spread, and evict the least recently used of a shard.

use crate::entry::{After, End, Entry, Held};
use crate::fleet::Fleet;
use crate::prompt::Prompt;
use crate::shard::Shard;
use crate::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, MutexGuard};
use crate::types::Target;
use smallvec::SmallVec;
use std::sync::{PoisonError, TryLockError};

const ONE_SHARD: usize = 1024;
const SHARDS: usize = 64;

/// What happens to a new session when every binding of a full table has a request in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// it is placed, and not remembered
    #[default]
    PlaceUnbound,
    /// 429
    Reject,
}

/// Bounds of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// bindings, at least 1
    pub max: usize,
    /// a binding is gone when it was idle this long, in ms
    pub ttl_ms: u64,
    /// when there is no room
    pub when_full: WhenFull,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max: 65_536,
            ttl_ms: 3_600_000,
            when_full: WhenFull::PlaceUnbound,
        }
    }
}

/// A binding that is there from the start.
#[derive(Clone, Debug)]
pub(crate) struct Put {
    pub(crate) target: Target,
    /// that nobody holds
    pub(crate) leases: u32,
    pub(crate) session: bool,
    pub(crate) idle_until: u64,
    pub(crate) prompt: Option<Prompt>,
}

/// A table whose shards are kept elsewhere, each bounded by itself (see [`crate::Core::in_pieces`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// shards, at least 1
    pub count: usize,
    /// bindings in one of them, at least 1
    pub most: usize,
    /// A request counts as in flight at most this long, in ms: those who hold it may vanish.
    pub lease_ms: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Bindings {
    shards: Box<[Mutex<Shard>]>,
    count: AtomicUsize,
    limits: Limits,
    pieces: Option<Pieces>,
}

impl Bindings {
    pub(crate) fn new(limits: Limits) -> Bindings {
        let shards = if limits.max <= ONE_SHARD { 1 } else { SHARDS };
        Bindings::sharded(limits, shards, None)
    }

    /// Whose shards are kept elsewhere.
    pub(crate) fn in_pieces(limits: Limits, pieces: Pieces) -> Bindings {
        Bindings::sharded(limits, pieces.count.max(1), Some(pieces))
    }

    /// Whether its shards are kept elsewhere.
    pub(crate) fn is_in_pieces(&self) -> bool {
        self.pieces.is_some()
    }

    fn sharded(limits: Limits, shards: usize, pieces: Option<Pieces>) -> Bindings {
        Bindings {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            limits,
            pieces,
        }
    }

    /// Shards.
    pub(crate) fn shards(&self) -> usize {
        self.shards.len()
    }

    /// A lease that is taken now is believed until then.
    pub(crate) fn leased_until(&self, now: u64) -> u64 {
        (self.pieces).map_or(u64::MAX, |pieces| now.saturating_add(pieces.lease_ms))
    }

    /// Looks into a shard.
    pub(crate) fn with_shard(&self, at: usize, look: impl FnOnce(&Shard)) {
        if let Some(shard) = self.shards.get(at) {
            look(&lock(shard));
        }
    }

    /// Puts another shard into the place of one, and returns that.
    pub(crate) fn exchange(&self, at: usize, new: Shard) -> Option<Shard> {
        let mut shard = lock(self.shards.get(at)?);
        self.count.fetch_add(new.len(), Relaxed);
        self.count.fetch_sub(shard.len(), Relaxed);
        Some(std::mem::replace(&mut *shard, new))
    }

    /// Live bindings, and those whose time is over but that were not swept yet.
    pub fn len(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bounds.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Puts a confirmed binding into the table, unless there is one.
    pub(crate) fn put(&self, key: u64, put: Put) {
        let mut locked = self.lock([key]);
        let Some(shard) = locked.shard(key) else {
            return;
        };
        if shard.get_mut(key).is_some() {
            return;
        }
        let held = Held {
            leases: put.leases,
            confirmed: true,
            ..Held::new(put.target, shard.revision(), put.session)
        };
        shard.insert(key, held);
        if let (Some(prompt), Some(entry)) = (put.prompt, shard.get_mut(key)) {
            entry.ran(prompt);
        }
        shard.settle(key, put.idle_until);
        self.count.fetch_add(1, Relaxed);
    }

    /// Puts what is bound here into another table, idle; a request in flight is not known there.
    pub(crate) fn copy_to(&self, other: &Bindings, now: u64, fleet: &Fleet) {
        let fresh = now.saturating_add(self.limits.ttl_ms);
        for shard in &self.shards {
            let all: Vec<(u64, Put)> = (lock(shard).entries())
                .filter(|entry| !entry.expired(now))
                .map(|entry| {
                    let leased = entry.held.leases > 0;
                    let put = Put {
                        target: entry.held.target,
                        leases: 0,
                        session: entry.held.session,
                        idle_until: if leased { fresh } else { entry.until },
                        prompt: entry.prompt().cloned(),
                    };
                    (entry.key, put)
                })
                .collect();
            for (key, put) in all {
                if put.session {
                    fleet.session_bound(put.target);
                }
                other.put(key, put);
            }
        }
    }

    pub(crate) fn shard_of(&self, key: u64) -> usize {
        // Keys are well mixed; a shard's own table looks at the lowest and the highest bits.
        usize::try_from((key >> 32) & 0xFFFF).unwrap_or(0) % self.shards.len().max(1)
    }

    /// Locks the shards of up to a decision's keys, in ascending order, each once.
    pub(crate) fn lock(&self, keys: impl IntoIterator<Item = u64>) -> Locked<'_> {
        let mut at: SmallVec<[usize; 4]> = keys.into_iter().map(|key| self.shard_of(key)).collect();
        at.sort_unstable();
        at.dedup();
        let shards = at
            .into_iter()
            .filter_map(|at| Some((at, lock(self.shards.get(at)?))))
            .collect();
        Locked {
            table: self,
            shards,
        }
    }

    /// Removes what is over; returns how many. Bounded work per shard lock.
    pub(crate) fn sweep(&self, now: u64, fleet: &Fleet) -> usize {
        (0..self.shards.len())
            .map(|at| self.sweep_shard(at, now, fleet))
            .sum()
    }

    /// The same of one shard.
    pub(crate) fn sweep_shard(&self, at: usize, now: u64, fleet: &Fleet) -> usize {
        let Some(shard) = self.shards.get(at) else {
            return 0;
        };
        let over = |shard: &Shard| {
            (shard.idle().next())
                .filter(|e| e.expired(now))
                .map(|e| e.key)
        };
        let mut gone = 0;
        loop {
            let mut shard = lock(shard);
            let Some(entry) = over(&shard).and_then(|key| shard.remove(key)) else {
                return gone;
            };
            self.forgotten(&entry, fleet);
            gone += 1;
        }
    }

    fn forgotten(&self, entry: &Entry, fleet: &Fleet) {
        self.count.fetch_sub(1, Relaxed);
        if entry.held.session {
            fleet.session_gone(entry.held.target);
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shards that one transaction needs, held together.
pub(crate) struct Locked<'a> {
    table: &'a Bindings,
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl Locked<'_> {
    /// The shard of a key; none if the key was not among those locked.
    pub(crate) fn shard(&mut self, key: u64) -> Option<&mut Shard> {
        let wanted = self.table.shard_of(key);
        (self.shards.iter_mut())
            .find(|(at, _)| *at == wanted)
            .map(|(_, shard)| &mut **shard)
    }

    /// Removes an entry and all that counts it.
    pub(crate) fn remove(&mut self, key: u64, fleet: &Fleet) {
        let removed = self.shard(key).and_then(|shard| shard.remove(key));
        if let Some(entry) = removed {
            self.table.forgotten(&entry, fleet);
        }
    }

    /// Removes an entry whose time is over.
    pub(crate) fn expire(&mut self, key: u64, now: u64, fleet: &Fleet) {
        let removed = self.shard(key).and_then(|shard| shard.expire(key, now));
        if let Some(entry) = removed {
            self.table.forgotten(&entry, fleet);
        }
    }

    /// A request under the claim of this revision ended; from `now` on the key may be idle.
    pub(crate) fn end(&mut self, key: u64, revision: u64, end: End, now: u64, fleet: &Fleet) {
        let idle_until = now.saturating_add(self.table.limits.ttl_ms);
        let Some(shard) = self.shard(key) else { return };
        let Some(entry) = shard.get_mut(key) else {
            return;
        };
        match entry.end(revision, end) {
            After::Untouched => return,
            After::Stays => {}
            After::Returns { from } => {
                if entry.held.session {
                    fleet.session_gone(from);
                    fleet.session_bound(entry.held.target);
                }
            }
            After::Gone => return self.remove(key, fleet),
        }
        shard.settle(key, idle_until);
    }

    /// Reserves room for new keys, by eviction if need be, of others than those of the decision's own
    /// keys. False: too many bindings are leased, and nothing was evicted.
    pub(crate) fn reserve(&mut self, new: &[u64], own: &[u64], fleet: &Fleet) -> bool {
        let entries = new.len();
        if entries == 0 {
            return true;
        }
        let table = self.table;
        if let Some(pieces) = table.pieces {
            return self.reserve_in_pieces(pieces, new, own, fleet);
        }
        let had = table.count.fetch_add(entries, Relaxed);
        let over = (had + entries).saturating_sub(table.limits.max);
        let victims = self.idle(over.min(entries), own);
        if victims.len() < over.min(entries) {
            table.count.fetch_sub(entries, Relaxed);
            return false;
        }
        for key in victims {
            self.remove(key, fleet);
        }
        true
    }

    /// The same where each shard is bounded by itself.
    fn reserve_in_pieces(
        &mut self,
        pieces: Pieces,
        new: &[u64],
        own: &[u64],
        fleet: &Fleet,
    ) -> bool {
        let mut victims: SmallVec<[u64; 4]> = SmallVec::new();
        for (at, shard) in &self.shards {
            let comes = new.iter().filter(|key| self.table.shard_of(**key) == *at);
            let comes = comes.count();
            let over = (shard.len() + comes).saturating_sub(pieces.most).min(comes);
            let before = victims.len();
            victims.extend(others(shard, own).take(over));
            if victims.len() - before < over {
                return false;
            }
        }
        self.table.count.fetch_add(new.len(), Relaxed);
        for key in victims {
            self.remove(key, fleet);
        }
        true
    }

    /// Up to `wanted` keys without a lease, the longest idle of their shards, whose locks are held
    /// from then on.
    fn idle(&mut self, wanted: usize, own: &[u64]) -> SmallVec<[u64; 4]> {
        let mut found = SmallVec::new();
        for (_, shard) in &self.shards {
            found.extend(others(shard, own).take(wanted - found.len()));
        }
        for (at, shard) in self.table.shards.iter().enumerate() {
            if found.len() == wanted {
                break;
            }
            // Only one that is free: waiting for it while holding others could deadlock.
            let shard = match shard.try_lock() {
                Ok(shard) => shard,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            let before = found.len();
            found.extend(others(&shard, own).take(wanted - before));
            if found.len() > before {
                self.shards.push((at, shard));
            }
        }
        found
    }
}

/// The keys without a lease but `own`, the longest idle first.
fn others<'a>(shard: &'a Shard, own: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
    (shard.idle().map(|entry| entry.key)).filter(|key| !own.contains(key))
}
