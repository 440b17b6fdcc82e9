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
mod engines;
mod error;
mod explain;
mod flow;
mod headers;
mod health;
mod keeper;
mod metrics;
mod pace;
mod proxy;
mod received;
mod reload;
mod report;
mod request;
mod settings;
mod shadow_metrics;
mod site;
mod sse;
mod table;
mod target_metrics;
mod thread;
mod upstream;
mod usage;
mod witnesses;

pub use clock::SystemClock;
pub use error::Error;
pub use pointsman_request::{Dialect, Harness, Session};
pub use proxy::Proxy;
pub use reload::{Changes, Plan, Reloader};
pub use settings::{Breaker, Endpoint, Health, Limits, Pool, Settings, Timeouts};
pub use witnesses::Witnesses;
