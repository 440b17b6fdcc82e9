//! From a policy crate to a `.wasm` that the host loads.
//!
//! ```text
//! crate ─► Workspace (cargo metadata) ─► Toolchain (one that builds for wasm32) ─► cargo build
//!       ─► component (encode, check what it imports and exports) ─► NAME.wasm, replaced atomically
//! ```
//!
//! * [`build`] does all of it for any number of crates; those of one workspace in one run of cargo, so
//!   that the standard library is built once.
//! * [`Toolchain::find`] uses the current toolchain, else `rustup`, else Debian's packages.
//! * [`build_modules`] leaves core modules as they are: the Envoy adapter is one.
//! * [`Component`] is what comes out, checked: it imports the contract and nothing else.
//!
//! The same sources give the same bytes on every machine with the same toolchain: no path of the
//! machine is in them.

#![forbid(unsafe_code)]

mod build;
mod component;
mod error;
mod file;
mod process;
mod toolchain;
mod workspace;

pub use build::{Built, BuiltModule, Options, build, build_modules};
pub use component::Component;
pub use error::Error;
pub use file::write;
pub use toolchain::{Source, Toolchain};

/// Where a line of progress goes; standard error, for a command.
pub type Say<'a> = &'a mut dyn FnMut(&str);
