//! The adapter's functions: where they are, and whether their core types are those of its WIT. The
//! generator takes that for granted, but a module's WIT is only a section beside its code.

use crate::Error;
use crate::module::{CoreModule, Kind};
use crate::synth::Signature;
use wasm_encoder::ValType;
use wit_parser::abi::{AbiVariant, WasmType};
use wit_parser::{Function, Resolve};

/// The number of the function that the adapter offers under this name.
pub(crate) fn offered(adapter: &CoreModule, name: &str) -> Option<u32> {
    (adapter.export(Kind::Function, &format!("fuse:{name}")))
        .or_else(|| adapter.export(Kind::Function, name))
}

/// The number of what is to be called after it, with its results.
pub(crate) fn post_return(adapter: &CoreModule, name: &str) -> Option<u32> {
    (adapter.export(Kind::Function, &format!("fuse:cabi_post_{name}")))
        .or_else(|| adapter.export(Kind::Function, &format!("cabi_post_{name}")))
}

/// Whether `function`, that the adapter offers, is what the WIT says.
pub(crate) fn check_offered(
    adapter: &CoreModule,
    name: &str,
    (resolve, function): (&Resolve, &Function),
) -> Result<(), Error> {
    let index = offered(adapter, name).ok_or_else(|| Error::NoImport(name.to_owned()))?;
    let wanted = signature(resolve, AbiVariant::GuestExport, function);
    check(adapter, name, index, &wanted)?;
    if let Some(index) = post_return(adapter, name) {
        let wanted = Signature {
            params: wanted.results,
            results: Vec::new(),
        };
        check(adapter, &format!("cabi_post_{name}"), index, &wanted)?;
    }
    Ok(())
}

/// Whether what the adapter takes from the policy is what the WIT says; the linker may have left out
/// what it never calls.
pub(crate) fn check_taken(
    adapter: &CoreModule,
    name: &str,
    (resolve, function): (&Resolve, &Function),
) -> Result<(), Error> {
    let wanted = signature(resolve, AbiVariant::GuestImport, function);
    let functions = (adapter.imports.iter()).filter(|import| import.kind == Kind::Function);
    for (at, import) in functions.enumerate() {
        if import.full_name() == name {
            check(adapter, name, at as u32, &wanted)?;
        }
    }
    Ok(())
}

/// Whether the functions with fixed names have their types.
pub(crate) fn check_fixed(adapter: &CoreModule) -> Result<(), Error> {
    let realloc = Signature {
        params: vec![ValType::I32; 4],
        results: vec![ValType::I32],
    };
    let nothing = Signature::default();
    for (name, wanted) in [
        ("cabi_realloc", &realloc),
        ("_initialize", &nothing),
        ("fuse_out_of_fuel", &nothing),
    ] {
        if let Some(index) = adapter.export(Kind::Function, name) {
            check(adapter, name, index, wanted)?;
        }
    }
    Ok(())
}

fn check(adapter: &CoreModule, name: &str, index: u32, wanted: &Signature) -> Result<(), Error> {
    if adapter.signature(index) == Some(wanted) {
        return Ok(());
    }
    Err(Error::NoAdapter(format!(
        "one whose function {name} has another core type than its WIT gives it"
    )))
}

fn signature(resolve: &Resolve, variant: AbiVariant, function: &Function) -> Signature {
    let signature = resolve.wasm_signature(variant, function);
    let all = |types: &[WasmType]| types.iter().map(value_type).collect();
    Signature {
        params: all(&signature.params),
        results: all(&signature.results),
    }
}

fn value_type(ty: &WasmType) -> ValType {
    match ty {
        WasmType::I32 | WasmType::Pointer | WasmType::Length => ValType::I32,
        WasmType::I64 | WasmType::PointerOrI64 => ValType::I64,
        WasmType::F32 => ValType::F32,
        WasmType::F64 => ValType::F64,
    }
}
