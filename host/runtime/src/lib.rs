//! Policies as WebAssembly components.
//!
//! [`Engine::compile`] takes a `.wasm` through parse → world and version → compile → link,
//! [`Compiled::configure`] through instantiate → configure, and each says at which stage and why it stopped; what comes out is a [`Prepared`] policy.
//! A [`Slot`] holds the one that decides now; each worker thread has a warm [`Instance`] of it.
//!
//! A [`Control`] instance of it gets `tick`, where it may drive [`Engines`].
//!
//! A policy gets the contract's interfaces and nothing else: no WASI, no clock, no randomness. Its
//! calls end at a deadline and its memory at a limit; after any failure its instance is thrown away
//! and the next call begins with a fresh one.

mod budget;
mod cache;
mod contract;
mod control;
mod convert;
mod deadline;
mod driving;
mod engine;
mod host;
mod instance;
mod load;
mod slot;
mod trap;

pub use cache::{CacheError, CodeCache};
pub use contract::Mismatch;
pub use control::Control;
pub use driving::{Engines, Failure as EngineFailure, Kernel, Knob};
pub use engine::{Engine, EngineError};
pub use instance::{Instance, Limits};
pub use load::{Compiled, LoadError, Prepared, Stage};
pub use slot::{Candidate, Protection, Slot, Status, SwapError};

/// The version of the contract that this host speaks.
pub const CONTRACT: &str = "pointsman:policy@0.1.0";

mod bindings {
    wasmtime::component::bindgen!({ path: "../../wit", world: "router" });
}
