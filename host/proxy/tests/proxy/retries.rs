//! What is sent anew, and what never is.

use crate::harness::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const EXPLAIN: (&str, &str) = ("x-pointsman-explain", "1");
const SESSION: (&str, &str) = ("x-session-id", "s");

/// The url of a server that is not there.
async fn nobody() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

#[tokio::test]
async fn a_refused_connection_takes_all_ranks_of_its_server_and_another_serves() {
    let engine = Engine::start(|seen| async move { text(seen.body) }).await;
    let rig = Rig::new()
        .url("gone", &nobody().await, 4)
        .endpoint("b", &engine)
        .start();
    let got = rig.send(post("/", &[EXPLAIN, SESSION], "{\"a\":1}")).await;
    assert_eq!((got.status, got.text()), (200, "{\"a\":1}"));
    assert_eq!(got.header("x-pointsman-target"), Some("b/0"));
    assert_eq!(got.header("x-pointsman-attempts"), Some("2"));
    // field case: dynamo#10920: the session is kept through the retry
    let next = rig.send(post("/", &[EXPLAIN, SESSION], "{}")).await;
    assert_eq!(next.header("x-pointsman-reason"), Some("owner"));
    assert_eq!(next.header("x-pointsman-target"), Some("b/0"));
    assert!(
        rig.metrics()
            .await
            .contains("pointsman_retries_total{cause=\"connection\"} 1")
    );
    rig.drained().await;
}

#[tokio::test]
async fn a_reset_before_the_head_is_sent_anew_elsewhere() {
    let resetting = Engine::connections(|mut stream, _| async move {
        let _ = stream.read(&mut [0; 1024]).await;
    })
    .await;
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new()
        .endpoint("a", &resetting)
        .endpoint("b", &engine)
        .start();
    let got = rig.send(post("/", &[EXPLAIN], "{}")).await;
    assert_eq!(
        (got.status, got.header("x-pointsman-target")),
        (200, Some("b/0"))
    );
    assert_eq!(resetting.accepted(), 1);
    rig.drained().await;
}

#[tokio::test]
async fn a_500_is_sent_anew_to_another_rank() {
    let engine = Engine::start(|seen| async move {
        match seen.header("x-data-parallel-rank") {
            Some("0") => say(500, "broken rank"),
            _ => text("ok"),
        }
    })
    .await;
    let rig = (Rig::new().url("a", &engine.url(), 2))
        .with(|settings| settings.pools[0].dialect = pointsman_proxy::Dialect::Vllm)
        .start();
    let got = rig.send(post("/", &[EXPLAIN], "{}")).await;
    assert_eq!(
        (got.text(), got.header("x-pointsman-target")),
        ("ok", Some("a/1"))
    );
    assert!(
        rig.metrics()
            .await
            .contains("pointsman_retries_total{cause=\"status\"} 1")
    );
    rig.drained().await;
}

#[tokio::test]
async fn the_engines_own_error_reaches_the_client_when_nobody_is_left() {
    let engine = Engine::start(|_| async {
        let mut answer = say(500, "out of memory");
        answer
            .headers_mut()
            .insert("x-engine", "1".parse().unwrap());
        answer
    })
    .await;
    let rig = Rig::new().url("a", &engine.url(), 2).start();
    for (ranks_asked, headers) in [(2, &[][..]), (3, &[("x-pointsman-target", "a/0")])] {
        let got = rig.send(post("/", headers, "{}")).await;
        assert_eq!((got.status, got.text()), (500, "out of memory"));
        assert_eq!(got.header("x-engine"), Some("1"));
        assert_eq!(engine.seen().len(), ranks_asked);
    }
    rig.drained().await;
}

#[tokio::test]
async fn attempts_are_bounded() {
    let engine = Engine::start(|_| async { say(500, "no") }).await;
    let rig = (Rig::new().url("a", &engine.url(), 8))
        .with(|settings| settings.attempts = 3)
        .start();
    assert_eq!(rig.send(get("/", &[])).await.status, 500);
    assert_eq!(engine.seen().len(), 3);
}

#[tokio::test]
async fn an_unreachable_fleet_is_a_502_in_the_shape_of_the_api() {
    let rig = Rig::new().url("a", &nobody().await, 1).start();
    let got = rig.send(post("/", &[], "{}")).await;
    assert_eq!(got.status, 502);
    assert_eq!(got.header("x-pointsman-error"), Some("engine_unreachable"));
    assert!(
        got.text().contains("\"code\":\"engine_unreachable\""),
        "{}",
        got.text()
    );
    rig.drained().await;
}

