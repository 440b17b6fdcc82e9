//! Drivers of engines, and which policy is granted which engines.

use super::{Config, Pool};
use crate::policies::built_in;
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

    /// Where a built-in policy that is there to drive engines would drive none.
    pub(super) fn driving_warnings(&self) -> Vec<String> {
        let name = &self.policy.r#use;
        if !built_in(name).is_some_and(|policy| policy.drives_engines) {
            return Vec::new();
        }
        let mut granted = self.grants.iter().filter(|grant| grant.policy == *name);
        let mut warnings = Vec::new();
        if granted.next().is_none() {
            warnings.push(format!(
                "policy {name:?} drives engines, and is granted none: add [[grant]] policy = \
                 {name:?}, engines = [\"*\"]"
            ));
        }
        for pool in &self.pools {
            let kind = pool.driver.as_ref().map(|driver| driver.kind);
            let why = match kind {
                None => "its pool has no driver",
                Some(DriverKind::Null | DriverKind::Vllm | DriverKind::Atom) => {
                    "its driver cannot set the scheduler"
                }
                Some(DriverKind::Reference | DriverKind::Sglang | DriverKind::Library) => continue,
            };
            let pool = &pool.name;
            warnings.push(format!(
                "pool {pool:?}: policy {name:?} does not drive its engines: {why}"
            ));
        }
        warnings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn warnings(driver: &str, grants: &str) -> String {
        let text = format!(
            "[policy]\nuse = \"decode-protect\"\n[[pool]]\nname = \"p\"\n\
             endpoints = [{{ name = \"a\", url = \"http://a\" }}]\n{driver}\n{grants}"
        );
        let config = Config::parse(&text, PathBuf::new()).unwrap();
        config.warnings().join("; ")
    }

    #[test]
    fn a_policy_that_would_drive_no_engine_is_warned_of() {
        let grant = "[[grant]]\npolicy = \"decode-protect\"\nengines = [\"*\"]\n";
        let other = grant.replace("decode", "encode");
        let driven = "driver = { kind = \"reference\" }";
        assert_eq!(warnings(driven, grant), "");
        for grants in ["", other.as_str()] {
            assert!(warnings(driven, grants).contains("is granted none: add [[grant]]"));
        }
        assert!(warnings("", grant).contains("its pool has no driver"));
        let null = warnings("driver = { kind = \"null\" }", grant);
        assert!(
            null.contains("its driver cannot set the scheduler"),
            "{null}"
        );
    }
}
