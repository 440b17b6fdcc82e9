//! Bounds: what is beyond them is told so at once, and what is long passes in bounded memory.

use crate::{SOON, config, good_engine, is_well, response};
use anyhow::{Context, Result};
use pointsman_tests::{Engine, Host, Raw, Scripted, Step};
use serde_json::json;
use tokio::io::AsyncWriteExt;

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: h\r\n\r\n";

/// An engine that never answers a request for `/hang`.
async fn half_hanging() -> Result<Scripted> {
    Scripted::start(false, |seen| {
        let hangs = seen.head.starts_with("GET /hang");
        vec![if hangs {
            Step::Hang
        } else {
            Step::Send(response("200 OK", "", "good"))
        }]
    })
    .await
}

#[tokio::test]
async fn requests_beyond_the_limit_get_503_at_once_and_room_again_when_one_ends() -> Result<()> {
    let engine = half_hanging().await?;
    let limits = "[limits]\nrequests_per_thread = 2";
    let host = Host::start_config(&config(&engine.url, 1, limits)).await?;
    let mut hanging = Vec::new();
    for _ in 0..2 {
        let mut client = Raw::connect(&host.url).await?;
        client.send(b"GET /hang HTTP/1.1\r\nhost: h\r\n\r\n").await;
        hanging.push(client);
    }
    host.metrics_until(SOON, |m| m.sum("pointsman_target_requests", &[]) == 2.0)
        .await?;
    for _ in 0..3 {
        let answer = host.request("s", "hello").send().await?;
        assert_eq!(answer.status(), 503);
        assert_eq!(answer.headers()["retry-after"], "1");
        assert_eq!(answer.headers()["x-pointsman-error"], "overload");
    }
    drop(hanging);
    is_well(&host).await?;
    let metrics = host.metrics().await?;
    assert_eq!(
        metrics.sum(
            "pointsman_requests_total",
            &["reason=\"overload\"", "code=\"503\""]
        ),
        3.0
    );
    Ok(())
}

#[tokio::test]
async fn connections_beyond_the_limit_get_503_at_once_and_room_again_when_one_ends() -> Result<()> {
    let engine = good_engine().await?;
    let limits = "[limits]\nconnections_per_thread = 2";
    let host = Host::start_config(&config(&engine.url, 1, limits)).await?;
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut client = Raw::connect(&host.url).await?;
        client.send(GET).await;
        assert_eq!(
            client.answer(false).await?.context("no answer")?.status(),
            200
        );
        open.push(client);
    }
    for _ in 0..3 {
        let mut third = Raw::connect(&host.url).await?;
        third.send(GET).await;
        let answer = third.answer(false).await?.context("no answer")?;
        assert_eq!(
            (answer.status(), answer.header("retry-after")),
            (503, Some("1"))
        );
        assert_eq!(
            answer.header("x-pointsman-error"),
            Some("too_many_connections")
        );
        assert!(
            answer.text().contains("as many connections as it may"),
            "{answer:?}"
        );
        assert_eq!(third.end().await, 0);
    }
    open.pop();
    let again = async {
        loop {
            let mut client = Raw::connect(&host.url).await?;
            client.send(GET).await;
            let answer = client.answer(false).await?;
            if answer.is_some_and(|answer| answer.status() == 200) {
                return anyhow::Ok(());
            }
        }
    };
    tokio::time::timeout(SOON, again).await?
}

#[tokio::test]
async fn a_host_without_files_answers_503_and_blames_no_engine() -> Result<()> {
    let engine = good_engine().await?;
    let policy =
        "[policy]\nuse = \"native:round-robin\"\n[limits]\nidle_connections_per_thread = 0";
    let breaker = "breaker = { failures = 1, cooldown = \"1h\" }\n";
    let host = Host::start_config(&(config(&engine.url, 1, policy) + breaker)).await?;
    let mut client = Raw::connect(&host.url).await?;
    client.send(GET).await;
    let answer = client.answer(false).await?.context("no answer")?;
    assert_eq!(answer.status(), 200);
    host.process.limit_files(1).await?;
    for _ in 0..2 {
        client.send(GET).await;
        let answer = client.answer(false).await?.context("no answer")?;
        assert_eq!(
            (answer.status(), answer.header("retry-after")),
            (503, Some("1"))
        );
        assert_eq!(answer.header("x-pointsman-error"), Some("exhausted"));
    }
    // Not accepted before there are files again.
    let mut late = Raw::connect(&host.url).await?;
    late.send(GET).await;
    host.process.limit_files(1024).await?;
    assert_eq!(
        late.answer(false).await?.context("no answer")?.status(),
        200
    );
    is_well(&host).await?;
    assert_eq!(host.metrics().await?.sum("pointsman_target_up", &[]), 1.0);
    Ok(())
}

