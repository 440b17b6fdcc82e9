//! The component: encoded and checked.

use crate::Error;
use wit_component::{ComponentEncoder, DecodedWasm, decode};

/// All that a policy may import.
const CONTRACT: &str = "pointsman:policy/";
/// What it must export, up to the version.
const POLICY: &str = "pointsman:policy/policy@";

/// A policy as a component, with what it imports and exports.
#[derive(Clone, Debug)]
pub struct Component {
    bytes: Vec<u8>,
    imports: Vec<String>,
    exports: Vec<String>,
}

impl Component {
    /// Makes a core module a component. `name` is for errors.
    ///
    /// # Errors
    /// When the module is no policy, or wants more than the contract.
    pub fn encode(name: &str, module: &[u8]) -> Result<Component, Error> {
        let bytes = ComponentEncoder::default()
            .validate(true)
            .module(module)
            .and_then(|encoder| encoder.encode())
            .map_err(|error| no_policy(name, format!("{error:#}")))?;
        Component::read(name, bytes)
    }

    /// Reads a component and checks that it is a policy.
    ///
    /// # Errors
    /// As [`Component::encode`].
    pub fn read(name: &str, bytes: Vec<u8>) -> Result<Component, Error> {
        let decoded = decode(&bytes).map_err(|error| no_policy(name, format!("{error:#}")))?;
        let DecodedWasm::Component(resolve, world) = decoded else {
            return Err(no_policy(name, "it is a WIT package".to_owned()));
        };
        let Some(world) = resolve.worlds.get(world) else {
            return Err(no_policy(name, "it has no world".to_owned()));
        };
        let imports: Vec<String> = (world.imports.keys())
            .map(|key| resolve.name_world_key(key))
            .collect();
        let exports: Vec<String> = (world.exports.keys())
            .map(|key| resolve.name_world_key(key))
            .collect();
        let foreign: Vec<&str> = (imports.iter().map(String::as_str))
            .filter(|import| !import.starts_with(CONTRACT))
            .collect();
        if !foreign.is_empty() {
            return Err(Error::ForeignImports {
                name: name.to_owned(),
                imports: foreign.join(", "),
            });
        }
        if !exports.iter().any(|export| export.starts_with(POLICY)) {
            return Err(no_policy(name, format!("it does not export {POLICY}…")));
        }
        Ok(Component {
            bytes,
            imports,
            exports,
        })
    }

    /// The `.wasm`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The interfaces that it imports, with versions.
    pub fn imports(&self) -> &[String] {
        &self.imports
    }

    /// The interfaces that it exports, with versions.
    pub fn exports(&self) -> &[String] {
        &self.exports
    }
}

fn no_policy(name: &str, message: String) -> Error {
    Error::NoPolicy {
        name: name.to_owned(),
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The smallest module: magic and version.
    const EMPTY: &[u8] = b"\0asm\x01\0\0\0";

    #[test]
    fn a_module_without_a_policy_is_refused_with_what_is_missing() {
        let error = Component::encode("mine", EMPTY).unwrap_err().to_string();
        assert!(error.contains("`mine` builds, but is no policy"), "{error}");
        assert!(error.contains("export!(MyPolicy);"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_wasm_is_refused() {
        assert!(Component::encode("mine", b"text").is_err());
        assert!(Component::read("mine", b"text".to_vec()).is_err());
    }
}
