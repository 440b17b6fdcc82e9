//! The steps, in order.

use crate::boundary::border;
use crate::flatten::{ADAPTER, Flat, Provider, flatten};
use crate::guard::fenced;
use crate::link::{Program, item};
use crate::module::{Item, Kind};
use crate::record::{Inspected, SECTION, digest};
use crate::synth::Made;
use crate::{Error, limit, typecheck};
use std::borrow::Cow;
use wasm_encoder::CustomSection;
use wasmparser::{Encoding, Parser, Payload, Validator, WasmFeatures};

/// What one call into the policy may spend unless said otherwise, in instructions: some milliseconds.
pub const FUEL: u64 = 10_000_000;

/// How to fuse.
#[derive(Clone, Debug)]
pub struct Options {
    /// have the WASI functions that a policy imports trap, in place of refusing it
    pub stub_wasi: bool,
    /// what one call into the policy may spend, in instructions; 0 = without end
    pub fuel: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            stub_wasi: false,
            fuel: FUEL,
        }
    }
}

/// A module for Envoy.
#[derive(Clone, Debug)]
pub struct Fused {
    /// the `.wasm`
    pub bytes: Vec<u8>,
    /// how it was made: the same as [`crate::inspect`] finds in the bytes
    pub made: Inspected,
    /// what it consists of
    pub sizes: Sizes,
}

/// Where the bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Sizes {
    /// bytes of the policy component
    pub component: usize,
    /// bytes of the adapter
    pub adapter: usize,
    /// bytes of the functions between them
    pub border: usize,
    /// bytes of the fused module
    pub fused: usize,
    /// core modules of the policy
    pub modules: usize,
    /// memories; Envoy's own reserve address space for each
    pub memories: usize,
}

/// Fuses a policy component with an adapter. The same input gives the same bytes.
///
/// # Errors
/// What cannot be fused, by name; bad input never panics.
pub fn fuse(component: &[u8], adapter: &[u8], options: &Options) -> Result<Fused, Error> {
    fenced(|| fused(component, adapter, options))
}

fn fused(component: &[u8], adapter: &[u8], options: &Options) -> Result<Fused, Error> {
    limit::input("bytes of the policy", component)?;
    limit::input("bytes of the adapter", adapter)?;
    valid_component(component)?;
    valid_adapter(adapter)?;
    typecheck::check(component, adapter, options.stub_wasi)?;
    let Flat {
        mut modules,
        imports,
        crossings,
        proxy,
        mut stubs,
        types,
    } = flatten(component, adapter, options.stub_wasi)?;
    let border = border(&types, &crossings)?;
    stubs.sort();
    stubs.dedup();

    let policies = 1..modules.len();
    let mut sizes = Sizes {
        component: component.len(),
        adapter: adapter.len(),
        border: border.module.wasm.len(),
        fused: 0,
        modules: policies.len(),
        memories: modules
            .iter()
            .map(|m| m.defined.of(Kind::Memory) as usize)
            .sum(),
    };
    let border_at = modules.len();
    modules.push(border.module);
    let mut program = Program::new(modules, proxy);
    // 2^63 instructions take centuries.
    let fuel = i64::try_from(options.fuel).unwrap_or(i64::MAX);
    if fuel > 0 {
        program.meter(policies, fuel);
    }
    let mut items = Vec::new();
    for (function, crossing) in border.functions.iter().zip(&crossings) {
        let function = Item::Of {
            module: border_at,
            kind: Kind::Function,
            index: *function,
        };
        let into_policy = !matches!(
            crossing.function,
            Item::Of {
                module: ADAPTER,
                ..
            }
        );
        items.push(if into_policy && fuel > 0 {
            program.make(Made::Enter {
                function,
                signature: crossing.caller.signature.clone(),
                fuel,
            })
        } else {
            function
        });
    }
    for providers in imports.into_iter().chain([border.imports]) {
        let resolve = |provider: Provider| item(&mut program, provider, &items);
        let all: Vec<Item> = (providers.into_iter().map(resolve)).collect::<Result<_, _>>()?;
        program.provide(all);
    }
    program.expose();

    let made = Inspected {
        component: digest(component),
        adapter: digest(adapter),
        fuser: env!("CARGO_PKG_VERSION").to_owned(),
        fuel: options.fuel,
        stubs,
    };
    let mut module = program.encode()?;
    module.section(&CustomSection {
        name: Cow::Borrowed(SECTION),
        data: Cow::Owned(made.bytes()?),
    });
    let bytes = module.finish();
    valid_for_envoy(&bytes)?;
    sizes.fused = bytes.len();
    Ok(Fused { bytes, made, sizes })
}

fn valid_component(component: &[u8]) -> Result<(), Error> {
    match Parser::new(0).parse_all(component).next() {
        Some(Ok(Payload::Version {
            encoding: Encoding::Component,
            ..
        })) => {}
        Some(Ok(_)) => {
            return Err(Error::NoComponent("a core module".to_owned()));
        }
        _ => {
            return Err(Error::NoComponent(
                "a file that is no WebAssembly".to_owned(),
            ));
        }
    }
    limit::types(component)?;
    (Validator::new_with_features(WasmFeatures::all()).validate_all(component))
        .map_err(limit::no_component)?;
    Ok(())
}

fn valid_adapter(adapter: &[u8]) -> Result<(), Error> {
    if !Parser::is_core_wasm(adapter) {
        return Err(Error::NoAdapter("a file that is no core module".to_owned()));
    }
    (Validator::new_with_features(ENVOY).validate_all(adapter))
        .map_err(|error| Error::NoAdapter(format!("one that Envoy cannot run: {error}")))?;
    Ok(())
}

/// What the V8 of Envoy 1.36 and later takes without flags. No threads, exceptions or garbage collection.
const ENVOY: WasmFeatures = WasmFeatures::from_bits_truncate(
    WasmFeatures::MUTABLE_GLOBAL.bits()
        | WasmFeatures::SATURATING_FLOAT_TO_INT.bits()
        | WasmFeatures::SIGN_EXTENSION.bits()
        | WasmFeatures::REFERENCE_TYPES.bits()
        | WasmFeatures::MULTI_VALUE.bits()
        | WasmFeatures::BULK_MEMORY.bits()
        | WasmFeatures::SIMD.bits()
        | WasmFeatures::FLOATS.bits()
        | WasmFeatures::TAIL_CALL.bits()
        | WasmFeatures::MULTI_MEMORY.bits()
        | WasmFeatures::EXTENDED_CONST.bits()
        // the parser's word for `externref`, not the proposal
        | WasmFeatures::GC_TYPES.bits(),
);

fn valid_for_envoy(fused: &[u8]) -> Result<(), Error> {
    match Validator::new_with_features(ENVOY).validate_all(fused) {
        Ok(_) => Ok(()),
        // With everything on it is valid: a feature is the matter, not the fuser.
        Err(error)
            if Validator::new_with_features(WasmFeatures::all())
                .validate_all(fused)
                .is_ok() =>
        {
            Err(Error::Unsupported(format!(
                "a feature that Envoy has not: {error}"
            )))
        }
        Err(error) => Err(Error::internal("checking the fused module", error)),
    }
}
