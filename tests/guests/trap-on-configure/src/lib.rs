//! Panics in `configure`.

use pointsman_sdk::prelude::*;
use std::collections::BTreeMap;

struct TrapOnConfigure;

impl Policy for TrapOnConfigure {
    type Config = BTreeMap<String, String>;
    const NAME: &'static str = "trap-on-configure";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["never"];

    #[expect(clippy::panic, reason = "that is what it is for")]
    fn new(_: Self::Config) -> Result<Self, String> {
        panic!("in configure")
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn route(&self, _: &Request, _: &mut impl Host) -> Decision {
        Decision::Abstain(0)
    }
}

pointsman_sdk::export!(TrapOnConfigure);
