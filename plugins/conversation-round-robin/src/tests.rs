use super::ConversationRoundRobin;
use pointsman_sdk::testing::{Bench, Sent, anonymous, session};
use proptest::prelude::*;

const TARGETS: [&str; 3] = ["a/0", "a/1", "b/0"];

fn bench(config: &str) -> Bench<ConversationRoundRobin> {
    Bench::new(config).unwrap().with(TARGETS)
}

/// Conversation "s" is bound to a/0 with nothing in flight, and it is the turn of a/0.
fn settled(config: &str) -> Bench<ConversationRoundRobin> {
    let mut bench = bench(config);
    bench.send(session("s").explicit("a/0")).finish();
    bench
}

#[test]
fn first_turns_go_around_whatever_the_load() {
    let mut bench = bench("");
    bench.load("a/0", 1, 90_000);
    for (id, went) in [
        ("1", "a/0 placed"),
        ("2", "a/1 placed"),
        ("3", "b/0 placed"),
        ("4", "a/0 placed"),
    ] {
        assert_eq!(bench.send(session(id)), went);
    }
    assert_eq!(bench.bound("3").as_deref(), Some("b/0"));
}

#[test]
fn later_turns_keep_to_the_owner() {
    let mut bench = bench("");
    assert_eq!(bench.send(session("s")), "a/0 placed");
    assert_eq!(bench.send(session("t")), "a/1 placed");
    assert_eq!(bench.send(session("s")), "a/0 owner");
    assert_eq!(
        bench.send(session("u")),
        "b/0 placed",
        "an owner hit takes no turn"
    );
}

