//! The policy's host calls, answered from what it is being asked.

use super::bindings::exports::pointsman::policy as wit;
use super::bindings::pointsman::policy::types::{Binding, Key, Load, Target};
use super::policy::view;
use super::{log as write, vm};
use pointsman_core::{Ask, View};
use proxy_wasm::types::LogLevel;
use std::rc::Rc;

/// Bytes of a line in the log.
const LINE: usize = 1024;

/// See the module.
pub(super) struct Host;

/// What the policy is being asked; none: it is not in `route`.
fn asked() -> Option<Rc<Ask>> {
    view()?.request().cloned()
}

/// What is before it, with the loads of this moment.
fn with_loads() -> Option<View> {
    let view = view()?;
    vm()?.site.bring_loads();
    Some(view)
}

impl wit::fleet::Guest for Host {
    fn least(
        cost: wit::fleet::Weights,
        tie: wit::fleet::Tie,
        except: Option<Target>,
        below: Option<u32>,
    ) -> Option<wit::fleet::Choice> {
        let choice = with_loads()?.least(cost.into(), tie.into(), except, below);
        choice.map(Into::into)
    }

    fn totals() -> wit::fleet::Sums {
        with_loads()
            .map(|view| view.totals())
            .unwrap_or_default()
            .into()
    }

    fn load_of(target: Target) -> Option<Load> {
        with_loads()?.load_of(target).map(Into::into)
    }

    fn columns() -> wit::fleet::Table {
        with_loads()
            .map(|view| view.columns())
            .unwrap_or_default()
            .into()
    }

    fn describe(target: Target) -> Option<wit::fleet::Endpoint> {
        view()?.describe(target).map(Into::into)
    }
}

impl wit::affinity::Guest for Host {
    fn lookup(key: Key) -> Option<Binding> {
        asked()?.lookup(key.into()).map(Into::into)
    }
}

impl wit::state::Guest for Host {
    fn ticket(lane: u32) -> u64 {
        vm().map_or(0, |vm| {
            vm.site.cells.ticket(&vm.site.shared, u64::from(lane))
        })
    }

    fn get(cell: u64) -> u64 {
        vm().map_or(0, |vm| vm.site.cells.get(&vm.site.shared, cell))
    }

    fn swap(cell: u64, expected: u64, new: u64) -> u64 {
        vm().map_or(0, |vm| {
            vm.site.cells.swap(&vm.site.shared, cell, expected, new)
        })
    }
}

impl wit::facts::Guest for Host {
    fn now_ms() -> u64 {
        asked().map_or(0, |ask| ask.now_ms())
    }

    fn max_output_tokens() -> Option<u32> {
        asked()?.max_output_tokens()
    }

    fn header(name: String) -> Option<String> {
        asked()?.header(&name)
    }

    fn body(json_pointer: String) -> Option<String> {
        asked()?.body(&json_pointer)
    }
}

impl wit::log::Guest for Host {
    fn write(level: wit::log::Level, message: String) {
        let level = match level {
            wit::log::Level::Debug => LogLevel::Debug,
            wit::log::Level::Info => LogLevel::Info,
            wit::log::Level::Warn => LogLevel::Warn,
            wit::log::Level::Error => LogLevel::Error,
        };
        let end = message.floor_char_boundary(LINE);
        let line = message.get(..end).unwrap_or_default();
        write(level, &format!("policy: {line}"));
    }
}

type Denied<T> = Result<T, wit::engine::Failure>;

/// No policy is granted an engine here: `tick`, for which they are meant, runs on no VM.
impl wit::engine::Guest for Host {
    fn knobs(_: Target) -> Denied<Vec<wit::engine::Knob>> {
        Err(wit::engine::Failure::Denied)
    }

    fn knob_get(_: Target, _: String) -> Denied<i64> {
        Err(wit::engine::Failure::Denied)
    }

    fn knob_set(_: Option<Target>, _: String, _: i64) -> Denied<()> {
        Err(wit::engine::Failure::Denied)
    }

    fn stat(_: Target, _: String) -> Denied<f64> {
        Err(wit::engine::Failure::Denied)
    }

    fn profile_start(_: wit::engine::Roles, _: u32) -> Denied<()> {
        Err(wit::engine::Failure::Denied)
    }

    fn profile_stop(_: wit::engine::Roles) -> Denied<()> {
        Err(wit::engine::Failure::Denied)
    }

    fn kernels(_: Target, _: String) -> Denied<Vec<wit::engine::Kernel>> {
        Err(wit::engine::Failure::Denied)
    }

    fn kernel_choose(_: Option<Target>, _: String, _: String, _: u32, _: u32) -> Denied<()> {
        Err(wit::engine::Failure::Denied)
    }
}
