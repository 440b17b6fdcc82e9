//! Decisions kept with all that they depended on: the last ones in memory, and, when an operator wants
//! it, every one in a file.
//!
//! ```text
//! decide_taped ─► Moment ─► Recorder ─┬─► the last few (canary, GET recorder/recent)
//!                                     └─► a file of lines ──► Reader ──► Rehearsal of another policy
//! ```
//!
//! A [`Rehearsal`] asks a policy what it would have said, with the host's own rules, and counts what
//! would have changed and how often it failed.

#![forbid(unsafe_code)]

mod file;
mod line;
mod recorder;
mod rehearsal;

pub use file::{ReadError, Reader, Writer};
pub use recorder::{Recorder, StartError, Status};
pub use rehearsal::{Change, Rehearsal, Rehearsed};
