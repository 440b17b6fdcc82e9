//! What crosses the border of a fused module arrives as it does in wasmtime's own components, and an
//! endless loop of the policy ends.
//!
//! One policy (`tests/fuse/policy`), as a component in wasmtime and fused with an adapter
//! (`tests/fuse/adapter`) that plays the proxy's side; both get the same values of every kind of type.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests are tests"
)]

use pointsman_fuse::{Options, fuse};
use pointsman_tests::{guest, pointsman};
use std::process::Command;
use std::sync::LazyLock;
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, Instance, Memory, Module, Result, Store, Trap, TypedFunc};
use wit_component::ComponentEncoder;

mod bindings {
    wasmtime::component::bindgen!({ world: "policy", path: "fuse/wit" });
}

use bindings::Policy;
use bindings::test::torture::host::Host;
use bindings::test::torture::shapes::{Color, Perms, Point, Shape};

#[allow(dead_code, reason = "shared with the adapter")]
mod values {
    use super::{Color, Perms, Point, Shape};
    include!("../fuse/values.rs");
}

const ROUNDS: u64 = 300;

static POLICY: LazyLock<Vec<u8>> = LazyLock::new(|| {
    ComponentEncoder::default()
        .validate(true)
        .module(&read("torture-policy"))
        .and_then(|encoder| encoder.encode())
        .unwrap_or_else(|error| panic!("{error:#}"))
});

fn read(name: &str) -> Vec<u8> {
    let path = guest(name);
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `make policies`", path.display()))
}

/// The policy as a component.
struct InWasmtime {
    store: Store<Adapter>,
    policy: Policy,
}

/// What the adapter does, natively.
struct Adapter;

impl Host for Adapter {
    fn mirror(&mut self, shapes: Vec<Shape>) -> Vec<Shape> {
        values::mirror(shapes)
    }

    fn note(&mut self, text: String, n: u64) -> Option<Option<String>> {
        values::note(&text, n)
    }
}

impl bindings::test::torture::shapes::Host for Adapter {}

impl InWasmtime {
    fn new() -> InWasmtime {
        let engine = Engine::default();
        let component = Component::new(&engine, POLICY.as_slice()).unwrap();
        let mut linker = Linker::new(&engine);
        Policy::add_to_linker::<Adapter, HasSelf<Adapter>>(&mut linker, |adapter| adapter).unwrap();
        let mut store = Store::new(&engine, Adapter);
        let policy = Policy::instantiate(&mut store, &component, &linker).unwrap();
        InWasmtime { store, policy }
    }

    fn turn(&mut self, seed: u64) -> String {
        let (a, b, c, d, e, f, g, h, i, j, k, l) = values::all(seed);
        let i = i.as_deref().map_err(|color| *color);
        let guest = self.policy.test_torture_guest();
        let turned = guest
            .call_turn(&mut self.store, &a, b, c, d, e, &f, g, h, i, j, k, &l)
            .unwrap();
        values::text(&turned)
    }

    fn mix(&mut self, seed: u64) -> u64 {
        let mut r = values::Random(seed);
        let guest = self.policy.test_torture_guest();
        let (a, b, c, d) = (
            r.next() & 1 == 0,
            r.next() as i8,
            r.next() as u8,
            r.next() as i16,
        );
        let (e, f, g) = (r.next() as u16, r.next() as i32, r.next() as u32);
        let (h, i, j, k, l) = (r.next() as i64, r.next(), r.f32(), r.f64(), r.char());
        let store = &mut self.store;
        guest
            .call_mix(store, a, b, c, d, e, f, g, h, i, j, k, l)
            .unwrap()
    }

    fn forge(&mut self, bytes: &[u8]) -> Result<String> {
        self.policy
            .test_torture_guest()
            .call_forge(&mut self.store, bytes)
    }
}

/// A fused module, compiled.
struct Fused {
    module: Module,
}

