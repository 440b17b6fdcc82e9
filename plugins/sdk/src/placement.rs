//! Where a request goes that nothing binds: the placements that the built-in policies offer.

use crate::{Choice, Host, Load, Phase, Request, Sums, Target, Tie, Weights};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How to choose a target for a new session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// the lowest score: outstanding prefill tokens and requests
    #[default]
    LeastTokens,
    /// the fewest bound sessions
    FewestSessions,
    /// each in turn
    RoundRobin,
    /// by hash of the session and the target's name: the same on every replica, whatever the load
    Rendezvous,
}

impl Placement {
    /// Chooses; none: nothing is eligible.
    pub fn choose(self, score: Score, request: &Request, host: &mut impl Host) -> Option<Target> {
        let (weights, tie) = match self {
            Placement::LeastTokens => (score.weights(), tie_of(request)),
            Placement::FewestSessions => (Weights::sessions(1), tie_of(request)),
            Placement::RoundRobin => (Weights::NONE, Tie::Turn(host.ticket(lane_of(request)))),
            Placement::Rendezvous => (Weights::NONE, tie_of(request)),
        };
        let choice = host.least(weights, tie, None, None)?;
        Some(choice.target)
    }
}

/// What a target's load counts for: `prefill_tokens + request_equivalent_tokens · requests`. Decoding
/// costs too, and an outstanding request stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Score {
    /// the prefill tokens that one outstanding request is worth; 0: only prefill counts
    pub request_equivalent_tokens: u64,
}

impl Score {
    /// ATOM's default.
    pub const REQUEST_EQUIVALENT_TOKENS: u64 = 512;

    /// For [`Host::least`].
    pub fn weights(self) -> Weights {
        Weights {
            request: self.request_equivalent_tokens,
            prefill_token: 1,
            ..Weights::NONE
        }
    }

    /// Of one target.
    pub fn of(self, load: &Load) -> u64 {
        self.sum(load.prefill_tokens, u64::from(load.requests))
    }

    /// The mean over the placement set.
    pub fn mean(self, sums: &Sums) -> f64 {
        self.sum(sums.prefill_tokens, sums.requests) as f64 / f64::from(sums.targets.max(1))
    }

    /// The target with the lowest score; equals are told apart by hash, as ATOM does.
    pub fn least(
        self,
        request: &Request,
        except: Option<Target>,
        host: &mut impl Host,
    ) -> Option<Choice> {
        host.least(self.weights(), tie_of(request), except, None)
    }

    fn sum(self, prefill_tokens: u64, requests: u64) -> u64 {
        // Saturating, as the host's own scores are.
        prefill_tokens.saturating_add(requests.saturating_mul(self.request_equivalent_tokens))
    }
}

/// The same session meets the same order of targets everywhere; without one, each request its own.
pub fn tie_of(request: &Request) -> Tie {
    Tie::Hash(request.session.unwrap_or(request.seed))
}

/// The lane of [`Host::ticket`] for a request's turn: pools do not disturb each other's turns.
pub fn lane_of(request: &Request) -> u32 {
    match request.phase {
        Phase::Serve => 0,
        Phase::Prefill => 1,
        Phase::Decode => 2,
    }
}
