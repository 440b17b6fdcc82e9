//! Sessions keep to their owners, and the engines' schedulers leave decode its share: each tick it
//! looks whether every engine that it is granted has the prefill delayer and the decode interval that
//! the operator wants, and sets what differs, for example after an engine was started anew.
//!
//! Prompts that pile up are let through: while any rank has more than `relax_waiting` requests that
//! wait, the interval is 0; it is back when none has more than half of that.
//!
//! From ATOM #2016 (routing by owner, a post-prefill decode interval of 10 in production) and #2528
//! (an interval of 4, a maximum queue time of 5 s).

mod tend;

use pointsman_sdk::affinity::{Affinity, Own, WhenOwnerBusy, WhenOwnerGone};
use pointsman_sdk::placement::{Placement, Score};
use pointsman_sdk::prelude::*;
use pointsman_sdk::reason::Reason;

/// What the operator may set.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(crate = "pointsman_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "pointsman_sdk::schemars")]
pub struct Config {
    /// How a new session is placed.
    pub placement: Placement,
    /// Between two looks at the engines, ms; at least 10.
    pub tick_ms: u32,
    /// Ticks of the engine that belong to decode after every executed prefill.
    pub prefill_decode_interval: u32,
    /// The longest that a prompt waits for others, ms. None: the engine's own.
    pub max_queue_ms: Option<u32>,
    /// With more requests waiting on a rank than this, the interval is 0. None: whatever waits.
    pub relax_waiting: Option<u32>,
    /// The engines' number of waiting requests of a rank: the name of a metric.
    pub waiting_stat: String,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            placement: Placement::default(),
            tick_ms: 1000,
            prefill_decode_interval: 10,
            max_queue_ms: None,
            relax_waiting: None,
            waiting_stat: "pointsman_engine_requests_waiting".to_owned(),
        }
    }
}

/// See the crate.
#[derive(Debug)]
pub struct DecodeProtect {
    session: Affinity,
    config: Config,
}

impl Policy for DecodeProtect {
    type Config = Config;
    const NAME: &'static str = "decode-protect";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = Reason::WORDS;

    fn new(config: Config) -> Result<Self, String> {
        if config.tick_ms < 10 {
            return Err(format!(
                "tick_ms: wanted at least 10, found {}",
                config.tick_ms
            ));
        }
        let session = Affinity {
            score: Score {
                request_equivalent_tokens: Score::REQUEST_EQUIVALENT_TOKENS,
            },
            placement: config.placement,
            when_owner_busy: WhenOwnerBusy::Stay,
            busy_requests: 0,
            when_owner_gone: WhenOwnerGone::Rebind,
        };
        Ok(DecodeProtect { session, config })
    }

    fn keys(&self) -> Keys {
        Keys::SESSION
    }

    fn wants(&self) -> Wants {
        Wants::TICK
    }

    fn tick_ms(&self) -> Option<u32> {
        Some(self.config.tick_ms)
    }

    fn route(&self, request: &Request, host: &mut impl Host) -> Decision {
        match self.session.own(request, host) {
            Own::Decided(decision) => decision,
            Own::Open(claim) => self.session.place(claim, request, host),
        }
    }

    fn observe(&self, event: &Event) {
        #[cfg(target_arch = "wasm32")]
        if let Event::Tick(_) = event {
            tend::tend(&self.config, &mut tend::Host);
        }
        #[cfg(not(target_arch = "wasm32"))]
        let _ = event;
    }
}

pointsman_sdk::export!(DecodeProtect);
