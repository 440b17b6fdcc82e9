//! Bounds on what is taken on, so that no input makes the fuser eat the machine.

use crate::Error;
use crate::module::CoreModule;
use wasmparser::{ComponentType, Parser, Payload};

/// Of each input, in bytes. A policy with a Python interpreter in it has 18 MB.
const INPUT: usize = 64 << 20;
/// Of all core modules together, in bytes: a component may instantiate one module many times.
const TOTAL: usize = 128 << 20;
/// Types of a component: nested types are walked by recursion.
const TYPES: usize = 10_000;

/// Refuses a large file.
pub(crate) fn input(what: &'static str, bytes: &[u8]) -> Result<(), Error> {
    at_most(what, INPUT, bytes.len())
}

/// Refuses what would become large.
pub(crate) fn total(modules: &[CoreModule]) -> Result<(), Error> {
    let bytes = modules.iter().map(|module| module.wasm.len()).sum();
    at_most("bytes of all core modules", TOTAL, bytes)
}

/// Refuses a component with types without end.
pub(crate) fn types(component: &[u8]) -> Result<(), Error> {
    let mut found: usize = 0;
    for payload in Parser::new(0).parse_all(component) {
        if let Payload::ComponentTypeSection(section) = payload.map_err(no_component)? {
            for ty in section {
                found += match ty.map_err(no_component)? {
                    ComponentType::Instance(declarations) => declarations.len(),
                    ComponentType::Component(declarations) => declarations.len(),
                    _ => 1,
                };
            }
        }
    }
    at_most("types of the component", TYPES, found)
}

/// What a parser says.
pub(crate) fn no_component(error: wasmparser::Error) -> Error {
    Error::NoComponent(format!("damaged bytes: {error}"))
}

fn at_most(what: &'static str, most: usize, found: usize) -> Result<(), Error> {
    if found > most {
        return Err(Error::TooLarge { what, most, found });
    }
    Ok(())
}
