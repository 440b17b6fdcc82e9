//! The host's side of the contract: a policy's calls are answered by the ask that is before it.

use crate::bindings::pointsman::policy::{affinity, engine, facts, fleet, log, state, types};
use crate::budget::LogBudget;
use crate::convert;
use crate::deadline::Deadline;
use crate::driving::Engines;
use pointsman_core::{Ask, Cells, View};
use send_wrapper::SendWrapper;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use wasmtime::ResourceLimiter;

/// Log lines of one call; more are dropped.
const LOG_LINES: u32 = 16;
/// Bytes of one log line; the rest is cut off.
const LOG_BYTES: usize = 1024;

/// What a store carries.
pub(crate) struct State {
    policy: String,
    /// outside of questions: those have their own
    pub(crate) cells: Arc<Cells>,
    /// What is before the policy; none while it is configured, and between two calls: an instance may
    /// come up on one thread and answer on another.
    view: Option<SendWrapper<View>>,
    /// The engines, while a tick runs: whatever else it is called for, it may not drive them.
    pub(crate) engines: Option<Arc<dyn Engines>>,
    pub(crate) memory: MemoryLimit,
    pub(crate) deadline: Deadline,
    log: Arc<LogBudget>,
    log_lines: u32,
}

impl State {
    pub(crate) fn new(
        policy: &str,
        cells: Arc<Cells>,
        memory_limit: usize,
        log: Arc<LogBudget>,
    ) -> State {
        State {
            policy: policy.to_owned(),
            cells,
            view: None,
            engines: None,
            memory: MemoryLimit {
                bytes: memory_limit,
                exceeded: false,
            },
            deadline: Deadline::default(),
            log,
            log_lines: 0,
        }
    }

    /// Puts something before the policy.
    pub(crate) fn put(&mut self, view: Option<View>) {
        self.view = view.map(SendWrapper::new);
        self.log_lines = 0;
    }

    /// The question before it; none: it is not asked any.
    fn ask(&self) -> Option<&Ask> {
        self.view.as_ref()?.request().map(Rc::as_ref)
    }
}

/// Refuses growth beyond a limit, over all memories of the store, and remembers that it did: the trap
/// that follows does not say so.
pub(crate) struct MemoryLimit {
    bytes: usize,
    pub(crate) exceeded: bool,
}

/// Tables hold function references: a policy needs a few hundred.
const TABLE_ELEMENTS: usize = 65_536;

impl ResourceLimiter for MemoryLimit {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        match self.bytes.checked_sub(more) {
            Some(left) => {
                self.bytes = left;
                Ok(true)
            }
            None => {
                self.exceeded = true;
                Err(wasmtime::Error::msg("memory limit"))
            }
        }
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        self.exceeded |= desired > TABLE_ELEMENTS;
        Ok(desired <= TABLE_ELEMENTS)
    }
}

impl types::Host for State {}

impl fleet::Host for State {
    fn least(
        &mut self,
        cost: fleet::Weights,
        tie: fleet::Tie,
        except: Option<u32>,
        below: Option<u32>,
    ) -> Option<fleet::Choice> {
        let (cost, tie) = (convert::weights(cost), convert::tie(tie));
        (self.view.as_ref()?.least(cost, tie, except, below)).map(convert::choice)
    }

    fn totals(&mut self) -> fleet::Sums {
        let sums = self.view.as_ref().map(|view| view.totals());
        convert::sums(sums.unwrap_or_default())
    }

    fn load_of(&mut self, target: u32) -> Option<types::Load> {
        self.view.as_ref()?.load_of(target).map(convert::load)
    }

    fn columns(&mut self) -> fleet::Table {
        let table = self.view.as_ref().map(|view| view.columns());
        convert::table(table.unwrap_or_default())
    }

    fn describe(&mut self, target: u32) -> Option<fleet::Endpoint> {
        self.view.as_ref()?.describe(target).map(convert::endpoint)
    }
}

impl affinity::Host for State {
    fn lookup(&mut self, key: types::Key) -> Option<types::Binding> {
        (self.ask()?.lookup(convert::key(key))).map(convert::binding)
    }
}

impl state::Host for State {
    fn ticket(&mut self, lane: u32) -> u64 {
        match self.ask() {
            Some(ask) => ask.ticket(lane),
            None => self.cells.ticket(lane),
        }
    }

    fn get(&mut self, cell: u64) -> u64 {
        match self.ask() {
            Some(ask) => ask.get(cell),
            None => self.cells.get(cell),
        }
    }

    fn swap(&mut self, cell: u64, expected: u64, new: u64) -> u64 {
        match self.ask() {
            Some(ask) => ask.swap(cell, expected, new),
            None => self.cells.swap(cell, expected, new),
        }
    }
}

impl facts::Host for State {
    fn now_ms(&mut self) -> u64 {
        self.ask().map_or(0, Ask::now_ms)
    }

