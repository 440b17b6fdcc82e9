//! When a call's time is over.
//!
//! The limit is of the clock on the wall, because that is what a request waits. But on a machine that
//! has too much to do the system may take the processor away in the middle of a call that needs a
//! microsecond; no policy must be taken out for that. So a call that is over its time may go on for half
//! of it in processor time, which a policy that spins uses up at once, and for [`LONGEST`] times of it on
//! the wall at most. Nothing of this costs a call that ends in time.

use cpu_time::ThreadTime;
use std::time::{Duration, Instant};

/// Times the limit.
const LONGEST: u32 = 5;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Deadline {
    limit: Duration,
    /// when the time was over, and what the thread had used of the processor then
    over: Option<(Instant, Duration)>,
}

impl Deadline {
    /// A call begins.
    pub(crate) fn begin(&mut self, limit_ms: u64) {
        self.limit = Duration::from_millis(limit_ms);
        self.over = None;
    }

    /// Whether the call is to end. Asked when its time is over, and each tick from then on.
    pub(crate) fn ends(&mut self) -> bool {
        let used = ThreadTime::now().as_duration();
        let Some((since, before)) = self.over else {
            self.over = Some((Instant::now(), used));
            return false;
        };
        used.saturating_sub(before) >= self.limit / 2 || since.elapsed() >= self.limit * LONGEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_spins_ends_and_one_that_waits_for_the_processor_does_not() {
        let mut deadline = Deadline::default();
        deadline.begin(200);
        assert!(
            !deadline.ends(),
            "it may only just have been given the processor"
        );
        // Asleep, it uses none.
        #[expect(
            clippy::disallowed_methods,
            reason = "the time that passes is what is tested"
        )]
        std::thread::sleep(Duration::from_millis(20));
        assert!(!deadline.ends());
        while !deadline.ends() {
            std::hint::black_box(());
        }
        let (since, before) = deadline.over.unwrap();
        let used = ThreadTime::now().as_duration() - before;
        let half = used >= Duration::from_millis(100);
        assert!(half || since.elapsed() >= Duration::from_secs(1));
        deadline.begin(200);
        assert!(!deadline.ends(), "each call anew");
    }
}
