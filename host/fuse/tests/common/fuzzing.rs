//! What both fuzzers need: numbers, and where panics came from.

use std::sync::{LazyLock, Mutex};

/// splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

/// Where panics on the fuser's thread came from.
pub static PANICS: LazyLock<Mutex<Vec<String>>> = LazyLock::new(|| {
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

/// Whether a panic is one of the decoders, which give up on some input: the fuser fences them.
pub fn is_fenced(place: &str) -> bool {
    ["wit-parser", "wit-component", "wasmtime-environ"]
        .iter()
        .any(|name| place.contains(name))
}
