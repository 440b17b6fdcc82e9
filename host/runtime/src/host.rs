//! The host's side of the contract: a policy's calls are answered by the ask that is before it.

use crate::bindings::pointsman::policy::{affinity, engine, facts, fleet, log, state, types};
use crate::budget::LogBudget;
use crate::convert;
use pointsman_core::{Ask, Cells};
use send_wrapper::SendWrapper;
use std::rc::Rc;
use std::sync::Arc;
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
    /// The question before the policy; none while it is configured, and between two questions: an
    /// instance may come up on one thread and answer on another.
    pub(crate) ask: Option<SendWrapper<Rc<Ask>>>,
    pub(crate) memory: MemoryLimit,
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
            ask: None,
            memory: MemoryLimit {
                bytes: memory_limit,
                exceeded: false,
            },
            log,
            log_lines: 0,
        }
    }

    /// Puts a question before the policy.
    pub(crate) fn put(&mut self, ask: Option<Rc<Ask>>) {
        self.ask = ask.map(SendWrapper::new);
        self.log_lines = 0;
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
        (self.ask.as_ref()?.least(cost, tie, except, below)).map(convert::choice)
    }

    fn totals(&mut self) -> fleet::Sums {
        let sums = self.ask.as_ref().map(|ask| ask.totals());
        convert::sums(sums.unwrap_or_default())
    }

    fn load_of(&mut self, target: u32) -> Option<types::Load> {
        self.ask.as_ref()?.load_of(target).map(convert::load)
    }

    fn columns(&mut self) -> fleet::Table {
        let table = self.ask.as_ref().map(|ask| ask.columns());
        convert::table(table.unwrap_or_default())
    }

    fn describe(&mut self, target: u32) -> Option<fleet::Endpoint> {
        self.ask.as_ref()?.describe(target).map(convert::endpoint)
    }
}

impl affinity::Host for State {
    fn lookup(&mut self, key: types::Key) -> Option<types::Binding> {
        (self.ask.as_ref()?.lookup(convert::key(key))).map(convert::binding)
    }
}

impl state::Host for State {
    fn ticket(&mut self, lane: u32) -> u64 {
        match &self.ask {
            Some(ask) => ask.ticket(lane),
            None => self.cells.ticket(lane),
        }
    }

    fn get(&mut self, cell: u64) -> u64 {
        match &self.ask {
            Some(ask) => ask.get(cell),
            None => self.cells.get(cell),
        }
    }

    fn swap(&mut self, cell: u64, expected: u64, new: u64) -> u64 {
        match &self.ask {
            Some(ask) => ask.swap(cell, expected, new),
            None => self.cells.swap(cell, expected, new),
        }
    }
}

impl facts::Host for State {
    fn now_ms(&mut self) -> u64 {
        self.ask.as_ref().map_or(0, |ask| ask.now_ms())
    }

    fn max_output_tokens(&mut self) -> Option<u32> {
        self.ask.as_ref()?.max_output_tokens()
    }

    fn header(&mut self, name: String) -> Option<String> {
        self.ask.as_ref()?.header(&name)
    }

    fn body(&mut self, json_pointer: String) -> Option<String> {
        self.ask.as_ref()?.body(&json_pointer)
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

/// No policy is granted an engine yet: the drivers behind this interface are a part of their own.
impl engine::Host for State {
    fn knobs(&mut self, _at: u32) -> Result<Vec<engine::Knob>, engine::Failure> {
        Err(engine::Failure::Denied)
    }

    fn knob_get(&mut self, _at: u32, _name: String) -> Result<i64, engine::Failure> {
        Err(engine::Failure::Denied)
    }

    fn knob_set(
        &mut self,
        _at: Option<u32>,
        _name: String,
        _value: i64,
    ) -> Result<(), engine::Failure> {
        Err(engine::Failure::Denied)
    }

    fn stat(&mut self, _at: u32, _name: String) -> Result<f64, engine::Failure> {
        Err(engine::Failure::Denied)
    }

    fn profile_start(
        &mut self,
        _who: engine::Roles,
        _duration_ms: u32,
    ) -> Result<(), engine::Failure> {
        Err(engine::Failure::Denied)
    }

    fn profile_stop(&mut self, _who: engine::Roles) -> Result<(), engine::Failure> {
        Err(engine::Failure::Denied)
    }

    fn kernels(
        &mut self,
        _at: u32,
        _operation: String,
    ) -> Result<Vec<engine::Kernel>, engine::Failure> {
        Err(engine::Failure::Denied)
    }

    fn kernel_choose(
        &mut self,
        _at: Option<u32>,
        _operation: String,
        _name: String,
        _low_m: u32,
        _high_m: u32,
    ) -> Result<(), engine::Failure> {
        Err(engine::Failure::Denied)
    }
}
