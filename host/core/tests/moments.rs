//! A decision that was kept can be asked again, and the same policy says the same.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test's helper fails the test"
)]

mod common;

use common::{answering, bind, policy, rebind, to};
use pointsman_core::{
    Ask, Core, Decision, Endpoint, Facts, Failure, Fallback, Incoming, Key, Keys, Limits,
    ManualClock, Moment, Outcome, Roles, Router, Standing, TargetSpec, Ticket, Tie, Weights,
    Worker, decide_taped, splitmix64,
};
use std::sync::Arc;

const TARGETS: u32 = 70;
const STEPS: u64 = 3000;

/// Uses all that a policy may look at.
fn curious(ask: &Ask) -> Result<Decision, Failure> {
    let request = *ask.request();
    if ask.header("x-fail").is_some() {
        return Err(Failure::Stack);
    }
    let keys = Keys::NONE.with(Key::Session).with(Key::Siblings);
    let group = ask.lookup(Key::Siblings).filter(|group| group.eligible);
    let crowded = ask.totals().busiest > 3 && ask.max_output_tokens() == Some(7);
    if let Some(owner) = request.owner.filter(|owner| owner.eligible && !crowded) {
        return Ok(to(owner.target));
    }
    let cost = Weights {
        request: 100,
        session: ask.get(5),
        prefill_token: 1,
        context_token: 0,
    };
    ask.swap(5, ask.get(5), request.seed % 3);
    let tie = Tie::Turn(ask.ticket(1));
    let least = ask.least(cost, tie, None, None).map(|choice| choice.target);
    let target = match group {
        Some(group) if group.in_flight < 2 => Some(group.target),
        _ => least,
    };
    let Some(target) = request.explicit.or(target) else {
        return Ok(Decision::Abstain(0));
    };
    Ok(if request.owner.is_some() {
        rebind(target, keys)
    } else {
        bind(target, keys)
    })
}

struct Said(u64);

impl Facts for Said {
    fn header(&self, name: &str) -> Option<String> {
        (name == "x-fail" && self.0.is_multiple_of(50)).then(|| "1".to_owned())
    }

    fn body(&self, _pointer: &str) -> Option<String> {
        None
    }

    fn max_output_tokens(&self) -> Option<u32> {
        self.0.is_multiple_of(2).then_some(7)
    }
}

fn spec(n: u32) -> TargetSpec {
    TargetSpec {
        endpoint: Endpoint {
            name: format!("t/{n}"),
            url: "http://t".to_owned(),
            rank: n,
            labels: Vec::new(),
        },
        roles: Roles::ALL,
        models: None,
    }
}

fn core() -> Core {
    let core = Core::new(Limits::default(), Arc::new(ManualClock::default()));
    for n in 0..TARGETS {
        core.fleet.add(spec(n));
    }
    core
}

fn keys() -> Keys {
    Keys::NONE.with(Key::Session).with(Key::Siblings)
}

/// Decisions of a policy under traffic that never stands still.
fn decisions(router: &mut dyn Router) -> Vec<Moment> {
    let core = Arc::new(core());
    let worker = Worker::new(core.clone(), policy(keys()));
    let mut running: Vec<Ticket> = Vec::new();
    let mut moments = Vec::new();
    for step in 0..STEPS {
        let dice = splitmix64(step);
        let target = u32::try_from(dice % u64::from(TARGETS)).unwrap();
        match dice >> 32 & 15 {
            0 => drop(core.fleet.set(&[target], |s| s.healthy = !s.healthy)),
            1 => drop(core.fleet.set(&[target], |s| s.draining = !s.draining)),
            _ => {}
        }
        if running.len() > 40 {
            let mut ended = running.swap_remove(usize::try_from(dice >> 8 & 31).unwrap());
            ended.output();
            if (dice >> 16).trailing_zeros() >= 3 {
                ended.fail();
            } else {
                ended.finish();
            }
        }
        let incoming = Incoming {
            seed: dice,
            session: (dice & 3 != 0).then_some(dice >> 40 & 63),
            parent: (dice >> 4 & 1 == 0).then_some(1000 + (dice >> 20 & 7)),
            prompt_tokens: 100 + u32::try_from(dice >> 50).unwrap(),
            facts: Some(Arc::new(Said(dice >> 3))),
            ..Incoming::default()
        };
        let (outcome, moment) = decide_taped(&worker, router, Fallback::LeastLoad, &incoming);
        moments.extend(moment);
        if let Outcome::Routed(ticket) = outcome {
            running.push(ticket);
        }
    }
    moments
}

