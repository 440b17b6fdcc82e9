//! Time is passed in.

use crate::sync::atomic::{AtomicU64, Ordering};

/// Milliseconds since a moment that the host chooses; never goes back.
pub trait Clock: Send + Sync {
    /// Now, in ms.
    fn now_ms(&self) -> u64;
}

/// A clock that stands until it is moved: scenarios, replay, tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// Moves on by `ms`.
    pub fn advance(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
