//! The data plane between real sockets: scripted engines on one side, clients on the other.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests; clippy.toml allows these only inside the test functions themselves"
)]

mod harness;

mod bounds;
mod check;
mod estimates;
mod events;
mod explain;
mod field_cases;
mod identity;
mod measured;
mod pass_through;
mod ranks;
mod reload;
mod retries;
mod standing;
mod streams;
mod upstream;
