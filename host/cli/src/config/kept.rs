//! What a host keeps for its operators.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Decisions that are kept, with what they depended on: a policy is tried on them before it decides.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recorder {
    /// the last so many, 0 to 4096; 0 = none, and new policies are not tried
    pub keep: usize,
    /// for recordings that an operator starts; without it there are none
    pub folder: Option<PathBuf>,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            keep: 256,
            folder: None,
        }
    }
}

/// Profiling windows that are kept: each engine's traces, and an index.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// made if it is not there; without it no trace is fetched, and windows are summaries
    pub folder: Option<PathBuf>,
    /// the last so many windows, 1 to 1000
    pub keep: usize,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            folder: None,
            keep: pointsman_engine::windows::Settings::default().keep,
        }
    }
}
