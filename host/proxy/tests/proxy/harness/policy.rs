use pointsman_core::{
    Ask, Decision, Event, Failure, Key, Keys, Overview, Policy, Rejection, Route, Router, Source,
    Tie, Wants, Weights,
};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

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

/// [`Least`], which is told what it wants to know.
#[derive(Clone, Default)]
pub struct Told {
    pub least: Least,
    pub wants: Wants,
    /// of all threads' instances
    pub events: Arc<Mutex<Vec<Event>>>,
    /// every event is too much for it
    pub fails: bool,
}

/// Wants everything.
pub const EVERY_EVENT: Wants = Wants {
    first_output: true,
    finished: true,
    failed: true,
    fleet_changed: true,
};

impl Told {
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

impl Source for Told {
    fn generation(&self) -> u64 {
        self.least.generation()
    }

    fn router(&self) -> (Policy, Box<dyn Router>) {
        (self.least.router().0, Box::new(self.clone()))
    }
}

impl Router for Told {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        self.least.route(ask)
    }

    fn wants(&self) -> Wants {
        self.wants
    }

    fn observe(&mut self, event: Event, _: &Overview) -> Result<(), Failure> {
        self.events.lock().unwrap().push(event);
        match self.fails {
            true => Err(Failure::Trap("on purpose".to_owned())),
            false => Ok(()),
        }
    }
}

/// Sends everything to a target that is not there.
pub struct Lost;

impl Source for Lost {
    fn generation(&self) -> u64 {
        0
    }

    fn router(&self) -> (Policy, Box<dyn Router>) {
        (policy("lost"), Box::new(Lost))
    }
}

impl Router for Lost {
    fn route(&mut self, _: &Rc<Ask>) -> Result<Decision, Failure> {
        Ok(Decision::To(Route {
            target: 99,
            bind: Keys::NONE.with(Key::Session),
            rebind: Keys::NONE,
            charge: Some(1000),
            reason: 0,
        }))
    }
}
