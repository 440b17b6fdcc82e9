//! All ranks of an engine in virtual time, in one thread: tick by tick, rank by rank.
//!
//! Whoever drives it owns time: [`Lockstep::tick`] at `now`, let [`Tick::duration`] pass, then
//! [`Lockstep::complete`]; a tick lasts as long as its longest step. The same requests at the same
//! times give the same ticks. Without thresholds every step may prefill, and the ranks' steps are
//! those of schedulers that know of no delayer.

use std::time::Duration;

use crate::delayer::{Cause, Counts, Delayer, Reduced, Thresholds};
use crate::scheduler::{Admission, Scheduler, Step};
use crate::stats::RankStats;

/// See the module.
#[derive(Debug)]
pub struct Lockstep {
    ranks: Vec<Rank>,
    counts: Counts,
}

#[derive(Debug)]
struct Rank {
    scheduler: Scheduler,
    /// All ranks have one, or none has.
    delayer: Option<Delayer>,
}

/// One tick of all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// What the delayers decided; none: there are none.
    pub cause: Option<Cause>,
    /// Each rank's step, in order; none: it had nothing to do.
    pub steps: Vec<Option<Step>>,
}

impl Tick {
    /// That of the longest step.
    #[must_use]
    pub fn duration(&self) -> Duration {
        let steps = self.steps.iter().flatten();
        steps.map(|step| step.duration).max().unwrap_or_default()
    }
}

impl Lockstep {
    /// These ranks, with a delayer each if there are thresholds.
    #[must_use]
    pub fn new(schedulers: Vec<Scheduler>, thresholds: Option<Thresholds>) -> Self {
        let rank = |scheduler| Rank {
            scheduler,
            delayer: thresholds.map(Delayer::new),
        };
        Self {
            ranks: schedulers.into_iter().map(rank).collect(),
            counts: Counts::default(),
        }
    }

    /// Other thresholds from the next tick on; none turns the delayer off. Turned on, decisions begin
    /// anew.
    pub fn set_delayer(&mut self, thresholds: Option<Thresholds>) {
        for rank in &mut self.ranks {
            match (&mut rank.delayer, thresholds) {
                (Some(delayer), Some(thresholds)) => delayer.set(thresholds),
                (delayer, thresholds) => *delayer = thresholds.map(Delayer::new),
            }
        }
    }

    /// Each rank's figures, in order.
    #[must_use]
    pub fn stats(&self) -> Vec<RankStats> {
        self.ranks
            .iter()
            .map(|rank| rank.scheduler.stats())
            .collect()
    }

    /// A rank's scheduler.
    pub fn rank(&mut self, rank: usize) -> Option<&mut Scheduler> {
        self.ranks.get_mut(rank).map(|rank| &mut rank.scheduler)
    }

    /// What was decided, by cause.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Begins the next tick of all ranks, or says that there is nothing to do.
    pub fn tick(&mut self, now: Duration) -> Option<Tick> {
        if self.ranks.iter().all(|rank| rank.scheduler.is_idle()) {
            return None;
        }
        let cause = self.decide(now);
        if let Some(cause) = cause {
            self.counts.count(cause);
        }
        let admission = if cause.is_none_or(Cause::fires) {
            Admission::Fire
        } else {
            Admission::Hold
        };
        let ranks = self.ranks.iter_mut();
        let steps = ranks.map(|rank| rank.scheduler.step(admission)).collect();
        Some(Tick { cause, steps })
    }

    /// The tick's duration has passed.
    pub fn complete(&mut self, tick: &Tick) {
        for (rank, step) in self.ranks.iter_mut().zip(&tick.steps) {
            if step.as_ref().is_some_and(|step| step.prefill_tokens > 0)
                && let Some(delayer) = &mut rank.delayer
            {
                delayer.notify_prefill_executed();
            }
        }
    }

    /// Every rank decides for itself, on the sums in order of rank.
    fn decide(&mut self, now: Duration) -> Option<Cause> {
        let mut vectors = Vec::with_capacity(self.ranks.len());
        for rank in &self.ranks {
            let delayer = rank.delayer.as_ref()?;
            vectors.push(delayer.contribution(&rank.scheduler.outlook(now)));
        }
        let reduced = Reduced::of(&vectors);
        let mut decided = None;
        for delayer in self
            .ranks
            .iter_mut()
            .filter_map(|rank| rank.delayer.as_mut())
        {
            let cause = delayer.decide(Ok(reduced));
            debug_assert_eq!(*decided.get_or_insert(cause), cause, "ranks disagree");
            decided = Some(cause);
        }
        decided
    }
}

#[cfg(test)]
mod tests;
