//! The decision as a transaction: bind, adopt, rebind, roll back, release exactly once.

mod common;

use common::{Bench, bind, rebind, to};
use pointsman_core::{
    BadAnswer, Decision, Explicit, Failure, Fallback, Incoming, Key, Keys, Limits, Load, Outcome,
    Rejection, WhenFull,
};

fn session(id: u64) -> Incoming {
    Incoming {
        session: Some(id),
        prompt_tokens: 1000,
        ..Incoming::default()
    }
}

fn child(id: u64, parent: u64) -> Incoming {
    Incoming {
        parent: Some(parent),
        ..session(id)
    }
}

#[test]
fn a_first_turn_binds_and_a_later_one_is_shown_its_owner() {
    let bench = Bench::new(2);
    bench
        .send(&session(1), bind(1, Keys::NONE.with(Key::Session)))
        .finish();
    let shown = bench.shown(&session(1)).owner.unwrap();
    assert_eq!(
        (shown.target, shown.eligible, shown.in_flight),
        (1, true, 0)
    );
}

#[test]
fn what_is_outstanding_rises_with_the_decision_and_returns_to_nothing() {
    let bench = Bench::new(1);
    let mut ticket = bench.send(&session(1), to(0));
    let full = Load {
        requests: 1,
        sessions: 0,
        prefill_tokens: 1000,
        context_tokens: 1000,
    };
    assert_eq!(bench.load(0), full);
    ticket.output();
    ticket.output();
    assert_eq!(
        bench.load(0),
        Load {
            prefill_tokens: 0,
            ..full
        }
    );
    ticket.finish();
    assert_eq!(bench.load(0), Load::default());
}

#[test]
fn a_turn_on_the_rank_that_ran_the_last_one_is_charged_for_what_is_new() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    bench.send(&session(1), bind(0, keys)).finish();
    let next = Incoming {
        prompt_tokens: 1200,
        shared: pointsman_core::Shared::Given(1000),
        ..session(1)
    };
    let here = bench.send(&next, to(0));
    assert_eq!(here.charge().prefill_tokens, 200);
    here.finish();
    let elsewhere = bench.send(&next, to(1));
    assert_eq!(elsewhere.charge().prefill_tokens, 1200);
}

#[test]
fn a_failed_first_turn_leaves_neither_binding_nor_prompt_memory() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    bench.send(&session(1), bind(0, keys)).fail();
    assert_eq!(bench.shown(&session(1)).owner, None);
    assert_eq!(bench.load(0), Load::default());
    let shared = Incoming {
        shared: pointsman_core::Shared::Given(900),
        ..session(1)
    };
    // case 8: the retry pays for its whole prompt
    assert_eq!(
        bench.send(&shared, bind(0, keys)).charge().prefill_tokens,
        1000
    );
}

#[test]
fn two_first_turns_of_a_session_end_on_one_target() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    // Both decide before either commits: the second is asked while the first one commits.
    let first = std::cell::RefCell::new(None);
    let second = bench.send_with(&session(1), |_| {
        *first.borrow_mut() = Some(bench.send(&session(1), bind(0, keys)));
        Ok(bind(1, keys))
    });
    assert_eq!(second.target(), 0);
    assert!(second.verdict().adopted);
    assert_eq!(bench.load(0).requests, 2);
    assert_eq!(bench.load(1), Load::default());
    // The binding outlives its first request's failure: the second one still stands for it.
    first.into_inner().unwrap().fail();
    assert_eq!(bench.shown(&session(1)).owner.map(|o| o.in_flight), Some(1));
    second.fail();
    assert_eq!(bench.shown(&session(1)).owner, None);
}