#[tokio::test]
async fn a_gigabyte_passes_in_bounded_memory() -> Result<()> {
    const PART: usize = 1 << 20;
    let engine = good_engine().await?;
    let limits = "[limits]\ninspect_bytes = 1048576";
    for kind in ["application/octet-stream", "application/json"] {
        let host = Host::start_config(&config(&engine.url, 1, limits)).await?;
        is_well(&host).await?;
        engine.take();
        let before = host.process.usage()?;
        let mut client = Raw::connect(&host.url).await?;
        let length = 1024 * PART;
        let head = format!(
            "POST / HTTP/1.1\r\nhost: h\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\r\n"
        );
        client.send(head.as_bytes()).await;
        let part = vec![b'x'; PART];
        for _ in 0..1024 {
            client.stream.write_all(&part).await?;
        }
        let answer = client.answer(false).await?.context("no answer")?;
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(engine.take()[0].length, length as u64);
        let more = host.process.usage()?.peak_kb.saturating_sub(before.peak_kb);
        println!("{kind}: 1 GiB took {more} KiB more");
        assert!(more < 64 << 10, "{more} KiB more");
        is_well(&host).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_does_not_read_loses_its_request_and_the_engine_its_work() -> Result<()> {
    let engine = Scripted::start(false, |seen| {
        let long = seen.head.starts_with("GET /long");
        let body = if long {
            "x".repeat(64 << 20)
        } else {
            "good".to_owned()
        };
        vec![Step::Send(response("200 OK", "", &body))]
    })
    .await?;
    let limits = "[limits]\nclient = \"200ms\"";
    let host = Host::start_config(&config(&engine.url, 1, limits)).await?;
    let before = host.process.usage()?;
    let mut client = Raw::connect(&host.url).await?;
    client.send(b"GET /long HTTP/1.1\r\nhost: h\r\n\r\n").await;
    host.metrics_until(SOON, |m| m.sum("pointsman_target_requests", &[]) == 1.0)
        .await?;
    host.metrics_until(SOON, |m| m.outstanding() == 0.0).await?;
    let more = host.process.usage()?.peak_kb.saturating_sub(before.peak_kb);
    assert!(more < 16 << 10, "{more} KiB of an answer that nobody takes");
    is_well(&host).await?;
    drop(client);
    Ok(())
}

#[tokio::test]
async fn a_stream_that_is_silent_for_less_than_its_limit_outlives_the_clients_limit() -> Result<()>
{
    // Busy is not idle: only the engine is slow, a token each 100 ms or so.
    let engine = Engine::start_with("a", 1, "127.0.0.1:0", "15").await?;
    let limits = "[limits]\nclient = \"30ms\"";
    let host = Host::start_config(&config(&engine.url, 1, limits)).await?;
    let body = json!({
        "model": "demo", "max_tokens": 5, "stream": true,
        "messages": [{ "role": "user", "content": "hi" }],
    });
    let text = host.request_with("s", &body).send().await?.text().await?;
    assert!(text.trim_end().ends_with("[DONE]"), "{text}");
    is_well(&host).await
}

#[tokio::test]
async fn http2_is_bounded_too() -> Result<()> {
    let engine = good_engine().await?;
    let limits = "[limits]\nclient = \"200ms\"\nheader_bytes = 16384";
    let host = Host::start_config(&config(&engine.url, 1, limits)).await?;
    let h2 = reqwest::Client::builder().http2_prior_knowledge().build()?;
    let get = |value: &str| h2.get(&host.url).header("x-a", value).send();
    assert_eq!(get("1").await?.text().await?, "good");
    assert_eq!(get(&"x".repeat(15_000)).await?.status(), 200);
    assert_eq!(get(&"x".repeat(40_000)).await?.status(), 431);
    // Idle with a good preface: told to go, then closed.
    let mut idle = Raw::connect(&host.url).await?;
    idle.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .await;
    assert!(tokio::time::timeout(SOON, idle.end()).await? > 0);
    // A head that never ends: HEADERS without END_HEADERS.
    let mut slow = Raw::connect(&host.url).await?;
    slow.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\0\0\0\0\x01\x82")
        .await;
    assert!(tokio::time::timeout(SOON, slow.end()).await? > 0);
    is_well(&host).await
}
