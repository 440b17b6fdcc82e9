//! `/api/v1/targets`: who may take requests, and what is outstanding there.

use super::Admin;
use super::refused::Refused;
use super::wanted::{MAX_JSON, body, json};
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use pointsman_core::{Snapshot, Target};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

type Answer = Result<Json<Value>, Refused>;

/// One target, or all of an endpoint.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Which {
    target: Option<String>,
    endpoint: Option<String>,
}

/// `GET targets`
pub async fn list(State(admin): State<Arc<Admin>>) -> Json<Value> {
    let fleet = admin.core.fleet.snapshot();
    // And those that a reload removed, until nothing is in flight there.
    let targets: Vec<Value> = (fleet.targets().chain(fleet.leaving()))
        .map(|(target, spec)| {
            let load = fleet.ledger().load(target);
            json!({
                "target": spec.endpoint.name, "url": spec.endpoint.url,
                "standing": standing(&fleet, target),
                "load": {
                    "requests": load.requests, "prefill_tokens": load.prefill_tokens,
                    "context_tokens": load.context_tokens, "sessions": load.sessions,
                },
            })
        })
        .collect();
    Json(json!({ "targets": targets }))
}

/// `POST targets/drain`: no new sessions; those that live there stay.
pub async fn drain(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
) -> Answer {
    set(&admin, client, request, true).await
}

/// `POST targets/undrain`
pub async fn undrain(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
) -> Answer {
    set(&admin, client, request, false).await
}

async fn set(admin: &Admin, client: SocketAddr, request: Request, draining: bool) -> Answer {
    let which: Which = json(&body(request.into_body(), MAX_JSON).await?)?;
    let targets = which.find(&admin.core.fleet.snapshot())?;
    let changed = (admin.core.fleet).set(&targets, |standing| standing.draining = draining);
    let fleet = admin.core.fleet.snapshot();
    let names: Vec<&str> = (targets.iter())
        .filter_map(|&target| Some(fleet.spec(target)?.endpoint.name.as_str()))
        .collect();
    tracing::info!(%client, targets = names.join(", "), draining, changed, "targets set");
    let targets: Vec<Value> = (targets.iter().zip(&names))
        .map(|(&target, name)| json!({ "target": name, "standing": standing(&fleet, target) }))
        .collect();
    Ok(Json(json!({ "changed": changed, "targets": targets })))
}

fn standing(fleet: &Snapshot, target: Target) -> Value {
    fleet.standing(target).map_or(Value::Null, |standing| {
        json!({
            "healthy": standing.healthy, "breaker_closed": standing.closed,
            "draining": standing.draining, "removed": standing.removed,
        })
    })
}

impl Which {
    fn find(&self, fleet: &Snapshot) -> Result<Vec<Target>, Refused> {
        let (wanted, found) = match (&self.target, &self.endpoint) {
            (Some(name), None) => (name, fleet.find(name).into_iter().collect()),
            (None, Some(name)) => {
                let of = |target: &str| target.rsplit_once('/').is_some_and(|(of, _)| of == name);
                let ranks: Vec<Target> = (fleet.targets())
                    .filter(|(_, spec)| of(&spec.endpoint.name))
                    .map(|(target, _)| target)
                    .collect();
                (name, ranks)
            }
            _ => {
                let remedy = "send {\"target\": \"a/0\"} or {\"endpoint\": \"a\"}";
                return Err(Refused::request(
                    "wanted one target or one endpoint",
                    remedy,
                ));
            }
        };
        if found.is_empty() {
            return Err(Refused::new(
                StatusCode::NOT_FOUND,
                "targets",
                format!("{wanted:?} is not part of the fleet"),
                "GET /api/v1/targets names those that are",
            ));
        }
        Ok(found)
    }
}
