//! Works for long before it is configured, and decides well then. Counts in cell 0 how often it was
//! configured.

use pointsman_sdk::bindings::pointsman::policy::state;
use pointsman_sdk::prelude::*;

#[derive(Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
struct Config {
    /// millions of rounds, each 1 to 2 ms of work
    rounds: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config { rounds: 100 }
    }
}

struct SlowStart;

impl Policy for SlowStart {
    type Config = Config;
    const NAME: &'static str = "slow-start";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(config: Config) -> Result<Self, String> {
        let mut work = 1_u64;
        for _ in 0..u64::from(config.rounds) * 1_000_000 {
            work ^= work << 13;
            work ^= work >> 7;
            work ^= work << 17;
        }
        std::hint::black_box(work);
        let before = state::get(0);
        state::swap(0, before, before + 1);
        Ok(SlowStart)
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn route(&self, _: &Request, host: &mut impl Host) -> Decision {
        match host.least(Weights::NONE, Tie::Turn(0), None, None) {
            Some(first) => Route::to(first.target, 0).into(),
            None => Decision::Abstain(0),
        }
    }
}

pointsman_sdk::export!(SlowStart);
