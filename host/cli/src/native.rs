//! Baselines without a policy: what plain load balancers do.

use anyhow::{Result, bail};
use pointsman_core::{Ask, Decision, Failure, Keys, Policy, Route, Router, Source, Tie, Weights};
use std::rc::Rc;
use std::sync::Arc;

/// How a name says that it is one of these.
pub const PREFIX: &str = "native:";

/// `native:round-robin`: the next target, whatever the request.
pub struct RoundRobin;

impl RoundRobin {
    fn policy() -> Policy {
        Policy {
            name: "native:round-robin".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            reasons: vec!["turn".to_owned(), "nobody".to_owned()],
            keys: Keys::NONE,
        }
    }
}

impl Router for RoundRobin {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        let request = ask.request();
        let target = request.explicit.or_else(|| {
            let turn = Tie::Turn(ask.ticket(0));
            (ask.least(Weights::default(), turn, None, None)).map(|choice| choice.target)
        });
        Ok(match target {
            None => Decision::Abstain(1),
            Some(target) => Decision::To(Route {
                target,
                bind: Keys::NONE,
                rebind: Keys::NONE,
                charge: None,
                reason: 0,
            }),
        })
    }
}

struct Baseline;

impl Source for Baseline {
    fn generation(&self) -> u64 {
        1
    }

    fn router(&self) -> (Policy, Box<dyn Router>) {
        (RoundRobin::policy(), Box::new(RoundRobin))
    }
}

/// The source of a name that begins with [`PREFIX`].
pub fn source(name: &str) -> Result<Arc<dyn Source>> {
    match name {
        "native:round-robin" => Ok(Arc::new(Baseline)),
        other => bail!("policy.use = {other:?}: the baseline is called native:round-robin"),
    }
}
