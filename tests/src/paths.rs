//! Where `make build` leaves what is tested.

use std::path::PathBuf;

/// The root of the project.
pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The binary.
pub fn pointsman() -> PathBuf {
    root().join("target/release/pointsman")
}

/// A policy of `plugins/`, as a component.
pub fn policy(name: &str) -> PathBuf {
    root()
        .join("target/policies")
        .join(name)
        .with_extension("wasm")
}

/// A guest of `tests/guests/`, as a component.
pub fn guest(name: &str) -> PathBuf {
    root()
        .join("target/guests")
        .join(name)
        .with_extension("wasm")
}
