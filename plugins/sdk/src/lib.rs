//! Write a routing policy: a struct, its configuration, and one function.
//!
//! ```
//! use pointsman_sdk::prelude::*;
//!
//! /// Every session stays where it began; a new one goes where the fewest requests are.
//! struct Sticky;
//!
//! #[derive(Deserialize, JsonSchema)]
//! #[serde(crate = "pointsman_sdk::serde", deny_unknown_fields)]
//! #[schemars(crate = "pointsman_sdk::schemars")]
//! struct Config {}
//!
//! impl Policy for Sticky {
//!     type Config = Config;
//!     const NAME: &'static str = "sticky";
//!     const VERSION: &'static str = "0.1.0";
//!     const REASONS: &'static [&'static str] = &["placed", "owner", "nobody"];
//!
//!     fn new(_: Config) -> Result<Self, String> {
//!         Ok(Sticky)
//!     }
//!
//!     fn keys(&self) -> Keys {
//!         Keys::SESSION
//!     }
//!
//!     fn route(&self, request: &Request, host: &mut impl Host) -> Decision {
//!         if let Some(owner) = request.owner.filter(|owner| owner.eligible) {
//!             return Route::to(owner.target, 1).into();
//!         }
//!         let tie = Tie::Hash(request.session.unwrap_or(request.seed));
//!         match host.least(Weights::requests(1), tie, None, None) {
//!             Some(best) => Route::to(best.target, 0).bind(Keys::SESSION).rebind(Keys::SESSION).into(),
//!             None => Decision::Abstain(2),
//!         }
//!     }
//! }
//!
//! pointsman_sdk::export!(Sticky);
//! # fn main() {}
//! ```
//!
//! * A policy is a pure function of what the host shows it: no clock but [`Host::now_ms`], no chance
//!   but [`Request::seed`]. Its struct holds configuration, nothing that must survive a swap: that
//!   lives with the host, as bindings ([`Host::lookup`]) and numbers ([`Host::get`], [`Host::swap`]).
//! * A decision is a proposal: the host makes it true in one step, or not at all.
//! * Built for `wasm32-unknown-unknown`, [`export!`] makes the policy a component. Built for anything
//!   else it does nothing, and the policy is an ordinary library.
//! * The feature `native` adds `Native` (a policy linked into a host) and `testing` (a bench with the
//!   host's own state machines under it): `cargo test`, no Wasm.
//!
//! [`affinity`], [`placement`] and [`reason`] are what the four built-in policies share, and free to use.

#![deny(unsafe_code)]

pub mod affinity;
mod config;
#[cfg(feature = "native")]
mod convert;
mod decision;
mod export;
mod host;
#[cfg(feature = "native")]
mod native;
pub mod placement;
mod policy;
pub mod reason;
#[cfg(feature = "native")]
pub mod testing;
mod weights;

/// The contract as `wit-bindgen` makes it: every import (also `engine`, for `observe`), every type.
#[expect(missing_docs, reason = "generated; the WIT files say what it is")]
#[allow(unsafe_code, reason = "generated: the canonical ABI")]
pub mod bindings {
    wit_bindgen::generate!({
        world: "router",
        path: "../../wit",
        pub_export_macro: true,
        default_bindings_module: "pointsman_sdk::bindings",
        additional_derives: [PartialEq],
    });
}

pub use bindings::exports::pointsman::policy::policy::{Description, Event, Usage, Wants};
pub use bindings::pointsman::policy::engine;
pub use bindings::pointsman::policy::fleet::{Choice, Endpoint, Sums, Table, Tie, Weights};
pub use bindings::pointsman::policy::log::Level;
pub use bindings::pointsman::policy::types::{
    Binding, Decision, Key, Keys, Load, Phase, Rejection, Request, Route, Target,
};
pub use config::ConfigError;
pub use host::Host;
#[cfg(target_arch = "wasm32")]
pub use host::observing;
#[cfg(feature = "native")]
pub use native::Native;
pub use policy::{Policy, configure};
pub use {schemars, serde};

#[doc(hidden)]
pub use export::Slot;

/// What nearly every policy wants in scope.
pub mod prelude {
    pub use crate::{
        Binding, Choice, Decision, Event, Host, Key, Keys, Level, Load, Phase, Policy, Rejection,
        Request, Route, Sums, Target, Tie, Wants, Weights,
    };
    pub use schemars::JsonSchema;
    pub use serde::Deserialize;
}
