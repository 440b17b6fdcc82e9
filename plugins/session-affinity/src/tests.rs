use super::SessionAffinity;
use pointsman_sdk::testing::{Bench, Sent, anonymous, session};

fn bench(config: &str) -> Bench<SessionAffinity> {
    Bench::new(config).unwrap().with(["a/0", "a/1", "b/0"])
}

/// Session "s" is bound to a/0 and has nothing in flight.
fn settled(config: &str) -> Bench<SessionAffinity> {
    let mut bench = bench(config);
    bench.send(session("s").explicit("a/0")).finish();
    assert_eq!(bench.bound("s").as_deref(), Some("a/0"));
    bench
}

fn target(sent: &Sent) -> String {
    sent.target().unwrap().to_owned()
}

#[test]
fn a_new_session_goes_to_the_least_work_and_is_bound() {
    let mut bench = bench("");
    bench.load("a/0", 1, 0);
    bench.load("b/0", 0, 600);
    assert_eq!(bench.send(session("s")), "a/1 placed");
    assert_eq!(bench.bound("s").as_deref(), Some("a/1"));
}

#[test]
fn by_default_the_owner_is_immutable_whatever_the_load() {
    let mut bench = settled("");
    bench.load("a/0", 1_000, 9_000_000);
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn a_child_is_placed_on_its_own() {
    let mut bench = settled("");
    bench.load("a/0", 1, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(session("child").parent("s")), "b/0 placed");
    assert_eq!(bench.group("s"), None);
}

#[test]
fn without_a_session_id_nothing_is_recorded() {
    let mut bench = bench("");
    bench.load("a/0", 1, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(anonymous()), "b/0 unkeyed");
    assert_eq!(bench.load_of("b/0").sessions, 0);
}

#[test]
fn an_explicit_target_binds_a_new_session() {
    let mut bench = bench("");
    assert_eq!(bench.send(session("s").explicit("b/0")), "b/0 explicit");
    assert_eq!(bench.bound("s").as_deref(), Some("b/0"));
}

#[test]
fn an_explicit_target_moves_a_bound_session() {
    let mut bench = settled("");
    assert_eq!(bench.send(session("s").explicit("b/0")), "b/0 explicit");
    assert_eq!(bench.bound("s").as_deref(), Some("b/0"));
}

#[test]
fn an_explicit_target_that_is_the_owner_changes_nothing() {
    let mut bench = settled("");
    assert_eq!(bench.send(session("s").explicit("a/0")), "a/0 explicit");
    assert_eq!(bench.bound("s").as_deref(), Some("a/0"));
    assert_eq!(bench.load_of("a/0").sessions, 1);
}

#[test]
fn an_explicit_target_without_a_session_is_taken() {
    assert_eq!(bench("").send(anonymous().explicit("b/0")), "b/0 explicit");
}

#[test]
fn a_gone_owner_is_replaced() {
    let mut bench = settled("");
    bench.down("a/0");
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(session("s")), "b/0 rebound");
    assert_eq!(bench.bound("s").as_deref(), Some("b/0"));
}

#[test]
fn an_owner_that_failed_this_request_is_replaced() {
    let mut bench = settled("");
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(session("s").tried("a/0")), "b/0 rebound");
}

#[test]
fn a_draining_owner_keeps_its_sessions() {
    let mut bench = settled("");
    bench.drain("a/0");
    assert_eq!(bench.send(session("s")), "a/0 owner");
    assert_ne!(target(&bench.send(session("new"))), "a/0");
}

