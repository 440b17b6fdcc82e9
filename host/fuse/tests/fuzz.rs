//! Whatever the bytes: an error or a valid module, never a panic that gets out, and never one of the
//! fuser's own. (The WIT decoder has some for components that no tool makes: they are fenced.)
//!
//! Valid components of every shape: `host/fuse/fuzz`.
//!
//! `FUSE_FUZZ_ROUNDS` and `FUSE_FUZZ_SEED` choose more and other ones; a failure prints its seed.

#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests are tests"
)]

mod common;
#[path = "common/fuzzing.rs"]
mod fuzzing;

use common::{POLICIES, adapter, built_policy, contract, policy};
use fuzzing::{PANICS, Random, is_fenced};
use pointsman_fuse::{Error, Options, fuse};
use std::sync::LazyLock;
use wasmparser::Validator;

/// A number below `n`; 0 where there is none.
fn below(random: &mut Random, n: usize) -> usize {
    (random.next() % n.max(1) as u64) as usize
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// How often each outcome came.
#[derive(Debug, Default)]
struct Outcomes {
    fused: u64,
    refused: u64,
    fenced: u64,
}

/// None came from the fuser's own code.
fn check_panics() {
    for place in PANICS.lock().unwrap().iter() {
        assert!(is_fenced(place), "a panic in {place}");
    }
}

impl Outcomes {
    /// Fuses; a defect of the fuser, or of what it builds on, fails the test.
    fn of(&mut self, component: &[u8], adapter: &[u8], seed: u64) {
        LazyLock::force(&PANICS);
        let options = Options {
            stub_wasi: seed.is_multiple_of(2),
            fuel: [0, 1_000][seed as usize / 2 % 2],
        };
        match fuse(component, adapter, &options) {
            Ok(fused) => {
                self.fused += 1;
                let valid = Validator::new().validate_all(&fused.bytes).map(drop);
                assert_eq!(
                    valid.map_err(|error| error.to_string()),
                    Ok(()),
                    "seed {seed}"
                );
            }
            Err(Error::Internal {
                stage: "generating the module",
                ..
            }) => {
                self.fenced += 1;
            }
            Err(Error::Internal { stage, message }) => panic!("seed {seed}: {stage}: {message}"),
            Err(_) => self.refused += 1,
        }
    }
}

/// A component's sections, whole; the first is its header.
fn sections(component: &[u8]) -> Vec<Vec<u8>> {
    let mut sections = vec![component[..8].to_vec()];
    let mut at = 8;
    while at < component.len() {
        let (mut size, mut shift, mut end) = (0, 0, at + 1);
        loop {
            let byte = component[end];
            size |= usize::from(byte & 0x7F) << shift;
            (shift, end) = (shift + 7, end + 1);
            if byte < 0x80 {
                break;
            }
        }
        sections.push(component[at..end + size].to_vec());
        at = end + size;
    }
    sections
}

/// One to three changes: to bits, or to whole sections, those without core code more often.
fn mutated(base: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut parts = sections(base);
    for _ in 0..=below(random, 3) {
        let small: Vec<usize> = (1..parts.len())
            .filter(|at| parts[*at].len() < 4096)
            .collect();
        let at = match below(random, 4) {
            0 => below(random, parts.len()),
            _ => small[below(random, small.len())],
        };
        let byte = below(random, parts[at].len());
        match below(random, 8) {
            0..=2 => parts[at][byte] ^= 1 << below(random, 8),
            3 => parts[at][byte] = [0, 1, 0x7F, 0x80, 0xFF][below(random, 5)],
            4 => {
                let with = below(random, parts.len());
                parts.swap(at, with);
            }
            5 => parts.insert(at, parts[at].clone()),
            6 => drop(parts.remove(at)),
            _ => {
                let theirs = sections(other);
                parts.insert(at, theirs[below(random, theirs.len())].clone());
            }
        }
    }
    let mut whole = parts.concat();
    if below(random, 10) == 0 {
        whole.truncate(below(random, whole.len()));
    }
    whole
}

#[test]
fn damaged_policies_are_refused_or_fuse() {
    let rounds = setting("FUSE_FUZZ_ROUNDS", 600);
    let first = setting("FUSE_FUZZ_SEED", 1);
    let mut bases: Vec<Vec<u8>> = POLICIES.map(built_policy).to_vec();
    bases.push(policy(&contract()));
    let adapter = adapter(&contract());
    let mut outcomes = Outcomes::default();
    for seed in first..first + rounds {
        let mut random = Random(seed);
        let base = below(&mut random, bases.len());
        let other = below(&mut random, bases.len());
        let bytes = mutated(&bases[base], &bases[other], &mut random);
        outcomes.of(&bytes, &adapter, seed);
    }
    eprintln!("{outcomes:?}");
    check_panics();
    // Names and code may change without harm: both must have been seen.
    assert!(outcomes.fused > 0 && outcomes.refused > 0, "{outcomes:?}");
}

#[test]
fn damaged_adapters_are_refused_or_fuse() {
    let rounds = setting("FUSE_FUZZ_ROUNDS", 300);
    let first = setting("FUSE_FUZZ_SEED", 1);
    let policies = [built_policy("least-tokens"), policy(&contract())];
    let base = adapter(&contract());
    let mut outcomes = Outcomes::default();
    for seed in first..first + rounds {
        let mut random = Random(seed);
        let bytes = mutated(&base, &base, &mut random);
        outcomes.of(&policies[below(&mut random, 2)], &bytes, seed);
    }
    eprintln!("{outcomes:?}");
    check_panics();
    assert!(outcomes.refused > 0, "{outcomes:?}");
}
