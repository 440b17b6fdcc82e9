//! How a session keeps to its owner: what `session-affinity` and `parent-affinity` have in common.

use crate::placement::{Placement, Score};
use crate::reason::Reason;
use crate::{Binding, Choice, Decision, Host, Keys, Rejection, Request, Route, Target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a session does whose owner is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhenOwnerBusy {
    /// it stays, whatever the load: the owner is immutable
    #[default]
    Stay,
    /// it moves for good, if another target's score is strictly lower than the owner's
    Repin,
    /// this request goes elsewhere, if another target's score is strictly lower than the owner's; the
    /// session stays bound where it is
    Overflow,
}

/// What a session does whose owner may not take the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhenOwnerGone {
    /// it is placed and bound anew
    #[default]
    Rebind,
    /// 503
    Reject,
}

/// The options of a session's own binding.
#[derive(Clone, Copy, Debug)]
pub struct Affinity {
    /// how loads compare
    pub score: Score,
    /// where a new session goes
    pub placement: Placement,
    /// see the type
    pub when_owner_busy: WhenOwnerBusy,
    /// the owner is busy with at least this many outstanding requests
    pub busy_requests: u32,
    /// see the type
    pub when_owner_gone: WhenOwnerGone,
}

/// What a session's own binding has to say of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Own {
    /// it settles the request
    Decided(Decision),
    /// the request needs a target, and this is what it records there
    Open(Claim),
}

impl Affinity {
    /// Explicit first, then the owner.
    pub fn own(&self, request: &Request, host: &mut impl Host) -> Own {
        if let Some(decision) = explicit(request) {
            return Own::Decided(decision);
        }
        match request.owner {
            Some(owner) if owner.eligible => Own::Decided(self.owned(request, owner, host)),
            Some(_) if self.when_owner_gone == WhenOwnerGone::Reject => {
                Own::Decided(Rejection::with(503, Reason::Rebound).into())
            }
            _ => Own::Open(Claim::of(request)),
        }
    }

    /// Places a request that nothing binds.
    pub fn place(&self, claim: Claim, request: &Request, host: &mut impl Host) -> Decision {
        match self.placement.choose(self.score, request, host) {
            Some(target) => claim.at(target),
            None => nobody(),
        }
    }

    fn owned(&self, request: &Request, owner: Binding, host: &mut impl Host) -> Decision {
        let home = Route::to(owner.target, Reason::Owner).into();
        let (reason, rebind) = match self.when_owner_busy {
            WhenOwnerBusy::Stay => return home,
            WhenOwnerBusy::Repin => (Reason::Repinned, Keys::SESSION),
            WhenOwnerBusy::Overflow => (Reason::Overflow, Keys::empty()),
        };
        match self.relief(request, owner, host) {
            Some(other) => Route::to(other.target, reason).rebind(rebind).into(),
            None => home,
        }
    }

    /// A strictly better target than an owner that is busy. An equal one would cost the cache and win
    /// nothing, and under saturation sessions would wander.
    fn relief(&self, request: &Request, owner: Binding, host: &mut impl Host) -> Option<Choice> {
        let load = host.load_of(owner.target)?;
        if load.requests < self.busy_requests {
            return None;
        }
        let other = self.score.least(request, Some(owner.target), host)?;
        (other.score < self.score.of(&load)).then_some(other)
    }
}

/// What a request records at the target it is placed on, and why it is placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// keys that are unbound
    pub bind: Keys,
    /// keys that are bound elsewhere
    pub rebind: Keys,
    /// why
    pub reason: Reason,
}

impl Claim {
    /// Of a request whose session has no eligible owner.
    pub fn of(request: &Request) -> Claim {
        let (bind, rebind, reason) = match (request.session, request.owner) {
            (None, _) => (Keys::empty(), Keys::empty(), Reason::Unkeyed),
            (Some(_), None) => (Keys::SESSION, Keys::empty(), Reason::Placed),
            (Some(_), Some(_)) => (Keys::empty(), Keys::SESSION, Reason::Rebound),
        };
        Claim {
            bind,
            rebind,
            reason,
        }
    }

    /// The same for another reason.
    #[must_use]
    pub fn because(self, reason: Reason) -> Claim {
        Claim { reason, ..self }
    }

    /// Made true at `target`.
    pub fn at(self, target: Target) -> Decision {
        Route::to(target, self.reason)
            .bind(self.bind)
            .rebind(self.rebind)
            .into()
    }
}

/// The client names its target: the session lives there from now on.
pub fn explicit(request: &Request) -> Option<Decision> {
    let target = request.explicit?;
    let route = Route::to(target, Reason::Explicit);
    let moves = request.owner.is_some_and(|owner| owner.target != target);
    Some(if moves {
        route.rebind(Keys::SESSION).into()
    } else {
        route.bind(Keys::SESSION).into()
    })
}

/// Nothing is eligible: the operator's fallback has the word.
pub fn nobody() -> Decision {
    Decision::Abstain(Reason::Nobody.into())
}
