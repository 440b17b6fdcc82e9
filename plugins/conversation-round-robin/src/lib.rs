//! A conversation's first turn takes the next target in turn; later turns keep to it while it is below
//! a cap near the fair share. From TensorRT-LLM, `ConversationAwareADPRouter`.
//!
//! * explicit target: taken, and the conversation is bound there from now on
//! * owner below the cap: the owner. At the cap: the next in turn below it, and the binding stays
//! * owner gone: the next in turn below the cap, and the binding moves
//! * no owner: the next in turn below the cap, and bound
//! * no conversation id: the next in turn below the cap, and nothing recorded
//!
//! If all are at the cap, which takes a hard cap or a multiplier below 1: the fewest outstanding
//! requests, equals in turn.
//!
//! The same requests in the same order give the same decisions: there is no chance in it, not even the
//! request's seed.

mod cap;
#[cfg(test)]
mod tests;

use cap::Cap;
use pointsman_sdk::affinity::{Claim, explicit, nobody};
use pointsman_sdk::placement::lane_of;
use pointsman_sdk::prelude::*;
use pointsman_sdk::reason::Reason;

/// How often a turn is taken anew because another request took it meanwhile.
const TRIES: usize = 8;

/// What the operator may set.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// How far a target may go beyond its fair share. The cap is the larger of
    /// ceil(this · ceil((outstanding requests + 1) / targets)) and the busiest target's outstanding
    /// requests. More than 0.
    #[schemars(extend("exclusiveMinimum" = 0.0))]
    pub fair_share_multiplier: f64,
    /// The most outstanding requests a target may have, whatever its fair share; 0: no such limit.
    pub max_active_requests: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            fair_share_multiplier: 2.0,
            max_active_requests: 0,
        }
    }
}

/// See the crate.
#[derive(Debug)]
pub struct ConversationRoundRobin {
    cap: Cap,
}

impl Policy for ConversationRoundRobin {
    type Config = Config;
    const NAME: &'static str = "conversation-round-robin";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = Reason::WORDS;

    fn new(config: Config) -> Result<Self, String> {
        let cap = Cap::new(config.fair_share_multiplier, config.max_active_requests)?;
        Ok(ConversationRoundRobin { cap })
    }

    fn keys(&self) -> Keys {
        Keys::SESSION
    }

    fn route(&self, request: &Request, host: &mut impl Host) -> Decision {
        if let Some(decision) = explicit(request) {
            return decision;
        }
        let cap = self.cap.over(&host.totals());
        let Some(owner) = request.owner.filter(|owner| owner.eligible) else {
            return match next(request, cap, host) {
                Some(target) => Claim::of(request).at(target),
                None => nobody(),
            };
        };
        let home = Route::to(owner.target, Reason::Owner);
        let load = host.load_of(owner.target);
        if load.is_some_and(|load| load.requests < cap) {
            return home.into();
        }
        match next(request, cap, host) {
            Some(target) if target != owner.target => Route::to(target, Reason::Overflow).into(),
            // Everybody is at the cap and the owner has the fewest, or it is draining and alone.
            _ => home.into(),
        }
    }
}

/// The next target in turn below the cap.
///
/// The cursor is one past the place that was taken last, not a count of the turns: a count would give
/// the successor of a skipped target two turns in a row. It is kept per phase; fleets that serve
/// several models share it.
fn next(request: &Request, cap: u32, host: &mut impl Host) -> Option<Target> {
    let cell = u64::from(lane_of(request));
    let mut cursor = host.get(cell);
    let mut taken = None;
    for _ in 0..TRIES {
        let choice = host
            .least(Weights::NONE, Tie::Turn(cursor), None, Some(cap))
            .or_else(|| host.least(Weights::requests(1), Tie::Turn(cursor), None, None))?;
        taken = Some(choice.target);
        let held = host.swap(cell, cursor, u64::from(choice.place) + 1);
        if held == cursor {
            break;
        }
        cursor = held;
    }
    // So much contention that every try lost: two requests share a turn, and that is all.
    taken
}

pointsman_sdk::export!(ConversationRoundRobin);
