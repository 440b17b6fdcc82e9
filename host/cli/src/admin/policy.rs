//! `/api/v1/policy`: what decides, and what shall decide.

use super::Admin;
use super::refused::Refused;
use super::wanted::Wanted;
use crate::policies::{BUILT_IN, digest};
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use pointsman_recorder::Rehearsed;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

type Answer = Result<Json<Value>, Refused>;
type Client = ConnectInfo<SocketAddr>;

/// `GET policy`
pub async fn status(State(admin): State<Arc<Admin>>) -> Answer {
    Ok(Json(now(&admin)?))
}

/// `GET policies`: those that the binary carries, and the one that decides.
pub async fn list(State(admin): State<Arc<Admin>>) -> Answer {
    let now = now(&admin)?;
    let policies: Vec<Value> = (BUILT_IN.iter())
        .map(|policy| {
            let digest = digest(policy.wasm);
            let decides = now.get("digest").is_some_and(|now| *now == digest);
            json!({ "name": policy.name, "about": policy.about, "sha256": digest, "decides": decides })
        })
        .collect();
    Ok(Json(json!({ "policies": policies, "now": now })))
}

/// `POST policy/load`: all that a swap does before it swaps.
pub async fn load(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): Client,
    request: Request,
) -> Answer {
    let turn = admin.swapper()?.turn()?;
    let wanted = Wanted::read(request).await?;
    let origin = wanted.origin.clone();
    let began = Instant::now();
    let loaded = turn.load(wanted).await.inspect_err(|refused| {
        tracing::warn!(%client, policy = origin, %refused, "policy not loaded");
    })?;
    let candidate = &loaded.candidate;
    let policy = candidate.prepared.policy();
    tracing::info!(%client, policy = origin, sha256 = candidate.digest, "policy loaded");
    Ok(Json(json!({
        "loaded": true, "name": policy.name, "version": policy.version, "origin": candidate.origin,
        "digest": candidate.digest, "canary": canary(&loaded.rehearsed), "took_ms": millis(began),
    })))
}

/// `POST policy/swap`
pub async fn swap(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): Client,
    request: Request,
) -> Answer {
    let turn = admin.swapper()?.turn()?;
    let wanted = Wanted::read(request).await?;
    let origin = wanted.origin.clone();
    let began = Instant::now();
    let (generation, rehearsed) = turn.swap(wanted).await.inspect_err(|refused| {
        tracing::warn!(%client, policy = origin, %refused, "policy not replaced");
    })?;
    let mut now = now(&admin)?;
    let sha256 = now.get("digest").and_then(Value::as_str);
    tracing::info!(%client, policy = origin, sha256, generation, "policy replaced");
    if let Some(now) = now.as_object_mut() {
        now.insert("canary".to_owned(), canary(&rehearsed));
        now.insert("took_ms".to_owned(), json!(millis(began)));
    }
    Ok(Json(now))
}

/// `POST policy/rollback`
pub async fn rollback(State(admin): State<Arc<Admin>>, ConnectInfo(client): Client) -> Answer {
    let generation = (admin.swapper()?.turn()?.rollback())
        .inspect_err(|refused| tracing::warn!(%client, %refused, "no rollback"))?;
    let now = now(&admin)?;
    let (policy, sha256) = (now.get("origin"), now.get("digest"));
    let text = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
    let (policy, sha256) = (text(policy), text(sha256));
    tracing::info!(%client, policy, sha256, generation, "policy rolled back");
    Ok(Json(now))
}

/// What a policy would have said to the last decisions.
pub fn canary(rehearsed: &Rehearsed) -> Value {
    json!({
        "decisions": rehearsed.asked, "changed": rehearsed.changed,
        "changed_share": rehearsed.share(), "changes": rehearsed.changes,
    })
}

/// What decides now, and what happened last.
pub fn now(admin: &Admin) -> Result<Value, Refused> {
    let swapper = admin.swapper()?;
    let status = swapper.slot().status();
    Ok(json!({
        "generation": status.generation, "name": status.policy.name,
        "version": status.policy.version, "origin": status.origin, "digest": status.digest,
        "previous": status.previous, "paused_until_ms": status.paused_until_ms,
        "now_ms": admin.core.now_ms(), "last": status.last, "rollbacks": status.rollbacks, "file": swapper.file(),
    }))
}

fn millis(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}
