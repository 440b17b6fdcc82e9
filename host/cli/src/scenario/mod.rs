//! Scenarios: a policy's behaviour as data. One file is played in virtual time over the real state
//! machines, on any host; the first difference ends it.

mod file;
mod play;

pub use file::Scenario;
pub use play::{Difference, Host, play};
