//! Every request goes where the least work is outstanding; sessions are not followed.
//!
//! Score of a target: `prefill_tokens + request_equivalent_tokens · requests`; equals take turns. From
//! ATOM, `--dp-load-balance least_tokens`.

use pointsman_sdk::placement::{Score, lane_of};
use pointsman_sdk::prelude::*;
use pointsman_sdk::reason::Reason;

/// What the operator may set.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// The prefill tokens that one outstanding request is worth in a target's score; 0: only prefill
    /// counts.
    pub request_equivalent_tokens: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            request_equivalent_tokens: Score::REQUEST_EQUIVALENT_TOKENS,
        }
    }
}

/// See the crate.
#[derive(Debug)]
pub struct LeastTokens {
    score: Score,
}

impl Policy for LeastTokens {
    type Config = Config;
    const NAME: &'static str = "least-tokens";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = Reason::WORDS;

    fn new(config: Config) -> Result<Self, String> {
        let score = Score {
            request_equivalent_tokens: config.request_equivalent_tokens,
        };
        Ok(LeastTokens { score })
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn route(&self, request: &Request, host: &mut impl Host) -> Decision {
        if let Some(target) = request.explicit {
            return Route::to(target, Reason::Explicit).into();
        }
        let turn = Tie::Turn(host.ticket(lane_of(request)));
        match host.least(self.score.weights(), turn, None, None) {
            Some(least) => Route::to(least.target, Reason::Placed).into(),
            None => Decision::Abstain(Reason::Nobody.into()),
        }
    }
}

pointsman_sdk::export!(LeastTokens);

#[cfg(test)]
mod tests {
    use super::*;
    use pointsman_sdk::testing::{Bench, anonymous, session};

    fn bench(config: &str) -> Bench<LeastTokens> {
        Bench::new(config).unwrap().with(["a/0", "a/1", "b/0"])
    }

    #[test]
    fn the_least_outstanding_work_wins() {
        let mut bench = bench("");
        bench.load("a/0", 1, 2_000);
        bench.load("a/1", 1, 1_000);
        bench.load("b/0", 1, 3_000);
        assert_eq!(bench.send(anonymous()), "a/1 placed");
    }

    #[test]
    fn a_request_counts_as_much_as_512_prefill_tokens() {
        let mut bench = bench("");
        bench.load("a/0", 2, 0);
        bench.load("a/1", 0, 1_023);
        bench.load("b/0", 0, 1_025);
        assert_eq!(bench.send(anonymous()), "a/1 placed");
        bench.load("a/1", 0, 1_025);
        bench.load("b/0", 0, 1_025);
        assert_eq!(bench.send(anonymous().tokens(0)), "a/0 placed");
    }

    #[test]
    fn the_worth_of_a_request_is_a_setting() {
        let mut bench = bench(r#"{"request_equivalent_tokens": 0}"#);
        bench.load("a/0", 9, 10);
        bench.load("a/1", 0, 11);
        bench.load("b/0", 0, 12);
        assert_eq!(bench.send(anonymous()), "a/0 placed");
    }

    #[test]
    fn equals_take_turns() {
        let mut bench = bench(r#"{"request_equivalent_tokens": 0}"#);
        let went: Vec<String> = (0..4)
            .map(|_| format!("{:?}", bench.send(anonymous().tokens(0))))
            .collect();
        let turns = ["a/0", "a/1", "b/0", "a/0"].map(|t| format!("{:?}", format!("{t} placed")));
        assert_eq!(went, turns);
    }

    #[test]
    fn sessions_are_not_followed_and_nothing_is_bound() {
        let mut bench = bench("");
        assert_eq!(bench.send(session("s")), "a/0 placed");
        assert_eq!(bench.send(session("s")), "a/1 placed");
        assert_eq!(bench.bound("s"), None);
    }

    #[test]
    fn the_clients_own_choice_is_taken_and_not_bound() {
        let mut bench = bench("");
        bench.load("b/0", 9, 9_000);
        assert_eq!(bench.send(session("s").explicit("b/0")), "b/0 explicit");
        assert_eq!(bench.bound("s"), None);
    }

    #[test]
    fn with_nobody_eligible_it_abstains() {
        let mut bench = bench("");
        for name in ["a/0", "a/1", "b/0"] {
            bench.down(name);
        }
        assert_eq!(bench.send(anonymous()), "503 nobody fallback");
    }

    #[test]
    fn a_misspelt_option_is_refused_with_the_right_one() {
        let error = Bench::<LeastTokens>::new(r#"{"request_equivalent": 1}"#).unwrap_err();
        assert!(
            error.contains(
                "unknown field `request_equivalent`, expected `request_equivalent_tokens`"
            ),
            "{error}"
        );
    }

    #[test]
    fn an_impossible_value_is_refused_by_name() {
        let error = Bench::<LeastTokens>::new(r#"{"request_equivalent_tokens": -1}"#).unwrap_err();
        assert!(
            error.starts_with(
                "`request_equivalent_tokens`: invalid value: integer `-1`, expected u64"
            ),
            "{error}"
        );
    }
}