    fn max_output_tokens(&mut self) -> Option<u32> {
        self.ask()?.max_output_tokens()
    }

    fn header(&mut self, name: String) -> Option<String> {
        self.ask()?.header(&name)
    }

    fn body(&mut self, json_pointer: String) -> Option<String> {
        self.ask()?.body(&json_pointer)
    }
}

impl log::Host for State {
    fn write(&mut self, level: log::Level, mut message: String) {
        let shown = match level {
            log::Level::Debug => tracing::enabled!(tracing::Level::DEBUG),
            log::Level::Info => tracing::enabled!(tracing::Level::INFO),
            log::Level::Warn => tracing::enabled!(tracing::Level::WARN),
            log::Level::Error => tracing::enabled!(tracing::Level::ERROR),
        };
        self.log_lines = self.log_lines.saturating_add(1);
        let policy = &self.policy;
        if !shown || self.log_lines > LOG_LINES || !self.log.take(policy) {
            return;
        }
        message.truncate(message.floor_char_boundary(LOG_BYTES));
        match level {
            log::Level::Debug => tracing::debug!(policy, "{message}"),
            log::Level::Info => tracing::info!(policy, "{message}"),
            log::Level::Warn => tracing::warn!(policy, "{message}"),
            log::Level::Error => tracing::error!(policy, "{message}"),
        }
    }
}

impl State {
    /// What may be driven now: only while a tick runs.
    fn driven(&self) -> Result<(&str, &dyn Engines), engine::Failure> {
        match &self.engines {
            Some(engines) => Ok((&self.policy, engines.as_ref())),
            None => Err(engine::Failure::Denied),
        }
    }
}

impl engine::Host for State {
    fn knobs(&mut self, at: u32) -> Result<Vec<engine::Knob>, engine::Failure> {
        let (policy, engines) = self.driven()?;
        let knobs = engines.knobs(policy, at).map_err(convert::failure)?;
        Ok(knobs.into_iter().map(convert::knob).collect())
    }

    fn knob_get(&mut self, at: u32, name: String) -> Result<i64, engine::Failure> {
        let (policy, engines) = self.driven()?;
        let value = engines.knob_get(policy, at, &name);
        value.map_err(convert::failure)
    }

    fn knob_set(
        &mut self,
        at: Option<u32>,
        name: String,
        value: i64,
    ) -> Result<(), engine::Failure> {
        let (policy, engines) = self.driven()?;
        let set = engines.knob_set(policy, at, &name, value);
        set.map_err(convert::failure)
    }

    fn stat(&mut self, at: u32, name: String) -> Result<f64, engine::Failure> {
        let (policy, engines) = self.driven()?;
        let value = engines.stat(policy, at, &name);
        value.map_err(convert::failure)
    }

    fn profile_start(
        &mut self,
        who: engine::Roles,
        duration_ms: u32,
    ) -> Result<(), engine::Failure> {
        let (policy, engines) = self.driven()?;
        let duration = Some(Duration::from_millis(duration_ms.into())).filter(|d| !d.is_zero());
        let started = engines.profile_start(policy, &convert::roles(who), duration);
        started.map_err(convert::failure)
    }

    fn profile_stop(&mut self, who: engine::Roles) -> Result<(), engine::Failure> {
        let (policy, engines) = self.driven()?;
        let stopped = engines.profile_stop(policy, &convert::roles(who));
        stopped.map_err(convert::failure)
    }

    fn kernels(
        &mut self,
        at: u32,
        operation: String,
    ) -> Result<Vec<engine::Kernel>, engine::Failure> {
        let (policy, engines) = self.driven()?;
        let kernels = engines.kernels(policy, at, &operation);
        let kernels = kernels.map_err(convert::failure)?;
        Ok(kernels.into_iter().map(convert::kernel).collect())
    }

