//! A good component of another world: it lifts, and routes nothing.

// Its exports have names that only a component may have.
#![cfg(target_arch = "wasm32")]
#![allow(missing_docs, reason = "generated; the WIT file says what it is")]

wit_bindgen::generate!({ world: "crane", path: "wit" });

struct Crane;

impl Guest for Crane {
    fn lift(kilograms: u32) -> bool {
        kilograms <= 40_000
    }
}

export!(Crane);
