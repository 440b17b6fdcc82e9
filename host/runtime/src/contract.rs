//! What a component needs and gives, checked by name before anything of it runs.

use crate::CONTRACT;
use thiserror::Error;
use wasmtime::Engine;
use wasmtime::component::Component;

const PACKAGE: &str = "pointsman:policy/";
const VERSION: &str = "0.1.0";
const INTERFACES: [&str; 7] = [
    "types", "fleet", "affinity", "state", "facts", "engine", "log",
];

/// Why a component is not a policy for this host.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Mismatch {
    /// it speaks another version of the contract
    #[error(
        "it needs {PACKAGE}{interface}@{wanted}, this host speaks {CONTRACT}: build the policy against this host's wit/, or run a host of its version"
    )]
    Version {
        /// the interface
        interface: String,
        /// its version
        wanted: String,
    },
    /// it needs an interface that this version does not have
    #[error("it needs {PACKAGE}{interface}, which {CONTRACT} does not have: the host gives {}", INTERFACES.join(", "))]
    Interface {
        /// the interface
        interface: String,
    },
    /// it needs something that no policy gets
    #[error(
        "it imports {import}, which no policy gets: a policy may import the interfaces of {CONTRACT} and nothing else (for WASI, build for wasm32-unknown-unknown, or stub it out)"
    )]
    Foreign {
        /// the import
        import: String,
    },
    /// it is not a policy
    #[error(
        "it does not export {PACKAGE}policy@{VERSION}: build it with the SDK's `export!`; it exports {}",
        list(exports)
    )]
    NoPolicy {
        /// what it exports
        exports: Vec<String>,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() {
        "nothing".to_owned()
    } else {
        names.join(", ")
    }
}

pub(crate) fn check(component: &Component, engine: &Engine) -> Result<(), Mismatch> {
    let component = component.component_type();
    for (import, _) in component.imports(engine) {
        let Some((interface, version)) = split(import) else {
            return Err(Mismatch::Foreign {
                import: import.to_owned(),
            });
        };
        if !compatible(version) {
            return Err(Mismatch::Version {
                interface: interface.to_owned(),
                wanted: version.to_owned(),
            });
        }
        if !INTERFACES.contains(&interface) {
            return Err(Mismatch::Interface {
                interface: interface.to_owned(),
            });
        }
    }
    let exports: Vec<String> = (component.exports(engine))
        .map(|(name, _)| name.to_owned())
        .collect();
    let version = exports.iter().find_map(|name| match split(name) {
        Some(("policy", version)) => Some(version.to_owned()),
        _ => None,
    });
    match version {
        Some(version) if compatible(&version) => Ok(()),
        Some(wanted) => Err(Mismatch::Version {
            interface: "policy".to_owned(),
            wanted,
        }),
        None => Err(Mismatch::NoPolicy { exports }),
    }
}

/// `pointsman:policy/fleet@0.1.0` → (`fleet`, `0.1.0`).
fn split(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(PACKAGE)?.split_once('@')
}

/// 0.x versions are compatible if x is equal and the patch is not newer than ours.
fn compatible(version: &str) -> bool {
    let parts = |v: &str| -> Option<(u64, u64, u64)> {
        let mut parts = v.split('.').map(str::parse);
        let mut next = || parts.next()?.ok();
        Some((next()?, next()?, next()?))
    };
    match (parts(version), parts(VERSION)) {
        (Some(theirs), Some(ours)) => {
            (theirs.0, theirs.1) == (ours.0, ours.1) && theirs.2 <= ours.2
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_for_another_minor_version_or_a_newer_patch_is_not_compatible() {
        assert!(compatible("0.1.0"));
        for version in ["0.2.0", "1.1.0", "0.1.1", "0.1", "0.1.0-rc"] {
            assert!(!compatible(version), "{version}");
        }
    }
}
