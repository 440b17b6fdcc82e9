//! `cargo run --release --manifest-path host/fuse/fuzz/Cargo.toml -- [ROUNDS [SEED]]`
//!
//! Valid components of every shape, from wasm-smith: each is refused with an error or fused to a valid
//! module. The first seed for which neither holds is printed, and the exit status is 101.

#[path = "../../tests/common/fuzzing.rs"]
mod fuzzing;

use arbitrary::Unstructured;
use fuzzing::{PANICS, Random, is_fenced};
use pointsman_fuse::{Error, Options, fuse};
use std::sync::LazyLock;
use wasmparser::Validator;
use wit_component::{StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{LiftLowerAbi, ManglingAndAbi, Resolve};

fn main() {
    let mut args = std::env::args()
        .skip(1)
        .map(|arg| arg.parse::<u64>().expect("a number"));
    let (rounds, first) = (args.next().unwrap_or(10_000), args.next().unwrap_or(1));
    LazyLock::force(&PANICS);
    let adapter = adapter();
    let (mut fused, mut refused) = (0_u64, 0_u64);
    for seed in first..first + rounds {
        let mut random = Random(seed);
        let words = 256 + random.next() % 4096;
        let noise: Vec<u8> = (0..words)
            .flat_map(|_| random.next().to_le_bytes())
            .collect();
        let Ok(component) = Unstructured::new(&noise).arbitrary::<wasm_smith::Component>() else {
            continue;
        };
        let options = Options {
            stub_wasi: seed.is_multiple_of(2),
            fuel: [0, 1_000][seed as usize / 2 % 2],
        };
        match fuse(&component.to_bytes(), &adapter, &options) {
            Ok(module) => {
                fused += 1;
                if let Err(error) = Validator::new().validate_all(&module.bytes) {
                    panic!("seed {seed}: {error}");
                }
            }
            Err(Error::Internal { stage, message }) => {
                // The WIT decoder gives up on some; the fuser itself never does.
                let mut panics = PANICS.lock().unwrap();
                if panics.is_empty() || !panics.iter().all(|place| is_fenced(place)) {
                    panic!("seed {seed}: {stage}: {message}: {panics:?}");
                }
                panics.clear();
                refused += 1;
            }
            Err(_) => refused += 1,
        }
    }
    println!("{rounds} rounds from seed {first}: {fused} fused, {refused} refused");
}

/// It wants nothing of a policy, and gives nothing.
fn adapter() -> Vec<u8> {
    let mut resolve = Resolve::default();
    let package = resolve
        .push_str("none.wit", "package test:none;\nworld adapter {}")
        .unwrap();
    let world = resolve.select_world(&[package], None).unwrap();
    let abi = ManglingAndAbi::Legacy(LiftLowerAbi::Sync);
    let mut module = dummy_module(&resolve, world, abi);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    module
}
