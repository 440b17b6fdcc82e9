//! Operators replace the policy of a running host: through the admin API, with `pointsman policy`, by a
//! new file. Through the real binary, before real (reference) engines, under load.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

mod api;
mod bad;
mod canary;
mod compiling;
mod file;
mod operated;
mod shadow;
mod soak;
mod traffic;
mod under_load;
