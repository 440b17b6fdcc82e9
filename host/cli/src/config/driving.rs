//! Drivers of engines, and which policy is granted which engines.

use super::{Config, Pool};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// How the engines of a pool are driven, each by a driver of its own.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Driver {
    pub kind: DriverKind,
    /// the shared library, for that kind
    pub library: Option<PathBuf>,
    /// the library's own; it gets {"name": …, "url": …, "config": this}
    #[serde(default)]
    pub config: toml::Table,
    /// of one call. Default "1s", at most "60s"
    #[serde(with = "humantime_serde", default = "driver_deadline")]
    pub deadline: Duration,
}

fn driver_deadline() -> Duration {
    Duration::from_secs(1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    /// behind the C ABI
    Library,
    /// over HTTP, as the next ones: `pointsman engine`
    Reference,
    Sglang,
    Vllm,
    Atom,
    /// takes profiling windows, and knows nothing else
    Null,
}

/// The engines that a policy may drive.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// the name that the policy gives itself
    pub policy: String,
    /// endpoints; "*": all that have a driver
    pub engines: Vec<String>,
}

impl Driver {
    /// `key` is where it stands.
    pub(super) fn check(&self, key: &str) -> Result<()> {
        let found = self.deadline;
        ensure!(
            !found.is_zero() && found <= Duration::from_secs(60),
            "{key}.deadline = {found:?}: wanted more than 0s, and at most 60s"
        );
        let is_library = self.kind == DriverKind::Library;
        ensure!(
            is_library == self.library.is_some(),
            "{key}: kind = \"library\" and library = \"FILE\" go together, and neither without \
             the other"
        );
        ensure!(
            is_library || self.config.is_empty(),
            "{key}.config is for kind = \"library\" only: leave it out"
        );
        Ok(())
    }
}

impl Config {
    /// A grant of what is not there would be a policy that wonders why it is denied.
    pub(super) fn check_grants(&self) -> Result<()> {
        for (grant, at) in self.grants.iter().zip(0..) {
            let key = format!("grant[{at}]");
            ensure!(
                !grant.policy.is_empty() && !grant.engines.is_empty(),
                "{key}: wanted the name of a policy and at least one engine, or \"*\""
            );
            for name in grant.engines.iter().filter(|name| *name != "*") {
                let of = |pool: &&Pool| pool.endpoints.iter().any(|e| e.name == *name);
                let pool = self.pools.iter().find(of);
                let pool = pool.with_context(|| {
                    format!("{key}.engines: there is no endpoint of the name {name:?}")
                })?;
                ensure!(
                    pool.driver.is_some(),
                    "{key}.engines: {name:?} has no driver: pool {:?} needs one, such as \
                     driver = {{ kind = \"vllm\" }}",
                    pool.name
                );
            }
        }
        Ok(())
    }
}
