//! What a policy's calls to `interface engine` reach.

use pointsman_core::{Phase, Target};
pub use pointsman_engine::{Failure, Kernel, Knob};
use std::time::Duration;

/// The engines that may be driven. Every call names the policy that makes it: what it is not granted
/// is [`Failure::Denied`].
#[allow(clippy::missing_errors_doc)]
pub trait Engines: Send + Sync {
    /// The settings of a target's scheduler.
    fn knobs(&self, policy: &str, at: Target) -> Result<Vec<Knob>, Failure>;
    /// One of them.
    fn knob_get(&self, policy: &str, at: Target, name: &str) -> Result<i64, Failure>;
    /// Sets one; none: of every rank of every engine that the policy is granted.
    fn knob_set(
        &self,
        policy: &str,
        at: Option<Target>,
        name: &str,
        value: i64,
    ) -> Result<(), Failure>;
    /// A number that the engine reports.
    fn stat(&self, policy: &str, at: Target, name: &str) -> Result<f64, Failure>;
    /// A profiling window on the granted engines of these roles; none: until it is stopped.
    fn profile_start(
        &self,
        policy: &str,
        who: &[Phase],
        duration: Option<Duration>,
    ) -> Result<(), Failure>;
    /// Ends it.
    fn profile_stop(&self, policy: &str, who: &[Phase]) -> Result<(), Failure>;
    /// The ways to compute an operation.
    fn kernels(&self, policy: &str, at: Target, operation: &str) -> Result<Vec<Kernel>, Failure>;
    /// Chooses one for a range of rows.
    fn kernel_choose(
        &self,
        policy: &str,
        at: Option<Target>,
        operation: &str,
        name: &str,
        rows: (u32, u32),
    ) -> Result<(), Failure>;
    /// A policy decides no more, and another one does: what it left open is to be ended. Waits for
    /// nothing.
    fn ended(&self, policy: &str) {
        let _ = policy;
    }
}
