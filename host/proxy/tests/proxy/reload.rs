//! Other engines while traffic flows.

use crate::harness::*;
use http_body_util::BodyExt;
use pointsman_core::Event;
use pointsman_proxy::{Breaker, Dialect, Error, Health};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

const BODY: &str = r#"{"model":"m","messages":["12345678"]}"#;

async fn named(name: &'static str) -> Engine {
    Engine::start(move |_| async move { text(name) }).await
}

async fn turn(rig: &Running, session: &str) -> Got {
    rig.send(post("/", &[("x-session-id", session)], BODY))
        .await
}

fn names(rig: &Running) -> Vec<String> {
    rig.targets().into_iter().map(|(name, _)| name).collect()
}

#[tokio::test]
async fn an_engine_that_comes_takes_sessions_and_those_that_live_elsewhere_stay_there() {
    let (a, b) = (named("a").await, named("b").await);
    let policy = Told {
        wants: EVERY_EVENT,
        ..Told::default()
    };
    let rig = (Rig::new().endpoint("a", &a).source(policy.clone())).start();
    for session in ["1", "2"] {
        assert_eq!(turn(&rig, session).await.text(), "a");
    }
    let before = rig.core.fleet.generation();
    let changes = rig
        .reload(|pool| pool.endpoints.push(endpoint("b", &b.url(), 3)))
        .unwrap();
    assert_eq!(
        (changes.added, changes.kept),
        (vec!["b".into()], vec!["a".into()])
    );
    assert_eq!(
        rig.core.fleet.generation(),
        before + 1,
        "one change, not three"
    );
    rig.core
        .fleet
        .set(&[0], |standing| standing.draining = true);
    assert_eq!(turn(&rig, "3").await.text(), "b");
    assert_eq!(turn(&rig, "1").await.text(), "a");
    let told = |event: &&Event| **event == Event::FleetChanged;
    assert!(policy.events().iter().filter(told).count() >= 1);
}

#[tokio::test]
async fn an_engine_that_goes_ends_its_streams_whole_and_its_sessions_move() {
    let (a, mut streams) = streaming().await;
    let b = named("b").await;
    let rig = Rig::new().url("a", &a.url(), 2).endpoint("b", &b).start();
    rig.core
        .fleet
        .set(&[1, 2], |standing| standing.draining = true);
    let mut client = rig.client().await;
    let request = post("/", &[("x-session-id", "s")], BODY);
    let response = client.begin(request).await;
    let stream = streams.recv().await.unwrap();
    rig.core
        .fleet
        .set(&[1, 2], |standing| standing.draining = false);

    let changes = rig.reload(|pool| drop(pool.endpoints.remove(0))).unwrap();
    assert_eq!(changes.removed, ["a"]);
    assert_eq!(names(&rig), ["b/0"]);
    assert_eq!(
        turn(&rig, "s").await.text(),
        "b",
        "its session is placed anew"
    );
    let metrics = rig.metrics().await;
    assert!(metrics.contains("pointsman_target_requests{target=\"a/0\"} 1"));
    assert!(metrics.contains("pointsman_target_up{target=\"a/0\"} 0"));
    assert!(!metrics.contains("a/1"), "nothing is in flight there");

    for _ in 0..100 {
        stream.send(Ok("data: x\n\n")).unwrap();
    }
    drop(stream);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body.len(), 900);
    rig.drained().await;
    assert!(!rig.metrics().await.contains("a/0"));
    assert_eq!(turn(&rig, "s").await.text(), "b", "nor does it go back");
    until("its connections are closed", || a.open() == 0).await;
}

#[tokio::test]
async fn pools_that_cannot_be_used_change_nothing_at_all() {
    let a = named("a").await;
    let rig = Rig::new().endpoint("a", &a).start();
    let before = rig.core.fleet.generation();
    let error = rig.reload(|pool| {
        pool.endpoints[0] = endpoint("b", &a.url(), 1);
        pool.endpoints.push(endpoint("c", "https://c", 1));
    });
    assert!(matches!(error, Err(Error::Url { .. })), "{error:?}");
    let error = rig.reload(|pool| pool.endpoints.push(endpoint("a", "http://c", 1)));
    assert!(matches!(error, Err(Error::Twice(_))), "{error:?}");
    assert_eq!(names(&rig), ["a/0"]);
    assert_eq!(rig.core.fleet.generation(), before);
    assert_eq!(turn(&rig, "s").await.text(), "a");
}