impl Fused {
    fn new(fuel: u64) -> Fused {
        let options = Options {
            fuel,
            ..Options::default()
        };
        let fused = fuse(&POLICY, &read("torture-adapter"), &options).unwrap();
        let module = Module::new(&Engine::default(), &fused.bytes).unwrap();
        Fused { module }
    }

    /// As a proxy starts it.
    fn start(&self) -> InProxy {
        let mut store = Store::new(self.module.engine(), ());
        let instance = Instance::new(&mut store, &self.module, &[]).unwrap();
        if let Ok(start) = instance.get_typed_func::<(), ()>(&mut store, "_initialize") {
            start.call(&mut store, ()).unwrap();
        }
        let memory = instance.get_memory(&mut store, "memory").unwrap();
        InProxy {
            store,
            instance,
            memory,
        }
    }
}

/// A running one.
struct InProxy {
    store: Store<()>,
    instance: Instance,
    memory: Memory,
}

impl InProxy {
    fn call(&mut self, entry: &str, value: u64) -> Result<u64> {
        let entry = format!("proxy_test_{entry}");
        let function: TypedFunc<u64, u64> = self
            .instance
            .get_typed_func(&mut self.store, &entry)
            .unwrap();
        function.call(&mut self.store, value)
    }

    fn text(&mut self, entry: &str, value: u64) -> Result<String> {
        let place = self.call(entry, value)?;
        let (at, len) = ((place >> 32) as usize, place as u32 as usize);
        let bytes = &self.memory.data(&self.store)[at..at + len];
        Ok(String::from_utf8(bytes.to_vec()).unwrap())
    }
}

#[test]
fn every_kind_of_type_crosses_as_in_wasmtime() {
    let mut component = InWasmtime::new();
    let mut fused = Fused::new(0).start();
    let mut metered = Fused::new(pointsman_fuse::FUEL).start();
    for seed in 0..ROUNDS {
        let wanted = component.turn(seed);
        assert_eq!(fused.text("turn", seed).unwrap(), wanted, "seed {seed}");
        assert_eq!(metered.text("turn", seed).unwrap(), wanted, "seed {seed}");
    }
}

#[test]
fn flat_values_cross_as_in_wasmtime() {
    let mut component = InWasmtime::new();
    let mut fused = Fused::new(pointsman_fuse::FUEL).start();
    for seed in 0..ROUNDS {
        assert_eq!(
            fused.call("mix", seed).unwrap(),
            component.mix(seed),
            "seed {seed}"
        );
    }
}

#[test]
fn a_string_that_is_no_utf_8_traps_exactly_where_wasmtime_refuses_it() {
    let module = Fused::new(0);
    let mut fused = module.start();
    let mut component = InWasmtime::new();
    let (mut good, mut bad) = (0, 0);
    for word in words() {
        let bytes = word.to_le_bytes();
        let bytes = &bytes[..8 - word.leading_zeros() as usize / 8];
        let (wanted, found) = (component.forge(bytes), fused.text("forge", word));
        match (&wanted, &found) {
            (Ok(wanted), Ok(found)) => {
                assert_eq!(wanted, found);
                good += 1;
            }
            (Err(_), Err(_)) => {
                // A trap ends an instance.
                (fused, component) = (module.start(), InWasmtime::new());
                bad += 1;
            }
            _ => panic!("{bytes:x?}: wasmtime {wanted:?}, fused {found:?}"),
        }
    }
    assert!(
        good > 30 && bad > 30,
        "{good} good, {bad} bad: no test of both"
    );
}

