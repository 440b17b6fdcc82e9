//! One `all_reduce(SUM)` of int64[8] a tick over ranks that run by themselves, in threads or tasks.
//!
//! A round gathers what every member brings; the last one completes it, for all alike. A rank with
//! nothing to do sleeps until another one begins a round. If a rank goes, the round that somebody
//! waits in fails: those that wait and those that have not arrived yet are told the same, and the
//! rounds after it are the survivors'.
//!
//! A rank that hangs looks like one that is slow, so a round waits no longer than the timeout. Then it
//! fails for those that wait, and those that did not come are suspended: the next rounds are without
//! them. Whoever comes back hears that its round failed, and is a member again; all decide anew from
//! the round on that it takes part in, because it does not know what was decided without it. Rejected:
//! handing it the others' state; what a delayer has to remember is a few ticks.
//!
//! The thresholds travel with the result: whoever changes them, or turns the delayer on or off, all
//! ranks follow at the same tick. Off, ranks do not meet at all.

mod rounds;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::delayer::{Reduced, Thresholds, Vector};
use rounds::Rounds;

/// All ranks of an engine, as seen by those who set thresholds.
#[derive(Debug, Clone)]
pub struct Group {
    shared: Arc<Shared>,
}

/// One rank's place in the group; dropped, the rank is gone.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    rank: usize,
    changed: watch::Receiver<()>,
}

/// What a round came to, the same for every rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Outcome {
    /// Everybody arrived.
    Reduced {
        /// The sums.
        reduced: Reduced,
        /// What to decide with.
        mode: Mode,
    },
    /// A rank is gone, or did not come in time.
    Failed,
    /// The delayer was turned off.
    Off,
}

/// The thresholds in force.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mode {
    /// See there.
    pub thresholds: Thresholds,
    /// Another one each time the delayer is turned on or a rank comes back: decisions begin anew.
    pub epoch: u64,
}

#[derive(Debug)]
struct Shared {
    rounds: Mutex<Rounds>,
    /// Somebody waits for those that have not arrived, or a round is over.
    changed: watch::Sender<()>,
}

impl Group {
    /// A group of so many ranks, which meet if there are thresholds, and wait for each other no
    /// longer than the timeout, if there is one.
    #[must_use]
    pub fn new(
        ranks: usize,
        thresholds: Option<Thresholds>,
        timeout: Option<Duration>,
    ) -> (Self, Vec<Member>) {
        let (changed, watching) = watch::channel(());
        let rounds = Mutex::new(Rounds::new(ranks, thresholds, timeout));
        let shared = Arc::new(Shared { rounds, changed });
        let member = |rank| Member {
            shared: shared.clone(),
            rank,
            changed: watching.clone(),
        };
        let members = (0..ranks).map(member).collect();
        (Self { shared }, members)
    }

    /// Other thresholds from the next completed round on; none turns the delayer off at once.
    pub fn set(&self, thresholds: Option<Thresholds>) {
        self.shared.rounds().set(thresholds);
        self.shared.announce();
    }

    /// Another timeout, also of the round that somebody waits in; none: no end.
    pub fn set_timeout(&self, timeout: Option<Duration>) {
        self.shared.rounds().set_timeout(timeout);
        self.shared.announce();
    }

    /// Of each rank: the others do not wait for it, because it did not come in time.
    #[must_use]
    pub fn suspended(&self) -> Vec<bool> {
        self.shared.rounds().suspended()
    }

    /// Ranks that wait for others now.
    #[cfg(test)]
    pub(crate) fn arrived(&self) -> usize {
        self.shared.rounds().arrived()
    }
}

impl Member {
    /// What is in force now; none: off.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.shared.rounds().mode()
    }

    /// Ready when another rank waits for this one in a round, or a round failed without it.
    pub async fn called(&mut self) {
        loop {
            self.changed.borrow_and_update();
            if self.shared.rounds().calls(self.rank) {
                return;
            }
            self.wait().await;
        }
    }

    /// Brings this rank's part to its round. Once a tick, followed by [`Member::outcome`].
    pub fn arrive(&mut self, vector: &Vector) {
        let news = (self.shared.rounds()).arrive(self.rank, vector, Instant::now());
        // Whoever waits is told when the round is over, and not of each one that comes.
        if news {
            self.shared.announce();
        }
    }

    /// What the round came to, when everybody has arrived or the timeout is over. May be given up and
    /// asked again. Within a tokio runtime with time, if there is a timeout.
    pub async fn outcome(&mut self) -> Outcome {
        loop {
            self.changed.borrow_and_update();
            let deadline = {
                let mut rounds = self.shared.rounds();
                if let Some(outcome) = rounds.hear(self.rank) {
                    return outcome;
                }
                rounds.deadline()
            };
            let Some(deadline) = deadline else {
                self.wait().await;
                continue;
            };
            // It may be the round after the one that was waited for: `expire` looks again.
            if timeout_at(deadline, self.wait()).await.is_err()
                && self.shared.rounds().expire(Instant::now())
            {
                self.shared.announce();
            }
        }
    }

    async fn wait(&mut self) {
        // The sender lives in `shared`, as long as this member: no error.
        let _ = self.changed.changed().await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.rounds().leave(self.rank);
        self.shared.announce();
    }
}

impl Shared {
    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        self.changed.send_replace(());
    }
}

#[cfg(test)]
mod tests;
