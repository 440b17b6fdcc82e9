//! The engines that policies may drive, as they are now: each endpoint's driver, and which policy is granted
//! which. A reload makes them others while policies drive.

mod seats;
mod windows;

use crate::config::Config;
use anyhow::Result;
use arc_swap::ArcSwap;
use pointsman_core::{Core, Latency, Phase, Target, WINDOW_MS};
use pointsman_engine::Desk;
use pointsman_runtime::{EngineFailure as Failure, Engines, Kernel, Knob};
use seats::Seats;
pub use seats::{Changes, Seat, told};
use std::sync::Arc;
use std::time::Duration;
pub use windows::LONGEST_MS;

/// See the module.
pub struct Driven {
    core: Arc<Core>,
    now: ArcSwap<Seats>,
}

impl std::fmt::Debug for Driven {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driven")
            .field("now", &self.now)
            .finish_non_exhaustive()
    }
}

/// Drivers that can be used from now on.
#[must_use]
pub struct Plan(Seats);

impl Driven {
    /// Starts the drivers that the configuration names; nothing is sent to an engine yet.
    pub fn start(config: &Config, core: Arc<Core>) -> Result<Driven> {
        Ok(Driven {
            core,
            now: ArcSwap::from_pointee(Seats::of(config, &Seats::default())?),
        })
    }

    /// Opens what another configuration needs besides; changes nothing. Loads libraries: not for a thread
    /// on which somebody waits.
    ///
    /// # Errors
    /// A library that cannot be loaded.
    pub fn plan(&self, config: &Config) -> Result<Plan> {
        Ok(Plan(Seats::of(config, &self.now.load())?))
    }

    /// Drives these from now on; waits for no driver. The fleet has their targets already.
    pub fn apply(&self, plan: Plan) -> Changes {
        let next = Arc::new(plan.0);
        let before = self.now.swap(next.clone());
        self.measure();
        // The end of a driver ends its window.
        next.since(&before)
    }

    /// Measures the targets of the engines that some policy is granted, as the fleet is now.
    pub fn measure(&self) {
        let (now, fleet) = (self.now.load(), self.core.fleet.snapshot());
        (self.core.measured).follow(&fleet, |endpoint| now.is_granted(endpoint));
    }

    /// The engines of these roles that have a driver, by name. For operators, who need no grant.
    pub fn of(&self, who: &[Phase]) -> Vec<(String, Arc<Seat>)> {
        let now = self.now.load();
        let those = now.all.iter().filter(|(_, seat)| who.contains(&seat.phase));
        those
            .map(|(name, seat)| (name.clone(), seat.clone()))
            .collect()
    }

    /// The driver of a target that this policy is granted, and which of its ranks it is.
    fn granted(&self, policy: &str, at: Target) -> Result<(Arc<Seat>, u32), Failure> {
        let (now, fleet) = (self.now.load(), self.core.fleet.snapshot());
        let spec = fleet.spec(at).ok_or(Failure::Unknown)?;
        let name = spec.endpoint.server();
        let grant = now.grants.get(policy).ok_or(Failure::Denied)?;
        if !grant.contains(name) {
            return Err(Failure::Denied);
        }
        let seat = now.all.get(name).ok_or(Failure::Denied)?;
        Ok((seat.clone(), spec.endpoint.rank))
    }

    /// Does it on every engine that this policy is granted, of these roles. The first failure is
    /// what it says, after all were tried.
    fn each(
        &self,
        policy: &str,
        who: &[Phase],
        call: impl Fn(&Desk) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let now = self.now.load_full();
        let grant = now.grants.get(policy).ok_or(Failure::Denied)?;
        let mut failed = None;
        let mut done = false;
        for (name, seat) in &now.all {
            if !grant.contains(name) || !who.contains(&seat.phase) {
                continue;
            }
            match call(&seat.desk) {
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
        let (seat, rank) = self.granted(policy, at)?;
        seat.desk.knobs(rank)
    }

    fn knob_get(&self, policy: &str, at: Target, name: &str) -> Result<i64, Failure> {
        let (seat, rank) = self.granted(policy, at)?;
        seat.desk.knob_get(rank, name)
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
                let (seat, rank) = self.granted(policy, at)?;
                seat.desk.knob_set(Some(rank), name, value)
            }
            None => self.each(policy, &EVERY, |desk| desk.knob_set(None, name, value)),
        }
    }

    /// Those that the host measures are the host's, whatever the driver knows.
    fn stat(&self, policy: &str, at: Target, name: &str) -> Result<f64, Failure> {
        let (seat, rank) = self.granted(policy, at)?;
        if !Latency::STATS.contains(&name) {
            return seat.desk.stat(rank, name);
        }
        let (core, seconds) = (&self.core, WINDOW_MS / 1000);
        let measured = core.measured.stat(at, core.now_ms(), name);
        measured.ok_or_else(|| {
            let fleet = core.fleet.snapshot();
            let target = fleet
                .spec(at)
                .map_or("?", |spec| spec.endpoint.name.as_str());
            let why = format!("nothing was measured at {target} in the last {seconds} s");
            Failure::Unavailable(why)
        })
    }

    fn profile_start(
        &self,
        policy: &str,
        who: &[Phase],
        duration: Option<Duration>,
    ) -> Result<(), Failure> {
        let longest = Duration::from_millis(LONGEST_MS);
        let duration = duration.map_or(longest, |duration| duration.min(longest));
        let opener = windows::opener(policy);
        self.each(policy, who, |desk| {
            desk.profile_start_for(opener.clone(), Some(duration))
        })
    }

    fn profile_stop(&self, policy: &str, who: &[Phase]) -> Result<(), Failure> {
        self.each(policy, who, |desk| desk.profile_stop().map(drop))
    }

    fn kernels(&self, policy: &str, at: Target, operation: &str) -> Result<Vec<Kernel>, Failure> {
        let (seat, rank) = self.granted(policy, at)?;
        seat.desk.kernels(rank, operation)
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
                let (seat, rank) = self.granted(policy, at)?;
                seat.desk.kernel_choose(Some(rank), operation, name, rows)
            }
            None => self.each(policy, &EVERY, |desk| {
                desk.kernel_choose(None, operation, name, rows)
            }),
        }
    }

    fn ended(&self, policy: &str) {
        windows::close(policy, self.of(&EVERY));
    }
}
