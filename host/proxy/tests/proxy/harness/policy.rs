use pointsman_core::{
    Ask, Decision, Failure, Key, Keys, Policy, Rejection, Route, Router, Source, Tie, Weights,
};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The owner, else the fewest requests, in turn among equals.
#[derive(Clone, Default)]
pub struct Least(pub Arc<AtomicU64>);

/// Always traps.
pub struct Broken;

fn policy(name: &str) -> Policy {
    Policy {
        name: name.to_owned(),
        version: "1".to_owned(),
        reasons: ["placed", "owner", "nobody"].map(str::to_owned).to_vec(),
        keys: Keys::NONE.with(Key::Session),
    }
}

impl Source for Least {
    fn generation(&self) -> u64 {
        self.0.load(SeqCst)
    }

    fn router(&self) -> (Policy, Box<dyn Router>) {
        let name = format!("least-{}", self.generation());
        (policy(&name), Box::new(self.clone()))
    }
}

impl Router for Least {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        let request = *ask.request();
        let route = |target, reason| {
            let bind = Keys::NONE.with(Key::Session);
            Decision::To(Route {
                target,
                bind,
                rebind: if request.owner.is_some() {
                    bind
                } else {
                    Keys::NONE
                },
                charge: None,
                reason,
            })
        };
        let one_each = Weights {
            request: 1,
            ..Weights::default()
        };
        let decision = match (request.explicit, request.owner) {
            (Some(target), _) => route(target, 0),
            (None, Some(owner)) if owner.eligible => Decision::To(Route {
                rebind: Keys::NONE,
                ..match route(owner.target, 1) {
                    Decision::To(route) => route,
                    _ => unreachable!(),
                }
            }),
            _ => match ask.least(one_each, Tie::Turn(0), None, None) {
                Some(choice) => route(choice.target, 0),
                None => Decision::Reject(Rejection {
                    status: 503,
                    retry_after_ms: Some(1500),
                    reason: 2,
                }),
            },
        };
        Ok(decision)
    }
}

impl Source for Broken {
    fn generation(&self) -> u64 {
        0
    }

    fn router(&self) -> (Policy, Box<dyn Router>) {
        (policy("broken"), Box::new(Broken))
    }
}

impl Router for Broken {
    fn route(&mut self, _: &Rc<Ask>) -> Result<Decision, Failure> {
        Err(Failure::Trap("on purpose".to_owned()))
    }
}
