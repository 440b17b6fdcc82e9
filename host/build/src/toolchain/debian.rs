//! Debian's way: a compiler whose standard library is built from source for the target. Needs no
//! download site but Debian's.

use super::{Source, Toolchain};
use crate::{Say, process};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Compiler, cargo, the sources of the standard library, and a linker for wasm32.
pub(super) const PACKAGES: [&str; 4] = ["rustc-web", "cargo-web", "rust-web-src", "lld-22"];

const RUSTC: &str = "/usr/bin/rustc";
const CARGO: &str = "/usr/bin/cargo";
const LIBRARY: &str = "/usr/lib/rustlib/src/rust";
/// The package's own, or that of whatever LLVM is there.
const LINKERS: [&str; 2] = ["/usr/bin/wasm-ld-22", "/usr/bin/wasm-ld"];

/// About 250 MB from a mirror.
const LIMIT: Duration = Duration::from_secs(900);

pub(super) fn install(say: Say<'_>) -> Result<Toolchain, String> {
    if let Some(toolchain) = present() {
        return Ok(toolchain);
    }
    if process::output(Command::new("apt-cache").arg("show").args(PACKAGES)).is_none() {
        say("toolchain: apt-get update");
        process::run(Command::new("apt-get").arg("update"), LIMIT)?;
    }
    say(&format!(
        "toolchain: apt-get install {}",
        PACKAGES.join(" ")
    ));
    let mut install = Command::new("apt-get");
    install
        .args(["install", "-y", "--no-install-recommends"])
        .args(PACKAGES)
        .env("DEBIAN_FRONTEND", "noninteractive");
    process::run(&mut install, LIMIT)?;
    present().ok_or_else(|| {
        format!("the packages are installed, but {RUSTC}, {CARGO}, {LIBRARY}/library or a wasm-ld is missing")
    })
}

fn present() -> Option<Toolchain> {
    let library = Path::new(LIBRARY);
    let there = Path::new(RUSTC).is_file()
        && Path::new(CARGO).is_file()
        && library.join("library/std/Cargo.toml").is_file();
    let linker = LINKERS.into_iter().find(|path| Path::new(path).is_file())?;
    there.then(|| Toolchain {
        source: Source::Debian,
        cargo: CARGO.into(),
        env: vec![
            ("CARGO", CARGO.into()),
            ("RUSTC", RUSTC.into()),
            // `-Z build-std` is for nightly compilers; this one is told that it is one.
            ("RUSTC_BOOTSTRAP", "1".into()),
            ("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker.into()),
        ],
        args: vec!["-Z", "build-std=std,panic_abort"],
        remap: [Some(library.to_owned()), resolved(library)]
            .into_iter()
            .flatten()
            .map(|path| (path, "/rust"))
            .collect(),
    })
}

/// The sources are behind a link, and the compiler names what it leads to.
fn resolved(path: &Path) -> Option<PathBuf> {
    path.canonicalize().ok()
}
