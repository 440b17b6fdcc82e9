//! Plays recorded agentic traffic against a fleet and sums up what happened.
//!
//! ```text
//! trace ──► workload ──► live (HTTP, real time) ──► records ──► report
//!             ▲
//!           prompt (block ids → text)
//! ```
//!
//! A [`Trace`] says who sent what and when, without any text; a [`Workload`]
//! is that trace made playable: several users, a time scale, and for every
//! turn the messages to send. [`live::run`] plays it over HTTP and returns
//! one [`Record`] a request; [`Run`] is their summary and [`Reports`] the
//! table and the JSON of several of them.
//!
//! [`mixed`] needs no trace: one engine under a made load, in virtual time.

mod cut;
pub mod live;
pub mod mixed;
mod prompt;
mod record;
mod report;
mod stats;
mod trace;
mod workload;

pub use cut::Cut;
pub use live::{LiveError, LiveOptions};
pub use prompt::{BLOCK_BYTES, BLOCK_TOKENS, Message, Role};
pub use record::Record;
pub use report::{Reports, Run};
pub use stats::{Distribution, percentile};
pub use trace::{Session, Trace, TraceError, Turn};
pub use workload::{Conversation, PlannedTurn, Start, Workload, WorkloadError, WorkloadOptions};
