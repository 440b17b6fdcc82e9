//! Everything has a bound, and says so when it is met.

use crate::harness::*;
use pointsman_core::{Core, Limits};
use pointsman_proxy::{Error, Proxy, Settings, SystemClock, Witnesses};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn more_requests_than_a_thread_may_have_are_told_to_come_back() {
    let (go, wait) = tokio::sync::watch::channel(false);
    let engine = Engine::start(move |_| {
        let mut wait = wait.clone();
        async move {
            let _ = wait.wait_for(|go| *go).await;
            text("ok")
        }
    })
    .await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.limits.requests = 1)
        .start();
    let mut first = rig.client().await;
    let waiting = tokio::spawn(async move { first.send(get("/", &[])).await.status });
    until("the first is in flight", || rig.load(0).requests == 1).await;
    let got = rig.send(get("/", &[])).await;
    assert_eq!((got.status, got.header("retry-after")), (503, Some("1")));
    assert_eq!(got.header("x-pointsman-error"), Some("overload"));
    go.send(true).unwrap();
    assert_eq!(waiting.await.unwrap(), 200);
    rig.drained().await;
    assert_eq!(rig.send(get("/", &[])).await.status, 200);
}

#[tokio::test]
async fn bodies_beyond_the_memory_of_a_thread_still_pass() {
    let engine = Engine::start(|seen| async move { text(seen.body) }).await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.limits.inspect_total_bytes = 10)
        .start();
    let body = r#"{"messages":["more than ten bytes"]}"#;
    assert_eq!(rig.send(post("/", &[], body)).await.text(), body);
    rig.drained().await;
}

#[tokio::test]
async fn a_head_that_is_too_large_is_refused() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.limits.header_bytes = 8192)
        .start();
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = format!(
        "GET / HTTP/1.1\r\nhost: h\r\nx: {}\r\n\r\n",
        "x".repeat(20_000)
    );
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 431");
}

#[tokio::test]
async fn a_tunnel_is_refused() {
    let rig = Rig::new().start();
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    stream
        .write_all(b"CONNECT h:443 HTTP/1.1\r\nhost: h:443\r\n\r\n")
        .await
        .unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 405");
}

#[tokio::test]
async fn threads_share_one_address_and_one_fleet() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new()
        .endpoint("a", &engine)
        .with(|settings| settings.threads = 4)
        .start();
    for _ in 0..32 {
        assert_eq!(rig.send(get("/", &[])).await.status, 200);
    }
    rig.drained().await;
    let metrics = rig.metrics().await;
    assert!(
        metrics.contains("reason=\"placed\",code=\"200\"} 32"),
        "{metrics}"
    );
}

#[tokio::test]
async fn an_address_that_is_taken_is_an_error_at_the_start() {
    let rig = Rig::new().start();
    let core = || Arc::new(Core::new(Limits::default(), Arc::new(SystemClock::start())));
    for (listen, admin) in [
        (rig.address, None),
        (([127, 0, 0, 1], 0).into(), Some(rig.admin)),
    ] {
        let settings = Settings {
            listen,
            admin: admin.unwrap_or(([127, 0, 0, 1], 0).into()),
            threads: 2,
            ..Settings::default()
        };
        let error = Proxy::bind(
            settings,
            core(),
            Arc::new(Least::default()),
            Witnesses::default(),
        )
        .unwrap_err();
        assert!(matches!(error, Error::Listen { .. }), "{error}");
    }
}

#[tokio::test]
async fn the_admin_address_tells_that_the_host_lives() {
    let rig = Rig::new().start();
    let mut client = Client::connect(rig.admin).await;
    assert_eq!(client.send(get("/healthz", &[])).await.text(), "ok\n");
}
