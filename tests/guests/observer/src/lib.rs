//! Does nothing wrong: counts the events that it observes in cells 0 (first output), 1 (finished),
//! 2 (failed) and 3 (fleet changed).

use pointsman_sdk::bindings::pointsman::policy::state;
use pointsman_sdk::prelude::*;
use std::collections::BTreeMap;

struct Observer;

impl Policy for Observer {
    type Config = BTreeMap<String, String>;
    const NAME: &'static str = "observer";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(_: Self::Config) -> Result<Self, String> {
        Ok(Observer)
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn wants(&self) -> Wants {
        Wants::FIRST_OUTPUT | Wants::FINISHED | Wants::FAILED | Wants::FLEET_CHANGED
    }

    fn route(&self, _: &Request, host: &mut impl Host) -> Decision {
        match host.least(Weights::NONE, Tie::Turn(0), None, None) {
            Some(first) => Route::to(first.target, 0).into(),
            None => Decision::Abstain(0),
        }
    }

    fn observe(&self, event: &Event) {
        let cell = match event {
            Event::FirstOutput(_) => 0,
            Event::Finished(_) => 1,
            Event::Failed(_) => 2,
            Event::FleetChanged => 3,
            Event::Tick(_) => return,
        };
        let seen = state::get(cell);
        state::swap(cell, seen, seen + 1);
    }
}

pointsman_sdk::export!(Observer);
