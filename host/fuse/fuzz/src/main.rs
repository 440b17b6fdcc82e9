//! `cargo run --release --manifest-path host/fuse/fuzz/Cargo.toml -- [ROUNDS [SEED]]`
//!
//! Valid components of every shape, from wasm-smith: each is refused with an error or fused to a valid
//! module. The first seed for which neither holds is printed, and the exit status is 101.

use arbitrary::Unstructured;
use pointsman_fuse::{Error, Options, fuse};
use std::sync::{LazyLock, Mutex};
use wasmparser::Validator;
use wit_component::{StringEncoding, dummy_module, embed_component_metadata};
use wit_parser::{LiftLowerAbi, ManglingAndAbi, Resolve};

/// Where panics on the fuser's thread came from.
static PANICS: LazyLock<Mutex<Vec<String>>> = LazyLock::new(|| {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some("fuse") {
            return usual(panic);
        }
        let place = panic.location().map_or("nowhere", |place| place.file());
        PANICS.lock().unwrap().push(place.to_owned());
    }));
    Mutex::default()
});

fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let (rounds, first) = (args.next().unwrap_or(10_000), args.next().unwrap_or(1));
    LazyLock::force(&PANICS);
    let adapter = adapter();
    let (mut fused, mut refused) = (0_u64, 0_u64);
    for seed in first..first + rounds {
        let mut random = Random(seed);
        let words = 256 + random.next() % 4096;
        let noise: Vec<u8> = (0..words).flat_map(|_| random.next().to_le_bytes()).collect();
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
                let fenced = ["wit-parser", "wit-component", "wasmtime-environ"];
                let theirs = |place: &String| fenced.iter().any(|name| place.contains(name));
                if panics.is_empty() || !panics.iter().all(theirs) {
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
    let package = resolve.push_str("none.wit", "package test:none;\nworld adapter {}").unwrap();
    let world = resolve.select_world(&[package], None).unwrap();
    let abi = ManglingAndAbi::Legacy(LiftLowerAbi::Sync);
    let mut module = dummy_module(&resolve, world, abi);
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    module
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}
