//! One `all_reduce(SUM)` of int64[8] a tick over ranks that run by themselves, in threads or tasks.
//!
//! A round gathers what every living rank brings; the last one completes it, for all alike. A rank
//! with nothing to do sleeps until another one begins a round. If a rank goes, the round that
//! somebody waits in fails: those that wait and those that have not arrived yet are told the same,
//! and the rounds after it are the survivors'.
//!
//! The thresholds travel with the result: whoever changes them, or turns the delayer on or off, all
//! ranks follow at the same tick. Off, ranks do not meet at all.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::delayer::{Reduced, Thresholds, Vector, add};

/// All ranks of an engine, as seen by those who set thresholds.
#[derive(Debug, Clone)]
pub struct Group {
    shared: Arc<Shared>,
}

/// One rank's place in the group; dropped, the rank is gone.
#[derive(Debug)]
pub struct Member {
    shared: Arc<Shared>,
    changed: watch::Receiver<()>,
    /// The round that this rank is in, or enters next.
    round: u64,
    /// It arrived where there is nothing to wait for.
    known: Option<Outcome>,
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
    /// A rank is gone.
    Failed,
    /// The delayer was turned off.
    Off,
}

/// The thresholds in force.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mode {
    /// See there.
    pub thresholds: Thresholds,
    /// Another one each time the delayer is turned on: decisions begin anew.
    pub epoch: u64,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    /// None: off.
    mode: Option<Mode>,
    epoch: u64,
    members: usize,
    /// The round that gathers.
    round: u64,
    arrived: usize,
    sums: Vector,
    /// The last round that was completed. Enough: the next one needs everybody, so nobody still
    /// has to ask for an older one.
    completed: Option<(u64, Outcome)>,
    /// The delayer was turned off before this round: who is in an older one need not catch up.
    floor: u64,
}

impl Group {
    /// A group of so many ranks, which meet if there are thresholds.
    #[must_use]
    pub fn new(ranks: usize, thresholds: Option<Thresholds>) -> (Self, Vec<Member>) {
        let (changed, watching) = watch::channel(());
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                mode: thresholds.map(|thresholds| Mode {
                    thresholds,
                    epoch: 0,
                }),
                epoch: 0,
                members: ranks,
                round: 0,
                arrived: 0,
                sums: Vector::default(),
                completed: None,
                floor: 0,
            }),
            changed,
        });
        let member = |_| Member {
            shared: shared.clone(),
            changed: watching.clone(),
            round: 0,
            known: None,
        };
        let members = (0..ranks).map(member).collect();
        (Self { shared }, members)
    }

    /// Ranks that wait for others now.
    #[cfg(test)]
    pub(crate) fn arrived(&self) -> usize {
        self.shared.lock().arrived
    }

    /// Other thresholds from the next completed round on; none turns the delayer off at once.
    pub fn set(&self, thresholds: Option<Thresholds>) {
        let mut state = self.shared.lock();
        if state.mode.is_none() && thresholds.is_some() {
            state.epoch += 1;
        }
        let epoch = state.epoch;
        state.mode = thresholds.map(|thresholds| Mode { thresholds, epoch });
        if state.mode.is_none() {
            state.next_round();
            state.floor = state.round;
        }
        drop(state);
        self.shared.announce();
    }
}

impl Member {
    /// What is in force now; none: off.
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        self.shared.lock().mode
    }

    /// Ready when another rank waits for this one in a round.
    pub async fn called(&mut self) {
        loop {
            self.changed.borrow_and_update();
            {
                let state = self.shared.lock();
                let round = self.round.max(state.floor);
                if state.mode.is_some() && (state.arrived > 0 || round < state.round) {
                    return;
                }
            }
            self.wait().await;
        }
    }

    /// Brings this rank's part to its round. Once a tick, followed by [`Member::outcome`].
    pub fn arrive(&mut self, vector: &Vector) {
        let mut state = self.shared.lock();
        self.round = self.round.max(state.floor);
        self.known = if state.mode.is_none() {
            Some(Outcome::Off)
        } else if self.round < state.round {
            Some(Outcome::Failed)
        } else {
            None
        };
        if self.known.is_some() {
            return;
        }
        add(&mut state.sums, vector);
        state.arrived += 1;
        if state.arrived >= state.members {
            state.complete();
        }
        drop(state);
        self.shared.announce();
    }

    /// What the round came to, when everybody has arrived. May be given up and asked again.
    pub async fn outcome(&mut self) -> Outcome {
        loop {
            self.changed.borrow_and_update();
            let known = self.known.take();
            if let Some(outcome) = known.or_else(|| self.shared.lock().outcome(self.round)) {
                // Off is no round: the next one is at `floor`, or after it.
                if outcome != Outcome::Off {
                    self.round += 1;
                }
                return outcome;
            }
            self.wait().await;
        }
    }

    async fn wait(&mut self) {
        // The sender lives in `shared`, as long as this member: no error.
        let _ = self.changed.changed().await;
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.members = state.members.saturating_sub(1);
        // It may be this rank itself that had arrived: what it brought is no longer worth a tick.
        if state.arrived > 0 {
            state.next_round();
        }
        drop(state);
        self.shared.announce();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        self.changed.send_replace(());
    }
}

impl State {
    fn next_round(&mut self) {
        self.round += 1;
        self.arrived = 0;
        self.sums = Vector::default();
    }

    fn complete(&mut self) {
        let Some(mode) = self.mode else { return };
        let reduced = Reduced {
            sums: self.sums,
            ranks: self.arrived,
        };
        self.completed = Some((self.round, Outcome::Reduced { reduced, mode }));
        self.next_round();
    }

    /// What `round` came to; none: it still gathers.
    fn outcome(&self, round: u64) -> Option<Outcome> {
        match self.completed {
            Some((completed, outcome)) if completed == round => Some(outcome),
            _ if round < self.floor => Some(Outcome::Off),
            _ if round < self.round => Some(Outcome::Failed),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
