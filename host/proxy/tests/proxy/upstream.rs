//! What an engine says on the wire, and what is made of it: engines here are bytes with a script.

use crate::harness::*;
use http_body_util::BodyExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Reads a request with a body of `{}` or none; false: there is none any more.
async fn request(stream: &mut TcpStream) -> Option<String> {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut part).await {
            Ok(n @ 1..) => text.extend_from_slice(&part[..n]),
            Ok(_) | Err(_) => return None,
        }
        let without_body = text.starts_with(b"GET") || text.starts_with(b"HEAD");
        if text.ends_with(b"\r\n\r\n{}") || (without_body && text.ends_with(b"\r\n\r\n")) {
            return Some(String::from_utf8(text).unwrap());
        }
    }
}

/// Answers each request on a connection with these bytes; `then_closes`: and ends it.
async fn says(answer: String, then_closes: bool) -> Engine {
    Engine::connections(move |mut stream, _| {
        let answer = answer.clone();
        async move {
            while request(&mut stream).await.is_some() {
                let _ = stream.write_all(answer.as_bytes()).await;
                if then_closes {
                    return;
                }
            }
        }
    })
    .await
}

/// What a client gets of an answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Gets {
    Whole(u16, &'static str),
    /// the head, and a body that breaks off
    Torn,
    /// the proxy's own error
    Unreachable,
}
use Gets::{Torn, Unreachable, Whole};

async fn gets(rig: &Running, request: http::Request<http_body_util::Full<bytes::Bytes>>) -> Gets {
    let mut client = rig.client().await;
    let response = client.begin(request).await;
    let status = response.status().as_u16();
    if response.headers().contains_key("x-pointsman-error") {
        return Unreachable;
    }
    match response.into_body().collect().await {
        Ok(body) => Whole(
            status,
            String::from_utf8(body.to_bytes().to_vec()).unwrap().leak(),
        ),
        Err(_) => Torn,
    }
}

#[tokio::test]
async fn an_answer_is_understood_in_one_way_and_only_a_clean_connection_is_used_again() {
    const STAYS: bool = true;
    const CLOSES: bool = true;
    let one = "HTTP/1.1 200 OK\r\n";
    let chunks = "4\r\nbody\r\n0\r\n\r\n";
    let body = Whole(200, "body");
    for (answer, closes, wants, stays) in [
        (
            format!("{one}content-length: 4\r\n\r\nbody"),
            !CLOSES,
            body,
            STAYS,
        ),
        (
            format!("{one}content-length: 4\r\ncontent-length: 4\r\n\r\nbody"),
            !CLOSES,
            body,
            STAYS,
        ),
        (
            format!("{one}content-length: 4\r\ncontent-length: 5\r\n\r\nbody"),
            !CLOSES,
            Unreachable,
            !STAYS,
        ),
        (
            format!("{one}content-length: 0\r\n\r\n"),
            !CLOSES,
            Whole(200, ""),
            STAYS,
        ),
        (
            format!("{one}transfer-encoding: chunked\r\n\r\n{chunks}"),
            !CLOSES,
            body,
            STAYS,
        ),
        (
            format!("{one}transfer-encoding: chunked\r\n\r\n4;x\r\nbody\r\n0\r\nx: 1\r\n\r\n"),
            !CLOSES,
            body,
            STAYS,
        ),
        (
            format!("{one}transfer-encoding: chunked\r\ncontent-length: 9\r\n\r\n{chunks}"),
            !CLOSES,
            body,
            !STAYS,
        ),
        (
            format!("{one}transfer-encoding: gzip, chunked\r\n\r\n{chunks}"),
            !CLOSES,
            Unreachable,
            !STAYS,
        ),
        (
            format!("{one}connection: close\r\ncontent-length: 4\r\n\r\nbody"),
            !CLOSES,
            body,
            !STAYS,
        ),
        (
            format!("{one}content-length: 4\r\n\r\nbodyHTTP/1.1 200 OK\r\n"),
            !CLOSES,
            body,
            !STAYS,
        ),
        (
            format!("{one}transfer-encoding: chunked\r\n\r\n{chunks}x"),
            !CLOSES,
            body,
            !STAYS,
        ),
        (
            "HTTP/1.0 200 OK\r\ncontent-length: 4\r\n\r\nbody".to_owned(),
            !CLOSES,
            body,
            !STAYS,
        ),
        (
            "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 4\r\n\r\nbody".to_owned(),
            !CLOSES,
            body,
            !STAYS,
        ),
        (
            "HTTP/1.1 204 No\r\ncontent-length: 4\r\n\r\n".to_owned(),
            !CLOSES,
            Whole(204, ""),
            STAYS,
        ),
        (
            "HTTP/1.1 304 No\r\ncontent-length: 4\r\n\r\n".to_owned(),
            !CLOSES,
            Whole(304, ""),
            STAYS,
        ),
        (
            format!(
                "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 102 P\r\n\r\nHTTP/1.1 103 H\r\nlink: x\r\n\r\n{one}content-length: 4\r\n\r\nbody"
            ),
            !CLOSES,
            body,
            STAYS,
        ),
        (
            "HTTP/1.1 101 Switch\r\nupgrade: x\r\n\r\nbody".to_owned(),
            !CLOSES,
            Unreachable,
            !STAYS,
        ),
        (format!("{one}\r\nbody"), CLOSES, body, !STAYS),
        (
            format!("{one}content-length: 5\r\n\r\nbody"),
            CLOSES,
            Torn,
            !STAYS,
        ),
        (
            format!("{one}transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n"),
            CLOSES,
            Torn,
            !STAYS,
        ),
        (
            format!("{one}transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n"),
            CLOSES,
            Torn,
            !STAYS,
        ),
        (
            format!("{one}transfer-encoding: chunked\r\n\r\n4\r\nbodyX"),
            !CLOSES,
            Torn,
            !STAYS,
        ),
        (format!("{one}content-le"), CLOSES, Unreachable, !STAYS),
        (
            format!("{one}x: {}", "x".repeat(65_536)),
            !CLOSES,
            Unreachable,
            !STAYS,
        ),
        ("SSH-2.0-x\r\n".to_owned(), !CLOSES, Unreachable, !STAYS),
    ] {
        let engine = says(answer.clone(), closes).await;
        let rig = Rig::new().endpoint("a", &engine).start();
        for _ in 0..2 {
            assert_eq!(gets(&rig, post("/", &[], "{}")).await, wants, "{answer}");
            rig.drained().await;
        }
        assert_eq!(engine.accepted(), if stays { 1 } else { 2 }, "{answer}");
    }
}

