//! Allocates without end in `route`.

use pointsman_sdk::prelude::*;
use std::collections::BTreeMap;

struct Balloon;

impl Policy for Balloon {
    type Config = BTreeMap<String, String>;
    const NAME: &'static str = "balloon";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(_: Self::Config) -> Result<Self, String> {
        Ok(Balloon)
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn route(&self, _: &Request, _: &mut impl Host) -> Decision {
        let mut kept = Vec::new();
        loop {
            kept.push(std::hint::black_box(Vec::<u8>::with_capacity(1 << 20)));
        }
    }
}

pointsman_sdk::export!(Balloon);
