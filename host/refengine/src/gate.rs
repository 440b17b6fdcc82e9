//! Whether a rank's next step may prefill: its delayer, and the ranks that it decides with.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::collective::{Member, Mode, Outcome};
use crate::delayer::{Cause, CollectiveError, Counts, Delayer};
use crate::scheduler::Scheduler;

/// One rank's. Off, every step may prefill, and no rank waits for another.
#[derive(Debug)]
pub(crate) struct Gate {
    member: Member,
    /// Of the epoch; none: off.
    delayer: Option<(u64, Delayer)>,
    counts: Decisions,
}

/// A rank's decisions, for those who ask.
#[derive(Debug, Clone, Default)]
pub(crate) struct Decisions(Arc<Mutex<Counts>>);

impl Decisions {
    pub(crate) fn get(&self) -> Counts {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn update(&self, update: impl FnOnce(&mut Counts)) {
        update(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Gate {
    pub(crate) fn new(member: Member, counts: Decisions) -> Self {
        Self {
            member,
            delayer: None,
            counts,
        }
    }

    /// Ready when the other ranks wait for this one.
    pub(crate) async fn called(&mut self) {
        self.member.called().await;
    }

    /// Begins a tick. False: the delayer is off, prefill may run.
    pub(crate) fn begin(&mut self, scheduler: &Scheduler, now: Duration) -> bool {
        let Some(mode) = self.member.mode() else {
            self.delayer = None;
            return false;
        };
        let delayer = follow(&mut self.delayer, mode);
        let vector = delayer.contribution(&scheduler.outlook(now));
        self.member.arrive(&vector);
        true
    }

    /// The decision of the tick that was begun; none: the delayer was turned off, prefill may run. May
    /// be given up and asked again.
    pub(crate) async fn decision(&mut self) -> Option<Cause> {
        let cause = match self.member.outcome().await {
            Outcome::Off => return None,
            Outcome::Reduced { reduced, mode } => {
                follow(&mut self.delayer, mode).decide(Ok(reduced))
            }
            Outcome::Failed => self.delayer.as_mut()?.1.decide(Err(CollectiveError)),
        };
        self.counts.update(|counts| counts.count(cause));
        Some(cause)
    }

    /// A step with prefill has completed.
    pub(crate) fn prefill_executed(&mut self) {
        if let Some((_, delayer)) = &mut self.delayer {
            delayer.notify_prefill_executed();
        }
    }
}

/// The delayer of this epoch with these thresholds.
pub(crate) fn follow(delayer: &mut Option<(u64, Delayer)>, mode: Mode) -> &mut Delayer {
    let (epoch, delayer) =
        delayer.get_or_insert_with(|| (mode.epoch, Delayer::new(mode.thresholds)));
    if *epoch != mode.epoch {
        *epoch = mode.epoch;
        delayer.restart();
    }
    delayer.set(mode.thresholds);
    delayer
}