#[test]
fn reject_refuses_a_session_whose_owner_is_gone() {
    let mut bench = settled(r#"{"when_owner_gone": "reject"}"#);
    bench.down("a/0");
    assert_eq!(bench.send(session("s")), "503 rebound");
    assert_eq!(bench.bound("s").as_deref(), Some("a/0"));
    bench.up("a/0");
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn reject_refuses_also_after_the_owner_was_removed() {
    let mut bench = settled(r#"{"when_owner_gone": "reject"}"#);
    bench.remove("a/0");
    assert_eq!(bench.send(session("s")), "503 rebound");
}

#[test]
fn repin_leaves_an_owner_alone_that_is_not_busy() {
    let mut bench = settled(r#"{"when_owner_busy": "repin"}"#);
    bench.load("a/0", 7, 100_000);
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn repin_moves_a_session_from_a_busy_owner_to_a_better_target() {
    let mut bench = settled(r#"{"when_owner_busy": "repin"}"#);
    bench.load("a/0", 8, 0);
    bench.load("a/1", 2, 0);
    bench.load("b/0", 1, 0);
    assert_eq!(bench.send(session("s")), "b/0 repinned");
    assert_eq!(bench.bound("s").as_deref(), Some("b/0"));
}

#[test]
fn repin_stays_when_every_target_is_as_loaded_as_the_owner() {
    let mut bench = settled(r#"{"when_owner_busy": "repin"}"#);
    for name in ["a/0", "a/1", "b/0"] {
        bench.load(name, 8, 0);
    }
    assert_eq!(bench.send(session("s").tokens(0)), "a/0 owner");
}

#[test]
fn repin_stays_where_there_is_no_other_target() {
    let mut bench = settled(r#"{"when_owner_busy": "repin"}"#);
    bench.load("a/0", 8, 0);
    bench.down("a/1");
    bench.drain("b/0");
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn how_many_requests_make_an_owner_busy_is_a_setting() {
    let mut bench = settled(r#"{"when_owner_busy": "repin", "busy_requests": 2}"#);
    bench.load("a/0", 2, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(session("s")), "b/0 repinned");
}

#[test]
fn overflow_serves_elsewhere_and_keeps_the_binding() {
    let mut bench = settled(r#"{"when_owner_busy": "overflow"}"#);
    bench.load("a/0", 8, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(session("s")), "b/0 overflow");
    assert_eq!(bench.bound("s").as_deref(), Some("a/0"));
    bench.load("a/0", 7, 0);
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn overflow_stays_when_nobody_is_less_loaded_or_nobody_else_is_there() {
    let mut bench = settled(r#"{"when_owner_busy": "overflow"}"#);
    for name in ["a/0", "a/1", "b/0"] {
        bench.load(name, 8, 0);
    }
    assert_eq!(bench.send(session("s")), "a/0 owner");
    bench.down("a/1");
    bench.down("b/0");
    assert_eq!(bench.send(session("s")), "a/0 owner");
}

#[test]
fn fewest_sessions_looks_at_sessions_alone() {
    let mut bench = settled(r#"{"placement": "fewest-sessions"}"#);
    bench.send(session("t").explicit("a/1")).finish();
    bench.load("b/0", 50, 50_000);
    assert_eq!(bench.send(session("new")), "b/0 placed");
}

#[test]
fn round_robin_gives_each_its_turn_whatever_the_load() {
    let mut bench = bench(r#"{"placement": "round-robin"}"#);
    bench.load("a/0", 50, 50_000);
    for (id, went) in [
        ("1", "a/0 placed"),
        ("2", "a/1 placed"),
        ("3", "b/0 placed"),
        ("4", "a/0 placed"),
    ] {
        assert_eq!(bench.send(session(id)), went);
    }
}

#[test]
fn rendezvous_depends_on_the_session_and_the_targets_names_alone() {
    let config = r#"{"placement": "rendezvous"}"#;
    let mut one = bench(config);
    one.load("a/0", 50, 50_000);
    let mut other = Bench::<SessionAffinity>::new(config)
        .unwrap()
        .with(["b/0", "a/1", "a/0"]);
    let mut seen = std::collections::BTreeSet::new();
    for id in 0..40 {
        let id = id.to_string();
        let went = target(&one.send(session(&id)));
        assert_eq!(target(&other.send(session(&id))), went);
        seen.insert(went);
    }
    assert_eq!(seen.len(), 3, "each gets some");
}

#[test]
fn equally_loaded_targets_are_told_apart_by_the_session_the_same_on_every_replica() {
    let mut one = bench("");
    let mut other = bench("");
    for id in 0..20 {
        let id = id.to_string();
        assert_eq!(
            target(&one.send(session(&id))),
            target(&other.send(session(&id)))
        );
    }
}

#[test]
fn with_nobody_eligible_it_abstains() {
    let mut bench = settled("");
    for name in ["a/0", "a/1", "b/0"] {
        bench.down(name);
    }
    assert_eq!(bench.send(session("s")), "503 nobody fallback");
    assert_eq!(bench.send(anonymous()), "503 nobody fallback");
    assert_eq!(bench.bound("s").as_deref(), Some("a/0"), "it may come back");
}

#[test]
fn a_misspelt_value_is_refused_with_the_right_ones() {
    let error = Bench::<SessionAffinity>::new(r#"{"when_owner_busy": "move"}"#).unwrap_err();
    assert!(
        error.contains(
            "`when_owner_busy`: unknown variant `move`, expected one of `stay`, `repin`, `overflow`"
        ),
        "{error}"
    );
}

#[test]
fn an_option_of_another_policy_is_refused() {
    let error = Bench::<SessionAffinity>::new(r#"{"guard": true}"#).unwrap_err();
    assert!(error.contains("unknown field `guard`"), "{error}");
}
