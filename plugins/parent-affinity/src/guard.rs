//! When a group's target is too loaded to follow, so that a wide fan-out does not pile onto one rank.

use pointsman_sdk::placement::Score;
use pointsman_sdk::prelude::*;

/// Both conditions must hold. See [`crate::Config`].
#[derive(Debug)]
pub(crate) struct Guard {
    pub(crate) group_requests: u32,
    pub(crate) load_ratio: f64,
    pub(crate) slack_tokens: u64,
}

impl Guard {
    /// May one more request of the group go to its target, whose score is `score`?
    pub(crate) fn admits(
        &self,
        group: &Binding,
        score: u64,
        by: Score,
        host: &mut impl Host,
    ) -> bool {
        group.in_flight < self.group_requests
            && score as f64 <= self.load_ratio * by.mean(&host.totals()) + self.slack_tokens as f64
    }
}