#[test]
fn a_claim_on_a_target_that_may_not_take_the_request_gives_way() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    let first = std::cell::RefCell::new(None);
    let second = bench.send_with(&session(1), |_| {
        *first.borrow_mut() = Some(bench.send(&session(1), bind(0, keys)));
        Ok(bind(1, keys))
    });
    assert_eq!(second.target(), 0, "eligible: adopted");
    drop((first, second));
    let retry = Incoming {
        tried: vec![0],
        ..session(2)
    };
    let first = std::cell::RefCell::new(None);
    let second = bench.send_with(&retry, |_| {
        *first.borrow_mut() = Some(bench.send(&session(2), bind(0, keys)));
        Ok(bind(1, keys))
    });
    assert_eq!((second.target(), second.verdict().adopted), (1, false));
}

#[test]
fn the_session_wins_over_the_siblings_when_both_were_bound_meanwhile() {
    let bench = Bench::new(3);
    let (own, group) = (
        Keys::NONE.with(Key::Session),
        Keys::NONE.with(Key::Siblings),
    );
    let held = std::cell::RefCell::new(Vec::new());
    let ticket = bench.send_with(&child(1, 9), |_| {
        held.borrow_mut()
            .push(bench.send(&session(1), bind(0, own)));
        held.borrow_mut()
            .push(bench.send(&child(2, 9), bind(1, group)));
        Ok(bind(2, own.with(Key::Siblings)))
    });
    assert_eq!(ticket.target(), 0);
    assert_eq!(
        bench.bound(Key::Siblings, 9),
        Some(1),
        "the group stays where it is"
    );
}

#[test]
fn a_failed_move_gives_the_session_its_old_owner_back() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    bench.send(&session(1), bind(0, keys)).finish();
    let moved = bench.send(&session(1), rebind(1, keys));
    assert_eq!(
        bench.bound(Key::Session, 1),
        Some(1),
        "seen by everybody at once"
    );
    assert_eq!((bench.load(0).sessions, bench.load(1).sessions), (0, 1));
    moved.fail();
    assert_eq!(bench.bound(Key::Session, 1), Some(0));
    assert_eq!((bench.load(0).sessions, bench.load(1).sessions), (1, 0));
}

#[test]
fn a_move_that_an_engine_accepted_stays() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    bench.send(&session(1), bind(0, keys)).finish();
    let mut moved = bench.send(&session(1), rebind(1, keys));
    moved.dispatched();
    moved.cancel();
    assert_eq!(bench.bound(Key::Session, 1), Some(1));
}

#[test]
fn a_request_of_a_replaced_claim_does_not_end_the_new_one() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    let mut old = bench.send(&session(1), bind(0, keys));
    old.dispatched();
    let mut new = bench.send(&session(1), rebind(1, keys));
    new.dispatched();
    old.fail();
    assert_eq!(bench.bound(Key::Session, 1), Some(1));
    assert_eq!(bench.shown(&session(1)).owner.map(|o| o.in_flight), Some(1));
}

#[test]
fn a_stream_that_breaks_off_drops_the_binding_it_used() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    let mut ticket = bench.send(&session(1), bind(0, keys));
    ticket.output();
    ticket.fail();
    assert_eq!(bench.bound(Key::Session, 1), None);
    assert_eq!(bench.load(0), Load::default());
}

#[test]
fn a_childs_failure_leaves_the_binding_of_its_parent_alone() {
    let bench = Bench::with_keys(2, Keys::NONE.with(Key::Session).with(Key::Parent));
    let keys = Keys::NONE.with(Key::Session);
    bench.send(&session(9), bind(0, keys)).finish();
    let mut ticket = bench.send(&child(1, 9), bind(0, keys));
    ticket.output();
    ticket.fail();
    assert_eq!(bench.bound(Key::Session, 9), Some(0));
    assert_eq!(bench.bound(Key::Session, 1), None);
}

#[test]
fn an_overloaded_engine_unbinds_nothing_that_was_confirmed() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    bench.send(&session(1), bind(0, keys)).finish();
    bench.send(&session(1), to(0)).refused();
    assert_eq!(bench.bound(Key::Session, 1), Some(0));
    bench.send(&session(2), bind(0, keys)).refused();
    assert_eq!(bench.bound(Key::Session, 2), None);
}

