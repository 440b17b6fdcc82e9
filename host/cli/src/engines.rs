//! The engines that policies may drive: each endpoint's driver, and which policy is granted which.

use crate::config::{Config, Driver, DriverKind, Role};
use anyhow::{Context, Result};
use pointsman_core::{Core, Phase, Target};
use pointsman_engine::{Desk, HttpDialect, HttpDriver, Limits, NullDriver, Opener};
use pointsman_runtime::{EngineFailure as Failure, Engines, Kernel, Knob};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// See the module.
pub struct Driven {
    core: Arc<Core>,
    /// by the endpoint's name
    desks: BTreeMap<String, (Phase, Desk)>,
    /// the endpoints of each policy, by its name
    grants: BTreeMap<String, BTreeSet<String>>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven")
            .field("grants", &self.grants)
            .finish_non_exhaustive()
    }
}

impl Driven {
    /// Starts the drivers that the configuration names; nothing is sent to an engine yet.
    pub fn start(config: &Config, core: Arc<Core>) -> Result<Driven> {
        let mut desks = BTreeMap::new();
        for pool in &config.pools {
            let Some(driver) = &pool.driver else { continue };
            for endpoint in &pool.endpoints {
                let desk = desk(config, driver, &endpoint.name, &endpoint.url)
                    .with_context(|| format!("the driver of pool {:?}", pool.name))?;
                desks.insert(endpoint.name.clone(), (phase(pool.role), desk));
            }
        }
        let mut grants: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for grant in &config.grants {
            let names: Vec<String> = if grant.engines.iter().any(|name| name == "*") {
                desks.keys().cloned().collect()
            } else {
                grant.engines.clone()
            };
            grants
                .entry(grant.policy.clone())
                .or_default()
                .extend(names);
        }
        Ok(Driven {
            core,
            desks,
            grants,
        })
    }

    /// The engines of these roles that have a driver: name, role, desk. For operators, who need no
    /// grant.
    pub fn of(&self, who: &[Phase]) -> impl Iterator<Item = (&str, Phase, &Desk)> {
        let all = self.desks.iter();
        let those = all.filter(move |(_, (phase, _))| who.contains(phase));
        those.map(|(name, (phase, desk))| (name.as_str(), *phase, desk))
    }

    /// The desk of a target that this policy is granted, and which of its ranks it is.
    fn granted(&self, policy: &str, at: Target) -> Result<(&Desk, u32), Failure> {
        let fleet = self.core.fleet.snapshot();
        let spec = fleet.spec(at).ok_or(Failure::Unknown)?;
        let name = endpoint(&spec.endpoint.name);
        let grant = self.grants.get(policy).ok_or(Failure::Denied)?;
        if !grant.contains(name) {
            return Err(Failure::Denied);
        }
        let (_, desk) = self.desks.get(name).ok_or(Failure::Denied)?;
        Ok((desk, spec.endpoint.rank))
    }

    /// Does it on every engine that this policy is granted, of these roles. The first failure is
    /// what it says, after all were tried.
    fn each(
        &self,
        policy: &str,
        who: &[Phase],
        call: impl Fn(&Desk) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let grant = self.grants.get(policy).ok_or(Failure::Denied)?;
        let mut failed = None;
        let mut done = false;
        for (name, (phase, desk)) in &self.desks {
            if !grant.contains(name) || !who.contains(phase) {
                continue;
            }
            match call(desk) {
                Ok(()) => done = true,
                Err(Failure::Unavailable(why)) => {
                    failed.get_or_insert(Failure::Unavailable(format!("{name}: {why}")));
                }
                Err(failure) => drop(failed.get_or_insert(failure)),
            }
        }
        match failed {
            Some(failure) => Err(failure),
            None if done => Ok(()),
            // Nothing to do it on.
            None => Err(Failure::Unknown),
        }
    }
}

/// All roles.
pub const EVERY: [Phase; 3] = [Phase::Serve, Phase::Prefill, Phase::Decode];

impl Engines for Driven {
    fn knobs(&self, policy: &str, at: Target) -> Result<Vec<Knob>, Failure> {
        let (desk, rank) = self.granted(policy, at)?;
        desk.knobs(rank)
    }

    fn knob_get(&self, policy: &str, at: Target, name: &str) -> Result<i64, Failure> {
        let (desk, rank) = self.granted(policy, at)?;
        desk.knob_get(rank, name)
    }

    fn knob_set(
        &self,
        policy: &str,
        at: Option<Target>,
        name: &str,
        value: i64,
    ) -> Result<(), Failure> {
        match at {
            Some(at) => {
                let (desk, rank) = self.granted(policy, at)?;
                desk.knob_set(Some(rank), name, value)
            }
            None => self.each(policy, &EVERY, |desk| desk.knob_set(None, name, value)),
        }
    }

    fn stat(&self, policy: &str, at: Target, name: &str) -> Result<f64, Failure> {
        let (desk, rank) = self.granted(policy, at)?;
        desk.stat(rank, name)
    }

    fn profile_start(
        &self,
        policy: &str,
        who: &[Phase],
        duration: Option<Duration>,
    ) -> Result<(), Failure> {
        let opener = Opener {
            by: format!("policy {policy}"),
            number: 0,
        };
        self.each(policy, who, |desk| {
            desk.profile_start_for(opener.clone(), duration)
        })
    }

    fn profile_stop(&self, policy: &str, who: &[Phase]) -> Result<(), Failure> {
        self.each(policy, who, |desk| desk.profile_stop().map(drop))
    }

    fn kernels(&self, policy: &str, at: Target, operation: &str) -> Result<Vec<Kernel>, Failure> {
        let (desk, rank) = self.granted(policy, at)?;
        desk.kernels(rank, operation)
    }

    fn kernel_choose(
        &self,
        policy: &str,
        at: Option<Target>,
        operation: &str,
        name: &str,
        rows: (u32, u32),
    ) -> Result<(), Failure> {
        match at {
            Some(at) => {
                let (desk, rank) = self.granted(policy, at)?;
                desk.kernel_choose(Some(rank), operation, name, rows)
            }
            None => self.each(policy, &EVERY, |desk| {
                desk.kernel_choose(None, operation, name, rows)
            }),
        }
    }
}

fn desk(config: &Config, driver: &Driver, name: &str, url: &str) -> Result<Desk> {
    let limits = Limits {
        deadline: driver.deadline,
        ..Limits::default()
    };
    let dialect = match driver.kind {
        DriverKind::Null => return Ok(Desk::open(limits, || Ok(NullDriver))),
        DriverKind::Library => {
            let path = driver
                .library
                .as_deref()
                .context("driver.library is missing")?;
            let library = crate::library::load(&config.base.join(path))?;
            // One entry serves all endpoints of a pool: the driver is told which one it drives.
            let own = serde_json::to_value(&driver.config)?;
            let own = json!({ "name": name, "url": url, "config": own }).to_string();
            return Ok(Desk::open(limits, move || library.open(&own)));
        }
        DriverKind::Reference => HttpDialect::Reference,
        DriverKind::Sglang => HttpDialect::Sglang,
        DriverKind::Vllm | DriverKind::Atom => HttpDialect::Vllm,
    };
    let url = url.to_owned();
    Ok(Desk::open(limits, move || HttpDriver::new(&url, dialect)))
}

fn phase(role: Role) -> Phase {
    role.into()
}

/// "a/3" is of endpoint "a".
fn endpoint(target: &str) -> &str {
    target
        .rsplit_once('/')
        .map_or(target, |(endpoint, _)| endpoint)
}
