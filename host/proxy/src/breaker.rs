//! The passive breaker: failures of real requests take an engine out, time or a health check lets it
//! back in on trial. Shared by all threads; a healthy engine costs a request one load, no write.

use crate::settings;
use arc_swap::ArcSwap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tokio::sync::Notify;

/// The cooldown doubles this often at most.
const DOUBLINGS: u32 = 5;

/// See the module.
#[derive(Debug)]
pub(crate) struct Breaker {
    settings: ArcSwap<settings::Breaker>,
    /// in a row
    failures: AtomicU32,
    open: AtomicBool,
    /// openings since the last success
    trips: AtomicU32,
    /// the cooldown is over: a passing health check may close it
    on_trial: AtomicBool,
    opened: Notify,
}

impl Breaker {
    pub(crate) fn new(settings: settings::Breaker) -> Breaker {
        Breaker {
            settings: ArcSwap::from_pointee(settings),
            failures: AtomicU32::new(0),
            open: AtomicBool::new(false),
            trips: AtomicU32::new(0),
            on_trial: AtomicBool::new(false),
            opened: Notify::new(),
        }
    }

    /// Other settings from now on; it stays open or closed as it is. A cooldown that runs is the old
    /// one, unless it is begun anew.
    pub(crate) fn set(&self, settings: settings::Breaker) {
        self.settings.store(Arc::new(settings));
    }

    /// A response ended well.
    pub(crate) fn success(&self) {
        if self.failures.load(Relaxed) != 0 && !self.open.load(Relaxed) {
            self.failures.store(0, Relaxed);
            self.trips.store(0, Relaxed);
        }
    }

    /// A request failed. Says whether this opened the breaker.
    pub(crate) fn failure(&self) -> bool {
        let limit = self.settings.load().failures;
        if limit == 0 {
            return false;
        }
        let failures = self.failures.fetch_add(1, Relaxed).saturating_add(1);
        let opens = failures >= limit && !self.open.swap(true, Relaxed);
        if opens {
            self.trips.fetch_add(1, Relaxed);
            self.opened.notify_one();
        }
        opens
    }

    /// Waits until it is open, then until the cooldown is over. For one task at a time.
    pub(crate) async fn cooled(&self) {
        while !self.open.load(Relaxed) || self.on_trial.load(Relaxed) {
            self.opened.notified().await;
        }
        let doublings = self.trips.load(Relaxed).saturating_sub(1).min(DOUBLINGS);
        let cooldown = self.settings.load().cooldown.saturating_mul(1 << doublings);
        tokio::time::sleep(cooldown.max(Duration::from_millis(1))).await;
        self.on_trial.store(true, Relaxed);
    }

    /// Closes it, with one failure left, if its cooldown is over. Says whether it did.
    pub(crate) fn try_close(&self) -> bool {
        let closes = self.on_trial.swap(false, Relaxed);
        if closes {
            let failures = self.settings.load().failures.saturating_sub(1);
            self.failures.store(failures, Relaxed);
            self.open.store(false, Relaxed);
        }
        closes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(failures: u32) -> Breaker {
        Breaker::new(settings::Breaker {
            failures,
            cooldown: Duration::from_millis(1),
        })
    }

    #[test]
    fn only_failures_in_a_row_open_it_and_it_opens_once() {
        let breaker = breaker(2);
        assert!(!breaker.failure());
        breaker.success();
        assert!(!breaker.failure());
        assert!(breaker.failure());
        assert!(!breaker.failure());
    }

    #[test]
    fn zero_failures_turn_it_off() {
        let breaker = breaker(0);
        assert!((0..100).all(|_| !breaker.failure()));
    }

    #[tokio::test]
    async fn a_cooldown_that_nobody_waited_for_to_its_end_is_begun_anew() {
        let breaker = breaker(1);
        breaker.set(settings::Breaker {
            failures: 1,
            cooldown: Duration::from_secs(3600),
        });
        assert!(breaker.failure());
        let waited = tokio::time::timeout(Duration::from_millis(5), breaker.cooled()).await;
        assert!(waited.is_err() && !breaker.try_close());
        breaker.set(settings::Breaker {
            failures: 1,
            cooldown: Duration::ZERO,
        });
        breaker.cooled().await;
        assert!(breaker.try_close());
    }

    #[tokio::test]
    async fn closed_on_trial_it_has_one_failure_left() {
        let breaker = breaker(3);
        assert!(!breaker.try_close());
        for _ in 0..3 {
            breaker.failure();
        }
        breaker.success(); // of a request from before
        breaker.cooled().await;
        assert!(breaker.try_close());
        assert!(breaker.failure());
    }
}
