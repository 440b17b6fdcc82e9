//! Streams pass as they come, and a client that leaves takes its request with it.

use crate::harness::*;
use http_body_util::BodyExt;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn next(body: &mut hyper::body::Incoming) -> Option<String> {
    let data = body.frame().await?.unwrap().into_data().unwrap();
    Some(String::from_utf8(data.to_vec()).unwrap())
}

const BODY: &str = r#"{"model":"m","messages":["12345678"]}"#;

#[tokio::test]
async fn each_chunk_passes_before_the_next_is_sent_and_prefill_is_released_at_the_first() {
    let (engine, mut streams) = streaming().await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut client = rig.client().await;
    let response = client
        .begin(post("/", &[("x-session-id", "s")], BODY))
        .await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let stream = streams.recv().await.unwrap();
    let mut body = response.into_body();
    assert_eq!((rig.load(0).requests, rig.load(0).prefill_tokens), (1, 2));
    for chunk in ["data: 1\n\n", "data: 2\n\n", "data: [DONE]\n\n"] {
        stream.send(Ok(chunk)).unwrap();
        assert_eq!(next(&mut body).await.as_deref(), Some(chunk));
        let load = rig.load(0);
        assert_eq!(
            (load.requests, load.prefill_tokens, load.context_tokens),
            (1, 0, 2)
        );
    }
    drop(stream);
    assert_eq!(next(&mut body).await, None);
    rig.drained().await;
    assert_eq!(rig.load(0).sessions, 1);
}

#[tokio::test]
async fn chunks_that_are_there_together_lose_nothing() {
    let (engine, mut streams) = streaming().await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut client = rig.client().await;
    let response = client.begin(post("/", &[], BODY)).await;
    let stream = streams.recv().await.unwrap();
    (0..5000).for_each(|_| stream.send(Ok("data: 0123456789\n\n")).unwrap());
    drop(stream);
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body == "data: 0123456789\n\n".repeat(5000));
    rig.drained().await;
    // the connection is whole: it serves again
    client.begin(post("/", &[], BODY)).await;
    assert_eq!(engine.accepted(), 1);
}

#[tokio::test]
async fn nothing_is_sent_anew_after_the_first_byte() {
    let (engine, mut streams) = streaming().await;
    let rig = Rig::new().url("a", &engine.url(), 2).start();
    let mut client = rig.client().await;
    let response = client
        .begin(post("/", &[("x-session-id", "s")], BODY))
        .await;
    let stream = streams.recv().await.unwrap();
    let mut body = response.into_body();
    stream.send(Ok("data: 1\n\n")).unwrap();
    next(&mut body).await.unwrap();
    stream.send(Err(std::io::Error::other("crash"))).unwrap();
    assert!(
        body.collect().await.is_err(),
        "the client must see that the stream is cut off"
    );
    assert_eq!(engine.seen().len(), 1);
    rig.drained().await;
    assert!(rig.core.bindings().is_empty(), "the binding is dropped");
}

#[tokio::test]
async fn case_30_a_client_that_leaves_in_mid_stream_closes_the_engines_connection() {
    // field case: vllm router#215
    let (engine, mut streams) = streaming().await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut client = rig.client().await;
    let response = client
        .begin(post("/", &[("x-session-id", "s")], BODY))
        .await;
    let stream = streams.recv().await.unwrap();
    stream.send(Ok("data: 1\n\n")).unwrap();
    let mut body = response.into_body();
    next(&mut body).await.unwrap();
    drop((client, body));
    // The engine is silent now: it is not the next chunk that tells.
    rig.drained().await;
    until("the engine's connection is closed", || engine.open() == 0).await;
    assert_eq!(rig.load(0).sessions, 1, "the session stays bound");
}