#[test]
fn a_binding_is_gone_when_it_was_idle_for_its_ttl_and_never_while_it_is_leased() {
    let bench = Bench::new(1);
    let keys = Keys::NONE.with(Key::Session);
    let ticket = bench.send(&session(1), bind(0, keys));
    bench.clock.advance(10_000_000);
    assert_eq!(bench.bound(Key::Session, 1), Some(0));
    ticket.finish();
    bench.clock.advance(3_599_999);
    assert_eq!(bench.bound(Key::Session, 1), Some(0));
    bench.clock.advance(1);
    assert_eq!(bench.bound(Key::Session, 1), None);
    assert_eq!(bench.load(0).sessions, 1, "not swept yet");
    bench.core.sweep();
    assert_eq!(bench.load(0).sessions, 0);
    assert!(bench.core.bindings().is_empty());
}

#[test]
fn the_end_of_a_session_unbinds_at_once_and_what_is_in_flight_ends_normally() {
    let bench = Bench::new(1);
    let keys = Keys::NONE.with(Key::Session);
    let ticket = bench.send(&session(1), bind(0, keys));
    bench.core.end_session(1);
    assert_eq!(bench.bound(Key::Session, 1), None);
    bench.send(&session(1), bind(0, keys)).finish();
    ticket.finish();
    assert_eq!(
        bench.bound(Key::Session, 1),
        Some(0),
        "the newer claim is untouched"
    );
    assert_eq!(
        bench.load(0),
        Load {
            sessions: 1,
            ..Load::default()
        }
    );
}

#[test]
fn a_full_table_evicts_the_least_recently_used_that_has_no_lease() {
    let keys = Keys::NONE.with(Key::Session);
    let bench = Bench::limited(Limits {
        max: 2,
        ..Limits::default()
    });
    let held = bench.send(&session(1), bind(0, keys));
    bench.send(&session(2), bind(0, keys)).finish();
    bench.send(&session(3), bind(0, keys)).finish();
    assert_eq!(bench.bound(Key::Session, 2), None);
    assert_eq!(bench.bound(Key::Session, 3), Some(0));
    let both = bench.send(&session(3), to(0));
    let unbound = bench.send(&session(4), bind(0, keys));
    assert_eq!(bench.bound(Key::Session, 4), None, "placed, not remembered");
    assert_eq!(bench.core.bindings().len(), 2);
    drop((held, both, unbound));
    assert_eq!(bench.load(0).requests, 0);
}

#[test]
fn a_full_table_may_refuse_and_then_changes_nothing() {
    let keys = Keys::NONE.with(Key::Session).with(Key::Siblings);
    let bench = Bench::limited(Limits {
        max: 1,
        when_full: WhenFull::Reject,
        ..Limits::default()
    });
    match bench.decide(&child(1, 9), |_| Ok(bind(0, keys))) {
        Outcome::Refused(refusal) => assert_eq!(refusal.status, 429),
        Outcome::Routed(_) => panic!("two keys do not fit into one binding"),
    }
    assert!(bench.core.bindings().is_empty());
    assert_eq!(bench.load(0), Load::default());
}

#[test]
fn bad_answers_are_told_apart_and_the_fallback_decides() {
    let bench = Bench::new(2);
    bench.down(1);
    let own = Keys::NONE.with(Key::Session);
    let cases: [(Incoming, Decision, BadAnswer); 6] = [
        (session(1), to(1), BadAnswer::NotEligible(1)),
        (session(1), to(7), BadAnswer::NotEligible(7)),
        (
            session(1),
            bind(0, Keys::NONE.with(Key::Parent)),
            BadAnswer::BindsParent,
        ),
        (
            child(1, 2),
            rebind(0, own.with(Key::Siblings)),
            BadAnswer::Unseen(Key::Siblings),
        ),
        (session(1), Decision::Abstain(9), BadAnswer::Reason(9)),
        (
            session(1),
            Decision::Reject(Rejection {
                status: 200,
                retry_after_ms: None,
                reason: 0,
            }),
            BadAnswer::Status(200),
        ),
    ];
    for (incoming, answer, wanted) in cases {
        let ticket = bench.send(&incoming, answer);
        assert_eq!(ticket.target(), 0);
        assert_eq!(ticket.verdict().failure, Some(Failure::BadAnswer(wanted)));
    }
    assert!(bench.core.bindings().is_empty());
}

