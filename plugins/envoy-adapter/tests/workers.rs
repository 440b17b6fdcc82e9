//! Two workers of Envoy: VMs of their own, and one store between them.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test's helper fails the test"
)]

use http::{HeaderMap, HeaderName, HeaderValue};
use pointsman_core::{Ask, Decision, Failure, Policy, Router};
use pointsman_envoy_adapter::{
    Cas, Config, Departure, Ending, Fate, Flight, Head, Memory, Shared, Site, begin, control,
};
use pointsman_parent_affinity::ParentAffinity;
use pointsman_sdk::Native;
use pointsman_session_affinity::SessionAffinity;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::rc::Rc;

const A: &str = "127.0.0.1:9001";
const B: &str = "127.0.0.1:9002";

type Meanwhile = Box<dyn FnOnce()>;

/// A store in which something may happen between a worker's look and its change.
#[derive(Clone, Default)]
struct Store {
    memory: Memory,
    /// before so many changes of bindings from now
    after: Rc<Cell<Option<usize>>>,
    what: Rc<RefCell<Option<Meanwhile>>>,
}

impl Shared for Store {
    fn get(&self, key: &str) -> (Option<Vec<u8>>, Option<Cas>) {
        self.memory.get(key)
    }

    fn set(&self, key: &str, value: &[u8], cas: Option<Cas>) -> bool {
        if key.starts_with("pointsman/bindings/")
            && let Some(left) = self.after.take()
        {
            if left > 0 {
                self.after.set(Some(left - 1));
            } else if let Some(what) = self.what.take() {
                what();
            }
        }
        self.memory.set(key, value, cas)
    }
}

struct Worker {
    site: Rc<Site<Store>>,
    policy: Box<dyn Router>,
}

/// Natively linked policies ask core at once: the loads must be there.
struct Eager<'a>(&'a Site<Store>, &'a mut dyn Router);

impl Router for Eager<'_> {
    fn route(&mut self, ask: &Rc<Ask>) -> Result<Decision, Failure> {
        self.0.bring_loads();
        self.1.route(ask)
    }
}

