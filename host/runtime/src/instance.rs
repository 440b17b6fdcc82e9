//! A policy's warm instance: one per worker thread.

use crate::bindings::Router as Guest;
use crate::bindings::exports::pointsman::policy::policy::{
    Description, Event as WasmEvent, Guest as Exports,
};
use crate::convert;
use crate::driving::Engines;
use crate::engine::TICK_MS;
use crate::host::State;
use crate::load::Prepared;
use crate::trap;
use pointsman_core::{Ask, Cells, Decision, Event, Failure, Overview, Router, View, Wants};
use std::rc::Rc;
use std::sync::Arc;
use wasmtime::{Store, UpdateDeadline};

/// Configuring happens off the request path and may take longer than a decision.
const CONFIGURE_MS: u64 = 1000;

/// A tick stands in nobody's way, and what it asks of engines takes its time.
const TICK_LIMIT_MS: u64 = 5000;

/// What a policy may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// of one decision, in ms, at least 1; one that spins ends half as late again, or up to 2 ms
    pub time_ms: u64,
    /// linear memory, in MiB, at least 1
    pub memory_mb: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            time_ms: 10,
            memory_mb: 16,
        }
    }
}

impl Limits {
    fn memory_bytes(self) -> usize {
        usize::try_from(self.memory_mb.saturating_mul(1 << 20)).unwrap_or(usize::MAX)
    }
}

/// A configured instance in its store.
pub(crate) struct Live {
    store: Store<State>,
    guest: Guest,
}

/// Why an instance did not come up.
pub(crate) enum StartError {
    /// it trapped, or exceeded a limit
    Failed(Failure),
    /// it refuses the configuration
    Refused(String),
}

impl Live {
    /// Instantiates and configures.
    pub(crate) fn start(
        prepared: &Prepared,
        cells: Arc<Cells>,
    ) -> Result<(Live, Description), StartError> {
        let limits = prepared.limits;
        let (name, memory) = (&prepared.policy.name, limits.memory_bytes());
        let state = State::new(name, cells, memory, prepared.log.clone());
        let mut store = Store::new(prepared.pre.engine(), state);
        store.limiter(|state| &mut state.memory);
        store.epoch_deadline_callback(|mut store| {
            Ok(match store.data_mut().deadline.ends() {
                true => UpdateDeadline::Interrupt,
                false => UpdateDeadline::Continue(1),
            })
        });
        limit(&mut store, CONFIGURE_MS);
        let guest = match prepared.pre.instantiate(&mut store) {
            Ok(guest) => guest,
            Err(e) => {
                let failure = trap::classify(&e, &store, limits, CONFIGURE_MS);
                return Err(StartError::Failed(failure));
            }
        };
        let policy = guest.pointsman_policy_policy();
        match policy.call_configure(&mut store, &prepared.config) {
            Ok(Ok(description)) => Ok((Live { store, guest }, description)),
            Ok(Err(refusal)) => Err(StartError::Refused(refusal)),
            Err(e) => {
                let failure = trap::classify(&e, &store, limits, CONFIGURE_MS);
                Err(StartError::Failed(failure))
            }
        }
    }

    /// Whether its numbers are kept there.
    pub(crate) fn is_over(&self, cells: &Arc<Cells>) -> bool {
        Arc::ptr_eq(&self.store.data().cells, cells)
    }

    fn route(&mut self, ask: &Rc<Ask>, limits: Limits) -> Result<Decision, Failure> {
        let request = convert::request(ask.request());
        let answer = self.call(View::Request(ask.clone()), limits, |policy, store| {
            policy.call_route(store, request)
        });
        answer.map(convert::decision)
    }

    fn observe(&mut self, event: Event, fleet: &Overview, limits: Limits) -> Result<(), Failure> {
        self.call(View::Fleet(fleet.clone()), limits, |policy, store| {
            policy.call_observe(store, convert::event(event))
        })
    }

