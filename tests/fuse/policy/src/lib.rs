//! A guest that takes everything in, turns it around, and gives it back.

#[allow(unsafe_code, reason = "generated: the canonical ABI")]
mod bindings {
    wit_bindgen::generate!({ world: "policy", path: "../wit" });
}

use bindings::exports::test::torture::guest::{Color, Guest, Perms, Point, Shape};
use bindings::test::torture::host;

struct Policy;

type Turned = (
    Vec<Shape>,
    Color,
    Perms,
    Option<Option<u8>>,
    char,
    Vec<u8>,
    i8,
    f32,
    Result<Vec<String>, Color>,
    Point,
    i64,
    String,
);

impl Guest for Policy {
    fn turn(
        a: Vec<Shape>,
        b: Color,
        c: Perms,
        d: Option<Option<u8>>,
        e: char,
        mut f: Vec<u8>,
        g: i8,
        h: f32,
        i: Result<Vec<String>, Color>,
        j: Point,
        k: i64,
        l: String,
    ) -> Turned {
        let a = host::mirror(&a);
        f.reverse();
        let noted = host::note(&l, k as u64);
        let i = i.map(|mut list| {
            list.push(format!("{noted:?}"));
            list
        });
        let d = match d {
            None => Some(None),
            Some(None) => Some(Some(g as u8)),
            Some(Some(_)) => None,
        };
        let b = match b {
            Color::Red => Color::Green,
            Color::Green => Color::Blue,
            Color::Blue => Color::Red,
        };
        let l = l.chars().rev().chain([e]).collect();
        let j = Point {
            x: h,
            y: -j.y,
            tag: j.tag,
        };
        (a, b, c, d, e, f, g.wrapping_neg(), -h, i, j, !k, l)
    }

    fn mix(
        a: bool,
        b: i8,
        c: u8,
        d: i16,
        e: u16,
        f: i32,
        g: u32,
        h: i64,
        i: u64,
        j: f32,
        k: f64,
        l: char,
    ) -> u64 {
        let parts = [
            u64::from(a),
            b as u64,
            u64::from(c),
            d as u64,
            u64::from(e),
            f as u64,
            u64::from(g),
            h as u64,
            i,
            u64::from(j.to_bits()),
            k.to_bits(),
            u64::from(u32::from(l)),
        ];
        parts.iter().fold(7, |sum, part| {
            (sum ^ part)
                .wrapping_mul(0x9E37_79B9_7F4A_7C15)
                .rotate_left(23)
        })
    }

    fn spin(times: u64) -> u64 {
        let mut x = 1_u64;
        for turn in 0..times {
            x = std::hint::black_box(x.rotate_left(7) ^ turn);
        }
        x
    }

    fn dive(deep: u64) -> u64 {
        match std::hint::black_box(deep) {
            0 => 0,
            deep => 1 + Policy::dive(deep - 1),
        }
    }

    #[allow(unsafe_code, reason = "that is what the test is about")]
    fn forge(bytes: Vec<u8>) -> String {
        // SAFETY: there is none: a guest that breaks the rule that strings are UTF-8.
        unsafe { String::from_utf8_unchecked(bytes) }
    }
}

// A name such as `test:torture/guest@1.2.0#turn` is none for a linker of machine code.
#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "generated: the canonical ABI")]
mod export {
    use super::{Policy, bindings};
    bindings::export!(Policy with_types_in bindings);
}