#[test]
fn the_fallback_keeps_an_owner_and_may_also_reject() {
    let mut bench = Bench::new(2);
    let trap = || Err(Failure::Trap("test".to_owned()));
    bench
        .send(&session(1), bind(1, Keys::NONE.with(Key::Session)))
        .finish();
    let kept = bench.send_with(&session(1), |_| trap());
    assert_eq!((kept.target(), kept.verdict().fallback), (1, true));
    bench.fallback = Fallback::Reject;
    match bench.decide(&session(1), |_| trap()) {
        Outcome::Refused(refusal) => assert_eq!(refusal.status, 503),
        Outcome::Routed(_) => panic!("the fallback is to reject"),
    }
}

#[test]
fn an_explicit_target_is_checked_before_the_policy_is_asked_and_is_never_left() {
    let bench = Bench::new(2);
    let named = |explicit| Incoming {
        explicit,
        ..session(1)
    };
    let refused = |explicit| match bench.decide(&named(explicit), |_| panic!("asked")) {
        Outcome::Refused(refusal) => refusal.status,
        Outcome::Routed(_) => panic!("routed"),
    };
    assert_eq!(refused(Explicit::Unknown), 400);
    bench.down(1);
    assert_eq!(refused(Explicit::Target(1)), 503);
    bench.up(1);
    let ticket = bench.send(&named(Explicit::Target(1)), to(0));
    assert_eq!(ticket.target(), 1, "the fallback takes it too");
    assert!(matches!(
        ticket.verdict().failure,
        Some(Failure::BadAnswer(BadAnswer::NotExplicit { .. }))
    ));
}

#[test]
fn a_draining_target_keeps_what_it_owns_and_takes_nothing_new() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    bench.send(&session(1), bind(0, keys)).finish();
    bench.core.fleet.set(&[0], |s| s.draining = true);
    assert!(bench.shown(&session(1)).owner.unwrap().eligible);
    assert_eq!(bench.send(&session(1), to(0)).target(), 0);
    let other = bench.send(&session(2), to(0));
    assert_eq!((other.target(), other.verdict().fallback), (1, true));
}

#[test]
fn a_removed_target_keeps_its_bindings_and_its_number() {
    let bench = Bench::new(2);
    let keys = Keys::NONE.with(Key::Session);
    bench.send(&session(1), bind(0, keys)).finish();
    bench.core.fleet.set(&[0], |s| s.removed = true);
    let owner = bench.shown(&session(1)).owner.unwrap();
    assert_eq!((owner.target, owner.eligible), (0, false));
    assert_eq!(
        bench.add("t/0"),
        2,
        "the name comes back with another number"
    );
}

#[test]
fn keys_of_another_model_or_route_are_not_seen() {
    let bench = Bench::new(2);
    bench
        .send(&session(1), bind(1, Keys::NONE.with(Key::Session)))
        .finish();
    assert_eq!(
        bench
            .shown(&Incoming {
                model: 5,
                ..session(1)
            })
            .owner,
        None
    );
    assert_eq!(
        bench
            .shown(&Incoming {
                route: 5,
                ..session(1)
            })
            .owner,
        None
    );
    bench.core.end_session(1);
    assert_eq!(bench.shown(&session(1)).owner, None);
}

