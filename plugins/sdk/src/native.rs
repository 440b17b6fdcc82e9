//! A policy without Wasm, linked into a host.

use crate::bindings::pointsman::policy::log;
use crate::convert::{core_keys, decision, request};
use crate::{
    Binding, Choice, Description, Endpoint, Host, Key, Level, Load, Policy, Sums, Table, Target,
    Tie, Weights, configure,
};
use pointsman_core::{Ask, Cells, Failure, Overview, Router, View};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

/// A configured policy that answers the host's own [`Ask`]. It has neither time nor memory limit; a
/// panic is caught and counts as a trap.
#[derive(Debug)]
pub struct Native<P> {
    policy: P,
    description: Description,
}

impl<P: Policy> Native<P> {
    /// Configures the policy; the empty text sets nothing.
    ///
    /// # Errors
    /// What is wrong with the configuration, for the operator.
    pub fn new(config: &str) -> Result<Native<P>, String> {
        let (policy, description) = configure(config)?;
        Ok(Native {
            policy,
            description,
        })
    }

    /// What the host must know to ask it.
    pub fn policy(&self) -> pointsman_core::Policy {
        let description = &self.description;
        pointsman_core::Policy {
            name: description.name.clone(),
            version: description.version.clone(),
            reasons: description.reasons.clone(),
            keys: core_keys(description.keys),
        }
    }

    /// What the component would say of itself.
    pub fn description(&self) -> &Description {
        &self.description
    }
}

impl<P: Policy> Router for Native<P> {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<pointsman_core::Decision, Failure> {
        let asked = request(ask.request());
        let mut host = Shown::request(ask);
        let answer = catch_unwind(AssertUnwindSafe(|| self.policy.route(&asked, &mut host)));
        answer
            .map(decision)
            .map_err(|panic| Failure::Trap(text_of(&*panic)))
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("it panicked")
        .to_owned()
}

/// The host calls over the host's own state.
pub(crate) struct Shown {
    view: View,
    /// where there is no request, which has its own
    cells: Option<Arc<Cells>>,
}

impl Shown {
    fn request(ask: &Rc<Ask>) -> Shown {
        Shown {
            view: View::Request(ask.clone()),
            cells: None,
        }
    }

    /// What there is to see in an event.
    pub(crate) fn fleet(fleet: Overview, cells: Arc<Cells>) -> Shown {
        Shown {
            view: View::Fleet(fleet),
            cells: Some(cells),
        }
    }

    fn ask(&self) -> Option<&Rc<Ask>> {
        self.view.request()
    }

    fn number(&self, ask: impl Fn(&Ask) -> u64, cells: impl Fn(&Cells) -> u64) -> u64 {
        match (self.ask(), &self.cells) {
            (Some(of), _) => ask(of),
            (None, Some(of)) => cells(of),
            (None, None) => 0,
        }
    }
}

impl Host for Shown {
    fn lookup(&mut self, key: Key) -> Option<Binding> {
        self.ask()?.lookup(key.into()).map(Into::into)
    }

    fn least(
        &mut self,
        cost: Weights,
        tie: Tie,
        except: Option<Target>,
        below: Option<u32>,
    ) -> Option<Choice> {
        let choice = self.view.least(cost.into(), tie.into(), except, below);
        choice.map(Into::into)
    }

    fn totals(&mut self) -> Sums {
        self.view.totals().into()
    }

    fn load_of(&mut self, target: Target) -> Option<Load> {
        self.view.load_of(target).map(Into::into)
    }

    fn columns(&mut self) -> Table {
        self.view.columns().into()
    }

    fn describe(&mut self, target: Target) -> Option<Endpoint> {
        self.view.describe(target).map(Into::into)
    }

    fn ticket(&mut self, lane: u32) -> u64 {
        self.number(|ask| ask.ticket(lane), |cells| cells.ticket(lane))
    }

    fn get(&mut self, cell: u64) -> u64 {
        self.number(|ask| ask.get(cell), |cells| cells.get(cell))
    }

    fn swap(&mut self, cell: u64, expected: u64, new: u64) -> u64 {
        self.number(
            |ask| ask.swap(cell, expected, new),
            |cells| cells.swap(cell, expected, new),
        )
    }

    fn now_ms(&mut self) -> u64 {
        self.ask().map_or(0, |ask| ask.now_ms())
    }

    fn max_output_tokens(&mut self) -> Option<u32> {
        self.ask()?.max_output_tokens()
    }

    fn header(&mut self, name: &str) -> Option<String> {
        self.ask()?.header(name)
    }

    fn body(&mut self, pointer: &str) -> Option<String> {
        self.ask()?.body(pointer)
    }

    fn log(&mut self, level: Level, message: &str) {
        // Only a linked-in policy writes here, and the host it is linked into owns standard error.
        if level >= log::Level::Warn {
            eprintln!("policy: {message}");
        }
    }
}
