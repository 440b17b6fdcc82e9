//! Sessions keep to their owners, and the engines' schedulers leave decode its share.
//!
//! Each tick it looks whether every engine that it is granted has the prefill delayer and the decode
//! interval that are wanted there, and sets what differs, for example after an engine was started anew.
//! Without limits the interval is the configured one. With `itl_limit_ms` or `ttft_limit_ms` it follows
//! what is measured, engine by engine: the table is in `law`.
//!
//! From ATOM #2016 (routing by owner, a post-prefill decode interval of 10 in production) and #2528
//! (an interval of 4, a maximum queue time of 5 s). To follow ITL and TTFT is ours: additive and
//! multiplicative steps as in congestion control, with a dead band.

mod config;
#[cfg_attr(
    not(any(test, target_arch = "wasm32")),
    allow(dead_code, reason = "engines are there for the component alone")
)]
mod law;
#[cfg_attr(
    not(any(test, target_arch = "wasm32")),
    allow(dead_code, reason = "see above")
)]
mod tend;

pub use config::Config;

use pointsman_sdk::affinity::{Affinity, Own, WhenOwnerBusy, WhenOwnerGone};
use pointsman_sdk::placement::Score;
use pointsman_sdk::prelude::*;
use pointsman_sdk::reason::Reason;
use std::cell::RefCell;

/// See the crate.
#[derive(Debug)]
pub struct DecodeProtect {
    session: Affinity,
    config: Config,
    /// of the instance that gets ticks
    #[cfg_attr(not(target_arch = "wasm32"), allow(dead_code, reason = "see above"))]
    memory: RefCell<tend::Memory>,
}

impl Policy for DecodeProtect {
    type Config = Config;
    const NAME: &'static str = "decode-protect";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = Reason::WORDS;

    fn new(config: Config) -> Result<Self, String> {
        config.check()?;
        let session = Affinity {
            score: Score {
                request_equivalent_tokens: Score::REQUEST_EQUIVALENT_TOKENS,
            },
            placement: config.placement,
            when_owner_busy: WhenOwnerBusy::Stay,
            busy_requests: 0,
            when_owner_gone: WhenOwnerGone::Rebind,
        };
        Ok(DecodeProtect {
            session,
            config,
            memory: RefCell::default(),
        })
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
        if let Event::Tick(now_ms) = event {
            let mut memory = self.memory.borrow_mut();
            tend::tend(&self.config, *now_ms, &mut memory, &mut tend::Host);
        }
        #[cfg(not(target_arch = "wasm32"))]
        let _ = event;
    }
}

pointsman_sdk::export!(DecodeProtect);