#[test]
fn a_target_at_the_cap_is_skipped_and_its_successor_gets_one_turn_only() {
    // TensorRT-LLM gives 1, 2, 3, 1 where a counter would give 1, 1, 2, 3.
    let mut bench = Bench::<ConversationRoundRobin>::new(r#"{"max_active_requests": 9}"#)
        .unwrap()
        .with(["a/0", "a/1", "a/2", "a/3"]);
    bench.load("a/0", 9, 0);
    for (id, went) in [
        ("1", "a/1 placed"),
        ("2", "a/2 placed"),
        ("3", "a/3 placed"),
        ("4", "a/1 placed"),
    ] {
        assert_eq!(bench.send(session(id)), went);
    }
}

#[test]
fn an_owner_at_the_cap_overflows_and_keeps_its_binding() {
    // 7 outstanding on 3 targets: fair share 3, and with 1.0 the cap is what the busiest has.
    let mut bench = settled(r#"{"fair_share_multiplier": 1.0}"#);
    bench.load("a/0", 7, 0);
    assert_eq!(
        bench.send(session("s")),
        "a/1 overflow",
        "its own turn is skipped"
    );
    assert_eq!(bench.bound("s").as_deref(), Some("a/0"));
    bench.load("a/1", 6, 0);
    assert_eq!(bench.send(session("s")), "b/0 overflow");
    bench.load("a/0", 1, 0);
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn a_sticky_turn_is_held_by_the_loose_cap_and_not_by_the_fair_share() {
    // 4 outstanding on 3 targets: fair share 2, cap 4.
    let mut bench = settled("");
    bench.load("a/0", 3, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn a_gone_owner_is_replaced_by_the_next_in_turn() {
    let mut bench = settled("");
    bench.down("a/0");
    assert_eq!(bench.send(session("s")), "a/1 rebound");
    assert_eq!(bench.bound("s").as_deref(), Some("a/1"));
}

#[test]
fn a_draining_owner_keeps_its_conversations() {
    let mut bench = settled("");
    bench.drain("a/0");
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn a_draining_owner_that_is_alone_serves_also_at_the_cap() {
    let mut bench = settled("");
    bench.drain("a/0");
    bench.down("a/1");
    bench.down("b/0");
    bench.load("a/0", 50, 0);
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn without_an_id_turns_go_around_under_the_same_cap_unrecorded() {
    let mut bench = bench(r#"{"max_active_requests": 9}"#);
    bench.load("a/1", 9, 0);
    assert_eq!(bench.send(anonymous()), "a/0 unkeyed");
    assert_eq!(bench.send(anonymous()), "b/0 unkeyed");
    assert_eq!(bench.send(session("s")), "a/0 placed", "one cursor for all");
    assert_eq!(bench.load_of("b/0").sessions, 0);
}

#[test]
fn an_explicit_target_comes_first_also_beyond_the_cap() {
    let mut bench = settled(r#"{"max_active_requests": 2}"#);
    bench.load("b/0", 9, 0);
    assert_eq!(bench.send(session("s").explicit("b/0")), "b/0 explicit");
    assert_eq!(bench.bound("s").as_deref(), Some("b/0"));
    assert_eq!(bench.send(session("t")), "a/0 placed", "and takes no turn");
}

#[test]
fn when_all_are_at_the_hard_cap_the_least_outstanding_gets_it() {
    let mut bench = settled(r#"{"max_active_requests": 2}"#);
    bench.load("a/0", 4, 0);
    bench.load("a/1", 3, 0);
    bench.load("b/0", 2, 0);
    assert_eq!(bench.send(session("s")), "b/0 overflow");
    assert_eq!(bench.send(session("t")), "a/1 placed", "3 and 3: in turn");
}

#[test]
fn when_all_are_at_the_hard_cap_an_owner_with_the_least_is_no_overflow() {
    let mut bench = settled(r#"{"max_active_requests": 2}"#);
    bench.load("a/0", 2, 0);
    bench.load("a/1", 3, 0);
    bench.load("b/0", 4, 0);
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn with_nobody_eligible_it_abstains() {
    let mut bench = settled("");
    TARGETS.iter().for_each(|name| bench.down(name));
    assert_eq!(bench.send(session("s")), "503 nobody fallback");
    assert_eq!(bench.send(anonymous()), "503 nobody fallback");
}

#[test]
fn the_cursor_survives_a_swap() {
    let mut bench = bench("");
    bench.send(session("1"));
    let mut bench = bench
        .swap::<ConversationRoundRobin>(r#"{"fair_share_multiplier": 3.0}"#)
        .unwrap();
    assert_eq!(bench.send(session("2")), "a/1 placed");
    assert_eq!(bench.send(session("1")), "a/0 owner");
}

#[test]
fn an_impossible_multiplier_is_refused_with_the_reason() {
    for value in ["0", "-1.0"] {
        let config = format!(r#"{{"fair_share_multiplier": {value}}}"#);
        let error = Bench::<ConversationRoundRobin>::new(&config).unwrap_err();
        assert!(error.contains("`fair_share_multiplier`:"), "{error}");
        assert!(error.contains("above 0"), "{error}");
    }
    assert!(super::Cap::new(f64::NAN, 0).is_err());
}

/// What happens in a random run.
#[derive(Clone, Debug)]
enum Step {
    Send {
        session: Option<u8>,
        explicit: Option<usize>,
    },
    Finish(usize),
    Fail(usize),
    Down(usize),
    Up(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop::option::weighted(0.8, 0u8..12), prop::option::weighted(0.1, 0usize..3))
            .prop_map(|(session, explicit)| Step::Send { session, explicit }),
        4 => (0usize..100).prop_map(Step::Finish),
        1 => (0usize..100).prop_map(Step::Fail),
        1 => (0usize..3).prop_map(Step::Down),
        1 => (0usize..3).prop_map(Step::Up),
    ]
}

/// One instance with what it decided.
struct Replica {
    bench: Bench<ConversationRoundRobin>,
    sent: Vec<Sent>,
}

impl Replica {
    fn new() -> Replica {
        Replica {
            bench: bench(""),
            sent: Vec::new(),
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Send {
                session: id,
                explicit,
            } => {
                let turn = id.map_or_else(anonymous, |id| session(&id.to_string()));
                let turn = match explicit {
                    Some(at) => turn.explicit(TARGETS[*at]),
                    None => turn,
                };
                self.sent.push(self.bench.send(turn));
            }
            Step::Finish(at) => self
                .sent
                .iter()
                .rev()
                .nth(*at)
                .into_iter()
                .for_each(Sent::finish),
            Step::Fail(at) => self
                .sent
                .iter()
                .rev()
                .nth(*at)
                .into_iter()
                .for_each(Sent::fail),
            Step::Down(at) => self.bench.down(TARGETS[*at]),
            Step::Up(at) => self.bench.up(TARGETS[*at]),
        }
    }
}

proptest! {
    /// Mission E7: every rank that sees the same requests in the same order decides the same.
    #[test]
    fn replicas_in_lockstep_decide_the_same(steps in prop::collection::vec(step(), 1..200)) {
        let (mut one, mut other) = (Replica::new(), Replica::new());
        for step in &steps {
            one.take(step);
            other.take(step);
        }
        prop_assert_eq!(format!("{:?}", one.sent), format!("{:?}", other.sent));
    }

    /// Mission E4: whatever came before, only the client's own choice goes beyond the cap.
    #[test]
    fn no_turn_goes_to_a_target_at_the_cap(steps in prop::collection::vec(step(), 1..200)) {
        let mut replica = Replica::new();
        for step in &steps {
            if matches!(step, Step::Down(_)) {
                continue;
            }
            let before = TARGETS.map(|name| replica.bench.load_of(name).requests);
            replica.take(step);
            if let Step::Send { explicit: None, .. } = step {
                let busiest = before.into_iter().max().unwrap();
                let cap = busiest.max(2 * (before.iter().sum::<u32>() + 1).div_ceil(3));
                let went = replica.sent.last().and_then(Sent::target).unwrap();
                let at = TARGETS.iter().position(|name| *name == went).unwrap();
                prop_assert!(before[at] < cap, "{before:?}, cap {cap}, went to {went}");
            }
        }
    }
}