#[tokio::test]
async fn the_same_pools_in_any_order_are_no_change() {
    let (a, b) = (named("a").await, named("b").await);
    let rig = Rig::new().url("a", &a.url(), 2).endpoint("b", &b).start();
    let before = (rig.targets(), rig.core.fleet.generation());
    let changes = rig.reload(|pool| pool.endpoints.reverse()).unwrap();
    assert!(changes.is_empty() && changes.kept.len() == 2, "{changes:?}");
    assert_eq!((rig.targets(), rig.core.fleet.generation()), before);
}

#[tokio::test]
async fn ranks_that_stay_keep_their_numbers_and_those_that_come_share_the_servers_condition() {
    let a = named("a").await;
    let rig = Rig::new().url("a", &a.url(), 2).start();
    rig.core
        .fleet
        .set(&[0, 1], |standing| standing.closed = false);
    rig.core
        .fleet
        .set(&[0], |standing| standing.draining = true);
    let changes = rig.reload(|pool| pool.endpoints[0].ranks = 3).unwrap();
    assert_eq!(changes.changed, ["a"]);
    let numbers = |rig: &Running| -> Vec<u32> {
        rig.targets()
            .into_iter()
            .map(|(_, number)| number)
            .collect()
    };
    assert_eq!(numbers(&rig), [0, 1, 2]);
    let fleet = rig.core.fleet.snapshot();
    let standing = |target| fleet.standing(target).unwrap();
    assert!(standing(0).draining && !standing(2).closed && !standing(2).draining);
    rig.reload(|pool| pool.endpoints[0].ranks = 1).unwrap();
    rig.reload(|pool| pool.endpoints[0].ranks = 2).unwrap();
    assert_eq!(numbers(&rig), [0, 3], "a number is never given twice");
}

#[tokio::test]
async fn a_server_at_another_address_is_another_server() {
    let (a, mut streams) = streaming().await;
    let b = named("b").await;
    let rig = Rig::new().endpoint("a", &a).start();
    let mut client = rig.client().await;
    let request = post("/", &[("x-session-id", "s")], BODY);
    let response = client.begin(request).await;
    let stream = streams.recv().await.unwrap();
    let changes = rig.reload(|pool| pool.endpoints[0].url = b.url()).unwrap();
    assert_eq!(changes.replaced, ["a"]);
    assert_eq!(rig.targets(), [("a/0".to_owned(), 1)]);
    assert_eq!(turn(&rig, "s").await.text(), "b");
    let metrics = rig.metrics().await;
    let series: Vec<&str> = (metrics.lines())
        .filter(|line| line.starts_with("pointsman_target_requests{"))
        .collect();
    assert_eq!(series, ["pointsman_target_requests{target=\"a/0\"} 1"]);
    drop(stream);
    response.into_body().collect().await.unwrap();
    rig.drained().await;
}

#[tokio::test]
async fn models_and_labels_change_under_the_sessions_that_may_stay() {
    let a = named("a").await;
    let rig = Rig::new().endpoint("a", &a).start();
    assert_eq!(turn(&rig, "s").await.status, 200);
    let changes = rig
        .reload(|pool| {
            pool.endpoints[0].models = Some(vec!["m".to_owned()]);
            pool.endpoints[0].labels = vec![("tier".to_owned(), "fast".to_owned())];
        })
        .unwrap();
    assert_eq!(changes.changed, ["a"]);
    let fleet = rig.core.fleet.snapshot();
    assert_eq!(fleet.spec(0).unwrap().endpoint.labels[0].1, "fast");
    assert_eq!(rig.load(0).sessions, 1);
    assert_eq!(turn(&rig, "s").await.status, 200);
    let other = BODY.replace("\"m\"", "\"n\"");
    assert_eq!(rig.send(post("/", &[], other.clone())).await.status, 404);
    rig.reload(|pool| pool.endpoints[0].models = None).unwrap();
    assert_eq!(rig.send(post("/", &[], other)).await.status, 200);
}

#[tokio::test]
async fn another_dialect_counts_from_the_next_request_over_the_same_connection() {
    let a = named("a").await;
    let rig = Rig::new().url("a", &a.url(), 1).start();
    turn(&rig, "s").await;
    assert_eq!(a.last().header("x-data-parallel-rank"), None);
    rig.reload(|pool| pool.dialect = Dialect::Vllm).unwrap();
    turn(&rig, "s").await;
    assert_eq!(a.last().header("x-data-parallel-rank"), Some("0"));
    assert_eq!(a.accepted(), 1);
}

