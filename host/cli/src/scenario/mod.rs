//! Scenarios: a policy's behaviour as data. One file is played in virtual time over the real state
//! machines, on any host; the first difference ends it.

mod envoy;
mod expect;
mod file;
mod play;

pub use envoy::EnvoyHost;
pub use expect::Difference;
pub use file::Scenario;
pub use play::{Host, play};
