use super::{Config, Group, ParentAffinity};
use pointsman_sdk::Policy;
use pointsman_sdk::testing::{Bench, Turn, anonymous, session};

fn bench(config: &str) -> Bench<ParentAffinity> {
    Bench::new(config).unwrap().with(["a/0", "a/1", "b/0"])
}

/// The children of "p" are bound to a/0 through child "c0", which has nothing in flight.
fn with_group(config: &str) -> Bench<ParentAffinity> {
    let mut bench = bench(config);
    bench.load("a/1", 1, 0);
    bench.load("b/0", 1, 0);
    let first = bench.send(child("c0"));
    assert_eq!(first, "a/0 placed");
    first.finish();
    assert_eq!(bench.group("p").as_deref(), Some("a/0"));
    bench.load("a/1", 0, 0);
    bench.load("b/0", 0, 0);
    bench
}

fn child(id: &str) -> Turn {
    session(id).parent("p")
}

#[test]
fn it_follows_as_few_keys_as_its_group_needs() {
    use pointsman_sdk::Keys;
    let keys = |group| {
        let config = Config {
            group,
            ..Config::default()
        };
        ParentAffinity::new(config).unwrap().keys()
    };
    assert_eq!(keys(Group::Siblings), Keys::SESSION | Keys::SIBLINGS);
    assert_eq!(keys(Group::Parent), Keys::SESSION | Keys::PARENT);
}

#[test]
fn a_root_session_is_placed_and_kept_by_its_owner() {
    let mut bench = bench("");
    bench.load("a/0", 1, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(session("root")), "b/0 placed");
    bench.load("b/0", 50, 500_000);
    assert_eq!(bench.send(session("root")), "b/0 owner");
}

#[test]
fn the_first_child_is_placed_and_founds_the_group() {
    let mut bench = bench("");
    bench.load("a/0", 1, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(child("c0")), "b/0 placed");
    assert_eq!(bench.bound("c0").as_deref(), Some("b/0"));
    assert_eq!(bench.group("p").as_deref(), Some("b/0"));
}

#[test]
fn the_next_child_follows_its_siblings_and_is_bound_itself() {
    let mut bench = with_group("");
    bench.load("a/0", 5, 10_000);
    assert_eq!(bench.send(child("c1")), "a/0 siblings");
    assert_eq!(bench.bound("c1").as_deref(), Some("a/0"));
}

#[test]
fn later_turns_of_a_child_go_to_its_own_owner_also_when_the_group_is_elsewhere() {
    let mut bench = with_group("");
    bench.send(child("c1").explicit("b/0")).finish();
    assert_eq!(bench.send(child("c1")), "b/0 owner");
    assert_eq!(bench.group("p").as_deref(), Some("a/0"));
}

#[test]
fn children_of_another_parent_are_another_group() {
    let mut bench = with_group("");
    bench.load("a/0", 1, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(session("x").parent("q")), "b/0 placed");
}

#[test]
fn an_explicit_target_comes_first_and_leaves_the_group_alone() {
    let mut bench = with_group("");
    assert_eq!(bench.send(child("c1").explicit("b/0")), "b/0 explicit");
    assert_eq!(bench.bound("c1").as_deref(), Some("b/0"));
    assert_eq!(bench.group("p").as_deref(), Some("a/0"));
}

#[test]
fn a_child_whose_groups_target_is_down_is_placed_and_the_group_moves() {
    let mut bench = with_group("");
    bench.down("a/0");
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(child("c1")), "b/0 placed");
    assert_eq!(bench.group("p").as_deref(), Some("b/0"));
    assert_eq!(bench.send(child("c2")), "b/0 siblings");
}

#[test]
fn a_draining_target_takes_no_new_child() {
    let mut bench = with_group("");
    bench.drain("a/0");
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(child("c1")), "b/0 placed");
    assert_eq!(
        bench.send(child("c0")),
        "a/0 owner",
        "what it owns it keeps"
    );
}

#[test]
fn a_session_whose_own_owner_is_gone_follows_its_group() {
    let mut bench = with_group("");
    bench.send(child("c1").explicit("b/0")).finish();
    bench.down("b/0");
    assert_eq!(bench.send(child("c1")), "a/0 siblings");
    assert_eq!(bench.bound("c1").as_deref(), Some("a/0"));
}

#[test]
fn a_session_whose_owner_and_group_are_gone_is_rebound_with_the_group() {
    let mut bench = with_group("");
    bench.down("a/0");
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(child("c0")), "b/0 rebound");
    assert_eq!(bench.bound("c0").as_deref(), Some("b/0"));
    assert_eq!(bench.group("p").as_deref(), Some("b/0"));
}

