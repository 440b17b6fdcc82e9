//! Panics in `route`, always.

use pointsman_sdk::prelude::*;
use std::collections::BTreeMap;

struct TrapOnRoute;

impl Policy for TrapOnRoute {
    type Config = BTreeMap<String, String>;
    const NAME: &'static str = "trap-on-route";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(_: Self::Config) -> Result<Self, String> {
        Ok(TrapOnRoute)
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    #[expect(clippy::panic, reason = "that is what it is for")]
    fn route(&self, _: &Request, _: &mut impl Host) -> Decision {
        panic!("in route")
    }
}

pointsman_sdk::export!(TrapOnRoute);
