//! Misbehaving on purpose, for tests of routers. Off unless `POST /fault` turns it on; no real
//! engine has that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// The body of `POST /fault`. Only completions misbehave; health, metrics and the rest go on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// What happens.
    pub mode: FaultMode,
    /// To how many completions; `null` or absent: to all until the next `POST /fault`.
    #[serde(default)]
    pub count: Option<u64>,
    /// Seconds: the error modes send it as `Retry-After`; absent: no such header.
    #[serde(default)]
    pub retry_after: Option<u64>,
}

/// What a completion does instead of completing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FaultMode {
    /// Nothing: it completes.
    #[default]
    None,
    /// Answers 500.
    #[serde(rename = "error-500")]
    Error500,
    /// Answers 503.
    #[serde(rename = "error-503")]
    Error503,
    /// Answers 429.
    #[serde(rename = "error-429")]
    Error429,
    /// Never answers, until the client goes.
    HangBeforeHead,
    /// Closes the connection (HTTP/2: resets the stream) without an answer.
    ResetBeforeHead,
    /// Closes the connection (HTTP/2: resets the stream) after the first token, or after half of
    /// an answer that is not streamed.
    ResetMidStream,
    /// Sends an error event after the first token and ends the stream in good order; an answer
    /// that is not streamed is a 500.
    SseError,
}

/// The fault that is on.
#[derive(Debug, Default)]
pub(crate) struct FaultSwitch {
    fault: Mutex<Fault>,
    happened: AtomicU64,
}

impl FaultSwitch {
    pub(crate) fn set(&self, fault: Fault) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }

    /// The fault of the next completion.
    pub(crate) fn take(&self) -> Fault {
        let mut fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        match fault.count {
            Some(0) => *fault = Fault::default(),
            Some(left) => fault.count = Some(left - 1),
            None => {}
        }
        if fault.mode != FaultMode::None {
            self.happened.fetch_add(1, Ordering::Relaxed);
        }
        *fault
    }

    /// How many completions misbehaved so far.
    pub(crate) fn happened(&self) -> u64 {
        self.happened.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_fault_ends_by_itself_and_an_uncounted_one_stays() {
        let switch = FaultSwitch::default();
        let modes = |fault: &str| {
            switch.set(serde_json::from_str(fault).unwrap());
            [(); 3].map(|()| switch.take().mode)
        };
        let (ok, error) = (FaultMode::None, FaultMode::Error503);
        assert_eq!(
            modes(r#"{"mode":"error-503","count":2}"#),
            [error, error, ok]
        );
        assert_eq!(modes(r#"{"mode":"error-503","count":null}"#), [error; 3]);
        assert_eq!(modes(r#"{"mode":"none"}"#), [ok; 3]);
        assert_eq!(switch.happened(), 5);
    }

    #[test]
    fn every_mode_has_the_documented_name() {
        let names = [
            "none",
            "error-500",
            "error-503",
            "error-429",
            "hang-before-head",
            "reset-before-head",
            "reset-mid-stream",
            "sse-error",
        ];
        for name in names {
            let fault: Fault = serde_json::from_value(serde_json::json!({"mode": name})).unwrap();
            assert_eq!(serde_json::to_value(fault.mode).unwrap(), name);
        }
    }
}