    fn kernel_choose(
        &mut self,
        at: Option<u32>,
        operation: String,
        name: String,
        low_m: u32,
        high_m: u32,
    ) -> Result<(), engine::Failure> {
        let (policy, engines) = self.driven()?;
        let chosen = engines.kernel_choose(policy, at, &operation, &name, (low_m, high_m));
        chosen.map_err(convert::failure)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driving;
    use affinity::Host as _;
    use engine::Host as _;
    use facts::Host as _;
    use fleet::Host as _;
    use pointsman_core::{
        Core, Endpoint, Limits, ManualClock, Overview, Phase, Roles, Snapshot, Standing, Target,
        TargetSpec,
    };
    use state::Host as _;

    /// Says who called and what for, as an error.
    struct Echo;

    fn echo<T>(policy: &str, what: String) -> Result<T, driving::Failure> {
        Err(driving::Failure::Unavailable(format!("{policy}: {what}")))
    }

    impl Engines for Echo {
        fn knobs(&self, policy: &str, at: Target) -> Result<Vec<driving::Knob>, driving::Failure> {
            echo(policy, format!("knobs {at}"))
        }

        fn knob_get(&self, policy: &str, at: Target, name: &str) -> Result<i64, driving::Failure> {
            echo(policy, format!("get {at} {name}"))
        }

        fn knob_set(
            &self,
            policy: &str,
            at: Option<Target>,
            name: &str,
            value: i64,
        ) -> Result<(), driving::Failure> {
            echo(policy, format!("set {at:?} {name} {value}"))
        }

        fn stat(&self, policy: &str, at: Target, name: &str) -> Result<f64, driving::Failure> {
            echo(policy, format!("stat {at} {name}"))
        }

        fn profile_start(
            &self,
            policy: &str,
            who: &[Phase],
            duration: Option<Duration>,
        ) -> Result<(), driving::Failure> {
            echo(policy, format!("start {who:?} {duration:?}"))
        }

        fn profile_stop(&self, policy: &str, who: &[Phase]) -> Result<(), driving::Failure> {
            echo(policy, format!("stop {who:?}"))
        }

        fn kernels(
            &self,
            policy: &str,
            at: Target,
            operation: &str,
        ) -> Result<Vec<driving::Kernel>, driving::Failure> {
            echo(policy, format!("kernels {at} {operation}"))
        }

        fn kernel_choose(
            &self,
            policy: &str,
            at: Option<Target>,
            operation: &str,
            name: &str,
            rows: (u32, u32),
        ) -> Result<(), driving::Failure> {
            echo(policy, format!("choose {at:?} {operation} {name} {rows:?}"))
        }
    }

    /// Every call of the interface, as text.
    fn calls(state: &mut State) -> Vec<String> {
        let who = engine::Roles::PREFILL | engine::Roles::DECODE;
        let name = || "n".to_owned();
        let answers = [
            state.knobs(1).err(),
            state.knob_get(2, name()).err(),
            state.knob_set(None, name(), -3).err(),
            state.stat(4, name()).err(),
            state.profile_start(who, 0).err(),
            state.profile_start(who, 5).err(),
            state.profile_stop(engine::Roles::SERVE).err(),
            state.kernels(6, name()).err(),
            state
                .kernel_choose(Some(7), "op".to_owned(), name(), 8, 9)
                .err(),
        ];
        let text = |failure: Option<engine::Failure>| match failure {
            Some(engine::Failure::Denied) => "denied".to_owned(),
            Some(engine::Failure::Unavailable(why)) => why,
            other => format!("{other:?}"),
        };
        answers.into_iter().map(text).collect()
    }

    fn state() -> State {
        let log = Arc::new(LogBudget::new());
        State::new("p", Arc::new(Cells::default()), 1 << 20, log)
    }

    #[test]
    fn without_a_request_the_fleet_is_there_and_what_belongs_to_one_is_not() {
        let standing = Standing {
            healthy: true,
            closed: true,
            draining: false,
            removed: false,
        };
        let member = |name: &str| {
            let spec = TargetSpec {
                endpoint: Endpoint {
                    name: name.to_owned(),
                    url: String::new(),
                    rank: 0,
                    labels: Vec::new(),
                },
                roles: Roles::only(Phase::Decode),
                models: None,
            };
            (Some(spec), standing)
        };
        let mut state = state();
        assert!(fleet::Host::columns(&mut state).target.is_empty());
        assert!(state.describe(0).is_none());
        let core = Core::new(Limits::default(), Arc::new(ManualClock::default()));
        core.fleet.mirror(&Snapshot::of(["a/0", "b/0"].map(member)));
        core.fleet.set(&[0], |standing| standing.removed = true);
        state.put(Some(View::Fleet(Overview::of(&core.fleet))));
        assert_eq!(fleet::Host::columns(&mut state).target, [1]);
        assert_eq!(fleet::Host::totals(&mut state).targets, 1);
        assert!(state.describe(1).is_some_and(|e| e.name == "b/0"));
        assert!(state.load_of(1).is_some());
        assert!(state.lookup(types::Key::Session).is_none());
        assert_eq!(facts::Host::now_ms(&mut state), 0);
        assert!(state.header("x".to_owned()).is_none());
        assert_eq!(state.swap(3, 0, 7), 0);
        assert_eq!(state.get(3), 7);
    }

    #[test]
    fn engines_may_be_driven_in_a_tick_and_are_denied_otherwise() {
        let mut state = state();
        assert_eq!(calls(&mut state), ["denied"; 9]);
        state.engines = Some(Arc::new(Echo));
        let reached = [
            "p: knobs 1",
            "p: get 2 n",
            "p: set None n -3",
            "p: stat 4 n",
            "p: start [Prefill, Decode] None",
            "p: start [Prefill, Decode] Some(5ms)",
            "p: stop [Serve]",
            "p: kernels 6 n",
            "p: choose Some(7) op n (8, 9)",
        ];
        assert_eq!(calls(&mut state), reached);
    }
}
