//! Plays a workload over HTTP in real time.
//!
//! A closed loop within a conversation, an open one across them: a turn is
//! sent when the one before is answered and its pause is over, and nobody
//! waits for another conversation except a child for its parent's turn that
//! spawned it. Each conversation keeps one connection, as a client does.
//! Nothing is retried; a request that fails is a record with an error, and
//! its conversation goes on.

mod chat;
mod connection;
mod exchange;
mod player;

use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::record::Record;
use crate::workload::{Start, Workload};
use connection::Upstream;
use player::{Cue, Player, Stage};

/// How to play.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveOptions {
    /// Model that every request names.
    pub model: String,
    /// Most requests in flight, at least 1; further ones wait their turn.
    pub max_in_flight: usize,
    /// A request not answered in full after this long has failed.
    pub timeout: Duration,
}

impl Default for LiveOptions {
    fn default() -> Self {
        Self {
            model: "demo".into(),
            max_in_flight: 64,
            timeout: Duration::from_secs(60),
        }
    }
}

/// Why a workload could not be played. What happens to single requests is in
/// their records.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LiveError {
    /// The base URL cannot be used.
    #[error("base URL: wanted http://host:port, found {0:?}; TLS and paths are not supported")]
    BaseUrl(String),
    /// Conversations ended before their last turn.
    #[error("wanted {wanted} records, found {found}: a player stopped early; please report this")]
    Incomplete {
        /// Requests of the workload.
        wanted: usize,
        /// Records made.
        found: usize,
    },
}

/// Plays the whole workload against `base_url` ("http://host:port") and
/// returns a record for every request, in the order they ended. `progress`
/// is told (done, total) at the start and after each of them. Dropping the
/// future ends everything.
pub async fn run(
    workload: &Workload,
    base_url: &str,
    options: LiveOptions,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Record>, LiveError> {
    let upstream = upstream(base_url)?;
    let total = workload.requests();
    let (records, mut ended) = mpsc::unbounded_channel();
    let stage = Arc::new(Stage {
        workload: workload.clone(),
        upstream,
        permits: Semaphore::new(options.max_in_flight.clamp(1, Semaphore::MAX_PERMITS)),
        options,
        origin: Instant::now(),
        records,
    });

    let mut players = JoinSet::new();
    let mut answered: Vec<watch::Receiver<usize>> = Vec::new();
    for (number, conversation) in workload.conversations().iter().enumerate() {
        let cue = match conversation.start {
            Start::At(time) => Cue::Clock(time),
            Start::After {
                conversation,
                turn,
                wait,
            } => match answered.get(conversation) {
                Some(parent) => Cue::Answer {
                    parent: parent.clone(),
                    turn,
                    wait,
                },
                None => Cue::Clock(wait),
            },
        };
        let (report, watcher) = watch::channel(0);
        answered.push(watcher);
        players.spawn(Player::new(Arc::clone(&stage), number).play(cue, report));
    }
    drop(answered);
    drop(stage);

    progress(0, total);
    let mut done = Vec::with_capacity(total);
    while let Some(record) = ended.recv().await {
        done.push(record);
        progress(done.len(), total);
    }
    if done.len() == total {
        Ok(done)
    } else {
        Err(LiveError::Incomplete {
            wanted: total,
            found: done.len(),
        })
    }
}

fn upstream(base_url: &str) -> Result<Upstream, LiveError> {
    let bad = || LiveError::BaseUrl(base_url.into());
    let uri: Uri = base_url.parse().map_err(|_| bad())?;
    let plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/");
    match (plain, uri.host()) {
        (true, Some(host)) => Ok(Upstream::new(host, uri.port_u16().unwrap_or(80))),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_http_without_a_path_is_taken() {
        for good in [
            "http://127.0.0.1:8080",
            "http://localhost/",
            "http://[::1]:9",
        ] {
            assert!(upstream(good).is_ok(), "{good}");
        }
        for bad in ["https://a:1", "a:1", "http://a:1/v1", "", "http://"] {
            assert_eq!(upstream(bad).unwrap_err(), LiveError::BaseUrl(bad.into()));
        }
    }
}