#[tokio::test]
async fn an_overloaded_engine_says_so_itself_and_keeps_its_session() {
    // field case: dynamo#14570
    for (status, retry_after) in [(429, None), (429, Some("3")), (503, Some("3"))] {
        let engine = Engine::start(move |seen| async move {
            if seen.text() == "{\"busy\":1}" {
                let mut answer = say(status, "busy");
                if let Some(seconds) = retry_after {
                    answer
                        .headers_mut()
                        .insert("retry-after", seconds.parse().unwrap());
                }
                return answer;
            }
            text("ok")
        })
        .await;
        let rig = Rig::new().url("a", &engine.url(), 2).start();
        rig.send(post("/", &[("x-session-id", "new")], "{\"busy\":1}"))
            .await;
        rig.drained().await;
        assert!(
            rig.core.bindings().is_empty(),
            "a session that was never taken is bound nowhere"
        );
        rig.send(post("/", &[SESSION], "{}")).await;
        let got = rig.send(post("/", &[SESSION], "{\"busy\":1}")).await;
        assert_eq!(
            (got.status, got.text(), got.header("retry-after")),
            (status, "busy", retry_after)
        );
        assert_eq!(engine.seen().len(), 3, "not sent anew");
        let next = rig.send(post("/", &[SESSION, EXPLAIN], "{}")).await;
        assert_eq!(next.header("x-pointsman-reason"), Some("owner"));
        rig.drained().await;
    }
}

#[tokio::test]
async fn a_503_without_a_time_to_come_back_is_a_failure() {
    let engine = Engine::start(|_| async { say(503, "loading") }).await;
    let rig = Rig::new().url("a", &engine.url(), 2).start();
    assert_eq!(rig.send(get("/", &[])).await.status, 503);
    assert_eq!(engine.seen().len(), 2);
}

#[tokio::test]
async fn a_connection_that_died_in_the_pool_does_not_count_against_the_engine() {
    // field case: smg#2162. Each connection serves one request, says keep-alive, and hangs up on the next.
    let engine = Engine::connections(|mut stream, number| async move {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).await;
        let _ = stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            .await;
        if number == 0 {
            let _ = stream.read(&mut request).await;
        } else {
            let _ = stream.read_to_end(&mut Vec::new()).await;
        }
    })
    .await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.pools[0].breaker.failures = 1)
        .start();
    for _ in 0..2 {
        let got = rig.send(post("/", &[EXPLAIN], "{}")).await;
        assert_eq!((got.status, got.text()), (200, "ok"));
        assert_eq!(got.header("x-pointsman-attempts"), None);
    }
    assert_eq!(engine.accepted(), 2);
    assert!(rig.takes(0));
    assert!(
        rig.metrics()
            .await
            .contains("pointsman_upstream_connections_total{event=\"stale\"} 1")
    );
}

#[tokio::test]
async fn a_body_that_streams_is_sent_once() {
    let engine = Engine::start(|_| async { say(500, "no") }).await;
    let other = ("content-type", "application/octet-stream");
    let rig = Rig::new()
        .url("gone", &nobody().await, 1)
        .url("a", &engine.url(), 2)
        .start();
    // The refused connection took nothing of it; the 500 did.
    let got = rig.send(post("/", &[other, EXPLAIN], "bytes")).await;
    assert_eq!(
        (got.status, got.header("x-pointsman-attempts")),
        (500, Some("2"))
    );
    assert_eq!(engine.seen().len(), 1);
    assert_eq!(engine.last().text(), "bytes");
}

#[tokio::test]
async fn an_engine_that_does_not_begin_to_answer_in_time_is_left() {
    let silent = Engine::start(|_| std::future::pending()).await;
    let rig = (Rig::new().endpoint("a", &silent))
        .with(|settings| settings.timeouts.first_byte = std::time::Duration::from_millis(20))
        .start();
    let got = rig.send(post("/", &[], "{}")).await;
    assert_eq!(
        (got.status, got.header("x-pointsman-error")),
        (504, Some("engine_timeout"))
    );
    rig.drained().await;
}

#[tokio::test]
async fn a_client_that_owes_its_body_is_not_counted_against_the_engine() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let engine = Engine::start(|_| std::future::pending()).await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| {
            settings.timeouts.first_byte = std::time::Duration::from_millis(20);
            settings.timeouts.client = std::time::Duration::from_millis(200);
            settings.pools[0].breaker.failures = 1;
        })
        .start();
    let mut stream = tokio::net::TcpStream::connect(rig.address).await.unwrap();
    let half = b"POST /x HTTP/1.1\r\nhost: h\r\ncontent-length: 50\r\n\r\nhalf";
    stream.write_all(half).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(
        &answer,
        b"HTTP/1.1 408",
        "{}",
        String::from_utf8_lossy(&answer)
    );
    rig.drained().await;
    assert!(
        rig.core.fleet.snapshot().standing(0).unwrap().closed,
        "its breaker"
    );
}
