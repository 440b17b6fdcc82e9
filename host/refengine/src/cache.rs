//! One rank's paged prefix cache.
//!
//! A fixed number of blocks, each in one of four states:
//!
//! ```text
//! free ──admit──► private ──publish──► shared (referenced) ──last release──► idle
//!   ▲                │                      ▲                                  │
//!   │◄───release─────┘                      └────────────admit (hit)───────────┤
//!   └◄──────────────────────────────evict (least recently used)────────────────┘
//! ```
//!
//! A sequence gets the blocks of its whole life at once, prompt and output: no sequence is ever
//! preempted for want of a block. Rejected: allocation block by block with preemption, as in vLLM;
//! it costs recomputation that a routing policy can neither see nor avoid.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;

/// Blocks by key, least recently used first out; referenced blocks are never evicted.
#[derive(Debug)]
pub struct PrefixCache {
    capacity: usize,
    blocks: HashMap<u64, Block>,
    /// Blocks without references, by the time of their last release.
    idle: BTreeMap<u64, u64>,
    /// Blocks that sequences hold and whose content is not computed yet, or never gets a key.
    private: usize,
    /// Counts releases: the order of the LRU list.
    clock: u64,
    evictions: u64,
}

#[derive(Debug)]
struct Block {
    references: u32,
    /// Its place in `idle`; only meaningful without references.
    idle_since: u64,
}

/// The blocks of one running sequence. Give it back with [`PrefixCache::release`].
#[derive(Debug)]
#[must_use = "the blocks stay taken until the hold is released"]
pub struct Hold {
    keys: Arc<[u64]>,
    /// The first so many keys are shared blocks that this sequence references.
    shared: usize,
    private: usize,
}

impl Hold {
    /// Leading blocks whose content is in the cache: right after `admit`, the hit.
    #[must_use]
    pub fn shared(&self) -> usize {
        self.shared
    }
}

