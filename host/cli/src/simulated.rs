//! A policy, as it runs on a host, over one engine in virtual time: it routes every request, and its
//! ticks drive the engine's scheduler.

use crate::policies::{Named, candidate};
use anyhow::{Result, bail};
use pointsman_core::{
    Core, Endpoint, Fallback, Incoming, ManualClock, Outcome, Phase, Roles, Target, TargetSpec,
    Ticket, Worker, decide, splitmix64,
};
use pointsman_engine::reference;
use pointsman_refengine::lockstep::Lockstep;
use pointsman_refengine::{RankStats, Settings};
use pointsman_replay::mixed::{Arrival, Conductor};
use pointsman_runtime::{
    Engine, EngineFailure as Failure, Engines, Instance, Kernel, Knob, Limits,
};
use serde_json::Map;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The engine's name in the fleet.
const ENGINE: &str = "engine";

/// See the module.
pub struct Simulated {
    clock: Arc<ManualClock>,
    now: Duration,
    core: Arc<Core>,
    worker: std::rc::Rc<Worker>,
    router: Instance,
    /// none: the policy only routes
    ticks: Option<Ticks>,
    driven: Arc<Driven>,
    running: HashMap<u64, Running>,
}

struct Ticks {
    instance: Instance,
    interval: Duration,
    next: Duration,
}

struct Running {
    ticket: Ticket,
    last_output: Duration,
}

/// The scheduler's settings, and what it reports: what a driver reaches.
struct Driven {
    core: Arc<Core>,
    state: Mutex<State>,
}

struct State {
    settings: Settings,
    /// they are other ones than the engine has
    changed: bool,
    ranks: Vec<RankStats>,
}

impl Simulated {
    /// `ranks` ranks with these settings. Without `drives` the policy gets no ticks.
    pub fn new(
        engine: &Engine,
        policy: &Named,
        config: &str,
        ranks: usize,
        settings: Settings,
        drives: bool,
    ) -> Result<Simulated> {
        let clock = Arc::new(ManualClock::default());
        let core = Arc::new(Core::new(pointsman_core::Limits::default(), clock.clone()));
        for rank in 0..ranks {
            core.fleet.add(TargetSpec {
                endpoint: Endpoint {
                    name: format!("{ENGINE}/{rank}"),
                    url: String::new(),
                    rank: u32::try_from(rank)?,
                    labels: Vec::new(),
                },
                roles: Roles::ALL,
                models: None,
            });
        }
        core.measured.follow(&core.fleet.snapshot(), |_| true);
        let prepared = candidate(engine, policy, config, Limits::default(), "")?.prepared;
        let name = &prepared.policy().name;
        let instance = || Instance::new(prepared.clone(), core.cells(name));
        let ticks = match prepared.tick_interval() {
            Some(interval) if drives => Some(Ticks {
                instance: instance(),
                interval,
                next: interval,
            }),
            None if drives => bail!("the policy {policy} wants no ticks: it drives no engine"),
            _ => None,
        };
        let state = State {
            settings,
            changed: false,
            ranks: vec![RankStats::default(); ranks],
        };
        Ok(Simulated {
            worker: Worker::new(core.clone(), prepared.policy().clone()),
            router: instance(),
            driven: Arc::new(Driven {
                core: core.clone(),
                state: Mutex::new(state),
            }),
            clock,
            now: Duration::ZERO,
            core,
            ticks,
            running: HashMap::new(),
        })
    }

    /// What was set last, for people.
    pub fn settings(&self) -> String {
        let settings = self.driven.state().settings;
        match settings.delayer() {
            Some(thresholds) => format!("interval {}", thresholds.prefill_decode_interval),
            None => "off".to_owned(),
        }
    }

    fn set_time(&mut self, now: Duration) {
        let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.clock.advance(ms(now).saturating_sub(ms(self.now)));
        self.now = self.now.max(now);
    }
}

impl Conductor for Simulated {
    fn route(&mut self, now: Duration, arrival: &Arrival) -> Result<usize, String> {
        self.set_time(now);
        let incoming = Incoming {
            seed: splitmix64(arrival.id),
            prompt_tokens: u32::try_from(arrival.prompt_tokens).unwrap_or(u32::MAX),
            ..Incoming::default()
        };
        let outcome = decide(&self.worker, &mut self.router, Fallback::Reject, &incoming);
        let mut ticket = match outcome {
            Outcome::Routed(ticket) => ticket,
            Outcome::Refused(refusal) => return Err(refusal.message),
        };
        ticket.dispatched();
        let rank = ticket.target() as usize;
        let running = Running {
            ticket,
            last_output: now,
        };
        self.running.insert(arrival.id, running);
        Ok(rank)
    }

