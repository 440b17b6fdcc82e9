//! `/api/v1/recorder`: decisions that are kept, with all that they depended on.

use super::Admin;
use super::refused::Refused;
use super::wanted::{MAX_JSON, body, json};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use pointsman_recorder::{StartError, Status, Writer};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::task::spawn_blocking;

type Client = ConnectInfo<SocketAddr>;

/// Decisions in a file, where nothing is said.
const DECISIONS: u64 = 100_000;
/// And at most.
const MAX_DECISIONS: u64 = 100_000_000;
/// Of the name of a file, in bytes.
const MAX_NAME: usize = 128;

/// What is to be recorded.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    file: String,
    #[serde(default = "decisions")]
    decisions: u64,
}

fn decisions() -> u64 {
    DECISIONS
}

/// `GET recorder`
pub async fn status(State(admin): State<Arc<Admin>>) -> Json<Status> {
    Json(admin.witnesses.recorder.status())
}

/// `GET recorder/recent`: a recording of what memory holds.
pub async fn recent(State(admin): State<Arc<Admin>>) -> Result<impl IntoResponse, Refused> {
    let recorder = admin.witnesses.recorder.clone();
    let write = move || {
        let mut writer = Writer::new(Vec::new())?;
        for moment in recorder.recent() {
            writer.write(&moment)?;
        }
        Ok(Bytes::from(writer.into_inner()))
    };
    let written: std::io::Result<Bytes> = spawn_blocking(write)
        .await
        .map_err(|error| Refused::failed("recorder", error))?;
    let lines = written.map_err(|error| Refused::failed("recorder", error))?;
    Ok(([(CONTENT_TYPE, "application/jsonl")], lines))
}

/// `POST recorder/start`: every decision from now on, into a new file.
pub async fn start(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): Client,
    request: Request,
) -> Result<Json<Status>, Refused> {
    let wanted: Wanted = json(&body(request.into_body(), MAX_JSON).await?)?;
    let file = place(&admin, &wanted)?;
    let recorder = admin.witnesses.recorder.clone();
    let started = {
        let (recorder, file) = (recorder.clone(), file.clone());
        spawn_blocking(move || recorder.start(file, wanted.decisions)).await
    };
    (started.map_err(|error| Refused::failed("recorder", error))?).map_err(refused)?;
    tracing::info!(%client, file = %file.display(), decisions = wanted.decisions, "recording");
    Ok(Json(recorder.status()))
}

/// `POST recorder/stop`: all of it is on disk when this is answered.
pub async fn stop(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): Client,
) -> Result<Json<Status>, Refused> {
    let recorder = admin.witnesses.recorder.clone();
    let stopped = {
        let recorder = recorder.clone();
        spawn_blocking(move || recorder.stop()).await
    };
    let stopped = stopped.map_err(|error| Refused::failed("recorder", error))?;
    let status = recorder.status();
    if status.failed {
        let why = status.ended.unwrap_or_default();
        let cause = format!(
            "the recording is not whole, it has {} decisions: {why}",
            status.written
        );
        return Err(Refused::failed("recorder", cause));
    }
    tracing::info!(%client, stopped, "recording stopped");
    Ok(Json(status))
}

/// A file of the operator's folder, and of no other.
fn place(admin: &Admin, wanted: &Wanted) -> Result<PathBuf, Refused> {
    let folder = admin.recordings.as_ref().ok_or_else(|| {
        Refused::new(
            StatusCode::CONFLICT,
            "recorder",
            "this host has no folder for recordings",
            "set [recorder] folder, and start the host anew; recorder/recent needs none",
        )
    })?;
    let name = &wanted.file;
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > MAX_NAME || name.starts_with('.') || !name.chars().all(plain)
    {
        return Err(Refused::request(
            format!("{name:?} is no name for a recording"),
            format!(
                "give 1 to {MAX_NAME} letters, digits, '-', '_' and '.', the first no '.': it is \
                 made in the host's [recorder] folder"
            ),
        ));
    }
    if !(1..=MAX_DECISIONS).contains(&wanted.decisions) {
        let cause = format!("{} decisions cannot be recorded", wanted.decisions);
        return Err(Refused::request(cause, format!("1 to {MAX_DECISIONS} can")));
    }
    Ok(folder.join(name))
}

fn refused(error: StartError) -> Refused {
    let remedy = match &error {
        StartError::Busy(_) => "POST recorder/stop ends it",
        StartError::File { .. } => {
            "choose a new name; [recorder] folder must be there, and writable"
        }
    };
    Refused::new(StatusCode::CONFLICT, "recorder", error.to_string(), remedy)
}
