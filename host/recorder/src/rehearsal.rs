//! A policy asked what it would have said.

use pointsman_core::{Answer, Fallback, Moment, Outcome, Policy, Router};
use serde::Serialize;
use std::collections::BTreeMap;

/// A question that failed for want of time is put so often: the machine may have been busy.
const TRIES: u32 = 3;
/// Pairs of reasons that are counted apart; a policy has at most 256 reasons.
const MAX_CHANGES: usize = 1024;

/// See the module.
pub struct Rehearsal {
    policy: Policy,
    router: Box<dyn Router>,
    done: Rehearsed,
    changes: BTreeMap<(String, String), u64>,
}

impl std::fmt::Debug for Rehearsal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (f.debug_struct("Rehearsal").field("done", &self.done)).finish_non_exhaustive()
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Rehearsed {
    /// decisions that it was asked for
    pub asked: u64,
    /// those that would send the request elsewhere, or refuse it, or not
    pub changed: u64,
    /// of those, by what both said; the most frequent first
    pub changes: Vec<Change>,
    /// decisions that it failed to make, by cause
    pub failures: BTreeMap<String, u64>,
    /// the first failure, in words
    pub first_failure: Option<String>,
}

/// A change of this kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// what was said at the time
    pub before: String,
    /// what it says
    pub after: String,
    /// how often
    pub count: u64,
}

impl Rehearsed {
    /// The share of changed decisions, 0 to 1; 0 without any decision.
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    pub fn share(&self) -> f64 {
        self.changed as f64 / self.asked.max(1) as f64
    }
}

impl Rehearsal {
    /// Of a policy.
    pub fn new(policy: Policy, router: Box<dyn Router>) -> Rehearsal {
        Rehearsal {
            policy,
            router,
            done: Rehearsed::default(),
            changes: BTreeMap::new(),
        }
    }

    /// Asks it what was asked then.
    pub fn ask(&mut self, moment: &Moment) {
        let mut outcome = self.replay(moment);
        for _ in 1..TRIES {
            if failure(&outcome).is_none_or(|failure| failure.cause() != "timeout") {
                break;
            }
            outcome = self.replay(moment);
        }
        self.done.asked += 1;
        if let Some(failure) = failure(&outcome) {
            *(self.done.failures.entry(failure.cause().to_owned())).or_default() += 1;
            (self.done.first_failure).get_or_insert_with(|| failure.to_string());
        }
        let after = Answer::of(&outcome);
        if !after.agrees(&moment.answer) {
            self.done.changed += 1;
            let key = (moment.answer.word(), after.word());
            if self.changes.len() < MAX_CHANGES || self.changes.contains_key(&key) {
                *self.changes.entry(key).or_default() += 1;
            }
        }
    }

    /// How often it has failed so far.
    pub fn failures(&self) -> u64 {
        self.done.failures.values().sum()
    }

    fn replay(&mut self, moment: &Moment) -> Outcome {
        moment.replay(&self.policy, self.router.as_mut(), Fallback::LeastLoad)
    }

    /// What came of it.
    pub fn end(mut self) -> Rehearsed {
        self.done.changes = (self.changes.into_iter())
            .map(|((before, after), count)| Change {
                before,
                after,
                count,
            })
            .collect();
        self.done
            .changes
            .sort_by_key(|change| std::cmp::Reverse(change.count));
        self.done
    }
}

fn failure(outcome: &Outcome) -> Option<&pointsman_core::Failure> {
    match outcome {
        Outcome::Routed(ticket) => ticket.verdict().failure.as_ref(),
        Outcome::Refused(refusal) => refusal.failure.as_ref(),
    }
}
