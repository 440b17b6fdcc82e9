//! A small language: `Rig::new().endpoint("a", &engine).start()`, engines with a script, clients.

mod client;
mod engine;
mod policy;
mod rig;

pub use client::{Client, Got, get, post};
pub use engine::{Engine, Seen, Sender, chunks, json, say, streaming, text};
pub use policy::{Broken, EVERY_EVENT, Least, Lost, Told};
pub use rig::{Rig, Running, endpoint};

use std::time::{Duration, Instant};

/// Waits for a condition that another thread brings about.
pub async fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(20), "never: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