const HOUR: Duration = Duration::from_secs(3600);
const SOON: Duration = Duration::from_millis(5);

fn every_moment() -> Option<Health> {
    Some(Health {
        path: "/healthy".to_owned(),
        interval: SOON,
        unhealthy_after: 1,
        ..Health::default()
    })
}

#[tokio::test]
async fn an_open_breaker_stays_open_and_closes_as_the_new_settings_say() {
    let a = Engine::start(|_| async { say(500, "") }).await;
    let rig = (Rig::new().endpoint("a", &a))
        .with(|settings| {
            settings.pools[0].breaker = Breaker {
                failures: 1,
                cooldown: HOUR,
            };
        })
        .start();
    assert_eq!(rig.send(get("/", &[])).await.status, 500);
    assert!(!rig.takes(0));
    rig.reload(|pool| pool.breaker.failures = 2).unwrap();
    assert!(!rig.takes(0));
    assert_eq!(rig.send(get("/", &[])).await.status, 503);
    rig.reload(|pool| pool.breaker.cooldown = SOON).unwrap();
    until("it closes", || rig.takes(0)).await;
}

#[tokio::test]
async fn without_its_health_check_an_engine_counts_as_healthy_again() {
    let a = Engine::start(|seen| async move {
        say(
            if seen.uri.path() == "/healthy" {
                500
            } else {
                200
            },
            "",
        )
    })
    .await;
    let rig = (Rig::new().endpoint("a", &a))
        .with(|settings| settings.pools[0].health = every_moment())
        .start();
    until("a is down", || !rig.takes(0)).await;
    rig.reload(|pool| pool.health = None).unwrap();
    until("a is up", || rig.takes(0)).await;
    rig.reload(|pool| pool.health = every_moment()).unwrap();
    until("a is down", || !rig.takes(0)).await;
}

#[tokio::test]
async fn nobody_checks_the_health_of_an_engine_that_is_gone() {
    let (a, b) = (named("a").await, named("b").await);
    let rig = (Rig::new().endpoint("a", &a).endpoint("b", &b))
        .with(|settings| settings.pools[0].health = every_moment())
        .start();
    until("both are checked", || a.accepted() > 1 && b.accepted() > 1).await;
    rig.reload(|pool| drop(pool.endpoints.remove(1))).unwrap();
    let (checks, last) = (a.accepted(), b.accepted());
    until("a is checked", || a.accepted() > checks + 20).await;
    assert!(b.accepted() <= last + 1, "{last} {}", b.accepted());
}

#[tokio::test]
async fn a_thousand_reloads_fail_no_request() {
    let (a, b, c) = (named("a").await, named("b").await, named("c").await);
    let rig = Arc::new(Rig::new().endpoint("a", &a).endpoint("b", &b).start());
    // Only those that come and go take requests.
    rig.core
        .fleet
        .set(&[0], |standing| standing.draining = true);
    let answered = Arc::new(Notify::new());
    let mut clients = JoinSet::new();
    for number in 0..4 {
        let (rig, answered) = (rig.clone(), answered.clone());
        clients.spawn(async move {
            let mut client = rig.client().await;
            for turn in 0.. {
                let session = format!("{number}-{}", turn % 10);
                let request = post("/", &[("x-session-id", &session)], BODY);
                let got = client.send(request).await;
                assert_eq!(got.status, 200, "{}", got.text());
                answered.notify_one();
            }
        });
    }
    let urls = [("c", c.url()), ("b", b.url())];
    for (name, url) in urls.into_iter().cycle().take(1000) {
        let rig = rig.clone();
        let reload = move || rig.reload(|pool| pool.endpoints[1] = endpoint(name, &url, 4));
        // On another thread, so that requests go on meanwhile; and then at least one more.
        tokio::task::spawn_blocking(reload).await.unwrap().unwrap();
        tokio::select! {
            () = answered.notified() => {}
            failed = clients.join_next() => panic!("{failed:?}"),
        }
    }
    clients.shutdown().await;
    let by = (b.accepted(), c.accepted());
    assert!(by.0 > 10 && by.1 > 10, "{by:?}");
    let metrics = rig.metrics().await;
    let retries = "pointsman_retries_total{cause=\"connection\"} 0";
    assert!(metrics.contains(retries), "{metrics}");
    assert_eq!(rig.targets().len(), 5);
    rig.drained().await;
}
