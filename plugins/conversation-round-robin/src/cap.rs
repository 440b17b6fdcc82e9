//! How many outstanding requests a target may have to get one more.

use pointsman_sdk::prelude::*;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Cap {
    multiplier: f64,
    /// none: only the fair share counts
    hard: Option<u32>,
}

impl Cap {
    pub(crate) fn new(multiplier: f64, max_active_requests: u32) -> Result<Cap, String> {
        if !(multiplier.is_finite() && multiplier > 0.0) {
            return Err(format!(
                "`fair_share_multiplier`: {multiplier} is impossible: it multiplies each target's fair share of the requests, so it must be a number above 0 (default 2.0)"
            ));
        }
        Ok(Cap {
            multiplier,
            hard: (max_active_requests > 0).then_some(max_active_requests),
        })
    }

    /// The cap for one more request. Never below the busiest target's outstanding requests unless the
    /// hard cap is: TensorRT-LLM pads every rank to the same number, and a cap below what a rank
    /// already has would break that.
    pub(crate) fn over(self, sums: &Sums) -> u32 {
        let fair_share = (sums.requests + 1).div_ceil(u64::from(sums.targets.max(1)));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "positive, and a cast from f64 saturates"
        )]
        let soft = (self.multiplier * fair_share as f64).ceil() as u32;
        let cap = soft.max(sums.busiest);
        self.hard.map_or(cap, |hard| cap.min(hard))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sums(targets: u32, busiest: u32, requests: u64) -> Sums {
        Sums {
            targets,
            busiest,
            requests,
            sessions: 0,
            prefill_tokens: 0,
            context_tokens: 0,
        }
    }

    fn cap(multiplier: f64, hard: u32) -> Cap {
        Cap::new(multiplier, hard).unwrap()
    }

    #[test]
    fn the_cap_is_a_multiple_of_the_fair_share() {
        assert_eq!(cap(2.0, 0).over(&sums(4, 1, 0)), 2);
        assert_eq!(cap(2.0, 0).over(&sums(4, 1, 3)), 2);
        assert_eq!(cap(2.0, 0).over(&sums(4, 1, 4)), 4);
        assert_eq!(cap(1.5, 0).over(&sums(4, 1, 0)), 2);
        assert_eq!(cap(1.0, 0).over(&sums(4, 1, 0)), 1);
    }

    #[test]
    fn the_hard_cap_wins_over_fair_share_and_busiest() {
        assert_eq!(cap(2.0, 3).over(&sums(2, 9, 12)), 3);
        assert_eq!(cap(2.0, 30).over(&sums(2, 9, 12)), 14);
    }

    #[test]
    fn an_empty_fleet_has_a_cap_too() {
        assert_eq!(cap(2.0, 0).over(&sums(0, 0, 0)), 2);
    }

    proptest! {
        #[test]
        fn the_cap_is_never_below_the_busiest_target(
            multiplier in 0.001..100.0,
            targets in 0u32..5_000,
            busiest: u32,
            requests in 0u64..u64::from(u32::MAX),
        ) {
            prop_assert!(cap(multiplier, 0).over(&sums(targets, busiest, requests)) >= busiest);
        }
    }
}
