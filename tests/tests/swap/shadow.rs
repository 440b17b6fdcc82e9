//! A second policy on the same requests, which decides nothing.

use crate::operated::{Operated, read};
use crate::traffic::Traffic;
use anyhow::Result;
use pointsman_tests::{Engine, guest};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(30);

/// Waits until the shadow is as wanted; it tells nobody when it changes.
async fn until(host: &Operated, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let mut look = tokio::time::interval(Duration::from_millis(10));
    let wait = async {
        loop {
            look.tick().await;
            let report = host.get("policy/shadow").await?;
            if wanted(&report) {
                return anyhow::Ok(report);
            }
        }
    };
    tokio::time::timeout(SOON, wait).await?
}

fn number(report: &Value, name: &str) -> u64 {
    report[name].as_u64().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_policy_in_the_shadow_agrees_and_holds_nothing_afterwards() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start("session-affinity", &[&a]).await?);
    // Sessions that live somewhere already: the shadow knows them.
    for n in 0..8 {
        host.host.chat(&format!("chat-{n}"), "hello").await?;
    }
    let started = host
        .policy(&["shadow", "start", "session-affinity"])
        .await?;
    assert!(started.status.success(), "{started:?}");
    let again = host
        .post("policy/shadow/start", &json!({ "policy": "least-tokens" }))
        .await?;
    assert_eq!(
        (again.status, again.stage()),
        (409, "shadow"),
        "one at a time"
    );

    let traffic = Traffic::start(&host, 8, 0, true);
    traffic.more(200).await?;
    traffic.stop().await?;
    let report = until(&host, |r| {
        number(r, "decided") >= 200 && r["in_flight"] == 0
    })
    .await?;
    assert_eq!(report["agreed"], report["decided"], "{report:#}");
    assert_eq!(
        (&report["failures"], &report["dropped"]),
        (&json!({}), &json!(0))
    );
    let metrics = host.host.metrics().await?;
    let decided = metrics.sum("pointsman_shadow_decisions_total", &[]);
    assert_eq!(decided, metrics.sum("pointsman_shadow_agreed_total", &[]));
    assert!(decided >= 200.0, "{decided}");

    let stopped = host.policy(&["shadow", "stop"]).await?;
    assert!(stopped.status.success(), "{stopped:?}");
    let text = String::from_utf8_lossy(&stopped.stdout).into_owned();
    assert!(
        text.contains("as the live policy") && text.contains("(100.0 %)"),
        "{text}"
    );
    let none = host.policy(&["shadow", "report"]).await?;
    assert!(!none.status.success());
    let metrics = host.host.metrics().await?;
    assert_eq!(metrics.sum("pointsman_shadow_decisions_total", &[]), 0.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_policy_in_the_shadow_differs_and_changes_nothing_until_it_is_promoted()
-> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start("session-affinity", &[&a]).await?);
    let mut traffic = Traffic::start(&host, 8, 2, true);
    traffic.more(16).await?;
    (host
        .post("policy/shadow/start", &json!({ "policy": "least-tokens" }))
        .await?)
        .ok()?;
    traffic.more(200).await?;
    let report = until(&host, |r| number(r, "decided") >= 100).await?;
    let (decided, agreed) = (number(&report, "decided"), number(&report, "agreed"));
    assert!(
        agreed < decided,
        "it spreads what the other keeps: {report:#}"
    );
    let differences = report["differences"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert!(
        differences
            .iter()
            .any(|d| d["live"] == "owner" && d["shadow"] == "placed"),
        "{report:#}"
    );
    let sum: u64 = differences.iter().map(|d| number(d, "count")).sum();
    assert_eq!(sum, decided - agreed, "{report:#}");
    assert_eq!(host.status().await?["generation"], 1);

    (host.post("policy/shadow/stop", &json!({})).await?).ok()?;
    (host
        .post(
            "policy/shadow/start",
            &json!({ "policy": "parent-affinity" }),
        )
        .await?)
        .ok()?;
    traffic.more(50).await?;
    let promoted = host.policy(&["shadow", "promote"]).await?;
    assert!(promoted.status.success(), "{promoted:?}");
    let status = host.status().await?;
    assert_eq!(
        (&status["name"], &status["generation"]),
        (&json!("parent-affinity"), &json!(2))
    );
    traffic.sees("parent-affinity").await?;
    // Every answer came from where its session lived all the time, and from no fallback.
    let seen = traffic.stop().await?;
    assert!(!seen.policies.contains_key("least-tokens"), "{seen:?}");
    let gone = host.policy(&["shadow", "report"]).await?;
    assert!(!gone.status.success(), "it is in the shadow no more");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_that_fails_is_counted_paused_and_not_promoted() -> Result<()> {
    let a = Engine::start("a", 4).await?;
    let host = Arc::new(Operated::start("session-affinity", &[&a]).await?);
    let start = async |name: &str| {
        let request = host.request(reqwest::Method::POST, "policy/shadow/start");
        let request = request.header("content-type", "application/wasm");
        read(request.body(std::fs::read(guest(name))?)).await
    };
    // Before any traffic: there is nothing yet to try it on.
    start("trap-on-route").await?.ok()?;
    let traffic = Traffic::start(&host, 8, 2, true);
    traffic.more(50).await?;
    let report = until(&host, |report| report["paused"] == true).await?;
    assert!(number(&report["failures"], "trap") >= 5, "{report:#}");
    let last = report["last"].as_str().unwrap_or_default();
    assert!(last.contains("paused"), "{report:#}");
    let said = host.post("policy/shadow/promote", &json!({})).await?;
    assert_eq!((said.status, said.stage()), (409, "shadow"), "{said:?}");
    traffic.more(50).await?;
    traffic.stop().await?;
    (host.post("policy/shadow/stop", &json!({})).await?).ok()?;
    assert_eq!(host.status().await?["generation"], 1);

    let said = start("spin").await?;
    assert_eq!((said.status, said.stage()), (422, "canary"), "{said:?}");
    Ok(())
}
