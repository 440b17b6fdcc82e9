//! Fuses a policy component with an adapter into one proxy-wasm module, which stock Envoy loads.
//!
//! ```text
//! policy.wasm  (component) ─► flatten ──┐
//!                                       ├─► boundary ─► link (+ synth, fuel) ─► policy.envoy.wasm
//! adapter.wasm (core module) ─ typecheck┘
//! ```
//!
//! * The policy is not changed: the same file runs in our host. Each side keeps its own memory; what
//!   crosses is copied by functions that wasmtime's own generator makes, so both hosts share one
//!   canonical ABI.
//! * [`fuse`] compares the WIT of both sides by structure first, and refuses by name what cannot
//!   cross: asynchronous functions, resources, UTF-16, WASI, imports that the adapter has not.
//! * The same input gives the same bytes, and the module says what it was made from: [`inspect`].
//! * The policy's code is counted ([`FUEL`]), as Envoy has no CPU limit: an endless loop traps.
//!
//! The adapter is an ordinary core module for `wasm32-unknown-unknown`, made with `wit_bindgen` for the
//! contract's world `adapter` with `export_prefix: "fuse:"`: it exports what a policy imports, imports
//! what a policy exports, and otherwise talks to the proxy. Its exports `proxy_*`, `malloc` and
//! `memory` remain; its `_initialize` runs last, after the policy's start functions. If it exports
//! `fuse_out_of_fuel`, that is called before the trap, so that it can write to the log.

#![forbid(unsafe_code)]

mod adapter;
mod boundary;
mod error;
mod flatten;
mod fuel;
mod fuse;
mod guard;
mod limit;
mod link;
mod module;
mod record;
mod synth;
mod typecheck;

pub use error::Error;
pub use fuse::{FUEL, Fused, Options, Sizes, fuse};
pub use record::{Inspected, NotFused, inspect};
