//! The [`Latency`] of those targets that somebody wants to know it of. For all others nothing is measured:
//! what nobody reads costs a request one load.

use crate::fleet::Snapshot;
use crate::latency::Latency;
use crate::types::Target;
use arc_swap::ArcSwap;
use std::collections::BTreeMap;
// Not `crate::sync`: no decision depends on it, so that no order of it need be checked with theirs.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A target's window, shared by all threads that measure.
pub type SharedLatency = Arc<Mutex<Latency>>;

/// See the module.
#[derive(Debug, Default)]
pub struct Measured {
    any: AtomicBool,
    windows: ArcSwap<BTreeMap<Target, SharedLatency>>,
}

impl Measured {
    /// From now on those targets of the fleet that are wanted, by endpoint. A target that was measured
    /// before keeps what was.
    pub fn follow(&self, fleet: &Snapshot, wanted: impl Fn(&str) -> bool) {
        let before = self.windows.load_full();
        let windows: BTreeMap<Target, SharedLatency> = (fleet.targets())
            .filter(|(_, spec)| wanted(spec.endpoint.server()))
            .map(|(target, _)| (target, before.get(&target).cloned().unwrap_or_default()))
            .collect();
        self.any.store(!windows.is_empty(), Ordering::Relaxed);
        self.windows.store(Arc::new(windows));
    }

    /// The window of a target; none: nobody wants to know.
    pub fn of(&self, target: Target) -> Option<SharedLatency> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        self.windows.load().get(&target).cloned()
    }

    /// See [`Latency::stat`]; none also where nothing is measured.
    pub fn stat(&self, target: Target, now_ms: u64, name: &str) -> Option<f64> {
        let window = self.of(target)?;
        let window = window.lock().unwrap_or_else(PoisonError::into_inner);
        window.stat(now_ms, name)
    }
}
