//! The whole step around a policy: ask, check, commit, or fall back.

use crate::ask::{Ask, Explicit, Incoming};
use crate::commit::{self, BadAnswer, Refused};
use crate::core::{Policy, Worker};
use crate::moment::{Answer, Moment};
use crate::ticket::Ticket;
use crate::types::{Decision, Event, Key, Keys, Rejection, Route, Target, Tie, Wants, Weights};
use crate::view::Overview;
use std::rc::Rc;
use thiserror::Error;

/// The prefill work that stands for one more request where the fallback compares loads.
const REQUEST_EQUIVALENT_TOKENS: u64 = 512;

/// Something that decides: a policy's warm instance, or a native one.
pub trait Router {
    /// Asks it: the ask holds the request and answers what the policy wants to know.
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure>;

    /// The events that it is to be told of.
    fn wants(&self) -> Wants {
        Wants::default()
    }

    /// Tells it, and shows it the fleet.
    ///
    /// # Errors
    /// As with [`Router::route`]; nothing depends on the answer.
    fn observe(&mut self, event: Event, fleet: &Overview) -> Result<(), Failure> {
        let _ = (event, fleet);
        Ok(())
    }
}

/// Where workers get their routers from. Its generation moves when the policy is replaced: a worker
/// that sees another one makes itself a new [`Worker`] and a new router.
pub trait Source: Send + Sync {
    /// Counts the replacements.
    fn generation(&self) -> u64;
    /// The policy of this generation, and a router of it for the calling thread.
    fn router(&self) -> (Policy, Box<dyn Router>);

    /// A router of this generation failed: the source may take it out.
    fn failed(&self, generation: u64, failure: &Failure) {
        let _ = (generation, failure);
    }
}

/// Why a policy gave no usable answer. The text is for the log, [`Failure::cause`] for the metric.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// it panicked or executed an invalid instruction
    #[error("the policy trapped: {0}")]
    Trap(String),
    /// it did not answer in time
    #[error("the policy did not answer within its time limit of {limit_ms} ms")]
    Timeout {
        /// the limit
        limit_ms: u64,
    },
    /// it wanted more memory than it may have
    #[error("the policy needs more than its memory limit of {limit_mb} MiB")]
    Memory {
        /// the limit
        limit_mb: u64,
    },
    /// it recursed too deeply
    #[error("the policy exhausted its stack")]
    Stack,
    /// its answer breaks the contract
    #[error("the policy's answer breaks the contract: {0}")]
    BadAnswer(BadAnswer),
    /// it failed too often, and is not asked for a while
    #[error("the policy failed too often and is not asked for a while")]
    Paused,
    /// it could not be started again after a failure
    #[error("the policy could not be started: {0}")]
    Start(String),
}

impl Failure {
    /// A word of a small, fixed set.
    pub fn cause(&self) -> &'static str {
        match self {
            Failure::Trap(_) => "trap",
            Failure::Timeout { .. } => "timeout",
            Failure::Memory { .. } => "memory",
            Failure::Stack => "stack",
            Failure::BadAnswer(_) => "bad-answer",
            Failure::Paused => "paused",
            Failure::Start(_) => "start",
        }
    }
}

/// Who decides when the policy does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fallback {
    /// The owner, if the session has one that may take the request: a broken policy must not cost
    /// every session its cache. Else the least loaded target. Nothing is bound.
    #[default]
    LeastLoad,
    /// 503
    Reject,
}

/// What became of a session's affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Affinity {
    /// placed, with or without a binding
    New,
    /// went to its owner
    Owner,
    /// had an owner that could take it, and went elsewhere
    Spill,
    /// the client chose
    Explicit,
    /// another request of the session was first
    Adopted,
    /// no session id
    Unkeyed,
}

impl Affinity {
    /// As in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Affinity::New => "new",
            Affinity::Owner => "owner",
            Affinity::Spill => "spill",
            Affinity::Explicit => "explicit",
            Affinity::Adopted => "adopted",
            Affinity::Unkeyed => "unkeyed",
        }
    }
}

