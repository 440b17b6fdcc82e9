//! The fused policy, as core's router.

use super::bindings::pointsman::policy::policy;
use super::convert;
use pointsman_core::{Ask, Decision, Event, Failure, Overview, Router, View, Wants};
use std::cell::RefCell;
use std::rc::Rc;

thread_local! {
    static VIEW: RefCell<Option<View>> = const { RefCell::new(None) };
}

/// What is before the policy; none: it is being configured.
pub(super) fn view() -> Option<View> {
    VIEW.with_borrow(Clone::clone)
}

/// The policy of this module. A trap in it takes the VM along: there is no failure to report.
pub(super) struct Fused {
    pub(super) wants: Wants,
}

impl Router for Fused {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        VIEW.set(Some(View::Request(ask.clone())));
        let decision = policy::route(convert::request(ask.request()));
        VIEW.set(None);
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

    fn observe(&mut self, event: Event, fleet: &Overview) -> Result<(), Failure> {
        VIEW.set(Some(View::Fleet(fleet.clone())));
        policy::observe(convert::event(event));
        VIEW.set(None);
        Ok(())
    }
}