    fn output(&mut self, now: Duration, id: u64, index: usize, last: bool) {
        self.set_time(now);
        let Some(running) = self.running.get_mut(&id) else {
            return;
        };
        let gap = now.saturating_sub(running.last_output);
        running.last_output = now;
        running.ticket.output();
        if let Some(window) = self.core.measured.of(running.ticket.target()) {
            let mut window = window.lock().unwrap_or_else(PoisonError::into_inner);
            let us = u64::try_from(gap.as_micros()).unwrap_or(u64::MAX);
            match index {
                0 => window.ttft(self.core.now_ms(), us),
                _ => window.itl(self.core.now_ms(), us, 1),
            }
        }
        if last && let Some(running) = self.running.remove(&id) {
            running.ticket.finish();
        }
    }

    fn between(&mut self, now: Duration, engine: &mut Lockstep) -> Result<(), String> {
        self.set_time(now);
        let Some(ticks) = self.ticks.as_mut().filter(|ticks| ticks.next <= now) else {
            return Ok(());
        };
        ticks.next = (ticks.next + ticks.interval).max(now);
        self.driven.state().ranks = engine.stats();
        let engines: Arc<dyn Engines> = self.driven.clone();
        ticks
            .instance
            .tick(self.core.now_ms(), self.worker.overview(), &engines)
            .map_err(|e| format!("a tick failed: {e}"))?;
        let mut state = self.driven.state();
        if std::mem::take(&mut state.changed) {
            engine.set_delayer(state.settings.delayer());
        }
        Ok(())
    }
}

impl Driven {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One engine, and every policy is granted it.
impl Engines for Driven {
    fn knobs(&self, _: &str, _: Target) -> Result<Vec<Knob>, Failure> {
        let settings = serde_json::to_value(self.state().settings);
        Ok(reference::knobs(&settings.unwrap_or_default()))
    }

    fn knob_get(&self, policy: &str, at: Target, name: &str) -> Result<i64, Failure> {
        let knobs = self.knobs(policy, at)?;
        let found = knobs.into_iter().find(|knob| knob.name == name);
        found.map(|knob| knob.value).ok_or(Failure::Unknown)
    }

    fn knob_set(&self, _: &str, _: Option<Target>, name: &str, value: i64) -> Result<(), Failure> {
        let value = reference::write(name, value)
            .ok_or(Failure::Unknown)?
            .map_err(Failure::Unavailable)?;
        let changes = Map::from_iter([(name.to_owned(), value)]);
        let mut state = self.state();
        state.settings =
            (state.settings.with(changes)).map_err(|e| Failure::Unavailable(e.to_string()))?;
        state.changed = true;
        Ok(())
    }

    fn stat(&self, _: &str, at: Target, name: &str) -> Result<f64, Failure> {
        if let Some(number) = self.core.measured.stat(at, self.core.now_ms(), name) {
            return Ok(number);
        }
        // As its /metrics have it.
        let stats = serde_json::to_value(self.state().ranks.get(at as usize));
        let name = name.strip_prefix("pointsman_engine_");
        let number = (name.zip(stats.ok())).and_then(|(name, stats)| stats.get(name)?.as_f64());
        number.ok_or(Failure::Unknown)
    }

    fn profile_start(&self, _: &str, _: &[Phase], _: Option<Duration>) -> Result<(), Failure> {
        Err(Failure::Unknown)
    }

    fn profile_stop(&self, _: &str, _: &[Phase]) -> Result<(), Failure> {
        Err(Failure::Unknown)
    }

    fn kernels(&self, _: &str, _: Target, _: &str) -> Result<Vec<Kernel>, Failure> {
        Err(Failure::Unknown)
    }

    fn kernel_choose(
        &self,
        _: &str,
        _: Option<Target>,
        _: &str,
        _: &str,
        _: (u32, u32),
    ) -> Result<(), Failure> {
        Err(Failure::Unknown)
    }
}
