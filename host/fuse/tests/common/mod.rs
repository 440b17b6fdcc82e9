//! Components and adapters made from WIT text: every function of theirs traps, which is all that a test
//! of the fuser itself needs.
#![allow(dead_code, reason = "shared by several tests")]

use std::fs;
use std::path::{Path, PathBuf};
use wit_component::{ComponentEncoder, StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{LiftLowerAbi, ManglingAndAbi, Resolve};

/// The contract's text, as one file.
pub fn contract() -> String {
    let folder = root().join("wit");
    let files = ["types.wit", "host.wit", "policy.wit"];
    let texts = files.map(|file| fs::read_to_string(folder.join(file)).unwrap());
    let package = texts[0].lines().next().unwrap().to_owned();
    let rest: Vec<String> = texts
        .iter()
        .map(|text| text.replace(&package, ""))
        .collect();
    format!("{package}\n{}", rest.concat())
}

/// The contract with `from` replaced by `to`; it must be there.
pub fn contract_but(from: &str, to: &str) -> String {
    let text = contract();
    assert!(text.contains(from), "the contract has no {from:?}");
    text.replace(from, to)
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A policy that `make policies` has built.
pub fn built_policy(name: &str) -> Vec<u8> {
    let path = root()
        .join("target/policies")
        .join(name)
        .with_extension("wasm");
    fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `make policies`", path.display()))
}

pub const POLICIES: [&str; 4] = [
    "least-tokens",
    "session-affinity",
    "parent-affinity",
    "conversation-round-robin",
];

/// A component of the world `router` of this text.
pub fn policy(wit: &str) -> Vec<u8> {
    component(wit, StringEncoding::UTF8, LiftLowerAbi::Sync)
}

pub fn component(wit: &str, encoding: StringEncoding, abi: LiftLowerAbi) -> Vec<u8> {
    let module = module(wit, "router", encoding, abi);
    ComponentEncoder::default()
        .validate(true)
        .module(&module)
        .and_then(|encoder| encoder.encode())
        .unwrap_or_else(|error| panic!("{error:#}"))
}

/// A core module of the world `adapter` of this text.
pub fn adapter(wit: &str) -> Vec<u8> {
    module(wit, "adapter", StringEncoding::UTF8, LiftLowerAbi::Sync)
}

fn module(wit: &str, world: &str, encoding: StringEncoding, abi: LiftLowerAbi) -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = (resolve.push_str("test.wit", wit)).unwrap_or_else(|error| panic!("{error:#}"));
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut module = dummy_module(&resolve, world, ManglingAndAbi::Legacy(abi));
    embed_component_metadata(&mut module, &resolve, world, encoding, false).unwrap();
    module
}
