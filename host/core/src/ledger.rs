//! What is outstanding on each target: counters in blocks of 64 targets, a column a kind of load, so
//! that a scan reads what it compares and nothing else, and the fleet grows without moving a counter
//! that somebody holds.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use crate::types::{Load, Target};
use std::array;
use std::sync::Arc;

/// Targets in a block: one bit each in a set of them.
pub(crate) const BLOCK: usize = 64;

/// What one request adds to its target, and gives back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Charge {
    /// outstanding requests
    pub requests: u32,
    /// prefill tokens, until the first output
    pub prefill_tokens: u64,
    /// the whole prompt, until the end
    pub context_tokens: u64,
}

/// The counters of 64 targets.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) requests: [AtomicU32; BLOCK],
    pub(crate) sessions: [AtomicU32; BLOCK],
    pub(crate) prefill_tokens: [AtomicU64; BLOCK],
    pub(crate) context_tokens: [AtomicU64; BLOCK],
}

impl Default for Block {
    fn default() -> Self {
        Block {
            requests: array::from_fn(|_| AtomicU32::new(0)),
            sessions: array::from_fn(|_| AtomicU32::new(0)),
            prefill_tokens: array::from_fn(|_| AtomicU64::new(0)),
            context_tokens: array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

impl Block {
    fn slot(&self, at: usize) -> Option<Slot<'_>> {
        Some(Slot {
            requests: self.requests.get(at)?,
            sessions: self.sessions.get(at)?,
            prefill_tokens: self.prefill_tokens.get(at)?,
            context_tokens: self.context_tokens.get(at)?,
        })
    }
}

/// The counters of one target.
struct Slot<'a> {
    requests: &'a AtomicU32,
    sessions: &'a AtomicU32,
    prefill_tokens: &'a AtomicU64,
    context_tokens: &'a AtomicU64,
}

/// The counters of all targets. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    blocks: Vec<Arc<Block>>,
}

impl Ledger {
    /// Makes room for targets `0..targets`.
    pub(crate) fn grow(&mut self, targets: usize) {
        let blocks = targets.div_ceil(BLOCK).max(self.blocks.len());
        self.blocks.resize_with(blocks, Arc::default);
    }

    /// For so many targets, with counters of its own, which read as given, and 0 elsewhere.
    pub(crate) fn reading(targets: usize, loads: &[(Target, Load)]) -> Ledger {
        let mut ledger = Ledger::default();
        ledger.grow(targets);
        for &(target, load) in loads {
            if let Some(slot) = ledger.slot(target) {
                slot.requests.store(load.requests, Relaxed);
                slot.sessions.store(load.sessions, Relaxed);
                slot.prefill_tokens.store(load.prefill_tokens, Relaxed);
                slot.context_tokens.store(load.context_tokens, Relaxed);
            }
        }
        ledger
    }

    pub(crate) fn block(&self, block: usize) -> Option<&Block> {
        self.blocks.get(block).map(Arc::as_ref)
    }

    fn slot(&self, target: Target) -> Option<Slot<'_>> {
        let at = target as usize;
        self.block(at / BLOCK)?.slot(at % BLOCK)
    }

    /// What is outstanding on `target`; nothing if there is no such target.
    pub fn load(&self, target: Target) -> Load {
        self.slot(target).map_or_else(Load::default, |slot| Load {
            requests: slot.requests.load(Relaxed),
            sessions: slot.sessions.load(Relaxed),
            prefill_tokens: slot.prefill_tokens.load(Relaxed),
            context_tokens: slot.context_tokens.load(Relaxed),
        })
    }

    /// Adds to what is outstanding.
    pub fn charge(&self, target: Target, charge: Charge) {
        if let Some(slot) = self.slot(target) {
            slot.requests.fetch_add(charge.requests, Relaxed);
            slot.prefill_tokens
                .fetch_add(charge.prefill_tokens, Relaxed);
            slot.context_tokens
                .fetch_add(charge.context_tokens, Relaxed);
        }
    }

    /// Takes back what [`Ledger::charge`] added; the caller sees to it that this happens once.
    pub fn release(&self, target: Target, charge: Charge) {
        if let Some(slot) = self.slot(target) {
            slot.requests.fetch_sub(charge.requests, Relaxed);
            slot.prefill_tokens
                .fetch_sub(charge.prefill_tokens, Relaxed);
            slot.context_tokens
                .fetch_sub(charge.context_tokens, Relaxed);
        }
    }

    /// Sets what is outstanding, for a host whose counters are kept elsewhere.
    pub fn put(&self, target: Target, load: Load) {
        if let Some(slot) = self.slot(target) {
            slot.requests.store(load.requests, Relaxed);
            slot.sessions.store(load.sessions, Relaxed);
            slot.prefill_tokens.store(load.prefill_tokens, Relaxed);
            slot.context_tokens.store(load.context_tokens, Relaxed);
        }
    }

    pub(crate) fn session_bound(&self, target: Target) {
        if let Some(slot) = self.slot(target) {
            slot.sessions.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn session_gone(&self, target: Target) {
        if let Some(slot) = self.slot(target) {
            slot.sessions.fetch_sub(1, Relaxed);
        }
    }
}
