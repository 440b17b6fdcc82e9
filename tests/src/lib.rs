//! The harness of the end-to-end tests: real processes of the real binary on free loopback ports,
//! ended by pid when a test is over.
//!
//! ```no_run
//! # async fn test() -> anyhow::Result<()> {
//! use pointsman_tests::{Engine, Host};
//! let engine = Engine::start("a", 4).await?;
//! let host = Host::start("session-affinity", &[&engine]).await?;
//! let answer = host.chat("s1", "hello").await?;
//! assert_eq!(answer.status, 200);
//! # Ok(()) }
//! ```

mod drivers;
mod envoy;
mod fleet;
mod host;
mod metrics;
mod paths;
mod process;
mod raw;
mod scripted;

pub use drivers::driver_in_c;
pub use envoy::{Envoy, Gauges, envoy, run};
pub use fleet::fleet;
pub use host::{Answer, Engine, Host};
pub use metrics::Metrics;
pub use paths::{guest, pointsman, policy, root};
pub use process::{Process, Usage};
pub use raw::{Raw, RawAnswer};
pub use scripted::{Scripted, Seen, Step};
