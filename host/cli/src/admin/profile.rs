//! `/api/v1/profile`: profiling windows on the engines that have a driver.

use super::Admin;
use super::refused::Refused;
use super::wanted::{MAX_JSON, body, json};
use crate::config::Role;
use crate::engines::{EVERY, LONGEST_MS};
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use pointsman_core::Phase;
use pointsman_engine::{Desk, Failure};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

type Answer = Result<Json<Value>, Refused>;

/// Which engines, and for how long.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Window {
    /// none: all of them
    roles: Option<Vec<Role>>,
    /// none: until it is stopped, or [`LONGEST_MS`]
    duration_ms: Option<u64>,
}

impl Window {
    async fn of(request: Request) -> Result<Window, Refused> {
        let body = body(request.into_body(), MAX_JSON).await?;
        if body.is_empty() {
            return Ok(Window::default());
        }
        let window: Window = json(&body)?;
        match window.duration_ms {
            Some(ms) if !(1..=LONGEST_MS).contains(&ms) => Err(Refused::request(
                format!("duration_ms: wanted 1 to {LONGEST_MS}, found {ms}"),
                "leave it out for a window that is open until POST /api/v1/profile/stop",
            )),
            _ => Ok(window),
        }
    }

    fn who(&self) -> Vec<Phase> {
        match &self.roles {
            Some(roles) => roles.iter().map(|&role| role.into()).collect(),
            None => EVERY.to_vec(),
        }
    }
}

/// `GET profile`: whether a window is open, and what the last one left.
pub async fn look(State(admin): State<Arc<Admin>>) -> Answer {
    engines(admin, EVERY.to_vec(), |_, desk| {
        let profile = desk.profile();
        let (last, error) = match profile.last {
            Some(Ok(said)) => (Some(said), None),
            Some(Err(failure)) => (None, Some(failure.to_string())),
            None => (None, None),
        };
        Ok(json!({ "open": profile.open, "profile": last, "error": error }))
    })
    .await
}

/// `POST profile/start`
pub async fn start(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
) -> Answer {
    let window = Window::of(request).await?;
    tracing::info!(%client, ?window, "profiling window");
    let duration = Duration::from_millis(window.duration_ms.unwrap_or(LONGEST_MS));
    let driven = admin.engines.clone();
    engines(admin, window.who(), move |name, desk| {
        desk.profile_start(Some(duration))?;
        driven.taken_over(name);
        Ok(json!({ "open": true }))
    })
    .await
}

/// `POST profile/stop`
pub async fn stop(State(admin): State<Arc<Admin>>, request: Request) -> Answer {
    let window = Window::of(request).await?;
    let driven = admin.engines.clone();
    engines(admin, window.who(), move |name, desk| {
        let profile = desk.profile_stop()?;
        driven.taken_over(name);
        Ok(json!({ "open": false, "profile": profile }))
    })
    .await
}

/// Does it on each of them, at the same time: a slow one delays none of the others.
async fn engines(
    admin: Arc<Admin>,
    who: Vec<Phase>,
    call: impl Fn(&str, &Desk) -> Result<Value, Failure> + Send + Sync + 'static,
) -> Answer {
    let all = tokio::task::spawn_blocking(move || {
        let (call, seats) = (&call, admin.engines.of(&who));
        std::thread::scope(|scope| {
            let calls: Vec<_> = (seats.iter())
                .map(|(name, seat)| (name, seat, scope.spawn(move || call(name, &seat.desk))))
                .collect();
            let joined = calls.into_iter().map(|(name, seat, call)| {
                let said = call.join().unwrap_or_else(|_| Err(Failure::Unknown));
                let mut value = said.unwrap_or_else(|e| json!({ "error": e.to_string() }));
                if let Some(fields) = value.as_object_mut() {
                    fields.insert("engine".to_owned(), name.as_str().into());
                    fields.insert("role".to_owned(), role(seat.phase).into());
                }
                value
            });
            joined.collect::<Vec<Value>>()
        })
    });
    let all = all.await.unwrap_or_default();
    if all.is_empty() {
        return Err(Refused::new(
            StatusCode::NOT_FOUND,
            "profile",
            "no engine of these roles has a driver",
            "give its [[pool]] one, such as driver = { kind = \"vllm\" }",
        ));
    }
    Ok(Json(json!({ "engines": all })))
}

fn role(phase: Phase) -> &'static str {
    match phase {
        Phase::Serve => "serve",
        Phase::Prefill => "prefill",
        Phase::Decode => "decode",
    }
}