impl PrefixCache {
    /// An empty cache of `capacity` blocks.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            blocks: HashMap::new(),
            idle: BTreeMap::new(),
            private: 0,
            clock: 0,
            evictions: 0,
        }
    }

    /// Leading keys whose blocks are all there.
    #[must_use]
    pub fn lookup(&self, keys: &[u64]) -> usize {
        keys.iter()
            .take_while(|k| self.blocks.contains_key(*k))
            .count()
    }

    /// Takes `total` blocks for a sequence, of which as many as possible of the first `usable`
    /// keys come from the cache. `None`, and nothing changed, if the sequences that run leave too
    /// few.
    pub fn admit(&mut self, keys: &Arc<[u64]>, usable: usize, total: usize) -> Option<Hold> {
        let hit = self.hit(keys, usable, total);
        if !self.has_room(hit, total) {
            return None;
        }
        let (shared, private) = (hit.len(), total - hit.len());
        for key in hit {
            self.reference(*key);
        }
        while self.capacity - self.used() < private {
            self.evict();
        }
        self.private += private;
        Some(Hold {
            keys: keys.clone(),
            shared,
            private,
        })
    }

    /// Whether [`PrefixCache::admit`] would take it now.
    #[must_use]
    pub fn fits(&self, keys: &[u64], usable: usize, total: usize) -> bool {
        // Most often there is room for all of it, whatever is hit.
        self.referenced() + total <= self.capacity
            || self.has_room(self.hit(keys, usable, total), total)
    }

    /// The leading keys that are hit.
    fn hit<'a>(&self, keys: &'a [u64], usable: usize, total: usize) -> &'a [u64] {
        let usable = keys
            .get(..usable.min(keys.len()).min(total))
            .unwrap_or_default();
        usable.get(..self.lookup(usable)).unwrap_or_default()
    }

    fn has_room(&self, hit: &[u64], total: usize) -> bool {
        // What is hit leaves the idle list, so it cannot be evicted to make room for the rest.
        let hit_idle = hit.iter().filter(|k| self.is_idle(**k)).count();
        total - hit.len() <= self.capacity.saturating_sub(self.referenced() + hit_idle)
    }

    /// The sequence has computed its first `computed` blocks: others may use them from now on.
    pub fn publish(&mut self, hold: &mut Hold, computed: usize) {
        while hold.shared < computed && hold.private > 0 {
            let Some(&key) = hold.keys.get(hold.shared) else {
                return;
            };
            hold.shared += 1;
            hold.private -= 1;
            self.private -= 1;
            // Somebody else may have computed the same block meanwhile: then ours becomes free.
            self.reference(key);
        }
    }

    /// The sequence is over: its computed blocks stay, without its reference.
    pub fn release(&mut self, hold: Hold) {
        self.private -= hold.private;
        // From the end: a chain is useless without its head, so the tail has to go first.
        for key in hold.keys.iter().take(hold.shared).rev() {
            let Some(block) = self.blocks.get_mut(key) else {
                continue;
            };
            block.references -= 1;
            if block.references == 0 {
                self.clock += 1;
                block.idle_since = self.clock;
                self.idle.insert(self.clock, *key);
            }
        }
    }

    /// Forgets everything that no sequence references, and the count of evictions.
    pub fn clear(&mut self) {
        self.evictions = 0;
        for key in std::mem::take(&mut self.idle).into_values() {
            self.blocks.remove(&key);
        }
    }

    /// All blocks.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Blocks that are not free: referenced, or idle with content that can still be hit.
    #[must_use]
    pub fn used(&self) -> usize {
        self.blocks.len() + self.private
    }

    /// Blocks that running sequences hold.
    #[must_use]
    pub fn referenced(&self) -> usize {
        self.used() - self.idle.len()
    }

    /// Blocks evicted since the start or the last `clear`.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    fn is_idle(&self, key: u64) -> bool {
        self.blocks.get(&key).is_some_and(|b| b.references == 0)
    }

    fn reference(&mut self, key: u64) {
        let block = self.blocks.entry(key).or_insert(Block {
            references: 0,
            idle_since: 0,
        });
        if block.references == 0 {
            self.idle.remove(&block.idle_since);
        }
        block.references += 1;
    }

    fn evict(&mut self) {
        if let Some((_, key)) = self.idle.pop_first() {
            self.blocks.remove(&key);
            self.evictions += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(keys: &[u64]) -> Arc<[u64]> {
        keys.into()
    }

    /// A sequence of just these blocks, computed at once and still running.
    fn run(cache: &mut PrefixCache, blocks: &[u64]) -> Hold {
        let mut hold = cache
            .admit(&keys(blocks), blocks.len(), blocks.len())
            .unwrap();
        cache.publish(&mut hold, blocks.len());
        hold
    }

    fn run_and_release(cache: &mut PrefixCache, blocks: &[u64]) {
        let hold = run(cache, blocks);
        cache.release(hold);
    }

    #[test]
    fn the_longest_prefix_that_is_there_is_hit_and_no_block_behind_a_gap() {
        let mut cache = PrefixCache::new(10);
        run_and_release(&mut cache, &[1, 2, 3]);
        assert_eq!(cache.lookup(&[1, 2, 9]), 2);
        assert_eq!(cache.lookup(&[9, 2, 3]), 0);
        let hold = cache.admit(&keys(&[1, 2, 3, 4]), 2, 5).unwrap();
        assert_eq!(hold.shared(), 2, "no more than the usable keys");
        assert_eq!((cache.used(), cache.referenced()), (6, 5));
        cache.release(hold);
        assert_eq!((cache.used(), cache.referenced()), (3, 0));
    }

    #[test]
    fn nothing_can_be_hit_before_it_is_computed() {
        let mut cache = PrefixCache::new(10);
        let mut first = cache.admit(&keys(&[1, 2]), 2, 2).unwrap();
        assert_eq!(cache.lookup(&[1, 2]), 0);
        cache.publish(&mut first, 1);
        assert_eq!(cache.lookup(&[1, 2]), 1);
        cache.release(first);
        assert_eq!((cache.lookup(&[1, 2]), cache.used()), (1, 1));
    }

    #[test]
    fn the_least_recently_used_block_goes_first_and_the_tail_of_a_chain_before_its_head() {
        let mut cache = PrefixCache::new(4);
        run_and_release(&mut cache, &[1, 2]);
        run_and_release(&mut cache, &[3, 4]);
        run_and_release(&mut cache, &[1]); // younger than 3 and 4 now, unlike 2
        run_and_release(&mut cache, &[5]);
        assert_eq!([1, 2, 3, 4, 5].map(|k| cache.lookup(&[k])), [1, 0, 1, 1, 1]);
        run_and_release(&mut cache, &[6]);
        assert_eq!([1, 3, 4, 5, 6].map(|k| cache.lookup(&[k])), [1, 1, 0, 1, 1]);
        assert_eq!((cache.used(), cache.evictions()), (4, 2));
    }

    #[test]
    fn a_referenced_block_is_never_evicted() {
        let mut cache = PrefixCache::new(4);
        let running = run(&mut cache, &[1, 2]);
        run_and_release(&mut cache, &[3, 4]);
        run_and_release(&mut cache, &[5, 6]);
        assert_eq!((cache.lookup(&[1, 2]), cache.lookup(&[3])), (2, 0));
        assert!(
            cache.admit(&keys(&[7, 8, 9]), 3, 3).is_none(),
            "only two blocks can be had"
        );
        assert_eq!(cache.lookup(&[5, 6]), 2, "a refusal evicts nothing");
        cache.release(running);
        run_and_release(&mut cache, &[7, 8, 9]);
    }

    #[test]
    fn an_idle_block_that_is_hit_does_not_count_as_room() {
        let mut cache = PrefixCache::new(2);
        run_and_release(&mut cache, &[1, 2]);
        assert!(cache.admit(&keys(&[1, 2, 3]), 3, 3).is_none());
        assert_eq!((cache.lookup(&[1, 2]), cache.referenced()), (2, 0));
    }

    #[test]
    fn two_sequences_that_compute_the_same_block_keep_one() {
        let mut cache = PrefixCache::new(4);
        let (chain, total) = (keys(&[1, 2]), 2);
        let mut a = cache.admit(&chain, 2, total).unwrap();
        let mut b = cache.admit(&chain, 2, total).unwrap();
        assert_eq!(cache.used(), 4);
        cache.publish(&mut a, 2);
        cache.publish(&mut b, 2);
        assert_eq!((cache.used(), cache.referenced()), (2, 2));
        cache.release(a);
        assert_eq!(cache.referenced(), 2);
        cache.release(b);
        assert_eq!((cache.used(), cache.referenced()), (2, 0));
        cache.clear();
        assert_eq!(cache.used(), 0);
    }
}
