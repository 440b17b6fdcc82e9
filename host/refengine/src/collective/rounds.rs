//! Who is in which round: a state machine without clock or threads.

use std::time::Duration;

use tokio::time::Instant;

use super::{Mode, Outcome};
use crate::delayer::{Reduced, Thresholds, Vector, add};

/// The round that gathers, and what each rank has not heard yet.
#[derive(Debug)]
pub(super) struct Rounds {
    /// None: off.
    mode: Option<Mode>,
    epoch: u64,
    timeout: Option<Duration>,
    /// When the first rank arrived.
    began: Option<Instant>,
    arrived: usize,
    /// Ranks that the round waits for, those that arrived among them.
    members: usize,
    sums: Vector,
    places: Vec<Place>,
}

/// One rank's.
#[derive(Debug, Clone, Copy)]
struct Place {
    standing: Standing,
    /// What its last round came to, until it hears of it. Kept for each rank, because the others may
    /// be rounds ahead: they do not wait for one that is suspended.
    unheard: Option<Outcome>,
    /// Rounds that failed while it was expected in them.
    missed: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Expected,
    Arrived,
    /// It did not come in time: no round waits for it.
    Suspended,
    Gone,
}

impl Rounds {
    pub(super) fn new(
        ranks: usize,
        thresholds: Option<Thresholds>,
        timeout: Option<Duration>,
    ) -> Self {
        let place = Place {
            standing: Standing::Expected,
            unheard: None,
            missed: 0,
        };
        Self {
            mode: thresholds.map(|thresholds| Mode {
                thresholds,
                epoch: 0,
            }),
            epoch: 0,
            timeout,
            began: None,
            arrived: 0,
            members: ranks,
            sums: Vector::default(),
            places: vec![place; ranks],
        }
    }

    pub(super) fn mode(&self) -> Option<Mode> {
        self.mode
    }

    #[cfg(test)]
    pub(super) fn arrived(&self) -> usize {
        self.arrived
    }

    pub(super) fn suspended(&self) -> Vec<bool> {
        let suspended = |place: &Place| place.standing == Standing::Suspended;
        self.places.iter().map(suspended).collect()
    }

    /// When those that wait give up.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.began?.checked_add(self.timeout?)
    }

    pub(super) fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    pub(super) fn set(&mut self, thresholds: Option<Thresholds>) {
        if self.mode.is_none() && thresholds.is_some() {
            self.epoch += 1;
        }
        let epoch = self.epoch;
        self.mode = thresholds.map(|thresholds| Mode { thresholds, epoch });
        if self.mode.is_none() {
            self.end(Outcome::Off, |place| {
                place.standing = Standing::Expected;
                place.missed = 0;
            });
        }
    }

    /// Somebody waits for this rank, or it has a failure to hear of.
    pub(super) fn calls(&self, rank: usize) -> bool {
        let waits = |place: &Place| match place.standing {
            Standing::Expected => self.arrived > 0 || place.missed > 0,
            Standing::Suspended => true,
            Standing::Arrived | Standing::Gone => false,
        };
        self.mode.is_some() && self.places.get(rank).is_some_and(waits)
    }

    /// True: the others are to be told that a round began, or is over.
    pub(super) fn arrive(&mut self, rank: usize, vector: &Vector, now: Instant) -> bool {
        let Some(place) = self.places.get_mut(rank) else {
            return false;
        };
        if self.mode.is_none() {
            place.unheard = Some(Outcome::Off);
            return false;
        }
        match place.standing {
            Standing::Suspended => {
                *place = Place {
                    standing: Standing::Expected,
                    unheard: Some(Outcome::Failed),
                    missed: 0,
                };
                self.members += 1;
                self.epoch += 1;
                let epoch = self.epoch;
                self.mode = self.mode.map(|mode| Mode { epoch, ..mode });
                return false;
            }
            Standing::Expected if place.missed > 0 => {
                place.missed -= 1;
                place.unheard = Some(Outcome::Failed);
                return false;
            }
            Standing::Expected => place.standing = Standing::Arrived,
            Standing::Arrived | Standing::Gone => return false,
        }
        add(&mut self.sums, vector);
        self.arrived += 1;
        self.began.get_or_insert(now);
        if self.arrived >= self.members {
            self.complete();
            return true;
        }
        self.arrived == 1
    }

    /// What this rank's round came to; none: it still gathers.
    pub(super) fn hear(&mut self, rank: usize) -> Option<Outcome> {
        self.places.get_mut(rank)?.unheard.take()
    }

    /// Fails the round if its time is over, and suspends those that did not come.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let over = self.deadline().is_some_and(|deadline| deadline <= now);
        if over {
            self.end(Outcome::Failed, |place| {
                place.standing = Standing::Suspended;
            });
        }
        over
    }

    /// This rank is gone, and with it the round that somebody waits in. It may be this one itself that
    /// had arrived: what it brought is no longer worth a tick.
    pub(super) fn leave(&mut self, rank: usize) {
        let Some(place) = self.places.get_mut(rank) else {
            return;
        };
        let was = std::mem::replace(&mut place.standing, Standing::Gone);
        self.members = self.count();
        // Nobody waits for a rank that is suspended.
        if self.arrived > 0 && was != Standing::Suspended {
            self.end(Outcome::Failed, |place| {
                place.missed = place.missed.saturating_add(1);
            });
        }
    }

    fn complete(&mut self) {
        let Some(mode) = self.mode else { return };
        let reduced = Reduced {
            sums: self.sums,
            ranks: self.arrived,
        };
        self.end(Outcome::Reduced { reduced, mode }, |_| {});
    }

    /// The round is over for those that arrived, with this outcome; the others are `absent`.
    fn end(&mut self, outcome: Outcome, absent: impl Fn(&mut Place)) {
        let off = outcome == Outcome::Off;
        for place in &mut self.places {
            match place.standing {
                Standing::Arrived => {
                    place.standing = Standing::Expected;
                    place.unheard = Some(outcome);
                }
                Standing::Expected => absent(place),
                // Off, nobody is late: all begin anew.
                Standing::Suspended if off => absent(place),
                Standing::Suspended | Standing::Gone => {}
            }
        }
        self.began = None;
        self.arrived = 0;
        self.sums = Vector::default();
        self.members = self.count();
    }

    fn count(&self) -> usize {
        let counts =
            |place: &&Place| matches!(place.standing, Standing::Expected | Standing::Arrived);
        self.places.iter().filter(counts).count()
    }
}

#[cfg(test)]
mod tests;