#[test]
fn the_same_policy_says_the_same_once_more() {
    let mut router = answering(curious);
    let moments = decisions(&mut router);
    assert!(moments.len() > 2000, "{}", moments.len());
    let failed = moments
        .iter()
        .filter(|m| m.answer.failure.is_some())
        .count();
    assert!(failed > 10, "the fallback decided {failed} times");
    for moment in &moments {
        let outcome = moment.replay(&policy(keys()), &mut router, Fallback::LeastLoad);
        let again = pointsman_core::Answer::of(&outcome);
        assert_eq!(again, moment.answer, "{moment:#?}");
    }
}

#[test]
fn another_policy_meets_the_moment_and_leaves_it_as_it_was() {
    let moments = decisions(&mut answering(curious));
    let moment = &moments[1000];
    let before = format!("{moment:?}");
    let mut last = answering(|ask: &Ask| {
        let table = ask.columns();
        Ok(to(*table.target.last().unwrap()))
    });
    let other = pointsman_core::Policy {
        name: "other".to_owned(),
        ..policy(Keys::NONE)
    };
    let outcome = moment.replay(&other, &mut last, Fallback::LeastLoad);
    assert!(matches!(outcome, Outcome::Routed(_)), "{outcome:?}");
    drop(outcome);
    assert_eq!(before, format!("{moment:?}"));
}

#[test]
fn a_core_beside_another_has_its_bindings_and_none_of_its_load() {
    let live = Arc::new(core());
    let worker = Worker::new(live.clone(), policy(keys()));
    let mut router = answering(curious);
    let mut held = Vec::new();
    for session in 0..50 {
        let incoming = Incoming {
            session: Some(session),
            seed: session,
            ..Incoming::default()
        };
        let decided = pointsman_core::decide(&worker, &mut router, Fallback::LeastLoad, &incoming);
        let Outcome::Routed(mut ticket) = decided else {
            panic!("{decided:?}");
        };
        ticket.dispatched();
        held.push(ticket);
    }
    let own = Arc::new(live.beside());
    let scope = pointsman_core::Scope::new(0, pointsman_core::Phase::Serve, 0);
    for session in 0..50 {
        let at = |core: &Core| core.bound(scope, Key::Session, session);
        assert!(at(&own).is_some() && at(&own) == at(&live), "{session}");
    }
    let sum = |core: &Core, of: fn(pointsman_core::Load) -> u32| {
        let fleet = core.fleet.snapshot();
        (0..TARGETS)
            .map(|t| of(fleet.ledger().load(t)))
            .sum::<u32>()
    };
    assert_eq!(
        (sum(&own, |l| l.requests), sum(&own, |l| l.sessions)),
        (0, 50)
    );
    // What happens to either is nothing to the other.
    own.end_session(7);
    assert_eq!(own.bound(scope, Key::Session, 7), None);
    assert!(live.bound(scope, Key::Session, 7).is_some());
    assert_eq!(
        (sum(&live, |l| l.requests), sum(&live, |l| l.sessions)),
        (50, 50)
    );
    // It follows the targets, with what is outstanding on its own.
    let gone = live.fleet.snapshot().find("t/3").unwrap();
    live.fleet.set(&[gone], |s| s.removed = true);
    live.fleet.add(spec(TARGETS));
    own.fleet.mirror(&live.fleet.snapshot());
    let standing = |core: &Core, t| core.fleet.snapshot().standing(t);
    assert_eq!(
        standing(&own, gone).map(|s: Standing| s.removed),
        Some(true)
    );
    assert_eq!(
        own.fleet.snapshot().find(&format!("t/{TARGETS}")),
        Some(TARGETS)
    );
    assert_eq!(sum(&own, |l| l.requests), 0);
    drop(held);
}