#[test]
fn the_session_wins_also_when_it_was_bound_meanwhile_to_this_decisions_own_target() {
    let bench = Bench::new(2);
    let (own, group) = (
        Keys::NONE.with(Key::Session),
        Keys::NONE.with(Key::Siblings),
    );
    let held = std::cell::RefCell::new(Vec::new());
    let ticket = bench.send_with(&child(1, 9), |_| {
        held.borrow_mut()
            .push(bench.send(&session(1), bind(0, own)));
        held.borrow_mut()
            .push(bench.send(&child(2, 9), bind(1, group)));
        Ok(bind(0, own.with(Key::Siblings)))
    });
    assert_eq!((ticket.target(), ticket.verdict().adopted), (0, false));
}

#[test]
fn a_full_table_makes_no_room_by_dropping_the_requests_own_binding() {
    let (own, group) = (
        Keys::NONE.with(Key::Session),
        Keys::NONE.with(Key::Siblings),
    );
    let bench = Bench::limited(Limits {
        max: 2,
        ..Limits::default()
    });
    bench.send(&session(1), bind(0, own)).finish();
    bench.send(&session(2), bind(1, own)).finish();
    // The session's own binding is the one that is idle longest.
    let ticket = bench.send(&child(1, 9), bind(0, group));
    assert_eq!(bench.bound(Key::Session, 1), Some(0));
    assert_eq!(bench.bound(Key::Siblings, 9), Some(0));
    assert_eq!(bench.bound(Key::Session, 2), None);
    assert_eq!(bench.shown(&session(1)).owner.map(|o| o.in_flight), Some(1));
    drop(ticket);
}

#[test]
fn a_full_table_that_refuses_has_evicted_nothing() {
    let own = Keys::NONE.with(Key::Session);
    let bench = Bench::limited(Limits {
        max: 2,
        when_full: WhenFull::Reject,
        ..Limits::default()
    });
    let held = bench.send(&session(1), bind(0, own));
    bench.send(&session(2), bind(0, own)).finish();
    // room for one key, where two are wanted
    match bench.decide(&child(3, 9), |_| Ok(bind(0, own.with(Key::Siblings)))) {
        Outcome::Refused(refusal) => assert_eq!(refusal.status, 429),
        Outcome::Routed(_) => panic!("one of two keys has no room"),
    }
    assert_eq!(bench.bound(Key::Session, 2), Some(0));
    drop(held);
}

#[test]
fn a_session_of_a_target_that_came_meanwhile_is_counted_off_by_whoever_evicts_it() {
    let own = Keys::NONE.with(Key::Session);
    let bench = Bench::make(
        64,
        own,
        Limits {
            max: 1,
            ..Limits::default()
        },
    );
    // This decision's fleet ends before the block of counters that the new target is in.
    let ticket = bench.send_with(&session(1), |_| {
        let new = bench.add("t/64");
        bench.send(&session(2), bind(new, own)).finish();
        assert_eq!(bench.load(new).sessions, 1);
        Ok(bind(0, own))
    });
    assert_eq!(bench.bound(Key::Session, 2), None);
    assert_eq!(bench.load(64).sessions, 0);
    ticket.finish();
}

#[test]
fn a_claim_that_broke_off_while_it_was_replaced_does_not_come_back() {
    let bench = Bench::new(2);
    let own = Keys::NONE.with(Key::Session);
    let mut old = bench.send(&session(1), bind(0, own));
    old.output();
    let moved = bench.send(&session(1), rebind(1, own));
    old.fail();
    assert_eq!(bench.bound(Key::Session, 1), Some(1));
    moved.fail();
    assert_eq!(bench.bound(Key::Session, 1), None);
    assert_eq!(bench.load(0), Load::default());
}

