//! Replacements that no client notices.

use crate::operated::{Operated, another};
use crate::traffic::Traffic;
use anyhow::Result;
use futures_util::future::try_join_all;
use pointsman_tests::{Engine, policy};
use serde_json::json;
use std::sync::Arc;

const TWO: [&str; 2] = ["parent-affinity", "session-affinity"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_five_replacements_disturb_no_request_no_stream_and_no_session() -> Result<()> {
    // A stream of 100 words takes about as long as some replacements.
    let a = Engine::start_with("a", 4, "127.0.0.1:0", "0.2").await?;
    let b = Engine::start_with("b", 4, "127.0.0.1:0", "0.2").await?;
    let host = Arc::new(Operated::start("session-affinity", &[&a, &b]).await?);
    let before: Vec<String> = (0..32).map(|n| format!("before-{n}")).collect();
    let all = || {
        try_join_all(
            before
                .iter()
                .map(|session| host.host.chat(session, "hello")),
        )
    };
    let homes: Vec<String> = all()
        .await?
        .into_iter()
        .map(|answer| answer.target)
        .collect();

    let mut traffic = Traffic::start(&host, 64, 16, true);
    traffic.more(64).await?;
    for (n, name) in (2..22).zip(TWO.iter().cycle()) {
        let now = host.swap(name).await?.ok()?;
        traffic.swapped();
        assert_eq!(
            (&now["name"], &now["generation"]),
            (&json!(name), &json!(n))
        );
        traffic.sees(name).await?;
        traffic.more(64).await?;
    }
    for (n, name) in (22..27).zip(TWO.iter().cycle()) {
        let now = host.upload(another(&policy(name), n)?, "{}").await?.ok()?;
        traffic.swapped();
        assert_eq!(
            (&now["name"], &now["generation"]),
            (&json!(name), &json!(n))
        );
        traffic.sees(name).await?;
    }
    traffic.more(64).await?;
    let seen = traffic.stop().await?;
    println!("{seen:?}");
    let by: Vec<&str> = seen.policies.keys().map(String::as_str).collect();
    assert_eq!(by, TWO, "every answer is of one of the two");
    assert!(
        seen.crossed >= 16,
        "streams must be open while it is replaced: {seen:?}"
    );

    for (answer, home) in all().await?.iter().zip(&homes) {
        assert_eq!((&answer.target, answer.reason.as_str()), (home, "owner"));
    }
    let metrics = host.host.metrics().await?;
    assert_eq!(metrics.sum("pointsman_policy_failures_total", &[]), 0.0);
    assert_eq!(metrics.outstanding(), 0.0);
    Ok(())
}

#[tokio::test]
async fn the_traffic_notices_a_session_that_moves_and_a_stream_that_breaks() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start("least-tokens", &[&a]).await?);
    let traffic = Traffic::start(&host, 8, 0, true);
    let moved = traffic.ends().await.unwrap_err().to_string();
    assert!(moved.contains("lived on a/"), "{moved}");

    let mut a = Engine::start_with("a", 4, "127.0.0.1:0", "5").await?;
    let host = Arc::new(Operated::start("session-affinity", &[&a]).await?);
    let traffic = Traffic::start(&host, 0, 4, true);
    (host
        .host
        .metrics_until(std::time::Duration::from_secs(30), |m| {
            m.outstanding() > 0.0
        }))
    .await?;
    a.process.kill().await?;
    assert!(traffic.ends().await.is_err(), "a stream was cut");
    Ok(())
}
