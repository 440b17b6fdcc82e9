//! Sessions: what is read, what goes on to the engine, what binds.

use crate::harness::*;
use pointsman_core::{Key, Phase, Scope, hash_text};
use pointsman_proxy::Session;

fn bound(rig: &Running, session: &str) -> Option<u32> {
    let scope = Scope::new(hash_text("default"), Phase::Serve, hash_text("m"));
    rig.core.bound(scope, Key::Session, hash_text(session))
}

const BODY: &str = r#"{"model":"m","messages":[]}"#;

#[tokio::test]
async fn identity_headers_go_on_unless_a_list_says_which() {
    // field case: sglang#29206
    let engine = Engine::start(|_| async { text("ok") }).await;
    let headers = [
        ("x-session-id", "s"),
        ("x-parent-session-id", "p"),
        ("x-other", "1"),
    ];
    let rig = Rig::new().endpoint("a", &engine).start();
    rig.send(get("/", &headers)).await;
    for (name, value) in headers {
        assert_eq!(engine.last().header(name), Some(value));
    }
    let listed = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.session.forward = Some(vec!["X-Session-Id".to_owned()]))
        .start();
    listed.send(get("/", &headers)).await;
    assert_eq!(engine.last().header("x-session-id"), Some("s"));
    assert_eq!(engine.last().header("x-parent-session-id"), None);
    assert_eq!(engine.last().header("x-other"), Some("1"));
}

#[tokio::test]
async fn a_session_stays_where_it_is_until_it_ends() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().url("a", &engine.url(), 4).start();
    let explained = [("x-session-id", "s"), ("x-pointsman-explain", "1")];
    let first = rig.send(post("/", &explained, BODY)).await;
    assert_eq!(first.header("x-pointsman-reason"), Some("placed"));
    assert!(bound(&rig, "s").is_some());
    let second = rig.send(post("/", &explained, BODY)).await;
    assert_eq!(second.header("x-pointsman-reason"), Some("owner"));
    assert_eq!(
        second.header("x-pointsman-target"),
        first.header("x-pointsman-target")
    );
    let last = [("x-session-id", "s"), ("x-dynamo-session-final", "true")];
    assert_eq!(rig.send(post("/", &last, BODY)).await.status, 200);
    assert_eq!(bound(&rig, "s"), None);
    rig.drained().await;
    let metrics = rig.metrics().await;
    assert!(
        metrics.contains("pointsman_affinity_total{event=\"owner\"} 2"),
        "{metrics}"
    );
    assert!(metrics.contains("pointsman_bindings 0"), "{metrics}");
}

#[tokio::test]
async fn a_session_in_the_body_counts_where_it_is_configured() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| {
            settings.session = Session {
                body: vec!["/metadata/session".to_owned()],
                ..Session::lists(vec![], vec![])
            };
        })
        .start();
    let body = r#"{"model":"m","metadata":{"session":"b"}}"#;
    rig.send(post("/", &[("x-session-id", "h")], body)).await;
    assert!(bound(&rig, "b").is_some() && bound(&rig, "h").is_none());
}

#[tokio::test]
async fn an_identity_that_is_none_is_the_clients_error() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let long = "x".repeat(257);
    for headers in [
        vec![("x-session-id", long.as_str())],
        vec![("x-session-id", "a"), ("x-session-id", "b")],
    ] {
        let got = rig.send(get("/", &headers)).await;
        assert_eq!(got.status, 400);
        assert_eq!(
            got.header("x-pointsman-error"),
            Some("bad_session_identity")
        );
        assert!(
            got.text().contains("\"type\":\"invalid_request_error\""),
            "{}",
            got.text()
        );
    }
    assert!(engine.seen().is_empty());
}

#[tokio::test]
async fn requests_without_a_session_are_counted() {
    // field case: litellm#38078
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    rig.send(get("/", &[])).await;
    let metrics = rig.metrics().await;
    assert!(
        metrics.contains("pointsman_requests_without_session_total 1"),
        "{metrics}"
    );
    assert!(
        metrics.contains("pointsman_affinity_total{event=\"unkeyed\"} 1"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_longer_turn_is_charged_for_what_is_new_only() {
    let (parked, mut turns) = tokio::sync::mpsc::unbounded_channel();
    let engine = Engine::start(move |_| {
        let (go, wait) = tokio::sync::oneshot::channel::<()>();
        parked.send(go).unwrap();
        async move {
            let _ = wait.await;
            text("ok")
        }
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let turn = |messages: &[&str]| {
        let body = format!("{{\"model\":\"m\",\"messages\":[{}]}}", messages.join(","));
        post("/", &[("x-session-id", "s")], body)
    };
    let (one, two) = (
        format!("\"{}\"", "a".repeat(398)),
        format!("\"{}\"", "b".repeat(78)),
    );
    for (messages, prefill, context) in
        [(vec![one.as_str()], 100, 100), (vec![&one, &two], 20, 120)]
    {
        let mut client = rig.client().await;
        let answer = client.send(turn(&messages));
        let check = async {
            let go = turns.recv().await.unwrap();
            let load = rig.load(0);
            assert_eq!(
                (load.prefill_tokens, load.context_tokens),
                (prefill, context)
            );
            go.send(()).unwrap();
        };
        assert_eq!(tokio::join!(answer, check).0.status, 200);
        rig.drained().await;
    }
}
