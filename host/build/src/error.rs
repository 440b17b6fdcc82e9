//! What can go wrong, and what to do about it.

use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// Why no component came out. Cargo's own messages are on standard error already.
#[derive(Debug, Error)]
pub enum Error {
    /// a file or a program that could not be used
    #[error("{what}: {source}")]
    Io {
        /// what was attempted, with the path
        what: String,
        /// what happened
        source: io::Error,
    },
    /// no toolchain builds for wasm32
    #[error(
        "no Rust toolchain here builds for wasm32-unknown-unknown. Any one of these remedies it:{0}"
    )]
    NoToolchain(String),
    /// `cargo metadata` does not know the crate
    #[error("{path} is no crate that cargo can read: {message}", path = .path.display())]
    NoCrate {
        /// the folder or manifest that was given
        path: PathBuf,
        /// cargo's words
        message: String,
    },
    /// cargo built it, but not as a module
    #[error(
        "package `{0}` makes no .wasm module: its Cargo.toml needs `[lib]` with `crate-type = [\"cdylib\", \"rlib\"]`"
    )]
    NoModule(String),
    /// the crate does not compile
    #[error("cargo could not build {packages} (exit status {status}); its messages are above")]
    Cargo {
        /// the packages
        packages: String,
        /// the exit status
        status: String,
    },
    /// the module is no policy
    #[error(
        "`{name}` builds, but is no policy: {message}. Is there an `export!(MyPolicy);` at the top level of its lib.rs?"
    )]
    NoPolicy {
        /// the package
        name: String,
        /// what the encoder says
        message: String,
    },
    /// the component wants what no host gives
    #[error(
        "`{name}` imports {imports}: a policy may import pointsman:policy/* and nothing else (a dependency that uses files, clocks, threads or randomness brings in more)"
    )]
    ForeignImports {
        /// the package
        name: String,
        /// what it imports beyond the contract
        imports: String,
    },
}

impl Error {
    /// For `map_err`.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}