#[test]
fn a_claim_that_an_engine_accepts_while_it_is_replaced_comes_back_if_the_move_fails() {
    let bench = Bench::new(2);
    let own = Keys::NONE.with(Key::Session);
    let mut first = bench.send(&session(1), bind(0, own));
    let moved = bench.send(&session(1), rebind(1, own));
    first.dispatched();
    moved.fail();
    let owner = bench.shown(&session(1)).owner.unwrap();
    assert_eq!((owner.target, owner.in_flight), (0, 1));
    first.finish();
    bench.send(&session(1), to(0)).fail();
    assert_eq!(bench.bound(Key::Session, 1), Some(0), "confirmed it was");
}

#[test]
fn a_replaced_claim_that_no_engine_accepted_goes_with_its_last_request() {
    let bench = Bench::new(2);
    let own = Keys::NONE.with(Key::Session);
    let first = bench.send(&session(1), bind(0, own));
    let moved = bench.send(&session(1), rebind(1, own));
    first.fail();
    moved.fail();
    assert_eq!(bench.bound(Key::Session, 1), None);
    assert!(bench.core.bindings().is_empty());
}

#[test]
fn an_earlier_sendings_failure_does_not_take_back_a_later_ones_prompt() {
    let bench = Bench::new(2);
    let own = Keys::NONE.with(Key::Session);
    let shared = Incoming {
        shared: pointsman_core::Shared::Given(900),
        ..session(1)
    };
    bench.send(&session(1), bind(0, own)).finish();
    let first = bench.send(&session(1), to(0));
    let second = bench.send(&session(1), to(1));
    first.fail();
    second.finish();
    let turn = bench.send(&shared, to(1));
    assert_eq!(turn.charge().prefill_tokens, 100, "the last one ran there");
    turn.fail();
    let elsewhere = bench.send(&shared, to(0));
    assert_eq!(elsewhere.charge().prefill_tokens, 1000);
}

#[test]
fn models_that_only_ask_do_not_keep_the_end_of_a_session_from_its_own() {
    let bench = Bench::new(1);
    let own = Keys::NONE.with(Key::Session);
    for model in 1..2000 {
        let other = Incoming {
            model,
            ..session(2)
        };
        bench.send(&other, to(0)).finish();
    }
    bench.send(&session(1), bind(0, own)).finish();
    bench.core.end_session(1);
    assert_eq!(bench.bound(Key::Session, 1), None);
}

#[test]
fn a_request_without_a_session_may_be_answered_as_if_it_had_one() {
    let bench = Bench::new(1);
    let own = Keys::NONE.with(Key::Session);
    let ticket = bench.send(&Incoming::default(), rebind(0, own));
    assert_eq!(ticket.verdict().failure, None, "there is nothing to rebind");
    assert!(bench.core.bindings().is_empty());
}

#[test]
fn a_request_under_an_older_claim_does_not_lengthen_the_newer_ones_time() {
    let bench = Bench::new(2);
    let own = Keys::NONE.with(Key::Session);
    let mut old = bench.send(&session(1), bind(0, own));
    old.dispatched();
    bench.send(&session(1), rebind(1, own)).finish();
    bench.clock.advance(3_000_000);
    old.finish();
    bench.clock.advance(600_000);
    assert_eq!(bench.bound(Key::Session, 1), None);
}

#[test]
fn case_10_whatever_else_ended_a_request_gives_back_once() {
    let bench = Bench::new(2);
    let own = Keys::NONE.with(Key::Session);
    let other = bench.send(&session(2), bind(0, own));
    let mut ticket = bench.send(&session(1), bind(0, own));
    ticket.output();
    // Its session ends, its target goes, its output is told again, its client leaves after the end.
    bench.core.end_session(1);
    bench.core.end_session(1);
    bench.core.fleet.set(&[0], |s| s.removed = true);
    ticket.output();
    ticket.dispatched();
    ticket.finish();
    let left = Load {
        requests: 1,
        sessions: 1,
        prefill_tokens: 1000,
        context_tokens: 1000,
    };
    assert_eq!(bench.load(0), left);
    other.cancel();
    assert_eq!(bench.load(0), Load::default());
}
