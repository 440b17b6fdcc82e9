//! The policy is replaced while Envoy runs.

use crate::{engine, pool};
use anyhow::{Context, Result, ensure};
use pointsman_tests::Envoy;
use std::collections::BTreeMap;

/// Where a session goes, and which policy says so.
async fn ask(envoy: &Envoy, session: &str) -> Result<(String, String)> {
    let headers = [("x-session-id", session), ("x-pointsman-explain", "1")];
    let answer = envoy.chat(&headers).send().await?;
    ensure!(answer.status() == 200, "{}", answer.status());
    let say = |name: &str| -> Result<String> {
        let value = answer
            .headers()
            .get(name)
            .with_context(|| format!("no {name}"))?;
        Ok(value.to_str()?.to_owned())
    };
    Ok((say("x-pointsman-target")?, say("x-pointsman-policy")?))
}

#[tokio::test]
async fn sessions_stay_where_they_are_when_the_policy_is_replaced() -> Result<()> {
    let (a, b) = (engine().await?, engine().await?);
    let pool = pool("vllm", 2, &[&a, &b]);
    let envoy = Envoy::start("session-affinity", &pool).await?;
    let mut owners = BTreeMap::new();
    for n in 0..8 {
        let session = format!("s{n}");
        let (target, _) = ask(&envoy, &session).await?;
        owners.insert(session, target);
    }
    envoy.swap("parent-affinity", &pool).await?;
    let mut new = 0;
    for (session, owner) in owners.iter().cycle().take(80) {
        let (target, policy) = ask(&envoy, session).await?;
        ensure!(
            target == *owner,
            "{session} moved from {owner} to {target} under {policy}"
        );
        new += usize::from(policy == "parent-affinity");
    }
    ensure!(new > 0, "the new policy decides nothing");
    let gauges = envoy.until_idle(4).await?;
    ensure!(gauges.iter().map(|gauges| gauges.sessions).sum::<u64>() == 8);
    Ok(())
}