#[tokio::test]
async fn an_answer_to_a_head_has_no_body_whatever_it_says() {
    for lines in [
        "content-length: 4\r\n",
        "transfer-encoding: chunked\r\n",
        "",
    ] {
        let engine = says(format!("HTTP/1.1 200 OK\r\n{lines}\r\n"), false).await;
        let rig = Rig::new().endpoint("a", &engine).start();
        for _ in 0..2 {
            let mut head = get("/", &[]);
            *head.method_mut() = http::Method::HEAD;
            assert_eq!(gets(&rig, head).await, Whole(200, ""));
        }
        assert_eq!(engine.accepted(), 1, "{lines}");
    }
}

#[tokio::test]
async fn an_answer_is_the_same_wherever_it_is_cut() {
    let answer = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nx-engine: 1\r\n\
        transfer-encoding: chunked\r\n\r\n4\r\nbody\r\n1;x\r\n!\r\n0\r\nx: 1\r\n\r\n";
    let engine = Engine::connections(move |mut stream, _| async move {
        for cut in 0..=answer.len() {
            if request(&mut stream).await.is_none() {
                return;
            }
            let (a, b) = answer.as_bytes().split_at(cut);
            stream.write_all(a).await.unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            stream.write_all(b).await.unwrap();
        }
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut client = rig.client().await;
    for cut in 0..=answer.len() {
        let got = client.send(post("/", &[], "{}")).await;
        let seen = (got.status, got.text(), got.header("x-engine"));
        assert_eq!(seen, (200, "body!", Some("1")), "{cut}");
    }
    assert_eq!(engine.accepted(), 1);
}

#[tokio::test]
async fn an_engine_gets_head_and_body_as_they_are() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let engine = Engine::connections(move |mut stream, _| {
        let log = log.clone();
        async move {
            while let Some(text) = request(&mut stream).await {
                log.lock().unwrap().push(text);
                let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                stream.write_all(answer).await.unwrap();
            }
        }
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let id = ("x-request-id", "7");
    rig.send(post(
        "/v1?x=%20",
        &[id, ("x-two", "1"), ("x-two", "2")],
        "{}",
    ))
    .await;
    rig.send(get("/", &[id])).await;
    let host = engine.address;
    assert_eq!(
        *seen.lock().unwrap(),
        [
            format!(
                "POST /v1?x=%20 HTTP/1.1\r\nhost: {host}\r\nx-two: 1\r\nx-two: 2\r\n\
                 content-type: application/json\r\nx-request-id: 7\r\ncontent-length: 2\r\n\r\n{{}}"
            ),
            format!("GET / HTTP/1.1\r\nhost: {host}\r\nx-request-id: 7\r\n\r\n"),
        ]
    );
}

#[tokio::test]
async fn a_body_that_streams_has_one_end_told_in_one_way() {
    for (lines, part, whole) in [
        (
            "transfer-encoding: chunked\r\n",
            "5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n",
            None,
        ),
        (
            "content-length: 11\r\n",
            "firstsecond",
            Some("content-length: 11\r\n\r\nfirstsecond"),
        ),
        (
            "content-length: 3\r\ntransfer-encoding: chunked\r\n",
            "5\r\nfirst\r\n6\r\nsecond\r\n0\r\n\r\n",
            None,
        ),
    ] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let engine = Engine::connections(move |mut stream, _| {
            let log = log.clone();
            async move {
                let mut part = [0; 4096];
                while let Ok(n @ 1..) = stream.read(&mut part).await {
                    let over = {
                        let mut log = log.lock().unwrap();
                        log.extend_from_slice(&part[..n]);
                        log.ends_with(b"firstsecond") || log.ends_with(b"0\r\n\r\n")
                    };
                    if over {
                        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
                        let _ = stream.write_all(answer).await;
                    }
                }
            }
        })
        .await;
        let rig = Rig::new().endpoint("a", &engine).start();
        let mut stream = TcpStream::connect(rig.address).await.unwrap();
        let text = format!("POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n{lines}\r\n{part}");
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.unwrap();
        let seen = String::from_utf8(seen.lock().unwrap().clone()).unwrap();
        if answer.starts_with(b"HTTP/1.1 400") {
            assert!(seen.is_empty(), "refused, then not sent on");
            continue;
        }
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{lines}");
        let ends = ["content-length", "transfer-encoding"].map(|name| seen.matches(name).count());
        assert_eq!(ends.iter().sum::<usize>(), 1, "{seen}");
        match whole {
            Some(end) => assert!(seen.ends_with(end), "{seen}"),
            None => assert!(
                seen.contains("\r\nfirst") && seen.contains("second\r\n0\r\n\r\n"),
                "{seen}"
            ),
        }
    }
}

#[tokio::test]
async fn an_answer_passes_while_its_request_still_comes() {
    let engine = Engine::connections(|mut stream, _| async move {
        let (mut text, mut part) = (Vec::new(), [0; 4096]);
        let mut begun = false;
        while let Ok(n @ 1..) = stream.read(&mut part).await {
            text.extend_from_slice(&part[..n]);
            if text.ends_with(b"first") && !std::mem::replace(&mut begun, true) {
                let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n";
                stream.write_all(head).await.unwrap();
            }
            if text.ends_with(b"second") {
                stream.write_all(b"1\r\n2\r\n0\r\n\r\n").await.unwrap();
            }
        }
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: h\r\nconnection: close\r\ncontent-length: 11\r\n\r\nfirst";
    stream.write_all(head.as_bytes()).await.unwrap();
    let (mut answer, mut part) = (Vec::new(), [0; 4096]);
    while !answer.ends_with(b"1\r\n1\r\n") {
        let n = stream.read(&mut part).await.unwrap();
        assert!(n > 0);
        answer.extend_from_slice(&part[..n]);
    }
    stream.write_all(b"second").await.unwrap();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.ends_with(b"1\r\n2\r\n0\r\n\r\n"));
    rig.drained().await;
}

#[tokio::test]
async fn a_client_that_stops_sending_while_it_is_answered_is_not_the_engines_failure() {
    let engine = Engine::connections(|mut stream, _| async move {
        let _ = stream.read(&mut [0; 4096]).await;
        let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\n1\r\n";
        stream.write_all(head).await.unwrap();
        let _ = stream.read_to_end(&mut Vec::new()).await;
    })
    .await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| {
            settings.pools[0].breaker.failures = 1;
            settings.timeouts.client = Duration::from_millis(50);
        })
        .start();
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: h\r\ncontent-length: 11\r\n\r\nfirst";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.ends_with(b"1\r\n1\r\n"), "it is cut off");
    rig.drained().await;
    until("the engine's connection is closed", || engine.open() == 0).await;
    assert!(rig.takes(0));
}

#[tokio::test]
async fn a_large_body_is_refused_by_an_engine_that_reads_none_of_it() {
    let engine = Engine::connections(|mut stream, _| async move {
        let _ = stream.read(&mut [0; 16]).await;
        let answer = b"HTTP/1.1 413 Large\r\ncontent-length: 4\r\n\r\nlong";
        stream.write_all(answer).await.unwrap();
        std::future::pending().await
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let body = format!("{{\"x\":\"{}\"}}", "x".repeat(16 << 20));
    assert_eq!(gets(&rig, post("/", &[], body)).await, Whole(413, "long"));
    rig.drained().await;
}

#[tokio::test]
async fn a_connection_that_an_engine_ended_while_it_was_idle_is_not_tried() {
    let engine = says(
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody".to_owned(),
        true,
    )
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    for connections in 1..=3 {
        assert_eq!(gets(&rig, post("/", &[], "{}")).await, Whole(200, "body"));
        until("it has ended it", || engine.open() == 0).await;
        assert_eq!(engine.accepted(), connections);
    }
    let metrics = rig.metrics().await;
    assert!(!metrics.contains("event=\"stale\"} 1"), "{metrics}");
}

#[tokio::test]
async fn a_large_answer_comes_whole() {
    let body = "0123456789abcdef".repeat(1 << 18);
    let engine = says(
        format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ),
        false,
    )
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut client = rig.client().await;
    for _ in 0..3 {
        assert!(client.send(post("/", &[], "{}")).await.text() == body);
    }
    assert_eq!(engine.accepted(), 1);
}
