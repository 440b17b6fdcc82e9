//! A policy that tries to drive engines while it routes, and in its tick does what its configuration
//! says: `{"tick": "spin"}`.

use pointsman_sdk::prelude::*;

/// What it does in its tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "pointsman_sdk::schemars")]
pub enum Tick {
    /// nothing
    #[default]
    Rest,
    /// panics
    Panic,
    /// never returns
    Spin,
    /// reads what the host has measured of each target, and says so in the log, a line each
    Read,
    /// opens profiling windows of 20 ms
    Windows,
    /// opens a profiling window that it never ends
    Profile,
}

/// Its configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// what it does in its tick
    pub tick: Tick,
}

/// See the crate.
#[derive(Debug)]
pub struct Driving {
    tick: Tick,
}

impl Policy for Driving {
    type Config = Config;
    const NAME: &'static str = "driving-guest";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["denied", "let-in"];

    fn new(config: Config) -> Result<Self, String> {
        Ok(Driving { tick: config.tick })
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn wants(&self) -> Wants {
        Wants::TICK
    }

    fn tick_ms(&self) -> Option<u32> {
        Some(match self.tick {
            // The log takes so many lines a second and no more.
            Tick::Read => 100,
            _ => 10,
        })
    }

    fn route(&self, _: &Request, host: &mut impl Host) -> Decision {
        match host.least(Weights::NONE, Tie::Turn(0), None, None) {
            Some(first) => Route::to(first.target, drive(first.target)).into(),
            None => Decision::Abstain(0),
        }
    }

    #[expect(clippy::panic, reason = "that is what it is for")]
    fn observe(&self, _: &Event) {
        match self.tick {
            Tick::Rest => {}
            Tick::Read => read(),
            Tick::Windows => profile(20),
            Tick::Profile => profile(0),
            Tick::Panic => panic!("in a tick"),
            Tick::Spin => loop {
                std::hint::black_box(());
            },
        }
    }
}

/// The reason that says what came of it.
#[cfg(target_arch = "wasm32")]
fn drive(target: Target) -> u8 {
    use pointsman_sdk::engine::{self, Failure};
    let set = engine::knob_set(None, "prefill_delayer", 1);
    let got = engine::knob_get(target, "prefill_delayer");
    u8::from(set != Err(Failure::Denied) || got != Err(Failure::Denied))
}

/// `a/0: ttft_ms_mean=1.5 …`, or why not.
#[cfg(target_arch = "wasm32")]
fn read() {
    use pointsman_sdk::engine::{self, Failure};
    let mut host = pointsman_sdk::observing();
    for target in host.columns().target {
        let name = host.describe(target).map(|endpoint| endpoint.name);
        let mut line = format!("{}:", name.unwrap_or_default());
        for kind in ["ttft", "itl"] {
            for stat in ["mean", "p50", "p90", "p99"] {
                let name = format!("{kind}_ms_{stat}");
                match engine::stat(target, &name) {
                    Ok(ms) => line += &format!(" {name}={ms}"),
                    Err(Failure::Unknown) => line += " unknown",
                    Err(Failure::Denied) => line += " denied",
                    Err(Failure::Unavailable(why)) => line += &format!(" ({why})"),
                }
            }
        }
        host.log(Level::Info, &line);
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn read() {}

#[cfg(target_arch = "wasm32")]
fn profile(duration_ms: u32) {
    use pointsman_sdk::engine::{self, Roles};
    // One that is open already stays.
    let _ = engine::profile_start(Roles::all(), duration_ms);
}

#[cfg(not(target_arch = "wasm32"))]
fn profile(_: u32) {}

#[cfg(not(target_arch = "wasm32"))]
fn drive(_: Target) -> u8 {
    0
}

pointsman_sdk::export!(Driving);
