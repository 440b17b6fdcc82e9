//! Recurses without end in `route`.

use pointsman_sdk::prelude::*;
use std::collections::BTreeMap;

struct DeepStack;

impl Policy for DeepStack {
    type Config = BTreeMap<String, String>;
    const NAME: &'static str = "deep-stack";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = &["first"];

    fn new(_: Self::Config) -> Result<Self, String> {
        Ok(DeepStack)
    }

    fn keys(&self) -> Keys {
        Keys::empty()
    }

    fn route(&self, _: &Request, _: &mut impl Host) -> Decision {
        Decision::Abstain(deeper(0))
    }
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn deeper(depth: u8) -> u8 {
    let frame = std::hint::black_box([depth; 256]);
    let [first, ..] = frame;
    deeper(first.wrapping_add(1)).wrapping_add(std::hint::black_box(frame)[0])
}

pointsman_sdk::export!(DeepStack);
