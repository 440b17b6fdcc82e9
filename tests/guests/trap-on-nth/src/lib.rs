//! A slow burn: an instance decides well, but for its n-th request, on which it panics. Counts in cell 0
//! how often it was configured.

use pointsman_sdk::bindings::pointsman::policy::state;
use pointsman_sdk::prelude::*;
use std::cell::Cell;

#[derive(Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
struct Config {
    /// which request of an instance, from 1
    n: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config { n: 50 }
    }
}

struct TrapOnNth {
    left: Cell<u32>,
}

impl Policy for TrapOnNth {
    type Config = Config;
    const NAME: &'static str = "trap-on-nth";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(config: Config) -> Result<Self, String> {
        let before = state::get(0);
        state::swap(0, before, before + 1);
        let left = Cell::new(config.n);
        Ok(TrapOnNth { left })
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    #[expect(clippy::panic, reason = "that is what it is for")]
    fn route(&self, _: &Request, host: &mut impl Host) -> Decision {
        self.left.set(self.left.get().saturating_sub(1));
        if self.left.get() == 0 {
            panic!("on its n-th request");
        }
        match host.least(Weights::NONE, Tie::Turn(0), None, None) {
            Some(first) => Route::to(first.target, 0).into(),
            None => Decision::Abstain(0),
        }
    }
}

pointsman_sdk::export!(TrapOnNth);
