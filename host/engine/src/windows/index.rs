//! What is said of a window.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use serde_json::Value;

/// How far a window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Engines are recording.
    Open,
    /// All have ended; traces are fetched and written.
    Collecting,
    /// All there will be is there.
    Done,
}

/// A window, as in its `index.json`.
#[derive(Debug, Clone, Serialize)]
pub struct Index {
    /// Its name, and that of its folder: when it began, and a number.
    pub window: String,
    /// How far it is.
    pub state: State,
    /// The folder that its files are in; none: no files are kept.
    pub folder: Option<String>,
    /// Who opened it.
    pub opened_by: String,
    /// When, RFC 3339 in UTC.
    pub started: String,
    /// The same, ms since the Unix epoch.
    pub started_unix_ms: u64,
    /// How long it was to be open; none: until it is stopped.
    pub wanted_ms: Option<u64>,
    /// How long it was open on the engine that took longest.
    pub duration_ms: u64,
    /// The roles of its engines.
    pub roles: Vec<&'static str>,
    /// Its engines.
    pub engines: Vec<Engine>,
    /// All traces in one file, one process a rank.
    pub merged: Option<File>,
    /// What went wrong with the files, beside what an engine did.
    pub error: Option<String>,
}

/// One engine's part of a window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Engine {
    /// The endpoint's name.
    pub engine: String,
    /// Its role.
    pub role: &'static str,
    /// What it said when the window ended; JSON as JSON.
    pub said: Option<Value>,
    /// Why it has no window, or none that ended well.
    pub error: Option<String>,
    /// A rank each; none: it hands none out.
    pub traces: Vec<Trace>,
}

/// The trace of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Trace {
    /// Whose.
    pub rank: u32,
    /// Where it is; none: nowhere, see `error`.
    #[serde(flatten)]
    pub file: Option<File>,
    /// Why there is none, or why it is no trace and not in the merged one.
    pub error: Option<String>,
}

/// A file of a window's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct File {
    /// Its name.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// SHA-256 of it, in hexadecimal.
    pub sha256: String,
    /// Events, without those that only name things.
    pub events: u64,
}

impl Index {
    /// Whether every engine's window opened and ended well, and its files are as they should be.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let well = |engine: &Engine| {
            engine.error.is_none() && engine.traces.iter().all(|trace| trace.error.is_none())
        };
        self.error.is_none() && self.engines.iter().all(well)
    }

    /// Notes what went wrong with the files; the first thing counts.
    pub(super) fn failed(&mut self, error: impl ToString) {
        self.error.get_or_insert(error.to_string());
    }
}

/// What an engine said: JSON, or a text.
pub(super) fn said(text: String) -> Option<Value> {
    if text.is_empty() {
        return None;
    }
    Some(serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

pub(super) fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// "20261130T004512Z-0007".
pub(super) fn name(time: SystemTime, number: u64) -> String {
    let time = humantime::format_rfc3339_seconds(time).to_string();
    format!("{}-{number:04}", time.replace(['-', ':'], ""))
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn unix_millis(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, millis)
}
