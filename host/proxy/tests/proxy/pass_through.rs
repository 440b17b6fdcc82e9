//! What goes on as it came, both ways, and what does not.

use crate::harness::*;
use bytes::Bytes;
use http::{Request, Version};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

#[tokio::test]
async fn any_method_path_query_header_and_body_go_on_and_come_back() {
    let engine = Engine::start(|seen| async move {
        let mut answer = say(207, seen.body);
        answer
            .headers_mut()
            .append("x-engine", "1".parse().unwrap());
        answer
            .headers_mut()
            .append("x-engine", "2".parse().unwrap());
        answer
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    for method in ["PUT", "PATCH", "DELETE", "PROPFIND", "POST"] {
        let request = Request::builder()
            .method(method)
            .uri("/any/path%20x?q=1&r=%2F")
            .header("host", "proxy.test")
            .header("authorization", "Bearer t")
            .header("x-two", "1")
            .header("x-two", "2")
            .body(Full::new(Bytes::from("not json \u{fe}")))
            .unwrap();
        let got = rig.send(request).await;
        assert_eq!(got.status, 207);
        assert_eq!(got.text(), "not json \u{fe}");
        let engines: Vec<_> = got.headers.get_all("x-engine").iter().collect();
        assert_eq!(engines, ["1", "2"]);
        let seen = engine.last();
        assert_eq!(seen.method, method);
        assert_eq!(seen.uri, "/any/path%20x?q=1&r=%2F");
        assert_eq!(seen.header("authorization"), Some("Bearer t"));
        let both: Vec<_> = seen.headers.get_all("x-two").iter().collect();
        assert_eq!(both, ["1", "2"]);
        assert_eq!(
            seen.header("host"),
            Some(engine.address.to_string().as_str())
        );
    }
}

#[tokio::test]
async fn a_get_and_a_head_have_no_body() {
    let engine = Engine::start(|_| async { text("models") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    assert_eq!(rig.send(get("/v1/models", &[])).await.text(), "models");
    assert_eq!(engine.last().header("content-length"), None);
    assert_eq!(engine.last().header("transfer-encoding"), None);
    let mut head = get("/v1/models", &[]);
    *head.method_mut() = http::Method::HEAD;
    let got = rig.send(head).await;
    assert_eq!((got.header("content-length"), got.text()), (Some("6"), ""));
    rig.drained().await;
}

#[tokio::test]
async fn a_post_without_a_body_says_so() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    assert_eq!(rig.send(post("/flush_cache", &[], "")).await.text(), "ok");
    assert_eq!(engine.last().header("content-length"), Some("0"));
}

#[tokio::test]
async fn hop_by_hop_headers_end_here_both_ways() {
    let engine = Engine::start(|_| async {
        let mut answer = text("ok");
        for (name, value) in [
            ("connection", "x-private"),
            ("x-private", "1"),
            ("proxy-authenticate", "Basic"),
        ] {
            answer.headers_mut().insert(name, value.parse().unwrap());
        }
        answer
    })
    .await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let got = rig
        .send(get(
            "/",
            &[
                ("connection", "x-mine"),
                ("x-mine", "1"),
                ("te", "trailers"),
                ("proxy-authorization", "secret"),
                ("upgrade", "websocket"),
                ("x-pointsman-anything", "1"),
            ],
        ))
        .await;
    for name in ["x-private", "proxy-authenticate"] {
        assert_eq!(got.header(name), None, "{name}");
    }
    for name in [
        "x-mine",
        "te",
        "proxy-authorization",
        "upgrade",
        "connection",
        "x-pointsman-anything",
    ] {
        assert_eq!(engine.last().header(name), None, "{name}");
    }
}

#[tokio::test]
async fn the_path_of_the_endpoint_comes_first() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new()
        .url("a", &format!("{}/engine/", engine.url()), 1)
        .start();
    rig.send(get("/v1/models?x=1", &[])).await;
    assert_eq!(engine.last().uri, "/engine/v1/models?x=1");
}

#[tokio::test]
async fn a_request_without_an_id_gets_one_and_another_keeps_its_own() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    rig.send(get("/", &[("x-request-id", "mine")])).await;
    assert_eq!(engine.last().header("x-request-id"), Some("mine"));
    rig.send(get("/", &[])).await;
    let first = engine.last();
    rig.send(get("/", &[])).await;
    assert!(first.header("x-request-id").is_some());
    assert_ne!(
        first.header("x-request-id"),
        engine.last().header("x-request-id")
    );
}

#[tokio::test]
async fn a_body_larger_than_the_inspection_limit_passes_whole() {
    // field case: GIE#854, envoy ai-gateway#827
    let engine = Engine::start(|seen| async move { text(seen.body) }).await;
    let rig = (Rig::new().endpoint("a", &engine))
        .with(|settings| settings.limits.inspect_bytes = 1000)
        .start();
    let body = format!("{{\"messages\":[\"{}\"]}}", "x".repeat(300_000));
    let known = rig
        .send(post("/v1/chat/completions", &[], body.clone()))
        .await;
    assert!(known.body == body);
    assert_eq!(
        engine.last().header("content-length"),
        Some(body.len().to_string().as_str())
    );

    // Chunked: the limit is met in the middle.
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = "POST /x HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    for piece in body.as_bytes().chunks(700) {
        stream
            .write_all(format!("{:x}\r\n", piece.len()).as_bytes())
            .await
            .unwrap();
        stream.write_all(piece).await.unwrap();
        stream.write_all(b"\r\n").await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    assert!(engine.last().body == body);
    rig.drained().await;
}

#[tokio::test]
async fn a_small_chunked_body_gets_a_length() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let request = "POST /x HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.read_to_end(&mut Vec::new()).await.unwrap();
    assert_eq!(engine.last().text(), "{}");
    assert_eq!(engine.last().header("content-length"), Some("2"));
}

#[tokio::test]
async fn a_client_that_expects_a_continue_gets_it_from_the_proxy() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let mut stream = TcpStream::connect(rig.address).await.unwrap();
    let head = "POST /x HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut line = [0; 25];
    stream.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"));
    assert_eq!(engine.last().text(), "{}");
}

#[tokio::test]
async fn http2_with_prior_knowledge_is_served() {
    let engine = Engine::start(|seen| async move { text(seen.body) }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    let stream = TcpStream::connect(rig.address).await.unwrap();
    let (mut requests, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://proxy.test/v1/x?y")
        .header("content-type", "application/json")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Full::new(Bytes::from("{}")))
        .unwrap();
    let response = requests.send_request(request).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), response.version()),
        (200, Version::HTTP_2)
    );
    assert_eq!(
        response.into_body().collect().await.unwrap().to_bytes(),
        "{}"
    );
    let seen = engine.last();
    assert_eq!(seen.uri, "/v1/x?y");
    assert_eq!(seen.header("cookie"), Some("a=1; b=2"));
    assert_eq!(
        seen.header("host"),
        Some(engine.address.to_string().as_str())
    );
}

#[tokio::test]
async fn connections_to_the_engine_are_used_again() {
    let engine = Engine::start(|_| async { text("ok") }).await;
    let rig = Rig::new().endpoint("a", &engine).start();
    for _ in 0..5 {
        rig.send(post("/x", &[], "{}")).await;
    }
    assert_eq!(engine.accepted(), 1);
    assert!(
        rig.metrics()
            .await
            .contains("pointsman_upstream_connections_total{event=\"reused\"} 4")
    );
}