/// Why a request goes where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// the policy's word; none where it gave no answer
    pub reason: Option<String>,
    /// the fallback decided
    pub fallback: bool,
    /// why it had to, unless the policy abstained
    pub failure: Option<Failure>,
    /// another request bound first, and its target is taken
    pub adopted: bool,
    /// none: the policy does not follow sessions
    pub affinity: Option<Affinity>,
    /// a new session that has a parent was placed apart from the parent's group
    pub parent_ignored: bool,
}

/// A request that goes nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// HTTP status
    pub status: u16,
    /// when to come back, in ms
    pub retry_after_ms: Option<u32>,
    /// for the client: what was wanted, what was found
    pub message: String,
    /// see [`Verdict`]
    pub reason: Option<String>,
    /// see [`Verdict`]
    pub fallback: bool,
    /// see [`Verdict`]
    pub failure: Option<Failure>,
}

/// What a decision comes to.
#[derive(Debug)]
pub enum Outcome {
    /// it goes to the ticket's target
    Routed(Ticket),
    /// it goes nowhere
    Refused(Refusal),
}

/// Decides one attempt of one request and makes the decision true.
pub fn decide(
    worker: &Rc<Worker>,
    router: &mut dyn Router,
    fallback: Fallback,
    incoming: &Incoming,
) -> Outcome {
    let ask = Ask::begin(worker, incoming);
    match unasked(&ask, incoming) {
        Some(refusal) => refusal,
        None => asked(&Rc::new(ask), router, fallback, incoming),
    }
}

/// The same, and keeps all that the decision depended on; nothing where the policy was not asked.
pub fn decide_taped(
    worker: &Rc<Worker>,
    router: &mut dyn Router,
    fallback: Fallback,
    incoming: &Incoming,
) -> (Outcome, Option<Moment>) {
    let ask = Ask::begin(worker, incoming).taped();
    if let Some(refusal) = unasked(&ask, incoming) {
        return (refusal, None);
    }
    let mut moment = Moment::begin(&ask, incoming);
    let ask = Rc::new(ask);
    let outcome = asked(&ask, router, fallback, incoming);
    moment.read = ask.read();
    moment.answer = Answer::of(&outcome);
    (outcome, Some(moment))
}

/// What the host decides without the policy.
fn unasked(ask: &Ask, incoming: &Incoming) -> Option<Outcome> {
    if !ask.has_placement() && !ask.fleet.knows(incoming.model) {
        return Some(refuse(
            404,
            "no engine of this fleet serves the model that the request names",
        ));
    }
    match incoming.explicit {
        Explicit::Unknown => Some(refuse(
            400,
            "the target that the request names is not part of the fleet",
        )),
        Explicit::Target(target) if !ask.may_go(target) => Some(refuse(
            503,
            "the target that the request names may not take it now",
        )),
        Explicit::Target(_) | Explicit::None => None,
    }
}

fn asked(
    ask: &Rc<Ask>,
    router: &mut dyn Router,
    fallback: Fallback,
    incoming: &Incoming,
) -> Outcome {
    let fall = |reason, failure| fall_back(ask, incoming, fallback, reason, failure);
    let bad = |bad| fall(None, Some(Failure::BadAnswer(bad)));
    match router.route(ask) {
        Err(failure) => fall(None, Some(failure)),
        Ok(Decision::Abstain(reason)) => match ask.reason(reason) {
            Some(word) => fall(Some(word.to_owned()), None),
            None => bad(BadAnswer::Reason(reason)),
        },
        Ok(Decision::Reject(rejection)) => match reject(ask, rejection) {
            Ok(refusal) => Outcome::Refused(refusal),
            Err(answer) => bad(answer),
        },
        Ok(Decision::To(route)) => {
            let reason = ask.reason(route.reason).map(str::to_owned);
            match commit::commit(ask, incoming, route) {
                Ok(done) => {
                    let verdict = verdict(ask, reason, done.target, done.adopted);
                    routed(ask, done, verdict)
                }
                Err(Refused::Full) => full(),
                Err(Refused::Bad(answer)) => bad(answer),
            }
        }
    }
}

