//! The configuration is read anew while requests flow: by SIGHUP, through the admin API, with `pointsman
//! config reload`. Through the real binary, before real (reference) engines.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

mod client;
mod edited;
mod engines;
mod file;
#[path = "../swap/operated.rs"]
#[expect(dead_code, reason = "some of it is for policies only")]
mod operated;
mod signals;
#[path = "../swap/traffic.rs"]
#[expect(dead_code, reason = "some of it is for policies only")]
mod traffic;