    fn tick(
        &mut self,
        now_ms: u64,
        fleet: Overview,
        engines: &Arc<dyn Engines>,
        limits: Limits,
    ) -> Result<(), Failure> {
        self.store.data_mut().engines = Some(engines.clone());
        let limits = Limits {
            time_ms: TICK_LIMIT_MS,
            ..limits
        };
        let told = self.call(View::Fleet(fleet), limits, |policy, store| {
            policy.call_observe(store, WasmEvent::Tick(now_ms))
        });
        self.store.data_mut().engines = None;
        told
    }

    fn call<R>(
        &mut self,
        view: View,
        limits: Limits,
        call: impl FnOnce(&Exports, &mut Store<State>) -> wasmtime::Result<R>,
    ) -> Result<R, Failure> {
        self.store.data_mut().put(Some(view));
        limit(&mut self.store, limits.time_ms);
        let answer = call(self.guest.pointsman_policy_policy(), &mut self.store);
        self.store.data_mut().put(None);
        answer.map_err(|e| trap::classify(&e, &self.store, limits, limits.time_ms))
    }
}

/// A call begins that has so much time.
fn limit(store: &mut Store<State>, ms: u64) {
    store.data_mut().deadline.begin(ms);
    // The current tick is partly over: one more, so that the limit is never cut short.
    store.set_epoch_deadline(ms / TICK_MS + 1);
}

/// See the module. After a failure the next question meets a fresh instance.
pub struct Instance {
    prepared: Arc<Prepared>,
    cells: Arc<Cells>,
    live: Option<Live>,
}

impl std::fmt::Debug for Instance {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Instance").finish_non_exhaustive()
    }
}

impl Instance {
    /// An instance that starts with its first question, or with [`Instance::warm`].
    pub fn new(prepared: Arc<Prepared>, cells: Arc<Cells>) -> Instance {
        Instance {
            prepared,
            cells,
            live: None,
        }
    }

    /// Starts now, so that no request pays for it; one that is up already and waits is taken.
    ///
    /// # Errors
    /// If it traps, exceeds a limit or refuses its configuration.
    pub fn warm(&mut self) -> Result<(), Failure> {
        if self.live.is_none() {
            self.live = self.prepared.take(&self.cells);
        }
        if self.live.is_none() {
            let (live, _) =
                Live::start(&self.prepared, self.cells.clone()).map_err(|e| match e {
                    StartError::Failed(failure) => Failure::Start(failure.to_string()),
                    StartError::Refused(refusal) => Failure::Start(refusal),
                })?;
            self.live = Some(live);
        }
        Ok(())
    }
}

impl Instance {
    /// Tells it that its interval is over; meanwhile it sees the fleet and may drive these.
    /// [`crate::Control`] does it in real time.
    ///
    /// # Errors
    /// As with any call.
    pub fn tick(
        &mut self,
        now_ms: u64,
        fleet: Overview,
        engines: &Arc<dyn Engines>,
    ) -> Result<(), Failure> {
        self.live(|live, limits| live.tick(now_ms, fleet, engines, limits))
    }

    /// Calls the warm instance; one that failed is thrown away.
    fn live<R>(
        &mut self,
        call: impl FnOnce(&mut Live, Limits) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        self.warm()?;
        let Some(live) = &mut self.live else {
            return Err(Failure::Start("no instance".to_owned()));
        };
        let answer = call(live, self.prepared.limits);
        if answer.is_err() {
            self.live = None;
        }
        answer
    }
}

/// Should its policy come back, it is up.
impl Drop for Instance {
    fn drop(&mut self) {
        if let Some(live) = self.live.take() {
            self.prepared.give(live);
        }
    }
}

impl Router for Instance {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        self.live(|live, limits| live.route(ask, limits))
    }

    fn wants(&self) -> Wants {
        self.prepared.wants
    }

    fn observe(&mut self, event: Event, fleet: &Overview) -> Result<(), Failure> {
        self.live(|live, limits| live.observe(event, fleet, limits))
    }
}
