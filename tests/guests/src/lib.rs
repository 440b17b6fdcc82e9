//! A policy that misbehaves as its configuration says: `{"does": "spin"}`.

use pointsman_sdk::bindings::pointsman::policy::state;
use pointsman_sdk::prelude::*;

/// What it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "pointsman_sdk::schemars")]
pub enum Does {
    /// the first target, always
    #[default]
    First,
    /// panics in `route`
    Panic,
    /// never returns from `route`
    Spin,
    /// allocates without end
    Balloon,
    /// recurses without end
    DeepStack,
    /// answers a target that does not exist
    NoTarget,
    /// answers a reason that does not exist
    NoReason,
    /// rejects with a status that is no error
    BadStatus,
    /// binds its parent's key
    BindParent,
    /// writes a thousand lines to the log
    LogFlood,
    /// refuses every configuration
    Refuse,
    /// panics in `configure`
    PanicInConfigure,
    /// never returns from `configure`
    SpinInConfigure,
    /// counts the events that it observes in cells 0 (first output), 1 (finished), 2 (failed), 3
    /// (fleet changed)
    Count,
}

/// Its configuration.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// what it does
    pub does: Does,
}

/// See the crate.
#[derive(Debug)]
pub struct Guest {
    does: Does,
}

impl Policy for Guest {
    type Config = Config;
    const NAME: &'static str = "guest";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(config: Config) -> Result<Self, String> {
        match config.does {
            Does::Refuse => Err("it refuses whatever it is given".to_owned()),
            Does::PanicInConfigure => misbehave("in configure"),
            Does::SpinInConfigure => spin(),
            does => Ok(Guest { does }),
        }
    }

    fn keys(&self) -> Keys {
        Keys::SESSION
    }

    fn wants(&self) -> Wants {
        match self.does {
            Does::Count => {
                Wants::FIRST_OUTPUT | Wants::FINISHED | Wants::FAILED | Wants::FLEET_CHANGED
            }
            _ => Wants::empty(),
        }
    }

    fn route(&self, _: &Request, host: &mut impl Host) -> Decision {
        let first = host.least(Weights::NONE, Tie::Turn(0), None, None);
        let to = |target| Route {
            target,
            bind: Keys::empty(),
            rebind: Keys::empty(),
            charge: None,
            reason: 0,
        };
        let Some(first) = first else {
            return Decision::Abstain(0);
        };
        let first = to(first.target);
        match self.does {
            Does::Panic => misbehave("in route"),
            Does::Spin => spin(),
            Does::Balloon => balloon(),
            Does::DeepStack => Decision::Abstain(deeper(0)),
            Does::NoTarget => Decision::To(to(u32::MAX)),
            Does::NoReason => Decision::To(Route { reason: 9, ..first }),
            Does::BadStatus => Decision::Reject(Rejection {
                status: 200,
                retry_after_ms: None,
                reason: 0,
            }),
            Does::BindParent => Decision::To(Route {
                bind: Keys::PARENT,
                ..first
            }),
            Does::LogFlood => {
                for line in 0..1000 {
                    host.log(Level::Info, &format!("line {line}"));
                }
                Decision::To(first)
            }
            _ => Decision::To(first),
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

#[expect(clippy::panic, reason = "that is what it is for")]
fn misbehave(where_: &str) -> ! {
    panic!("{where_}")
}

fn spin() -> ! {
    loop {
        std::hint::black_box(());
    }
}

fn balloon() -> ! {
    let mut kept = Vec::new();
    loop {
        kept.push(std::hint::black_box(vec![1_u8; 1 << 20]));
    }
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn deeper(depth: u8) -> u8 {
    let frame = std::hint::black_box([depth; 256]);
    let [first, ..] = frame;
    deeper(first.wrapping_add(1)).wrapping_add(std::hint::black_box(frame)[0])
}

pointsman_sdk::export!(Guest);
