//! A Rust toolchain that builds for `wasm32-unknown-unknown`.

mod debian;
mod rustup;

use crate::{Error, Say, process};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The target that a component's core module is built for: no WASI, a policy has none.
pub(crate) const TARGET: &str = "wasm32-unknown-unknown";

/// Where the standard library for the target comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// the current toolchain has it
    Installed,
    /// rustup has just brought it
    Rustup,
    /// Debian's compiler builds it from Debian's sources
    Debian,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Toolchain {
    source: Source,
    cargo: OsString,
    /// beyond what cargo is started with anyway
    env: Vec<(&'static str, OsString)>,
    args: Vec<&'static str>,
    /// folders of the machine that must not be named in what is built, and their stand-ins
    pub(crate) remap: Vec<(PathBuf, &'static str)>,
}

impl Toolchain {
    /// The first of three ways that works: the current toolchain (`$RUSTC`, `$CARGO`) if it has the
    /// target; `rustup target add`; Debian's packages. What is missing is installed. `memory` is a
    /// folder to remember a failure of rustup in for an hour, so that a build with nothing to do does
    /// not wait for the network each time.
    ///
    /// # Errors
    /// When none of them works: all three, and why each did not.
    pub fn find(memory: &Path, say: Say<'_>) -> Result<Toolchain, Error> {
        if installed() {
            say("toolchain: the current one has wasm32-unknown-unknown");
            return Ok(Toolchain::current(Source::Installed));
        }
        let rustup = match rustup::add_target(memory, say) {
            Ok(()) if installed() => {
                say("toolchain: rustup has added wasm32-unknown-unknown to the current one");
                return Ok(Toolchain::current(Source::Rustup));
            }
            Ok(()) => "rustup has added it, but to another toolchain than `rustc` is".to_owned(),
            Err(why) => why,
        };
        say(&format!("toolchain: not through rustup: {rustup}"));
        let debian = match debian::install(say) {
            Ok(toolchain) => {
                say("toolchain: Debian's compiler, with the standard library built from source");
                return Ok(toolchain);
            }
            Err(why) => why,
        };
        say(&format!(
            "toolchain: not through Debian's packages: {debian}"
        ));
        let rustc = rustc();
        Err(Error::NoToolchain(format!(
            "\n  1. a toolchain that has the target: put it first in PATH, or name it in RUSTC and CARGO\n     ({} has it not)\n  2. rustup target add {TARGET}\n     ({rustup})\n  3. apt-get install {}\n     ({debian})",
            Path::new(&rustc).display(),
            debian::PACKAGES.join(" "),
        )))
    }

    fn current(source: Source) -> Toolchain {
        Toolchain {
            source,
            cargo: cargo(),
            env: Vec::new(),
            args: Vec::new(),
            remap: Vec::new(),
        }
    }

    /// Where the standard library comes from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// `cargo build --release` for the target.
    pub(crate) fn build(&self) -> Command {
        let mut command = Command::new(&self.cargo);
        command
            .args(["build", "--release", "--target", TARGET])
            .args(&self.args)
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            // Meant for the build that this one may run inside of.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_BUILD_RUSTFLAGS")
            .env_remove("RUSTC_WORKSPACE_WRAPPER");
        command
    }
}

/// The current cargo.
pub(crate) fn cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn rustc() -> OsString {
    env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())
}

fn installed() -> bool {
    process::output(Command::new(rustc()).args(["--print", "sysroot"])).is_some_and(|sysroot| {
        let library = Path::new(&sysroot)
            .join("lib/rustlib")
            .join(TARGET)
            .join("lib");
        library.is_dir()
    })
}
