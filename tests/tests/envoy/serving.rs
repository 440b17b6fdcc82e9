use crate::{engine, header, pool};
use anyhow::{Context, Result, ensure};
use pointsman_tests::{Envoy, Scripted, guest, root, run};
use std::collections::{BTreeMap, BTreeSet};

/// Enough that hashes put some of them on every rank.
const SESSIONS: u64 = 16;

/// Where each of the requests went, as (engine, rank).
fn went(engines: &[&Scripted]) -> Vec<(usize, String)> {
    let all = engines.iter().enumerate().flat_map(|(at, engine)| {
        let seen = engine.take().into_iter();
        seen.map(move |seen| {
            (
                at,
                header(&seen, "x-data-parallel-rank")
                    .unwrap_or("")
                    .to_owned(),
            )
        })
    });
    all.collect()
}

/// Whether both workers have served by now.
async fn both_workers(envoy: &Envoy) -> Result<bool> {
    let name = |worker| async move {
        let port = envoy.url.rsplit(':').next().unwrap_or_default();
        let name = format!("listener.127.0.0.1_{port}.worker_{worker}.downstream_cx_total");
        envoy.stat(&name).await
    };
    // With port 0 Envoy names the listener after what was configured.
    let configured = |worker| async move {
        envoy
            .stat(&format!(
                "listener.127.0.0.1_0.worker_{worker}.downstream_cx_total"
            ))
            .await
    };
    let served = [
        name(0).await?.max(configured(0).await?),
        name(1).await?.max(configured(1).await?),
    ];
    Ok(served.iter().all(|connections| *connections > 0))
}

async fn serves(policy: &str, sticky: bool) -> Result<()> {
    let (a, b) = (engine().await?, engine().await?);
    let engines = [&a, &b];
    let envoy = Envoy::start(policy, &pool("vllm", 2, &engines)).await?;
    let mut owners: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut used = BTreeSet::new();
    let mut rounds = 0;
    // Connections are spread over the workers by the kernel: until both have had some.
    while rounds < 3 || !both_workers(&envoy).await? {
        ensure!(rounds < 200, "one worker gets no connection");
        rounds += 1;
        for session in 0..SESSIONS {
            let session = format!("s{session}");
            let answer = envoy.chat(&[("x-session-id", &session)]).send().await?;
            ensure!(answer.status() == 200, "{policy}: {}", answer.status());
            let went = went(&engines);
            let [target] = went.as_slice() else {
                anyhow::bail!("one request arrived as {went:?}");
            };
            used.insert(target.clone());
            let owner = owners.entry(session.clone()).or_insert(target.clone());
            ensure!(
                !sticky || owner == target,
                "{policy}: {session} moved from {owner:?} to {target:?}"
            );
        }
    }
    ensure!(used.len() == 4, "{policy} used {used:?}");
    let gauges = envoy.until_idle(4).await?;
    let sessions: u64 = gauges.iter().map(|gauges| gauges.sessions).sum();
    ensure!(
        !sticky || sessions == SESSIONS,
        "{policy}: {sessions} sessions are bound"
    );
    Ok(())
}

#[tokio::test]
async fn session_affinity_is_sticky_across_workers_and_gauges_end_at_nothing() -> Result<()> {
    serves("session-affinity", true).await
}

#[tokio::test]
async fn parent_affinity_is_sticky_across_workers_and_gauges_end_at_nothing() -> Result<()> {
    serves("parent-affinity", true).await
}

#[tokio::test]
async fn conversation_round_robin_is_sticky_across_workers_and_gauges_end_at_nothing() -> Result<()>
{
    serves("conversation-round-robin", true).await
}

#[tokio::test]
async fn least_tokens_uses_every_rank_and_gauges_end_at_nothing() -> Result<()> {
    serves("least-tokens", false).await
}

#[tokio::test]
async fn a_policy_from_outside_the_project_serves_in_envoy() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let crate_ = root().join("examples/hello-policy").display().to_string();
    let out = folder.path().display().to_string();
    run(&["policy", "build", &crate_, "--out", &out]).await?;
    let wasm = folder
        .path()
        .join("hello-policy.wasm")
        .display()
        .to_string();
    let (a, b) = (engine().await?, engine().await?);
    let config = format!(
        "[[pool]]\nname = \"p\"\ndialect = \"vllm\"\nendpoints = [\n\
         {{ name = \"a\", url = \"{}\" }},\n\
         {{ name = \"b\", url = \"{}\", labels = {{ tier = \"fast\" }} }},\n]\n",
        a.url, b.url
    );
    let config = format!("config = {{ label = \"tier\", value = \"fast\" }}\n{config}");
    let envoy = Envoy::start(&wasm, &config).await?;
    for _ in 0..4 {
        let answer = envoy
            .chat(&[("x-session-id", "s"), ("x-pointsman-explain", "1")])
            .send()
            .await?;
        ensure!(answer.status() == 200);
        let target = answer
            .headers()
            .get("x-pointsman-target")
            .context("no target")?;
        ensure!(target == "b/0", "{target:?}");
    }
    ensure!(a.take().is_empty() && b.take().len() == 4);
    envoy.until_idle(2).await?;
    Ok(())
}

#[tokio::test]
async fn a_policy_that_traps_or_never_ends_costs_its_request_and_no_other() -> Result<()> {
    for name in ["trap-on-route", "spin"] {
        let a = engine().await?;
        let wasm = guest(name).display().to_string();
        let mut envoy = Envoy::start(&wasm, &pool("openai", 1, &[&a])).await?;
        for _ in 0..4 {
            let answer = envoy.chat(&[]).send().await?;
            ensure!(answer.status() == 503, "{name}: {}", answer.status());
        }
        ensure!(envoy.lives());
        // A good one takes over, and both workers serve again.
        envoy
            .swap("least-tokens", &pool("openai", 1, &[&a]))
            .await?;
        let served = async {
            let mut good = 0;
            while good < 10 {
                let answer = envoy.chat(&[]).send().await?;
                good = if answer.status() == 200 { good + 1 } else { 0 };
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), served).await??;
    }
    Ok(())
}
