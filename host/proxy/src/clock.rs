use pointsman_core::Clock;
use std::time::Instant;

/// The machine's monotonic clock, counted from the moment it was made.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// Stands at 0 ms now.
    pub fn start() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
