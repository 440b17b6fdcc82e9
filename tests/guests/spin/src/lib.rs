//! Never returns from `route`.

use pointsman_sdk::prelude::*;
use std::collections::BTreeMap;

struct Spin;

impl Policy for Spin {
    type Config = BTreeMap<String, String>;
    const NAME: &'static str = "spin";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(_: Self::Config) -> Result<Self, String> {
        Ok(Spin)
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn route(&self, _: &Request, _: &mut impl Host) -> Decision {
        loop {
            std::hint::black_box(());
        }
    }
}

pointsman_sdk::export!(Spin);
