//! What the operator may set.

use crate::guard::Guard;
use pointsman_sdk::affinity::{Affinity, WhenOwnerBusy, WhenOwnerGone};
use pointsman_sdk::placement::{Placement, Score};
use pointsman_sdk::prelude::*;
use pointsman_sdk::reason::Reason;
use pointsman_sdk::serde::Serialize;

/// The options.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// How a new session without a group to follow is placed.
    pub placement: Placement,
    /// The prefill tokens that one outstanding request is worth in a target's score; 0: only prefill
    /// counts.
    pub request_equivalent_tokens: u64,
    /// What a session does whose owner is busy.
    pub when_owner_busy: WhenOwnerBusy,
    /// The owner is busy with at least this many outstanding requests; 0: always. Read only by
    /// `repin` and `overflow`.
    pub busy_requests: u32,
    /// What a session does whose owner may not take the request: down, tried already, or removed.
    pub when_owner_gone: WhenOwnerGone,
    /// Whom a new session follows.
    pub group: Group,
    /// Follow only under the thresholds below; false: whatever the load.
    pub guard: bool,
    /// Follow only while fewer requests of the group than this are in flight on its target; 0: never.
    pub guard_group_requests: u32,
    /// Follow only while the score of the group's target is at most this times the mean score of the
    /// eligible targets, plus `guard_slack_tokens`. 0 or more.
    #[schemars(range(min = 0.0))]
    pub guard_load_ratio: f64,
    /// See `guard_load_ratio`. So that an idle fleet, whose mean is near 0, refuses nobody.
    pub guard_slack_tokens: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            placement: Placement::default(),
            request_equivalent_tokens: Score::REQUEST_EQUIVALENT_TOKENS,
            when_owner_busy: WhenOwnerBusy::default(),
            busy_requests: 8,
            when_owner_gone: WhenOwnerGone::default(),
            group: Group::default(),
            guard: true,
            guard_group_requests: 4,
            guard_load_ratio: 1.5,
            guard_slack_tokens: 65_536,
        }
    }
}

impl Config {
    pub(crate) fn session(&self) -> Affinity {
        Affinity {
            score: Score {
                request_equivalent_tokens: self.request_equivalent_tokens,
            },
            placement: self.placement,
            when_owner_busy: self.when_owner_busy,
            busy_requests: self.busy_requests,
            when_owner_gone: self.when_owner_gone,
        }
    }

    pub(crate) fn guard(&self) -> Result<Option<Guard>, String> {
        let ratio = self.guard_load_ratio;
        if !(ratio.is_finite() && ratio >= 0.0) {
            return Err(format!(
                "`guard_load_ratio`: {ratio} is impossible: a target's score is compared with this times the mean, so it must be a number of 0 or more (default 1.5)"
            ));
        }
        Ok(self.guard.then_some(Guard {
            group_requests: self.guard_group_requests,
            load_ratio: ratio,
            slack_tokens: self.guard_slack_tokens,
        }))
    }
}

/// Whom a new session follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "pointsman_sdk::schemars")]
pub enum Group {
    /// the children of its parent, taken together: the first of them is placed, the others follow it
    #[default]
    Siblings,
    /// its parent's own binding
    Parent,
}

impl Group {
    pub(crate) fn key(self) -> Key {
        match self {
            Group::Siblings => Key::Siblings,
            Group::Parent => Key::Parent,
        }
    }

    pub(crate) fn keys(self) -> Keys {
        match self {
            Group::Siblings => Keys::SIBLINGS,
            Group::Parent => Keys::PARENT,
        }
    }

    pub(crate) fn reason(self) -> Reason {
        match self {
            Group::Siblings => Reason::Siblings,
            Group::Parent => Reason::Parent,
        }
    }

    /// What a request records of its group where it is placed. The parent's binding is the parent's.
    pub(crate) fn recorded_by(self, request: &Request) -> Keys {
        match self {
            Group::Siblings if request.session.is_some() => Keys::SIBLINGS,
            _ => Keys::empty(),
        }
    }
}
