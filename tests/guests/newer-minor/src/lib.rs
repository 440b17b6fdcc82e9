//! A good policy for the next minor version of the contract.

// Its exports have names that only a component may have.
#![cfg(target_arch = "wasm32")]
#![allow(missing_docs, reason = "generated; the WIT file says what it is")]

wit_bindgen::generate!({ world: "router", path: "wit" });

use exports::pointsman::policy::policy::Guest;
use pointsman::policy::fleet;

struct NewerMinor;

impl Guest for NewerMinor {
    fn configure(_: String) -> Result<(), String> {
        Ok(())
    }

    fn warm() -> bool {
        true
    }

    fn route(_: Vec<u32>) -> Option<u32> {
        fleet::first()
    }
}

export!(NewerMinor);
