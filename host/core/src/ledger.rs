//! What is outstanding on each target: counters in blocks of 64, so that the fleet grows without
//! moving a counter that somebody holds.

use crate::types::{Load, Target};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

const BLOCK: usize = 64;

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

#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) requests: AtomicU32,
    pub(crate) sessions: AtomicU32,
    pub(crate) prefill_tokens: AtomicU64,
    pub(crate) context_tokens: AtomicU64,
}

impl Slot {
    pub(crate) fn load(&self) -> Load {
        Load {
            requests: self.requests.load(Relaxed),
            sessions: self.sessions.load(Relaxed),
            prefill_tokens: self.prefill_tokens.load(Relaxed),
            context_tokens: self.context_tokens.load(Relaxed),
        }
    }
}

/// The counters of all targets. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    blocks: Vec<Arc<[Slot]>>,
}

impl Ledger {
    /// Makes room for targets `0..targets`.
    pub(crate) fn grow(&mut self, targets: usize) {
        while self.blocks.len() * BLOCK < targets {
            self.blocks
                .push((0..BLOCK).map(|_| Slot::default()).collect());
        }
    }

    #[inline]
    pub(crate) fn slot(&self, target: Target) -> Option<&Slot> {
        let at = target as usize;
        self.blocks.get(at / BLOCK)?.get(at % BLOCK)
    }

    /// What is outstanding on `target`; nothing if there is no such target.
    pub fn load(&self, target: Target) -> Load {
        self.slot(target).map(Slot::load).unwrap_or_default()
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
