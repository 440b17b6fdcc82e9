//! The Envoy side of Pointsman: fused with an unmodified policy it is one proxy-wasm module that picks
//! the endpoint and the rank of each request inside stock Envoy.
//!
//! ```text
//! Envoy ─ proxy-wasm ─► glue ─► flight: understand → decide → head → output → end
//!                        │        └ site: core's own rules over pieces of the shared store
//!                        └─► the policy's route, whose host calls the glue answers from core's Ask
//! ```
//!
//! **One implementation of the rules.** Each worker thread of Envoy has its own VM, and all that they
//! share is a key-value store with compare-and-set. A decision brings the pieces of the table that hold
//! the request's keys into a `Core` of this VM, runs [`pointsman_core::decide`] on it as every host
//! does, and stores what changed; if another thread was first with one of them, everything is decided
//! anew. Loads are sums in the store, brought into core's ledger when the policy first asks for one.
//! The alternative, core over a storage trait, would have put an indirection into the hot path of the
//! host, whose workers do share memory.
//!
//! **What is stored** (one `vm_id` across versions, so that a swap keeps it):
//!
//! | key | is |
//! |---|---|
//! | `pointsman/targets` | the names that have a number, in their order |
//! | `pointsman/standing` | which targets are down, draining, removed; written by who watches over them |
//! | `pointsman/bindings/N` | 16 bindings (of a table of up to 64: all of them), with leases |
//! | `pointsman/load/N` | the loads of 64 targets |
//! | `pointsman/vms`, `pointsman/part/V/N` | who lives, and each VM's part of the loads |
//! | `pointsman/state/POLICY/…` | the policy's tickets and cells |
//! | `pointsman/scopes` | phases and models in which sessions are bound |
//!
//! The store cannot delete, so each of these is bounded by configuration.
//!
//! **Where it is weaker than the host.** A full piece evicts its own longest idle binding, not the
//! table's. A trapped VM's leases count until their age is over (`bindings.lease_ms`), its loads for
//! 30 s. Errors inside a 200 stream are not looked for, and tokens per byte not learnt.

#![cfg_attr(not(target_arch = "wasm32"), forbid(unsafe_code))]

mod answer;
mod cells;
pub mod config;
mod control;
mod fleet;
mod flight;
#[cfg(any(target_arch = "wasm32", test))]
mod headers;
mod loads;
mod rows;
mod second;
mod shared;
mod site;
mod table;
mod understand;

#[cfg(target_arch = "wasm32")]
mod glue;

pub use answer::Answer;
pub use config::Config;
pub use control::{control, is_control};
pub use fleet::Way;
pub use flight::{Departure, Ending, Fate, Flight, Head, begin};
pub use shared::{Cas, Memory, Shared};
pub use site::Site;
pub use understand::{Received, wants_body};