fn routed(ask: &Ask, done: commit::Committed, verdict: Verdict) -> Outcome {
    Outcome::Routed(Ticket::new(
        ask.worker.clone(),
        ask.fleet.clone(),
        done,
        verdict,
    ))
}

fn refuse(status: u16, message: &str) -> Outcome {
    Outcome::Refused(Refusal {
        status,
        retry_after_ms: None,
        message: message.to_owned(),
        reason: None,
        fallback: false,
        failure: None,
    })
}

fn full() -> Outcome {
    refuse(
        429,
        "the affinity table has no room for this session: wait for one to end, raise bindings.max, or let bindings.when_full place sessions unbound",
    )
}

fn reject(ask: &Ask, rejection: Rejection) -> Result<Refusal, BadAnswer> {
    let reason = ask
        .reason(rejection.reason)
        .ok_or(BadAnswer::Reason(rejection.reason))?;
    if !(400..=599).contains(&rejection.status) {
        return Err(BadAnswer::Status(rejection.status));
    }
    Ok(Refusal {
        status: rejection.status,
        retry_after_ms: rejection.retry_after_ms,
        message: format!("the routing policy refuses the request: {reason}"),
        reason: Some(reason.to_owned()),
        fallback: false,
        failure: None,
    })
}

fn fall_back(
    ask: &Ask,
    incoming: &Incoming,
    fallback: Fallback,
    reason: Option<String>,
    failure: Option<Failure>,
) -> Outcome {
    let target = match fallback {
        Fallback::LeastLoad => fallback_target(ask),
        Fallback::Reject => None,
    };
    let route = target.map(|target| Route {
        target,
        bind: Keys::NONE,
        rebind: Keys::NONE,
        charge: None,
        reason: 0,
    });
    let done = route.and_then(|route| commit::commit(ask, incoming, route).ok());
    let Some(done) = done else {
        let message = match fallback {
            Fallback::LeastLoad => "no engine can take the request now",
            Fallback::Reject => {
                "the routing policy gave no answer, and the operator's fallback is to reject"
            }
        };
        return Outcome::Refused(Refusal {
            status: 503,
            retry_after_ms: None,
            message: message.to_owned(),
            reason,
            fallback: true,
            failure,
        });
    };
    let verdict = Verdict {
        fallback: true,
        failure,
        ..verdict(ask, reason, done.target, false)
    };
    routed(ask, done, verdict)
}

fn fallback_target(ask: &Ask) -> Option<Target> {
    let request = &ask.request;
    let owner = request.owner.filter(|o| o.eligible).map(|o| o.target);
    request.explicit.or(owner).or_else(|| {
        let cost = Weights {
            request: REQUEST_EQUIVALENT_TOKENS,
            prefill_token: 1,
            ..Weights::default()
        };
        let tie = Tie::Hash(request.session.unwrap_or(request.seed));
        ask.least(cost, tie, None, None).map(|choice| choice.target)
    })
}

fn verdict(ask: &Ask, reason: Option<String>, target: Target, adopted: bool) -> Verdict {
    let request = &ask.request;
    let keys = ask.worker.policy.keys;
    let affinity = if request.explicit.is_some() {
        Some(Affinity::Explicit)
    } else if request.session.is_none() {
        Some(Affinity::Unkeyed)
    } else if adopted {
        Some(Affinity::Adopted)
    } else {
        keys.has(Key::Session).then_some(match request.owner {
            Some(owner) if owner.target == target => Affinity::Owner,
            Some(owner) if owner.eligible => Affinity::Spill,
            Some(_) | None => Affinity::New,
        })
    };
    let with_group = [Key::Siblings, Key::Parent].into_iter().any(|key| {
        // The first of a group founds it: that is not ignoring it.
        keys.has(key) && ask.seen(key).target.is_none_or(|group| group == target)
    });
    let parent_ignored = request.parent.is_some() && request.owner.is_none() && !with_group;
    Verdict {
        reason,
        fallback: false,
        failure: None,
        adopted,
        affinity,
        parent_ignored,
    }
}
