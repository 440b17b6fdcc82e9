//! One part of the affinity table: entries in a slab, found by hash; those without a lease stand in
//! a list by the end of their last request, which is the order of eviction and of expiry at once.

use crate::entry::{Entry, Held};
use crate::image::{Image, put_u64};
use crate::types::Target;
use hashbrown::HashTable;

const NONE: u32 = u32::MAX;
/// The slab grows by a part of its size, not to the double: at a million entries that is memory.
const GROWTH: usize = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shard {
    index: HashTable<u32>,
    slab: Vec<Option<Entry>>,
    free: Vec<u32>,
    oldest: u32,
    newest: u32,
    next_revision: u64,
}

impl Default for Shard {
    fn default() -> Self {
        Shard {
            index: HashTable::new(),
            slab: Vec::new(),
            free: Vec::new(),
            oldest: NONE,
            newest: NONE,
            next_revision: 1,
        }
    }
}

impl Shard {
    pub(crate) fn revision(&mut self) -> u64 {
        let revision = self.next_revision;
        self.next_revision += 1;
        revision
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.slab.len() - self.free.len()
    }

    fn at(&self, key: u64) -> Option<u32> {
        let same = |&at: &u32| self.entry(at).is_some_and(|e| e.key == key);
        self.index.find(key, same).copied()
    }

    fn entry(&self, at: u32) -> Option<&Entry> {
        self.slab.get(at as usize)?.as_ref()
    }

    fn entry_mut(&mut self, at: u32) -> Option<&mut Entry> {
        self.slab.get_mut(at as usize)?.as_mut()
    }

    /// The live entry of a key.
    pub(crate) fn get(&self, key: u64, now: u64) -> Option<&Entry> {
        self.entry(self.at(key)?).filter(|e| !e.expired(now))
    }

    /// Also an entry whose time is over: for one who ends a request under it.
    pub(crate) fn get_mut(&mut self, key: u64) -> Option<&mut Entry> {
        let at = self.at(key)?;
        self.entry_mut(at)
    }

    /// Adds an entry; the caller has seen to it that the key is absent, and leases it.
    pub(crate) fn insert(&mut self, key: u64, held: Held) {
        self.add(Entry::new(key, held, NONE));
    }

    fn add(&mut self, entry: Entry) -> u32 {
        let key = entry.key;
        let at = self.free.pop().unwrap_or_else(|| {
            if self.slab.len() == self.slab.capacity() {
                self.slab.reserve_exact(self.slab.len() / GROWTH + GROWTH);
            }
            self.slab.push(None);
            u32::try_from(self.slab.len() - 1).unwrap_or(NONE)
        });
        if let Some(slot) = self.slab.get_mut(at as usize) {
            *slot = Some(entry);
        }
        let slab = &self.slab;
        self.index.insert_unique(key, at, |&at| {
            slab.get(at as usize)
                .and_then(Option::as_ref)
                .map_or(0, |e| e.key)
        });
        at
    }

    /// Removes the entry of a key.
    pub(crate) fn remove(&mut self, key: u64) -> Option<Entry> {
        let at = self.at(key)?;
        self.unlink(at);
        let slab = &self.slab;
        let same = |&at: &u32| {
            slab.get(at as usize)
                .and_then(Option::as_ref)
                .is_some_and(|e| e.key == key)
        };
        if let Ok(found) = self.index.find_entry(key, same) {
            found.remove();
        }
        self.free.push(at);
        self.slab.get_mut(at as usize)?.take()
    }

    /// Removes the entry of a key if its time is over.
    pub(crate) fn expire(&mut self, key: u64, now: u64) -> Option<Entry> {
        let at = self.at(key)?;
        self.entry(at)?.expired(now).then(|| self.remove(key))?
    }

    /// The entries without a lease, the one that is idle longest first.
    pub(crate) fn idle(&self) -> impl Iterator<Item = &Entry> {
        std::iter::successors(self.entry(self.oldest), |e| self.entry(e.newer))
    }

    /// Every entry, those without a lease first, in the order of [`Shard::idle`].
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        let leased = self.slab.iter().flatten().filter(|e| e.held.leases > 0);
        self.idle().chain(leased)
    }

    /// One more request under the claim of a key, if it is on `target`, believed `until` then; returns
    /// its revision, and whether it is settled.
    pub(crate) fn lease(&mut self, key: u64, target: Target, until: u64) -> Option<(u64, bool)> {
        let at = self.at(key)?;
        self.entry(at).filter(|e| e.held.target == target)?;
        self.unlink(at);
        let entry = self.entry_mut(at)?;
        entry.held.leases += 1;
        entry.until = until;
        Some((entry.held.revision, entry.settled()))
    }

    /// After a change to its leases: an entry without any joins the idle ones, as the newest.
    pub(crate) fn settle(&mut self, key: u64, idle_until: u64) {
        let Some(at) = self.at(key) else { return };
        self.unlink(at);
        let Some(entry) = self.entry_mut(at) else {
            return;
        };
        if entry.held.leases == 0 {
            entry.until = idle_until;
            self.link(at);
        }
    }

    /// All of it, to be kept elsewhere: the idle ones in their order, then the others.
    pub(crate) fn write(&self, image: &mut Vec<u8>) {
        put_u64(image, self.next_revision);
        let leased = (self.slab.iter().flatten()).filter(|entry| entry.held.leases > 0);
        for entry in self.idle().chain(leased) {
            entry.write(image);
        }
    }

    /// What [`Shard::write`] wrote. A lease that is not believed any more is dropped: its holder
    /// has vanished. None: it is not that.
    pub(crate) fn read(image: &mut Image<'_>, now: u64) -> Option<Shard> {
        let mut shard = Shard {
            next_revision: image.u64()?,
            ..Shard::default()
        };
        while !image.is_empty() {
            let mut entry = Entry::read(image, NONE)?;
            if now >= entry.until {
                entry.held.leases = 0;
            }
            let idle = entry.held.leases == 0;
            let at = shard.add(entry);
            if idle {
                shard.link(at);
            }
        }
        Some(shard)
    }

    /// The target of each session.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = Target> {
        let held = self.slab.iter().flatten().map(|entry| &entry.held);
        held.filter(|held| held.session).map(|held| held.target)
    }

    fn link(&mut self, at: u32) {
        let newest = self.newest;
        if let Some(entry) = self.entry_mut(at) {
            entry.older = newest;
            entry.newer = NONE;
        }
        match self.entry_mut(newest) {
            Some(entry) => entry.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
    }

    /// Takes an entry out of the list; nothing happens if it is not in it.
    fn unlink(&mut self, at: u32) {
        let Some(entry) = self.entry(at) else { return };
        let (older, newer) = (entry.older, entry.newer);
        if older == NONE && newer == NONE && self.oldest != at {
            return;
        }
        match self.entry_mut(older) {
            Some(entry) => entry.newer = newer,
            None => self.oldest = newer,
        }
        match self.entry_mut(newer) {
            Some(entry) => entry.older = older,
            None => self.newest = older,
        }
        if let Some(entry) = self.entry_mut(at) {
            entry.older = NONE;
            entry.newer = NONE;
        }
    }
}
