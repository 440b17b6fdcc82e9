//! The data plane: HTTP comes in, a policy decides, HTTP goes to the engine, the answer streams back.
//!
//! ```text
//! Proxy ── one thread per core, each with its own listener, runtime, policy instance and pool
//!   └─ Site (what a thread has of its own)
//!        └─ request: identify → estimate → eligible · ask · commit → dispatch → Flow (release)
//! keeper ── one more thread: health checks, breakers that reopen, sweep, the admin address
//! ```
//!
//! A request never leaves its thread: its upstream connection is polled from the request's own task,
//! first while it waits for the head, then from its response body. Dropping the body, which is what a
//! client that leaves comes to, therefore closes the upstream connection and gives back all that
//! the request holds.

#![forbid(unsafe_code)]

mod address;
mod admin;
mod answer;
mod arriving;
mod breaker;
mod clock;
mod connection;
mod dialect;
mod engines;
mod error;
mod estimate;
mod explain;
mod flow;
mod headers;
mod health;
mod identify;
mod json;
mod keeper;
mod learn;
mod metrics;
mod proxy;
mod received;
mod reload;
mod report;
mod request;
mod settings;
mod site;
mod sse;
mod table;
mod thread;
mod upstream;
mod usage;

pub use clock::SystemClock;
pub use error::Error;
pub use proxy::Proxy;
pub use reload::{Changes, Plan, Reloader};
pub use settings::{
    Breaker, Dialect, Endpoint, Harness, Health, Limits, Pool, Session, Settings, Timeouts,
};
