//! What clients say, and what engines are told.

use crate::{engine, header, pool};
use anyhow::{Context, Result, ensure};
use pointsman_tests::Envoy;
use serde_json::Value;

#[tokio::test]
async fn a_client_names_no_address_and_engines_see_none_of_our_headers() -> Result<()> {
    let (a, b) = (engine().await?, engine().await?);
    let elsewhere = engine().await?;
    let envoy = Envoy::start("least-tokens", &pool("vllm", 2, &[&a, &b])).await?;
    let address = elsewhere.url.trim_start_matches("http://");
    let headers = [
        ("x-gateway-destination-endpoint", address),
        ("x-data-parallel-rank", "9"),
        ("x-pointsman-explain", "1"),
    ];
    let answer = envoy.chat(&headers).send().await?;
    ensure!(answer.status() == 200);
    ensure!(elsewhere.take().is_empty());
    let seen = [a.take(), b.take()].concat();
    let [seen] = seen.as_slice() else {
        anyhow::bail!("{seen:?}");
    };
    ensure!(header(seen, "x-gateway-destination-endpoint").is_none());
    ensure!(header(seen, "x-pointsman-explain").is_none());
    ensure!(header(seen, "x-data-parallel-rank").is_some_and(|rank| rank == "0" || rank == "1"));
    Ok(())
}

#[tokio::test]
async fn a_rank_goes_into_the_body_where_the_engine_looks_for_it_there() -> Result<()> {
    let a = engine().await?;
    let envoy = Envoy::start("least-tokens", &pool("sglang", 2, &[&a])).await?;
    for _ in 0..2 {
        let answer = envoy.chat(&[("x-pointsman-explain", "1")]).send().await?;
        ensure!(answer.status() == 200);
        let target = answer
            .headers()
            .get("x-pointsman-target")
            .context("no target")?;
        let target = target.to_str()?.to_owned();
        let seen = a.take();
        let seen = seen.first().context("nothing arrived")?;
        let body: Value = serde_json::from_slice(&seen.body)?;
        let rank = body
            .get("routed_dp_rank")
            .and_then(Value::as_u64)
            .context("no rank")?;
        ensure!(target == format!("a/{rank}"), "{target} {body}");
        ensure!(body.get("model").is_some_and(|model| model == "m"));
    }
    envoy.until_idle(2).await?;
    Ok(())
}

#[tokio::test]
async fn a_body_above_the_limit_passes_unread() -> Result<()> {
    let a = engine().await?;
    let rest = format!(
        "[limits]\ninspect_bytes = 1000\n{}",
        pool("sglang", 2, &[&a])
    );
    let envoy = Envoy::start("least-tokens", &rest).await?;
    let body = format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "x".repeat(100_000));
    let answer = envoy.chat(&[]).body(body.clone()).send().await?;
    ensure!(answer.status() == 200);
    let chunks = body
        .as_bytes()
        .chunks(10_000)
        .map(|chunk| Ok::<_, std::io::Error>(chunk.to_vec()));
    let chunked =
        reqwest::Body::wrap_stream(futures_util::stream::iter(chunks.collect::<Vec<_>>()));
    let answer = envoy.chat(&[]).body(chunked).send().await?;
    ensure!(answer.status() == 200);
    let seen = a.take();
    ensure!(
        seen.len() == 2 && seen.iter().all(|seen| seen.length == body.len() as u64),
        "{seen:?}"
    );
    envoy.until_idle(2).await?;
    Ok(())
}

#[tokio::test]
async fn bad_identities_and_unknown_targets_are_answered_as_by_our_own_proxy() -> Result<()> {
    let a = engine().await?;
    let envoy = Envoy::start("session-affinity", &pool("openai", 1, &[&a])).await?;
    let long = "x".repeat(257);
    for (headers, code) in [
        (
            [("x-session-id", "a"), ("x-session-id", "b")],
            "bad_session_identity",
        ),
        (
            [("x-session-id", &*long), ("x-other", "")],
            "bad_session_identity",
        ),
        (
            [("x-session-id", "a"), ("x-pointsman-target", "z/0")],
            "unknown_target",
        ),
    ] {
        let answer = envoy.chat(&headers).send().await?;
        ensure!(answer.status() == 400, "{headers:?}: {}", answer.status());
        let answer: Value = answer.json().await?;
        ensure!(
            answer
                .pointer("/error/code")
                .is_some_and(|found| found == code),
            "{answer}"
        );
    }
    ensure!(a.take().is_empty());
    envoy.until_idle(1).await?;
    Ok(())
}