impl Worker {
    fn new(config: &Value, store: &Store, number: u64) -> Worker {
        let config = Config::read(config.to_string().as_bytes()).unwrap();
        let (policy, router): (Policy, Box<dyn Router>) = if config.policy.contains_key("group") {
            let native = Native::<ParentAffinity>::new(r#"{"group":"siblings"}"#).unwrap();
            (native.policy(), Box::new(native))
        } else {
            let native = Native::<SessionAffinity>::new("").unwrap();
            (native.policy(), Box::new(native))
        };
        Worker {
            site: Rc::new(Site::new(config, policy, store.clone(), number, 0).unwrap()),
            policy: router,
        }
    }

    fn send(&mut self, headers: &[(&'static str, &str)]) -> (Box<Flight>, Departure) {
        match self.fate(headers) {
            Fate::Leaves(flight, departure) => (flight, departure),
            Fate::Stays(answer, _) => panic!("{answer:?}"),
        }
    }

    fn fate(&mut self, headers: &[(&'static str, &str)]) -> Fate {
        self.site.tell(0);
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_static(name);
            map.append(name, HeaderValue::from_str(value).unwrap());
        }
        let mut router = Eager(&self.site, self.policy.as_mut());
        begin(&self.site, &mut router, map, None)
    }

    fn head(&mut self, flight: &mut Flight, status: u16, address: &str) -> Vec<(String, String)> {
        let head = Head {
            status,
            retry_after: false,
            address,
        };
        flight.head(&self.site, self.policy.as_mut(), head)
    }

    fn end(&mut self, flight: Box<Flight>, ending: Ending, address: &str) {
        flight.end(&self.site, self.policy.as_mut(), ending, address);
    }

    fn finish(&mut self, mut flight: Box<Flight>, address: &str) {
        self.head(&mut flight, 200, address);
        flight.output(&self.site, self.policy.as_mut());
        self.end(flight, Ending::Complete, address);
    }

    /// requests, sessions and prefill tokens of each target
    fn loads(&self) -> Vec<[u64; 3]> {
        self.site.tell(0);
        let (_, text) = control(&self.site, r#"{"look":[0,1,2,3]}"#, 0, 0);
        let said: Value = serde_json::from_str(&text).unwrap();
        let loads = said["loads"].as_array().unwrap().iter();
        let number = |load: &Value, name: &str| load[name].as_u64().unwrap();
        loads
            .map(|load| ["requests", "sessions", "prefill_tokens"].map(|name| number(load, name)))
            .collect()
    }
}

fn config() -> Value {
    json!({
        "endpoints": [
            { "name": "a", "address": A, "ranks": 2, "dialect": "vllm" },
            { "name": "b", "address": B, "ranks": 2, "dialect": "vllm" },
        ],
        "attempts": 2,
        "test": { "path": "/test" },
    })
}

fn two(config: &Value) -> (Worker, Worker, Store) {
    let store = Store::default();
    let (a, b) = (
        Worker::new(config, &store, 1),
        Worker::new(config, &store, 2),
    );
    (a, b, store)
}

fn first(departure: &Departure) -> &str {
    departure.destinations.split(',').next().unwrap()
}

fn rank(departure: &Departure) -> &str {
    let rank = departure
        .add
        .iter()
        .find(|(name, _)| name == "x-data-parallel-rank");
    rank.map(|(_, value)| value.as_str()).unwrap()
}

fn idle(worker: &Worker) -> bool {
    worker
        .loads()
        .iter()
        .all(|[requests, _, prefill]| *requests == 0 && *prefill == 0)
}

#[test]
fn a_session_placed_by_one_worker_is_known_to_the_other() {
    let (mut one, mut other, _) = two(&config());
    for session in ["s1", "s2", "s3", "s4", "s5"] {
        let (flight, placed) = one.send(&[("x-session-id", session)]);
        one.finish(flight, first(&placed));
        let (flight, again) = other.send(&[("x-session-id", session)]);
        assert_eq!(
            (first(&again), rank(&again)),
            (first(&placed), rank(&placed))
        );
        other.finish(flight, first(&again));
    }
    assert!(idle(&one) && idle(&other));
    let sessions: u64 = one.loads().iter().map(|[_, sessions, _]| sessions).sum();
    assert_eq!(sessions, 5);
}

#[test]
fn what_one_worker_has_outstanding_weighs_for_the_other() {
    let (mut one, mut other, _) = two(&config());
    let heavy = [("x-session-id", "s1"), ("x-pointsman-test-tokens", "90000")];
    let (flight, heavy) = one.send(&heavy);
    let mut flights = Vec::new();
    for session in ["s2", "s3", "s4"] {
        let (flight, light) = other.send(&[("x-session-id", session)]);
        assert_ne!((first(&light), rank(&light)), (first(&heavy), rank(&heavy)));
        flights.push(flight);
    }
    one.end(flight, Ending::ClientLeft, A);
    flights
        .into_iter()
        .for_each(|flight| other.end(flight, Ending::ClientLeft, A));
    assert!(idle(&one), "{:?}", one.loads());
}

#[test]
fn every_way_to_end_brings_the_gauges_back() {
    let (mut one, mut other, _) = two(&config());
    for (head, ending) in [
        (Some(200), Ending::Complete),
        (Some(200), Ending::Broken),
        (Some(200), Ending::ClientLeft),
        (Some(429), Ending::Complete),
        (Some(500), Ending::Complete),
        (None, Ending::Broken),
        (None, Ending::ClientLeft),
    ] {
        let (mut flight, departure) =
            one.send(&[("x-session-id", "s"), ("x-parent-session-id", "p")]);
        assert!(!idle(&other));
        if let Some(status) = head {
            one.head(&mut flight, status, first(&departure));
            flight.output(&one.site, one.policy.as_mut());
        }
        one.end(flight, ending, first(&departure));
        assert!(idle(&other), "{head:?} {ending:?}");
    }
    let (flight, departure) = other.send(&[("x-session-id", "s")]);
    other.finish(flight, first(&departure));
}

#[test]
fn a_first_turn_that_never_reached_an_engine_leaves_no_binding() {
    let (mut one, _, _) = two(&config());
    let (flight, _) = one.send(&[("x-session-id", "s")]);
    one.end(flight, Ending::Broken, "");
    assert!(
        one.loads().iter().all(|load| *load == [0, 0, 0]),
        "{:?}",
        one.loads()
    );
}

#[test]
fn the_body_of_envoys_own_error_is_no_output_of_an_engine() {
    let (mut one, _, _) = two(&config());
    let (flight, departure) = one.send(&[("x-session-id", "s")]);
    one.finish(flight, first(&departure));
    // Nothing of a request whose engine gave no head is confirmed, and so nothing is dropped.
    let (mut flight, departure) = one.send(&[("x-session-id", "s")]);
    flight.output(&one.site, one.policy.as_mut());
    one.end(flight, Ending::Broken, first(&departure));
    let sessions: u64 = one.loads().iter().map(|[_, sessions, _]| sessions).sum();
    assert_eq!(sessions, 1);
}

#[test]
fn the_second_choice_has_the_same_rank_on_another_server_and_counts_only_if_it_was_used() {
    let (mut one, other, _) = two(&config());
    let headers = [("x-session-id", "s"), ("x-pointsman-explain", "1")];
    let (mut flight, departure) = one.send(&headers);
    let mut ways = departure.destinations.split(',');
    let (chosen, second) = (ways.next().unwrap(), ways.next().unwrap());
    assert_ne!(chosen, second);
    let held = |loads: &[[u64; 3]], address: &str| -> [u64; 2] {
        let half = if address == A {
            &loads[..2]
        } else {
            &loads[2..]
        };
        [
            half.iter().map(|l| l[0]).sum(),
            half.iter().map(|l| l[1]).sum(),
        ]
    };
    assert_eq!(held(&other.loads(), chosen), [1, 1]);
    assert_eq!(held(&other.loads(), second), [0, 0]);
    // Envoy could not reach the first one.
    let said = one.head(&mut flight, 200, second);
    assert_eq!(held(&other.loads(), chosen), [0, 0]);
    assert_eq!(held(&other.loads(), second), [1, 1]);
    let endpoint = if second == A { "a" } else { "b" };
    let target = format!("{endpoint}/{}", rank(&departure));
    assert!(
        said.contains(&("x-pointsman-target".to_owned(), target)),
        "{said:?}"
    );
    one.end(flight, Ending::Complete, second);
    assert!(idle(&other));
    let (flight, again) = one.send(&headers);
    assert_eq!(first(&again), second);
    one.end(flight, Ending::Complete, second);
}

#[test]
fn of_two_first_turns_at_once_the_later_one_adopts_the_earlier_ones_target() {
    let (mut one, other, store) = two(&config());
    let placed = Rc::new(RefCell::new(None));
    let (result, other) = (placed.clone(), RefCell::new(other));
    *store.what.borrow_mut() = Some(Box::new(move || {
        let mut other = other.into_inner();
        // Heavier, so that the two would not choose alike.
        let busy = [("x-session-id", "x"), ("x-pointsman-test-tokens", "50000")];
        let busy: Vec<_> = (0..3).map(|_| other.send(&busy)).collect();
        let (flight, departure) = other.send(&[("x-session-id", "s")]);
        *result.borrow_mut() = Some((other, flight, departure, busy));
    }));
    store.after.set(Some(0));
    let (flight, departure) = one.send(&[("x-session-id", "s")]);
    let (mut other, others, first_placed, busy) = placed.take().unwrap();
    assert_eq!(first(&departure), first(&first_placed));
    assert_eq!(rank(&departure), rank(&first_placed));
    one.finish(flight, first(&departure));
    other.finish(others, first(&first_placed));
    for (flight, departure) in busy {
        other.finish(flight, first(&departure));
    }
    assert!(idle(&one), "{:?}", one.loads());
    let sessions: u64 = one.loads().iter().map(|[_, sessions, _]| sessions).sum();
    assert_eq!(sessions, 2);
}

#[test]
fn a_decision_that_lost_its_second_key_takes_back_its_first() {
    let mut config = config();
    config["policy"] = json!({ "group": "siblings" });
    let (mut one, other, store) = two(&config);
    let placed = Rc::new(RefCell::new(None));
    let (result, other) = (placed.clone(), RefCell::new(other));
    // Between the changes of the two keys another child of the parent is bound with its group.
    *store.what.borrow_mut() = Some(Box::new(move || {
        let mut other = other.into_inner();
        let headers = [("x-session-id", "c2"), ("x-parent-session-id", "p")];
        let (flight, departure) = other.send(&headers);
        *result.borrow_mut() = Some((other, flight, departure));
    }));
    store.after.set(Some(1));
    let headers = [("x-session-id", "c1"), ("x-parent-session-id", "p")];
    let (flight, departure) = one.send(&headers);
    let (mut other, others, sibling) = placed.take().unwrap();
    assert_eq!(
        (first(&departure), rank(&departure)),
        (first(&sibling), rank(&sibling))
    );
    let loads = one.loads();
    let sum = |at: usize| loads.iter().map(|load| load[at]).sum::<u64>();
    assert_eq!((sum(0), sum(1)), (2, 2), "{loads:?}");
    one.end(flight, Ending::Broken, "");
    other.end(others, Ending::Broken, "");
    assert!(
        one.loads().iter().all(|load| *load == [0, 0, 0]),
        "{:?}",
        one.loads()
    );
}

#[test]
fn bad_identities_test_headers_and_unknown_targets_are_answered_here() {
    let mut config = config();
    let refused = |worker: &mut Worker, headers: &[(&'static str, &str)]| match worker.fate(headers)
    {
        Fate::Stays(answer, _) => (answer.status, answer.code),
        Fate::Leaves(..) => panic!("it left"),
    };
    let (mut one, _, _) = two(&config);
    let twice = [("x-session-id", "a"), ("x-session-id", "b")];
    assert_eq!(refused(&mut one, &twice), (400, "bad_session_identity"));
    assert_eq!(
        refused(&mut one, &[("x-pointsman-target", "z/0")]),
        (400, "unknown_target")
    );
    config.as_object_mut().unwrap().remove("test");
    let (mut one, _, _) = two(&config);
    assert_eq!(
        refused(&mut one, &[("x-pointsman-test-tokens", "1")]),
        (400, "test_header")
    );
}

#[test]
fn targets_keep_their_numbers_when_the_configuration_changes() {
    let (mut one, _, store) = two(&config());
    let (flight, placed) = one.send(&[("x-session-id", "s"), ("x-pointsman-target", "b/1")]);
    assert_eq!(first(&placed), B);
    one.finish(flight, B);
    let mut changed = config();
    changed["endpoints"] = json!([
        { "name": "c", "address": "127.0.0.1:9003", "ranks": 4 },
        { "name": "b", "address": B, "ranks": 2, "dialect": "vllm" },
    ]);
    let mut later = Worker::new(&changed, &store, 3);
    let (flight, departure) = later.send(&[("x-session-id", "s")]);
    assert_eq!((first(&departure), rank(&departure)), (B, "1"));
    later.finish(flight, B);
}
