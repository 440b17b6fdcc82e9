//! Every hash of the host, in one place.

use crate::types::{Key, Phase};
use xxhash_rust::xxh3::xxh3_64;

/// XXH3-64 of a text: how sessions, parents, models and request ids cross to a policy.
pub fn hash_text(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// The model of a request that names none: every endpoint may take it.
pub const NO_MODEL: u64 = 0;

/// One step of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
pub fn splitmix64(x: u64) -> u64 {
    let z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Where a key is valid: bindings of one route, phase and model never meet those of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Scope(u64);

impl Scope {
    /// `route` and `model` are hashes of their names.
    pub fn new(route: u64, phase: Phase, model: u64) -> Scope {
        Scope(splitmix64(
            splitmix64(route ^ phase.index() as u64).wrapping_add(model),
        ))
    }

    /// As a number, to be kept elsewhere.
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// What [`Scope::to_bits`] gave.
    pub fn from_bits(bits: u64) -> Scope {
        Scope(bits)
    }

    /// The key of the table for an identity. A parent's key is its own session's key; siblings are
    /// hashed in a namespace of their own, so that a group and its parent may live apart.
    pub(crate) fn key(self, key: Key, identity: u64) -> u64 {
        let namespace = match key {
            Key::Session | Key::Parent => 0x5345_5353,
            Key::Siblings => 0x5349_424C,
            Key::Custom => 0x4355_5354,
        };
        splitmix64(splitmix64(self.0 ^ namespace).wrapping_add(identity))
    }
}
