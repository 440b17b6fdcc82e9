//! Sessions over HTTP, through the real binary to real (reference) engines.

use anyhow::{Context, Result};
use futures_util::future::try_join_all;
use pointsman_tests::{Engine, Host};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn all_turns_of_a_session_reach_the_rank_that_has_its_cache() -> Result<()> {
    let (a, b) = (Engine::start("a", 4).await?, Engine::start("b", 4).await?);
    let host = Host::start("session-affinity", &[&a, &b]).await?;
    let text = "some words that fill a block of the cache ".repeat(40);
    let first = host.chat("s", &text).await?;
    assert_eq!((first.status, first.reason.as_str()), (200, "placed"));
    for _ in 0..5 {
        let next = host.chat("s", &text).await?;
        assert_eq!((&next.target, &next.rank), (&first.target, &first.rank));
        assert_eq!(next.reason, "owner");
        let cached = &next.body["usage"]["prompt_tokens_details"]["cached_tokens"];
        assert!(cached.as_u64().context("usage")? > 0, "{}", next.body);
    }
    assert!(first.target.ends_with(&first.rank));
    Ok(())
}

#[tokio::test]
async fn two_hundred_concurrent_first_turns_of_one_session_bind_once() -> Result<()> {
    let (a, b) = (Engine::start("a", 4).await?, Engine::start("b", 4).await?);
    let host = Host::start("session-affinity", &[&a, &b]).await?;
    let answers = try_join_all((0..200).map(|_| host.chat("one", "hello"))).await?;
    let targets: BTreeSet<&str> = answers.iter().map(|a| a.target.as_str()).collect();
    assert!(answers.iter().all(|a| a.status == 200));
    assert_eq!(targets.len(), 1, "{targets:?}");
    let metrics = host
        .metrics_until(SECOND, |m| m.outstanding() == 0.0)
        .await?;
    assert_eq!(metrics.sum("pointsman_target_sessions", &[]), 1.0);
    assert_eq!(metrics.sum("pointsman_bindings", &[]), 1.0);
    Ok(())
}

#[tokio::test]
async fn a_child_starts_where_its_siblings_are_and_keeps_a_session_of_its_own() -> Result<()> {
    let (a, b) = (Engine::start("a", 4).await?, Engine::start("b", 4).await?);
    let host = Host::start("parent-affinity", &[&a, &b]).await?;
    let child = |id: &'static str| {
        let request = host
            .request(id, "hello")
            .header("x-parent-session-id", "root");
        async { pointsman_tests::Answer::read(request.send().await?).await }
    };
    let first = child("c1").await?;
    let second = child("c2").await?;
    assert_eq!(
        (first.reason.as_str(), second.reason.as_str()),
        ("placed", "siblings")
    );
    assert_eq!(first.target, second.target);
    assert_eq!(child("c2").await?.reason, "owner");
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_in_mid_stream_leaves_nothing_outstanding() -> Result<()> {
    // Slow enough that no stream ends by itself: a token takes hundreds of milliseconds.
    let a = Engine::start_with("a", 2, "127.0.0.1:0", "50").await?;
    let host = Host::start("session-affinity", &[&a]).await?;
    let body = json!({
        "model": "demo", "max_tokens": 1000, "stream": true,
        "messages": [{ "role": "user", "content": "hi" }],
    });
    let mut streaming = host.request_with("s", &body).send().await?;
    assert!(streaming.chunk().await?.is_some());
    assert_eq!(
        host.metrics().await?.sum("pointsman_target_requests", &[]),
        1.0
    );
    drop(streaming);
    host.metrics_until(SECOND, |m| m.outstanding() == 0.0)
        .await?;
    // The engine is told too: its rank is free again.
    let page = reqwest::get(format!("{}/metrics", a.url))
        .await?
        .text()
        .await?;
    let running =
        pointsman_tests::Metrics::parse(&page).sum("pointsman_engine_requests_running", &[]);
    assert_eq!(running, 0.0);
    Ok(())
}

#[tokio::test]
async fn a_killed_engine_costs_no_client_an_error_and_is_used_again_when_it_is_back() -> Result<()>
{
    let (mut a, b) = (Engine::start("a", 2).await?, Engine::start("b", 2).await?);
    let host = Host::start("session-affinity", &[&a, &b]).await?;
    let ids: Vec<String> = (0..40).map(|n| format!("s{n}")).collect();
    let all = || try_join_all(ids.iter().map(|id| host.chat(id, "hello")));
    let before = all().await?;
    let (address, on_a) = (
        a.address(),
        before.iter().filter(|x| x.target.starts_with('a')).count(),
    );
    assert!(on_a > 0);

    a.process.kill().await?;
    let after = all().await?;
    assert!(
        after
            .iter()
            .all(|x| x.status == 200 && x.target.starts_with('b'))
    );
    let rebound = after.iter().filter(|x| x.reason == "rebound").count();
    assert_eq!(rebound, on_a, "its sessions rebind, the others stay");
    host.metrics_until(SECOND, |m| m.outstanding() == 0.0)
        .await?;

    let _a = Engine::start_with("a", 2, &address, "0.01").await?;
    // New sessions go there again once the health check has seen it.
    let back = async {
        for n in 0.. {
            let answer = host.chat(&format!("new{n}"), "hello").await?;
            assert_eq!(answer.status, 200);
            if answer.target.starts_with('a') {
                break;
            }
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(Duration::from_secs(30), back)
        .await
        .context("never used again")??;
    Ok(())
}

#[tokio::test]
async fn an_explicit_target_is_obeyed_and_the_session_lives_there_from_now_on() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Host::start("session-affinity", &[&a]).await?;
    let request = host
        .request("s", "hello")
        .header("x-pointsman-target", "a/3");
    let answer = pointsman_tests::Answer::read(request.send().await?).await?;
    assert_eq!(
        (answer.rank.as_str(), answer.reason.as_str()),
        ("3", "explicit")
    );
    assert_eq!(host.chat("s", "hello").await?.target, "a/3");
    let request = host
        .request("s", "hello")
        .header("x-pointsman-target", "a/9");
    let answer = pointsman_tests::Answer::read(request.send().await?).await?;
    assert_eq!(answer.status, 400);
    Ok(())
}
