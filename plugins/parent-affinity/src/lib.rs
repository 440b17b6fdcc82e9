//! A session's first request goes where its parent, or its parent's other children, already are: they
//! share a prompt, and one target then holds one copy of it. From then on the session keeps to its own
//! owner, as with `session-affinity`.
//!
//! For a session that no owner binds:
//!
//! * the group is bound to a target that may take it, and the guard passes: there
//! * the guard refuses: placed by least tokens; the group moves along only to a strictly better target
//! * the group's target is gone: placed, and the group is bound anew
//! * there is no group yet: placed, and the group is bound too
//!
//! A request without a session id may follow its group but never founds or moves it: without a session
//! nothing is recorded. The parent's own binding (`group = "parent"`) is followed, never changed.
//!
//! From Dynamo #11347 and #14521.

mod config;
mod guard;
#[cfg(test)]
mod tests;

pub use config::{Config, Group};

use guard::Guard;
use pointsman_sdk::affinity::{Affinity, Claim, Own, nobody};
use pointsman_sdk::prelude::*;
use pointsman_sdk::reason::Reason;

/// See the crate.
#[derive(Debug)]
pub struct ParentAffinity {
    session: Affinity,
    group: Group,
    /// none: adopt whatever the load
    guard: Option<Guard>,
}

impl Policy for ParentAffinity {
    type Config = Config;
    const NAME: &'static str = "parent-affinity";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const REASONS: &'static [&'static str] = Reason::WORDS;

    fn new(config: Config) -> Result<Self, String> {
        Ok(ParentAffinity {
            session: config.session(),
            group: config.group,
            guard: config.guard()?,
        })
    }

    fn keys(&self) -> Keys {
        Keys::SESSION | self.group.keys()
    }

    fn route(&self, request: &Request, host: &mut impl Host) -> Decision {
        match self.session.own(request, host) {
            Own::Decided(decision) => decision,
            Own::Open(claim) if request.parent.is_none() => {
                self.session.place(claim, request, host)
            }
            Own::Open(claim) => self.with_group(claim, request, host),
        }
    }
}

impl ParentAffinity {
    fn with_group(&self, mut claim: Claim, request: &Request, host: &mut impl Host) -> Decision {
        let ours = self.group.recorded_by(request);
        match host.lookup(self.group.key()) {
            Some(group) if group.eligible => self.follow(group, claim, request, host),
            gone => {
                match gone {
                    Some(_) => claim.rebind |= ours,
                    None => claim.bind |= ours,
                }
                self.session.place(claim, request, host)
            }
        }
    }

    fn follow(
        &self,
        group: Binding,
        mut claim: Claim,
        request: &Request,
        host: &mut impl Host,
    ) -> Decision {
        let there = || claim.because(self.group.reason()).at(group.target);
        let Some(guard) = &self.guard else {
            return there();
        };
        // A bound target exists as long as its binding: no load would be the host's mistake, and
        // such a target is nothing to follow.
        let score =
            (host.load_of(group.target)).map_or(u64::MAX, |load| self.session.score.of(&load));
        if guard.admits(&group, score, self.session.score, host) {
            return there();
        }
        let Some(least) = self.session.score.least(request, None, host) else {
            return nobody();
        };
        if least.score < score {
            claim.rebind |= self.group.recorded_by(request);
        }
        claim.because(Reason::Guarded).at(least.target)
    }
}

pointsman_sdk::export!(ParentAffinity);
