//! Every session keeps to its owner, the target that it was first placed on: its KV cache is there.
//!
//! * explicit target: taken, and the session is bound there from now on
//! * owner that may take the request: the owner; if it is busy, as `when_owner_busy` says
//! * owner that may not: as `when_owner_gone` says
//! * no owner: placed and bound; a child session too is placed on its own
//! * no session id: placed, and nothing recorded
//!
//! From ATOM #2016 (an immutable owner, the default), Dynamo's hard and soft affinity, atomesh
//! `dp_sticky`, SMG.

#[cfg(test)]
mod tests;

use pointsman_sdk::affinity::{Affinity, Own, WhenOwnerBusy, WhenOwnerGone};
use pointsman_sdk::placement::{Placement, Score};
use pointsman_sdk::prelude::*;
use pointsman_sdk::reason::Reason;

/// What the operator may set.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// How a new session is placed.
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
}

impl Default for Config {
    fn default() -> Self {
        Config {
            placement: Placement::default(),
            request_equivalent_tokens: Score::REQUEST_EQUIVALENT_TOKENS,
            when_owner_busy: WhenOwnerBusy::default(),
            busy_requests: 8,
            when_owner_gone: WhenOwnerGone::default(),
        }
    }
}

/// See the crate.
#[derive(Debug)]
pub struct SessionAffinity {
    session: Affinity,
}

impl Policy for SessionAffinity {
    type Config = Config;
    const NAME: &'static str = "session-affinity";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = Reason::WORDS;

    fn new(config: Config) -> Result<Self, String> {
        let session = Affinity {
            score: Score {
                request_equivalent_tokens: config.request_equivalent_tokens,
            },
            placement: config.placement,
            when_owner_busy: config.when_owner_busy,
            busy_requests: config.busy_requests,
            when_owner_gone: config.when_owner_gone,
        };
        Ok(SessionAffinity { session })
    }

    fn keys(&self) -> Keys {
        Keys::SESSION
    }

    fn route(&self, request: &Request, host: &mut impl Host) -> Decision {
        match self.session.own(request, host) {
            Own::Decided(decision) => decision,
            Own::Open(claim) => self.session.place(claim, request, host),
        }
    }
}

pointsman_sdk::export!(SessionAffinity);
