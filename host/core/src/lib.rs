//! What a routing decision is, without any I/O: the state machines that the host, the policies'
//! native double, replay and the Envoy adapter share.
//!
//! ```text
//! Incoming ─► Ask ──(Router::route)──► Decision ─► commit ─► Ticket ─► dispatched · output · end
//!              │                                      │         │
//!              └ Fleet (who may take it, loads)       └ Bindings┘ (leases, prompt memory)
//! ```
//!
//! * [`Fleet`] knows the targets, whether they may take a request, and what is outstanding on each.
//! * [`Bindings`] maps keys (sessions, groups of siblings) to targets, bounded, with leases.
//! * [`Ask`] is what a policy may see of both while it decides, [`Overview`] what it sees in events.
//! * [`decide`] is the whole step: ask, check the answer, commit it as one transaction, or fall back.
//! * [`Moment`] is one decision with all that it depended on: another policy can be asked the same.
//! * [`Latency`] is how fast a target answered over the last seconds.
//! * [`Ticket`] is a request in flight; whatever happens to it, it gives back exactly once.
//!
//! No wall clock and no randomness: time comes through [`Clock`], chance only from a request's seed.

#![forbid(unsafe_code)]

mod ask;
mod bindings;
mod cells;
mod clock;
mod commit;
mod contract;
mod core;
mod decide;
mod entry;
mod fleet;
mod hash;
mod image;
mod kernel;
mod latency;
mod ledger;
mod measured;
mod moment;
mod piece;
mod places;
mod prompt;
mod shard;
mod sync;
mod ticket;
mod types;
mod view;

pub use ask::{Ask, Explicit, Facts, Incoming};
pub use bindings::{Bindings, Limits, Pieces, WhenFull};
pub use cells::Cells;
pub use clock::{Clock, ManualClock};
pub use commit::BadAnswer;
pub use core::{Core, Policy, Worker};
pub use decide::{
    Affinity, Failure, Fallback, Outcome, Refusal, Router, Source, Verdict, decide, decide_taped,
};
pub use fleet::{Fleet, Revision, Roles, Snapshot, Standing, TargetSpec};
pub use hash::{NO_MODEL, Scope, hash_text, splitmix64};
pub use latency::{Latency, WINDOW_MS};
pub use ledger::{Charge, Ledger};
pub use measured::{Measured, SharedLatency};
pub use moment::{Answer, Bound, Moment, Read};
pub use piece::{BadImage, Piece};
pub use prompt::{Chain, ChainBuilder, Shared};
pub use ticket::{Follower, Step, Ticket};
pub use types::{
    Binding, Choice, Decision, Endpoint, Event, Key, Keys, Load, Phase, Rejection, Request, Route,
    Sums, Table, Target, Tie, Usage, Wants, Weights,
};
pub use view::{Overview, View};