#[tokio::test]
async fn case_29_a_client_that_leaves_while_the_engine_is_silent_gives_everything_back() {
    // field case: smg#2136, sglang#40391
    let silent = Engine::start(|_| std::future::pending()).await;
    let rig = Rig::new().endpoint("a", &silent).start();
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = format!(
        "POST /x HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nx-session-id: s\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    until("the engine has the request", || silent.seen().len() == 1).await;
    assert_eq!(rig.load(0).requests, 1);
    drop(stream);
    rig.drained().await;
    until("the engine's connection is closed", || silent.open() == 0).await;
    assert!(rig.core.bindings().is_empty(), "nothing was confirmed");
    assert!(
        rig.metrics()
            .await
            .contains("reason=\"placed\",code=\"499\"} 1")
    );
}

#[tokio::test]
async fn case_05_an_error_inside_a_200_stream_counts_against_engine_and_binding() {
    // field case: CLIProxyAPI#3613
    let (engine, mut streams) = streaming().await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| {
            settings.pools[0].breaker.failures = 1;
            settings.pools[0].breaker.cooldown = std::time::Duration::from_secs(3600);
        })
        .start();
    let mut client = rig.client().await;
    let response = client
        .begin(post("/", &[("x-session-id", "s")], BODY))
        .await;
    let stream = streams.recv().await.unwrap();
    let mut body = response.into_body();
    for chunk in [
        "data: 1\n\n",
        "data: {\"error\":",
        "{\"message\":\"cuda\"}}\n\n",
    ] {
        stream.send(Ok(chunk)).unwrap();
        assert_eq!(
            next(&mut body).await.as_deref(),
            Some(chunk),
            "it passes as it is"
        );
    }
    drop(stream);
    assert_eq!(next(&mut body).await, None);
    rig.drained().await;
    until("the breaker is open", || !rig.takes(0)).await;
    assert!(rig.core.bindings().is_empty());
}

#[tokio::test]
async fn an_engine_that_falls_silent_in_mid_stream_is_cut_off() {
    let (engine, mut streams) = streaming().await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.timeouts.idle_stream = std::time::Duration::from_millis(20))
        .start();
    let mut client = rig.client().await;
    let response = client.begin(post("/", &[], BODY)).await;
    let stream = streams.recv().await.unwrap();
    stream.send(Ok("data: 1\n\n")).unwrap();
    assert!(response.into_body().collect().await.is_err());
    rig.drained().await;
    drop(stream);
}

#[tokio::test]
async fn a_stream_that_is_open_ends_well_although_the_proxy_is_told_to_stop() {
    let (engine, mut streams) = streaming().await;
    let mut rig = Rig::new().endpoint("a", &engine).start();
    let mut client = rig.client().await;
    let response = client.begin(post("/", &[], BODY)).await;
    let stream = streams.recv().await.unwrap();
    let thread = rig.stop();
    // No new client is served from here on, the old one is.
    let mut waiting = true;
    while waiting {
        waiting = TcpStream::connect(rig.address).await.is_ok();
    }
    stream.send(Ok("data: 1\n\n")).unwrap();
    drop(stream);
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "data: 1\n\n"
    );
    drop(client);
    tokio::task::spawn_blocking(|| thread.join().unwrap().unwrap())
        .await
        .unwrap();
}

#[tokio::test]
async fn an_upload_streams_while_the_engine_reads_it() {
    let length = "content-type: audio/wav\r\ncontent-length: 11\r\n\r\nfirst";
    upload(length, "second").await;
}

#[tokio::test]
async fn a_json_body_streams_from_the_moment_it_is_larger_than_the_limit() {
    let chunked =
        "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    upload(chunked, "6\r\nsecond\r\n0\r\n\r\n").await;
}

/// The second part is sent when the engine has the first.
async fn upload(head_and_first: &str, second: &str) {
    let got = Arc::new(Mutex::new(Vec::new()));
    let log = got.clone();
    let has = |log: &Mutex<Vec<u8>>, part: &[u8]| {
        log.lock()
            .unwrap()
            .windows(part.len())
            .any(|window| window == part)
    };
    let engine = Engine::connections(move |mut stream, _| {
        let log = log.clone();
        async move {
            let mut part = [0; 4096];
            while let Ok(n @ 1..) = stream.read(&mut part).await {
                log.lock().unwrap().extend_from_slice(&part[..n]);
                if has(&log, b"second") {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                    let _ = stream.write_all(answer).await;
                }
            }
        }
    })
    .await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.limits.inspect_bytes = 4)
        .start();
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = format!("POST /x HTTP/1.1\r\nhost: h\r\n{head_and_first}");
    stream.write_all(head.as_bytes()).await.unwrap();
    until("the engine has the first part", || has(&got, b"first")).await;
    stream.write_all(second.as_bytes()).await.unwrap();
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    rig.drained().await;
}
