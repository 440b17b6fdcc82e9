//! How much of a policy's log is kept.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// Lines of one policy in one second, of all its instances together; more are dropped, and the log says so.
const LINES: u64 = 64;

/// See the module. A policy that writes with every request must not fill the disk, nor make a worker
/// wait for whoever reads the log.
#[derive(Debug)]
pub(crate) struct LogBudget {
    began: Instant,
    /// the second that `lines` counts
    second: AtomicU64,
    lines: AtomicU64,
}

impl LogBudget {
    pub(crate) fn new() -> LogBudget {
        LogBudget {
            began: Instant::now(),
            second: AtomicU64::new(0),
            lines: AtomicU64::new(0),
        }
    }

    /// Whether one more line may be written.
    pub(crate) fn take(&self, policy: &str) -> bool {
        let line = self.at(self.began.elapsed().as_secs());
        if line == LINES {
            tracing::warn!(
                policy,
                "more than {LINES} lines in this second, the rest is dropped"
            );
        }
        line < LINES
    }

    /// The number of the line in its second, from 0.
    fn at(&self, now: u64) -> u64 {
        if self.second.swap(now, Relaxed) != now {
            self.lines.store(0, Relaxed);
        }
        self.lines.fetch_add(1, Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_so_many_lines_and_the_next_one_has_them_again() {
        let budget = LogBudget::new();
        for second in [0, 1, 7] {
            let taken = (0..1000).filter(|_| budget.at(second) < LINES).count();
            assert_eq!(taken as u64, LINES);
        }
    }
}
