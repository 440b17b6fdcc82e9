//! The other side of the torture policy: it makes the values, calls, and gives out how the answers read.

#[allow(unsafe_code, reason = "generated: the canonical ABI")]
mod bindings {
    wit_bindgen::generate!({ world: "adapter", path: "../wit", export_prefix: "fuse:" });
}

use bindings::exports::test::torture::host::Guest;
use bindings::test::torture::shapes::{Color, Perms, Point, Shape};

/// Values and their text.
#[allow(
    dead_code,
    missing_docs,
    clippy::indexing_slicing,
    reason = "shared with the test"
)]
mod values {
    use super::{Color, Perms, Point, Shape};
    include!("../../values.rs");
}

struct Adapter;

impl Guest for Adapter {
    fn mirror(shapes: Vec<Shape>) -> Vec<Shape> {
        values::mirror(shapes)
    }

    fn note(text: String, n: u64) -> Option<Option<String>> {
        values::note(&text, n)
    }
}

// A name such as `test:torture/guest@1.2.0#turn` is none for a linker of machine code.
#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "generated: the canonical ABI")]
mod export {
    use super::{Adapter, bindings};
    bindings::export!(Adapter with_types_in bindings);
}

/// Entries that survive fusing, as those of a real adapter do.
#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "entries of a module have fixed names")]
mod entries {
    use super::{bindings::test::torture::guest, values};

    /// Address and length.
    fn out(text: &str) -> u64 {
        let text: &'static mut str = text.to_owned().leak();
        ((text.as_ptr() as usize as u64) << 32) | text.len() as u64
    }

    #[unsafe(no_mangle)]
    extern "C" fn proxy_test_turn(seed: u64) -> u64 {
        let (a, b, c, d, e, f, g, h, i, j, k, l) = values::all(seed);
        let i = i.as_deref();
        out(&values::text(&guest::turn(
            &a, b, c, d, e, &f, g, h, i, j, k, &l,
        )))
    }

    #[unsafe(no_mangle)]
    extern "C" fn proxy_test_mix(seed: u64) -> u64 {
        let mut r = values::Random(seed);
        guest::mix(
            r.next() & 1 == 0,
            r.next() as i8,
            r.next() as u8,
            r.next() as i16,
            r.next() as u16,
            r.next() as i32,
            r.next() as u32,
            r.next() as i64,
            r.next(),
            r.f32(),
            r.f64(),
            r.char(),
        )
    }

    #[unsafe(no_mangle)]
    extern "C" fn proxy_test_spin(times: u64) -> u64 {
        guest::spin(times)
    }

    #[unsafe(no_mangle)]
    extern "C" fn proxy_test_dive(deep: u64) -> u64 {
        guest::dive(deep)
    }

    /// Has the policy give out the bytes of a word, lowest first, without the zeros at its top.
    #[unsafe(no_mangle)]
    extern "C" fn proxy_test_forge(word: u64) -> u64 {
        let bytes = word.to_le_bytes();
        let len = 8 - word.leading_zeros() as usize / 8;
        out(&guest::forge(bytes.get(..len).unwrap_or(&bytes)))
    }

    /// A loop of the adapter's own, which nobody counts.
    #[unsafe(no_mangle)]
    extern "C" fn proxy_test_own_loop(times: u64) -> u64 {
        (0..times).fold(0, |x, turn| std::hint::black_box(x ^ turn))
    }
}
