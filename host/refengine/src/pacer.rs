//! Modelled time against the machine's clock.

use std::time::Duration;

use tokio::time::Instant;

/// Timers have a resolution of about 1 ms: what is due sooner is not waited for, and the next wait
/// is as much longer.
const RESOLUTION: Duration = Duration::from_millis(1);

/// How much delay is caught up. More (a machine that cannot keep up) is forgotten.
const CATCH_UP: Duration = Duration::from_millis(5);

/// No wait is longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Where the modelled time of one rank stands.
#[derive(Debug)]
pub(crate) struct Pacer {
    scale: f64,
    due: Instant,
}

impl Pacer {
    pub(crate) fn new(scale: f64) -> Self {
        Self {
            scale,
            due: Instant::now(),
        }
    }

    /// There was nothing to do until now.
    pub(crate) fn resume(&mut self) {
        self.due = Instant::now();
    }

    /// A step of that modelled duration begins where the last one ended: until when to wait, if at
    /// all.
    pub(crate) fn end_of(&mut self, modelled: Duration) -> Option<Instant> {
        let wait = Duration::try_from_secs_f64(modelled.as_secs_f64() * self.scale)
            .map_or(LONGEST_WAIT, |d| d.min(LONGEST_WAIT));
        let now = Instant::now();
        let begin = now
            .checked_sub(CATCH_UP)
            .map_or(self.due, |oldest| self.due.max(oldest));
        self.due = begin.checked_add(wait).unwrap_or(begin);
        (self.due > now + RESOLUTION).then_some(self.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn short_steps_add_up_to_one_wait() {
        let mut pacer = Pacer::new(0.1);
        let start = Instant::now();
        let step = Duration::from_millis(4);
        assert_eq!(pacer.end_of(step), None);
        assert_eq!(pacer.end_of(step), None);
        let due = pacer.end_of(step).unwrap();
        assert_eq!(due - start, Duration::from_micros(1200));
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_delay_is_caught_up_and_a_large_one_forgotten() {
        for (late_ms, wait_ms) in [(2, 98), (5, 95), (1000, 95)] {
            let mut pacer = Pacer::new(1.0);
            tokio::time::advance(Duration::from_millis(late_ms)).await;
            let wait = pacer.end_of(Duration::from_millis(100)).unwrap() - Instant::now();
            assert_eq!(wait, Duration::from_millis(wait_ms));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_rank_owes_nothing_and_scale_zero_never_waits() {
        let mut pacer = Pacer::new(1.0);
        tokio::time::advance(Duration::from_millis(3)).await;
        pacer.resume();
        let step = Duration::from_millis(10);
        assert_eq!(pacer.end_of(step), Some(Instant::now() + step));
        assert_eq!(Pacer::new(0.0).end_of(Duration::from_secs(3600)), None);
        assert!(
            Pacer::new(f64::MAX)
                .end_of(Duration::from_secs(3600))
                .is_some()
        );
    }
}
