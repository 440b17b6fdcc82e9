//! The fused policy, as core's router.

use super::bindings::pointsman::policy::policy;
use super::convert;
use pointsman_core::{Ask, Decision, Event, Failure, Router, Wants};
use std::cell::RefCell;
use std::rc::Rc;

thread_local! {
    static ASKED: RefCell<Option<Rc<Ask>>> = const { RefCell::new(None) };
}

/// What the policy is being asked; none: it is not in `route`.
pub(super) fn asked() -> Option<Rc<Ask>> {
    ASKED.with_borrow(Clone::clone)
}

/// The policy of this module. A trap in it takes the VM along: there is no failure to report.
pub(super) struct Fused {
    pub(super) wants: Wants,
}

impl Router for Fused {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        ASKED.set(Some(ask.clone()));
        let decision = policy::route(convert::request(ask.request()));
        ASKED.set(None);
        let decision = convert::decision(decision);
        if matches!(decision, Decision::Abstain(_)) {
            // The fallback looks at the loads.
            if let Some(vm) = super::vm() {
                vm.site.bring_loads();
            }
        }
        Ok(decision)
    }

    fn wants(&self) -> Wants {
        self.wants
    }

    fn observe(&mut self, event: Event) -> Result<(), Failure> {
        policy::observe(convert::event(event));
        Ok(())
    }
}
