//! `/api/v1/profile`: profiling windows on the engines that have a driver, and what they left.

use super::Admin;
use super::refused::Refused;
use super::wanted::{MAX_JSON, body, json};
use crate::config::Role;
use crate::engines::{EVERY, LONGEST_MS};
use crate::profiling::role;
use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::IntoResponse;
use futures_util::stream::try_unfold;
use pointsman_engine::Failure;
use pointsman_engine::windows::Collector;
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

type Answer = Result<Json<Value>, Refused>;

/// Of a file that is sent, a piece, bytes.
const PIECE: usize = 64 << 10;

/// Which engines, and for how long.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Window {
    /// none: all of them
    roles: Option<Vec<Role>>,
    /// none: until it is stopped, or [`LONGEST_MS`]
    duration_ms: Option<u64>,
    /// the one to be stopped, on all of its engines; none: whichever is open on those of the roles
    window: Option<String>,
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

    fn has(&self, role: &str) -> bool {
        let roles = self.roles.as_ref();
        roles.is_none_or(|roles| roles.iter().any(|of| of.name() == role))
    }
}

/// `GET profile`: whether a window is open, what the last one left, and the windows that are kept.
pub async fn look(State(admin): State<Arc<Admin>>) -> Answer {
    let of = admin.clone();
    let windows = on_thread(move || of.windows.windows()).await?;
    let engines: Vec<Value> = (admin.engines.of(&EVERY))
        .iter()
        .map(|(name, seat)| {
            let profile = seat.desk.profile();
            let by = profile.open.as_ref().map(|open| open.opener.by.clone());
            let (last, error) = match profile.last {
                Some(Ok(said)) => (Some(said), None),
                Some(Err(failure)) => (None, Some(failure.to_string())),
                None => (None, None),
            };
            json!({
                "engine": name, "role": role(seat.phase), "open": profile.open.is_some(), "opened_by": by,
                "collecting": profile.collecting.is_some(), "profile": last, "error": error,
            })
        })
        .collect();
    any(&engines)?;
    Ok(Json(json!({
        "engines": engines, "folder": admin.windows.folder(), "windows": windows,
    })))
}

/// `POST profile/start`. Refused only if no engine has opened it.
pub async fn start(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
) -> Answer {
    let window = Window::of(request).await?;
    if window.window.is_some() {
        let remedy = "leave it out: the answer has the window's name";
        return Err(Refused::request("window: is for profile/stop", remedy));
    }
    tracing::info!(%client, ?window, "profiling window");
    let duration = Duration::from_millis(window.duration_ms.unwrap_or(LONGEST_MS));
    let opened = on_thread(move || {
        let by = format!("operator {client}");
        let choose = |role: &str| window.has(role);
        let opened = admin.windows.open(&by, choose, Some(duration));
        let folder = admin
            .windows
            .folder()
            .map(|folder| folder.join(&opened.window));
        (opened, folder)
    });
    let (opened, folder) = opened.await?;
    let engines: Vec<Value> = (opened.engines.iter())
        .map(|(engine, role, said)| match said {
            Ok(()) => json!({ "engine": engine, "role": role, "open": true }),
            Err(error) => failed(engine, role, error),
        })
        .collect();
    any(&engines)?;
    if opened.engines.iter().all(|(.., said)| said.is_err()) {
        let why = opened.engines.iter().filter_map(|(engine, _, said)| {
            let error = said.as_ref().err()?;
            Some(format!("{engine}: {error}"))
        });
        let why: Vec<String> = why.collect();
        return Err(Refused::new(
            StatusCode::CONFLICT,
            "profile",
            format!("no window was opened: {}", why.join("; ")),
            "GET /api/v1/profile says who has one open, POST /api/v1/profile/stop ends it",
        ));
    }
    Ok(Json(json!({
        "window": opened.window, "folder": folder, "engines": engines,
    })))
}

/// `POST profile/stop`
pub async fn stop(State(admin): State<Arc<Admin>>, request: Request) -> Answer {
    let window = Window::of(request).await?;
    let one = window.window.is_some();
    let said = on_thread(move || match &window.window {
        Some(window) => admin.windows.stop_window(window),
        None => admin.windows.stop(|role| window.has(role)),
    });
    let said = said.await?;
    let engines: Vec<Value> = (said.iter())
        .map(|(engine, role, said)| match said {
            Ok(said) => json!({ "engine": engine, "role": role, "open": false, "profile": said }),
            Err(error) => failed(engine, role, error),
        })
        .collect();
    // One that is over already is stopped.
    if !one {
        any(&engines)?;
    }
    Ok(Json(json!({ "engines": engines })))
}

/// `GET profile/windows/ID`: its index, also while it is being collected.
pub async fn window(State(admin): State<Arc<Admin>>, Path(window): Path<String>) -> Answer {
    let wanted = window.clone();
    let index = on_thread(move || admin.windows.window(&wanted)).await?;
    index.map(Json).ok_or_else(|| none(&window))
}

/// `GET profile/windows/ID/FILE`
pub async fn file(
    State(admin): State<Arc<Admin>>,
    Path((window, name)): Path<(String, String)>,
) -> Result<impl IntoResponse, Refused> {
    let what = format!("{window}/{name}");
    let find = move |windows: &Collector| windows.file(&window, &name);
    let path = on_thread(move || find(&admin.windows)).await?;
    let path = path.ok_or_else(|| none(&what))?;
    let failed = |error| Refused::failed("profile", error);
    let file = File::open(path).await.map_err(failed)?;
    let length = file.metadata().await.map_err(failed)?.len();
    let pieces = try_unfold(file.take(length), async |mut file| {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece).await?;
        piece.truncate(read);
        std::io::Result::Ok((read > 0).then(|| (Bytes::from(piece), file)))
    });
    let head = [
        (CONTENT_TYPE, "application/json".to_owned()),
        (CONTENT_LENGTH, length.to_string()),
    ];
    Ok((head, Body::from_stream(pieces)))
}

async fn on_thread<R: Send + 'static>(
    call: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Refused> {
    let done = tokio::task::spawn_blocking(call).await;
    done.map_err(|error| Refused::failed("profile", error))
}

fn failed(engine: &str, role: &str, error: &Failure) -> Value {
    json!({ "engine": engine, "role": role, "error": error.to_string() })
}

fn any(engines: &[Value]) -> Result<(), Refused> {
    if !engines.is_empty() {
        return Ok(());
    }
    Err(Refused::new(
        StatusCode::NOT_FOUND,
        "profile",
        "no engine of these roles has a driver",
        "give its [[pool]] one, such as driver = { kind = \"vllm\" }",
    ))
}

fn none(what: &str) -> Refused {
    Refused::new(
        StatusCode::NOT_FOUND,
        "profile",
        format!("there is no {what:?}, or not yet"),
        "GET /api/v1/profile names the windows, and their indexes the files",
    )
}