/// Up to eight bytes each: the edges of what UTF-8 allows, each after 0 to 4 letters, and others at random.
fn words() -> Vec<u64> {
    let edges: [&[u8]; 22] = [
        b"\x7f",
        b"\x80",
        b"\xbf",
        b"\xc1\xbf",
        b"\xc2\x80",
        b"\xc2",
        b"\xc2\x7f",
        b"\xdf\xbf",
        b"\xe0\x9f\xbf",
        b"\xe0\xa0\x80",
        b"\xed\x9f\xbf",
        b"\xed\xa0\x80",
        b"\xef\xbf\xbf",
        b"\xe1\x80\xc0",
        b"\xe1\x80",
        b"\xf0\x8f\xbf\xbf",
        b"\xf0\x90\x80\x80",
        b"\xf4\x8f\xbf\xbf",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\xf1\x80\x80\x7f",
        b"abcdefg\xff",
    ];
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(word)
    };
    let mut words = Vec::new();
    for edge in edges {
        for before in 0..=4 {
            let bytes = [&b"abcd"[..before], edge].concat();
            words.extend((bytes.len() <= 8).then(|| word(&bytes)));
        }
    }
    let mut random = values::Random(7);
    // Mostly ASCII, so that not everything is refused.
    words.extend((0..100).map(|_| {
        let noise = random.next() & random.next() & random.next() & random.next();
        0x6161_6161_6161_6161 ^ (noise & random.next())
    }));
    words
}

#[test]
fn an_endless_loop_of_the_policy_traps() {
    let mut fused = Fused::new(pointsman_fuse::FUEL).start();
    let error = fused.call("spin", u64::MAX).unwrap_err();
    assert_eq!(
        error.downcast_ref::<Trap>(),
        Some(&Trap::UnreachableCodeReached),
        "{error:?}"
    );
}

#[test]
fn endless_recursion_of_the_policy_traps() {
    // Less than the stack has room for: it is the fuel that ends it.
    let mut fused = Fused::new(10_000).start();
    assert_eq!(fused.call("dive", 100).unwrap(), 100);
    let error = fused.call("dive", u64::MAX).unwrap_err();
    assert_eq!(
        error.downcast_ref::<Trap>(),
        Some(&Trap::UnreachableCodeReached),
        "{error:?}"
    );
}

#[test]
fn every_call_has_its_own_fuel() {
    let mut fused = Fused::new(100_000).start();
    // Together far more than one call may spend.
    for _ in 0..1_000 {
        fused.call("spin", 2_000).unwrap();
    }
    assert!(fused.call("spin", 200_000).is_err());
}

#[test]
fn the_adapters_own_code_is_not_counted() {
    let mut fused = Fused::new(1_000).start();
    fused.call("own_loop", 1_000_000).unwrap();
}

#[test]
fn without_fuel_nothing_is_counted() {
    let mut fused = Fused::new(0).start();
    fused.call("spin", 5_000_000).unwrap();
}

/// Runs the binary; its JSON.
fn command(args: &[&str]) -> (bool, serde_json::Value) {
    let output = Command::new(pointsman())
        .args(args)
        .arg("--json")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (
        output.status.success(),
        serde_json::from_str(&text).unwrap(),
    )
}

#[test]
fn the_command_writes_what_the_library_fuses_and_inspects_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("policy.wasm"), POLICY.as_slice()).unwrap();
    let adapter = guest("torture-adapter");
    let build = |policy: &str, out: &str| {
        let adapter = adapter.to_str().unwrap();
        command(&[
            "envoy",
            "build",
            &path(policy),
            "-o",
            &path(out),
            "--adapter",
            adapter,
        ])
    };
    let (ok, built) = build("policy.wasm", "fused.wasm");
    assert!(ok, "{built}");
    let fused = fuse(&POLICY, &read("torture-adapter"), &Options::default()).unwrap();
    assert!(std::fs::read(path("fused.wasm")).unwrap() == fused.bytes);

    let (ok, inspected) = command(&["envoy", "inspect", &path("fused.wasm")]);
    assert!(ok, "{inspected}");
    assert_eq!(
        inspected["made"]["component"],
        fused.made.component.as_str()
    );
    assert_eq!(inspected["made"]["adapter"], fused.made.adapter.as_str());
    assert_eq!(inspected["sha256"], built["sha256"]);

    // Not a component: refused, and nothing is written.
    let (ok, refused) = build("fused.wasm", "twice.wasm");
    assert!(!ok);
    let error = refused["error"].as_str().unwrap();
    assert!(
        error.contains("wanted a policy component, found a core module"),
        "{error}"
    );
    assert!(!std::path::Path::new(&path("twice.wasm")).exists());
}
