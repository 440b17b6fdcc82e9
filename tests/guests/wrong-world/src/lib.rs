//! A good component of another world: it lifts, and routes nothing.

#![allow(missing_docs, reason = "generated; the WIT file says what it is")]

wit_bindgen::generate!({ world: "crane", path: "wit" });

struct Crane;

impl Guest for Crane {
    fn lift(kilograms: u32) -> bool {
        kilograms <= 40_000
    }
}

export!(Crane);
