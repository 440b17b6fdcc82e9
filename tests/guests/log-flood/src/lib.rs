//! Writes a thousand lines to the log for each request, and decides well.

use pointsman_sdk::prelude::*;
use std::collections::BTreeMap;

struct LogFlood;

impl Policy for LogFlood {
    type Config = BTreeMap<String, String>;
    const NAME: &'static str = "log-flood";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(_: Self::Config) -> Result<Self, String> {
        Ok(LogFlood)
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn route(&self, _: &Request, host: &mut impl Host) -> Decision {
        for line in 0..1000 {
            host.log(Level::Info, &format!("flood {line}"));
        }
        match host.least(Weights::NONE, Tie::Turn(0), None, None) {
            Some(first) => Route::to(first.target, 0).into(),
            None => Decision::Abstain(0),
        }
    }
}

pointsman_sdk::export!(LogFlood);