#[test]
fn a_gone_owner_is_rejected_before_the_group_is_asked() {
    let mut bench = with_group(r#"{"when_owner_gone": "reject"}"#);
    bench.send(child("c1").explicit("b/0")).finish();
    bench.down("b/0");
    assert_eq!(bench.send(child("c1")), "503 rebound");
}

#[test]
fn a_busy_owner_is_handled_as_in_session_affinity() {
    let mut bench = with_group(r#"{"when_owner_busy": "overflow"}"#);
    bench.load("a/0", 8, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(child("c0")), "b/0 overflow");
    assert_eq!(bench.bound("c0").as_deref(), Some("a/0"));
}

#[test]
fn with_group_parent_a_child_follows_its_parents_own_binding() {
    let mut bench = bench(r#"{"group": "parent"}"#);
    bench.send(session("p").explicit("b/0")).finish();
    bench.load("b/0", 2, 5_000);
    assert_eq!(bench.send(child("c1")), "b/0 parent");
    assert_eq!(bench.bound("c1").as_deref(), Some("b/0"));
    assert_eq!(bench.group("p"), None);
}

#[test]
fn with_group_parent_an_unbound_parent_is_not_bound_by_its_child() {
    let mut bench = bench(r#"{"group": "parent"}"#);
    bench.load("a/0", 1, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(child("c1")), "b/0 placed");
    assert_eq!(bench.bound("p"), None);
}

#[test]
fn with_group_parent_a_parent_whose_target_is_gone_stays_bound_there() {
    let mut bench = bench(r#"{"group": "parent"}"#);
    bench.send(session("p").explicit("b/0")).finish();
    bench.down("b/0");
    bench.load("a/0", 1, 0);
    assert_eq!(bench.send(child("c1")), "a/1 placed");
    assert_eq!(bench.bound("p").as_deref(), Some("b/0"));
}

#[test]
fn with_group_parent_the_guard_moves_no_binding_of_the_parent() {
    let mut bench = bench(r#"{"group": "parent"}"#);
    bench.send(session("p").explicit("b/0")).finish();
    bench.load("b/0", 1, 500_000);
    bench.load("a/0", 1, 0);
    assert_eq!(bench.send(child("c1")), "a/1 guarded");
    assert_eq!(bench.bound("p").as_deref(), Some("b/0"));
    assert_eq!(bench.bound("c1").as_deref(), Some("a/1"));
}

#[test]
fn the_guard_refuses_a_group_with_enough_requests_in_flight_there() {
    let mut bench = with_group("");
    bench.load("a/1", 0, 1);
    for id in ["c1", "c2", "c3", "c4"] {
        assert_eq!(bench.send(child(id).tokens(0)), "a/0 siblings");
    }
    assert_eq!(bench.send(child("c5")), "b/0 guarded");
    assert_eq!(bench.bound("c5").as_deref(), Some("b/0"));
    assert_eq!(bench.group("p").as_deref(), Some("b/0"), "strictly better");
    assert_eq!(bench.send(child("c6")), "b/0 siblings");
}

#[test]
fn requests_that_ended_no_longer_count_for_the_guard() {
    let mut bench = with_group("");
    for id in ["c1", "c2", "c3", "c4", "c5", "c6"] {
        let sent = bench.send(child(id));
        assert_eq!(sent, "a/0 siblings");
        sent.finish();
    }
}

#[test]
fn the_guard_compares_with_the_mean_and_the_slack() {
    // Scores 1000, 0, 500: the mean is 500.
    let config =
        |slack: u32| format!(r#"{{"guard_load_ratio": 1.5, "guard_slack_tokens": {slack}}}"#);
    for (slack, went) in [(250, "a/0 siblings"), (249, "a/1 guarded")] {
        let mut bench = with_group(&config(slack));
        bench.load("a/0", 0, 1_000);
        bench.load("b/0", 0, 500);
        assert_eq!(bench.send(child("c1")), went);
    }
}

#[test]
fn a_guarded_group_does_not_move_to_a_target_that_is_no_better() {
    let mut bench = with_group(r#"{"guard_group_requests": 0}"#);
    for name in ["a/0", "a/1", "b/0"] {
        bench.load(name, 2, 0);
    }
    let sent = bench.send(child("c1"));
    assert_eq!(sent.reason(), Some("guarded"));
    assert_eq!(bench.bound("c1").as_deref(), sent.target());
    assert_eq!(bench.group("p").as_deref(), Some("a/0"));
}

#[test]
fn a_guarded_child_may_still_land_on_its_groups_target_if_that_is_the_least_loaded() {
    let mut bench = with_group(r#"{"guard_group_requests": 0}"#);
    bench.load("a/1", 2, 0);
    bench.load("b/0", 2, 0);
    assert_eq!(bench.send(child("c1")), "a/0 guarded");
    assert_eq!(bench.group("p").as_deref(), Some("a/0"));
}

#[test]
fn a_guarded_child_is_placed_by_least_tokens_whatever_the_placement() {
    let mut bench = bench(r#"{"guard_group_requests": 0, "placement": "fewest-sessions"}"#);
    bench.send(session("x").explicit("a/1")).finish();
    bench.send(session("y").explicit("a/0")).finish();
    bench.send(session("y").explicit("a/0")).finish();
    let first = bench.send(child("c0"));
    assert_eq!(first, "b/0 placed");
    first.finish();
    bench.send(session("z").explicit("a/1")).finish();
    bench.load("b/0", 9, 0);
    bench.load("a/0", 2, 0);
    assert_eq!(
        bench.send(child("c1")),
        "a/1 guarded",
        "it has two sessions"
    );
}

#[test]
fn without_the_guard_a_group_is_followed_whatever_the_load() {
    let mut bench = with_group(r#"{"guard": false}"#);
    bench.load("a/0", 500, 5_000_000);
    for id in 1..=9 {
        assert_eq!(bench.send(child(&format!("c{id}"))), "a/0 siblings");
    }
}

#[test]
fn without_a_session_id_a_group_is_followed_and_nothing_recorded() {
    let mut bench = with_group("");
    bench.load("a/0", 2, 1_000);
    assert_eq!(bench.send(anonymous().parent("p")), "a/0 siblings");
    assert_eq!(bench.load_of("a/0").sessions, 1);
}

#[test]
fn without_a_session_id_no_group_is_founded_or_moved() {
    let mut bench = with_group(r#"{"guard_group_requests": 0}"#);
    bench.load("a/0", 1, 0);
    bench.load("a/1", 1, 0);
    assert_eq!(bench.send(anonymous().parent("p")), "b/0 guarded");
    assert_eq!(
        bench.send(anonymous().parent("q")).reason(),
        Some("unkeyed")
    );
    bench.down("a/0");
    assert_eq!(
        bench.send(anonymous().parent("p")).reason(),
        Some("unkeyed")
    );
    bench.up("a/0");
    assert_eq!(bench.group("p").as_deref(), Some("a/0"));
    assert_eq!(bench.group("q"), None);
}

#[test]
fn with_nobody_eligible_it_abstains() {
    let mut bench = with_group("");
    for name in ["a/0", "a/1", "b/0"] {
        bench.down(name);
    }
    assert_eq!(bench.send(child("c1")), "503 nobody fallback");
}

/// Mission B6: without affinity a fan-out costs one copy of the prefix per target, with it one.
#[test]
fn a_fan_out_of_eight_shares_one_target_without_the_guard() {
    let targets: Vec<String> = (0..8).map(|rank| format!("a/{rank}")).collect();
    let names = targets.iter().map(String::as_str);
    let mut bench = Bench::<ParentAffinity>::new(r#"{"guard": false}"#)
        .unwrap()
        .with(names);
    let went: std::collections::BTreeSet<String> = (0..8)
        .map(|id| {
            let sent = bench.send(child(&format!("c{id}")).tokens(16_000));
            sent.target().unwrap().to_owned()
        })
        .collect();
    assert_eq!(went.len(), 1);
}

#[test]
fn an_impossible_ratio_is_refused_with_the_reason() {
    let error = Bench::<ParentAffinity>::new(r#"{"guard_load_ratio": -0.5}"#).unwrap_err();
    assert!(
        error.contains("`guard_load_ratio`: -0.5 is impossible"),
        "{error}"
    );
    assert!(error.contains("0 or more"), "{error}");
}

#[test]
fn a_ratio_that_is_no_number_is_refused() {
    for ratio in [f64::NAN, f64::INFINITY] {
        let config = Config {
            guard_load_ratio: ratio,
            ..Config::default()
        };
        assert!(ParentAffinity::new(config).is_err());
    }
}

#[test]
fn a_misspelt_group_is_refused_with_the_right_ones() {
    let error = Bench::<ParentAffinity>::new(r#"{"group": "cousins"}"#).unwrap_err();
    assert!(
        error.contains("`group`: unknown variant `cousins`, expected `siblings` or `parent`"),
        "{error}"
    );
}
