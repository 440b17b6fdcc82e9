//! The affinity table: key → target, bounded, in shards with a lock each.
//!
//! A table of at most [`ONE_SHARD`] bindings is one shard, so that eviction takes exactly the least
//! recently used; larger ones are spread, and evict the least recently used of a shard.

use crate::ledger::Ledger;
use crate::shard::{Entry, Shard};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

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

/// See the module.
#[derive(Debug)]
pub struct Bindings {
    shards: Box<[Mutex<Shard>]>,
    count: AtomicUsize,
    limits: Limits,
}

impl Bindings {
    pub(crate) fn new(limits: Limits) -> Bindings {
        let shards = if limits.max <= ONE_SHARD { 1 } else { SHARDS };
        Bindings {
            shards: (0..shards).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            limits,
        }
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

    pub(crate) fn shard_of(&self, key: u64) -> usize {
        // Keys are well mixed; a shard's own table looks at the lowest and the highest bits.
        usize::try_from((key >> 32) & 0xFFFF).unwrap_or(0) % self.shards.len().max(1)
    }

    /// Locks the shards of up to a decision's keys, in ascending order, each once.
    pub(crate) fn lock(&self, keys: impl IntoIterator<Item = u64>) -> Locked<'_> {
        let mut at: smallvec::SmallVec<[usize; 4]> =
            keys.into_iter().map(|key| self.shard_of(key)).collect();
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
    pub(crate) fn sweep(&self, now: u64, ledger: &Ledger) -> usize {
        let mut gone = 0;
        for shard in &self.shards {
            while let Some(entry) = lock(shard).evict(|e| now >= e.idle_until) {
                self.forgotten(&entry, ledger);
                gone += 1;
            }
        }
        gone
    }

    fn forgotten(&self, entry: &Entry, ledger: &Ledger) {
        self.count.fetch_sub(1, Relaxed);
        if entry.session {
            ledger.session_gone(entry.held.target);
        }
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shards that one transaction needs, held together.
pub(crate) struct Locked<'a> {
    table: &'a Bindings,
    shards: smallvec::SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
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
    pub(crate) fn remove(&mut self, key: u64, ledger: &Ledger) {
        let removed = self.shard(key).and_then(|shard| shard.remove(key));
        if let Some(entry) = removed {
            self.table.forgotten(&entry, ledger);
        }
    }

    /// Removes an entry whose time is over.
    pub(crate) fn expire(&mut self, key: u64, now: u64, ledger: &Ledger) {
        let removed = self.shard(key).and_then(|shard| shard.expire(key, now));
        if let Some(entry) = removed {
            self.table.forgotten(&entry, ledger);
        }
    }

    /// Reserves room for one entry, by eviction if need be. False: every binding is leased.
    pub(crate) fn reserve(&mut self, ledger: &Ledger) -> bool {
        if self.table.count.fetch_add(1, Relaxed) < self.table.limits.max {
            return true;
        }
        if let Some(entry) = self.evict() {
            self.table.forgotten(&entry, ledger);
            return true;
        }
        self.table.count.fetch_sub(1, Relaxed);
        false
    }

    /// Gives back a reservation that was not used.
    pub(crate) fn unreserve(&self) {
        self.table.count.fetch_sub(1, Relaxed);
    }

    fn evict(&mut self) -> Option<Entry> {
        let held = (self.shards.iter_mut()).find_map(|(_, shard)| shard.evict(|_| true));
        // Other shards only if they are free: waiting for one while holding another could deadlock.
        held.or_else(|| {
            self.table.shards.iter().find_map(|shard| {
                let mut shard = match shard.try_lock() {
                    Ok(shard) => shard,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => return None,
                };
                shard.evict(|_| true)
            })
        })
    }
}
