//! The fleet as it is revised: many changes, one new snapshot.

mod common;

use common::{Bench, bind, to};
use pointsman_core::{
    Charge, Endpoint, Incoming, Key, Keys, Overview, Phase, Roles, TargetSpec, Tie, View, Weights,
    hash_text,
};

fn spec(name: &str, model: Option<&str>) -> TargetSpec {
    TargetSpec {
        endpoint: Endpoint {
            name: name.to_owned(),
            url: "http://t".to_owned(),
            rank: 0,
            labels: Vec::new(),
        },
        roles: Roles::only(Phase::Serve),
        models: model.map(|model| [hash_text(model)].into()),
    }
}

fn session(session: u64) -> Incoming {
    Incoming {
        session: Some(session),
        ..Incoming::default()
    }
}

fn names(bench: &Bench) -> Vec<String> {
    (bench.core.fleet.snapshot().targets())
        .map(|(_, spec)| spec.endpoint.name.clone())
        .collect()
}

#[test]
fn a_revision_of_many_targets_is_one_change() {
    let bench = Bench::new(4);
    let before = bench.core.fleet.generation();
    let new = bench.core.fleet.revise(|fleet| {
        fleet.remove(1);
        fleet.remove(2);
        let new = fleet.add(spec("u/0", None));
        fleet.set(new, |standing| standing.draining = true);
        assert_eq!(names(&bench), ["t/0", "t/1", "t/2", "t/3"], "not seen yet");
        new
    });
    assert_eq!(names(&bench), ["t/0", "t/3", "u/0"]);
    assert_eq!(bench.core.fleet.generation(), before + 1);
    let fleet = bench.core.fleet.snapshot();
    assert_eq!(fleet.find("u/0"), Some(new));
    assert!(fleet.standing(new).unwrap().draining);
}

#[test]
fn a_revision_that_changes_nothing_is_none() {
    let bench = Bench::new(2);
    let before = bench.core.fleet.generation();
    bench.core.fleet.revise(|fleet| {
        fleet.set(0, |standing| standing.healthy = true);
        fleet.remove(7);
        fleet.forget();
    });
    assert_eq!(bench.core.fleet.generation(), before);
}

#[test]
fn a_name_that_is_removed_and_added_in_one_revision_gets_another_number() {
    let bench = Bench::new(2);
    let new = bench.core.fleet.revise(|fleet| {
        fleet.remove(0);
        fleet.add(spec("t/0", None))
    });
    assert_eq!(new, 2);
    assert_eq!(bench.core.fleet.snapshot().find("t/0"), Some(2));
    assert_eq!(names(&bench), ["t/1", "t/0"]);
}

#[test]
fn a_target_that_is_described_anew_keeps_its_number_and_the_sessions_that_may_stay() {
    let bench = Bench::new(2);
    bench
        .send(&session(1), bind(0, Keys::NONE.with(Key::Session)))
        .finish();
    bench
        .core
        .fleet
        .revise(|fleet| fleet.respec(0, spec("t/0", Some("m"))));
    let owner = bench.shown(&session(1)).owner.unwrap();
    assert_eq!((owner.target, owner.eligible), (0, true));
    let other = Incoming {
        model: hash_text("other"),
        ..session(2)
    };
    let elsewhere = bench.send(&other, to(0));
    assert_eq!(elsewhere.target(), 1, "it has that model no more");
    assert_eq!(bench.load(0).sessions, 1);
}

