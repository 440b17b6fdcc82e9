//! What is counted of a shadow.

use pointsman_core::{Answer, Failure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pairs of reasons that are counted apart; those beyond count together.
const MAX_DIFFERENCES: usize = 1024;
/// Upper bounds of its times, in ns.
const BOUNDS_NS: [u64; 12] = [
    500,
    1_000,
    2_500,
    5_000,
    10_000,
    25_000,
    50_000,
    100_000,
    500_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

/// How a shadow compares with the live policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// decisions that the shadow made
    pub decided: u64,
    /// of those, where both would send the request to the same target, or refuse it with the same
    /// status
    pub agreed: u64,
    /// the rest, by what both said; the most frequent first
    pub differences: Vec<Difference>,
    /// decisions that the shadow did not make, by cause
    pub failures: BTreeMap<&'static str, u64>,
    /// live decisions that it was not asked for: it had too much to do
    pub dropped: u64,
    /// decisions that wait for it
    pub waiting: usize,
    /// requests that it follows
    pub in_flight: usize,
    /// in its own table
    pub bindings: usize,
    /// of a decision, in ns
    pub mean_ns: u64,
    /// the longest
    pub max_ns: u64,
    /// decisions that took at most so long (ns), each with all the shorter ones
    pub times: Vec<(u64, u64)>,
    /// of all decisions, in ns
    pub total_ns: u64,
}

/// Decisions that differ in this way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// the live policy's word
    pub live: String,
    /// the shadow's
    pub shadow: String,
    /// how often
    pub count: u64,
}

impl Report {
    /// The share of agreement, 0 to 1; none without any decision.
    #[expect(clippy::cast_precision_loss, reason = "a share for people")]
    pub fn agreement(&self) -> Option<f64> {
        (self.decided > 0).then(|| self.agreed as f64 / self.decided as f64)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    decided: u64,
    agreed: u64,
    differences: BTreeMap<(String, String), u64>,
    failures: BTreeMap<&'static str, u64>,
    pub(crate) bindings: usize,
    total_ns: u64,
    max_ns: u64,
    buckets: [u64; BOUNDS_NS.len()],
}

impl Tally {
    pub(crate) fn compared(&mut self, live: &Answer, shadow: &Answer, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.decided += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
        let at = BOUNDS_NS.partition_point(|&bound| bound < ns);
        if let Some(bucket) = self.buckets.get_mut(at) {
            *bucket += 1;
        }
        if live.agrees(shadow) {
            self.agreed += 1;
            return;
        }
        let mut key = (live.word(), shadow.word());
        if self.differences.len() >= MAX_DIFFERENCES && !self.differences.contains_key(&key) {
            key = ("other".to_owned(), "other".to_owned());
        }
        *self.differences.entry(key).or_default() += 1;
    }

    /// Whether this is the first of its cause.
    pub(crate) fn failed(&mut self, failure: &Failure) -> bool {
        let count = self.failures.entry(failure.cause()).or_default();
        *count += 1;
        *count == 1
    }

    pub(crate) fn report(&self) -> Report {
        let mut below = 0;
        let times = (BOUNDS_NS.iter().zip(&self.buckets))
            .map(|(&bound, &count)| {
                below += count;
                (bound, below)
            })
            .collect();
        let mut differences: Vec<Difference> = (self.differences.iter())
            .map(|((live, shadow), &count)| Difference {
                live: live.clone(),
                shadow: shadow.clone(),
                count,
            })
            .collect();
        differences.sort_by_key(|difference| std::cmp::Reverse(difference.count));
        Report {
            decided: self.decided,
            agreed: self.agreed,
            differences,
            failures: self.failures.clone(),
            bindings: self.bindings,
            mean_ns: self.total_ns / self.decided.max(1),
            max_ns: self.max_ns,
            times,
            total_ns: self.total_ns,
            ..Report::default()
        }
    }
}