#[test]
fn a_removed_target_is_known_until_nothing_is_left_there() {
    let bench = Bench::new(2);
    let flying = bench.send(&session(1), to(0));
    bench.core.fleet.revise(|fleet| fleet.remove(0));
    let leaving = || {
        let fleet = bench.core.fleet.snapshot();
        fleet
            .leaving()
            .map(|(target, _)| target)
            .collect::<Vec<_>>()
    };
    assert_eq!(leaving(), [0]);
    let forget = |name: &str| {
        bench.core.fleet.revise(|fleet| {
            fleet.forget();
            fleet.add(spec(name, None));
        });
    };
    forget("u/0");
    assert!(bench.core.fleet.snapshot().spec(0).is_some());
    flying.finish();
    assert_eq!(leaving(), []);
    forget("u/1");
    let fleet = bench.core.fleet.snapshot();
    assert!(fleet.spec(0).is_none());
    assert!(fleet.standing(0).unwrap().removed);
    assert_eq!(fleet.find("t/0"), None);
    assert_eq!(bench.add("t/0"), 4, "its number stays its own");
}

#[test]
fn an_event_shows_every_target_that_may_be_placed_on_whatever_its_phase_and_model() {
    let bench = Bench::new(0);
    let fleet = &bench.core.fleet;
    let of = |name, phase, model| TargetSpec {
        roles: Roles::only(phase),
        ..spec(name, model)
    };
    let all = [
        of("a/0", Phase::Serve, None),
        of("b/0", Phase::Prefill, Some("m")),
        of("c/0", Phase::Decode, Some("n")),
        of("d/0", Phase::Serve, None),
        of("e/0", Phase::Serve, None),
        of("f/0", Phase::Serve, None),
    ]
    .map(|spec| fleet.add(spec));
    let shown = || View::Fleet(Overview::of(fleet));
    assert_eq!(shown().columns().target, all);
    fleet.set(&all[3..4], |standing| standing.draining = true);
    fleet.set(&all[4..5], |standing| standing.healthy = false);
    fleet.set(&all[5..6], |standing| standing.closed = false);
    let before = shown();
    assert_eq!(before.columns().target, all[..3]);
    fleet.revise(|fleet| fleet.remove(all[0]));
    let now = shown();
    assert_eq!(
        now.columns().target,
        all[1..3],
        "the first is gone, the others are found"
    );
    assert_eq!(before.columns().target, all[..3], "an event sees one fleet");
    assert_eq!((now.totals().targets, now.request().is_none()), (2, true));
    let name = |target| now.describe(target).map(|endpoint| endpoint.name);
    assert_eq!(name(all[2]).as_deref(), Some("c/0"));
    assert_eq!(name(99), None);
    let charge = Charge {
        requests: 3,
        ..Charge::default()
    };
    fleet.snapshot().ledger().charge(all[1], charge);
    assert_eq!(now.load_of(all[1]).map(|load| load.requests), Some(3));
    let least = now.least(
        Weights {
            request: 1,
            ..Weights::default()
        },
        Tie::Turn(0),
        None,
        None,
    );
    assert_eq!(least.map(|choice| choice.target), Some(all[2]));
}

#[test]
fn what_was_measured_follows_the_fleet_and_nobody_else_is_measured() {
    let bench = Bench::new(0);
    let core = &bench.core;
    let [a, b] = ["a/0", "b/0"].map(|name| core.fleet.add(spec(name, None)));
    assert!(core.measured.of(a).is_none(), "nobody wants to know");
    let follow = |wanted: &[&str]| {
        let fleet = core.fleet.snapshot();
        core.measured
            .follow(&fleet, |server| wanted.contains(&server));
    };
    follow(&["a"]);
    assert!(core.measured.of(b).is_none());
    let window = core.measured.of(a).unwrap();
    window.lock().unwrap().ttft(10, 5000);
    let mean = |target| core.measured.stat(target, 10, "ttft_ms_mean");
    assert_eq!((mean(a), mean(b)), (Some(5.0), None));
    let a1 = core.fleet.add(spec("a/1", None));
    follow(&["a", "b"]);
    assert_eq!(mean(a), Some(5.0), "it stays");
    assert_eq!(mean(a1), None);
    core.fleet.revise(|fleet| fleet.remove(a));
    follow(&["a"]);
    assert!(core.measured.of(a).is_none() && core.measured.of(b).is_none());
    assert!(core.measured.of(a1).is_some());
    follow(&[]);
    assert!(core.measured.of(a1).is_none());
}
