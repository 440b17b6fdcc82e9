//! Misbehaving on purpose, for tests of routers. Off unless `POST /fault` turns it on; no real
//! engine has that.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The longest that a rank hangs, modelled: a day.
const LONGEST_HANG_MS: u64 = 86_400_000;

/// The body of `POST /fault`. Only completions misbehave; health, metrics and the rest go on. The modes
/// that name a rank act on it once, and leave the fault of completions as it is.
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
    /// `kill-rank` and `hang-rank`: which one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u64>,
    /// `kill-rank` and `hang-rank`: when. Absent: at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<After>,
    /// `hang-rank`: for how long, modelled ms as all times of the engine (at time scale 0 the
    /// machine's), 1 to a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// When a rank's fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum After {
    /// At once, wherever the rank is.
    Now,
    /// When it has begun its next forward pass with prefill.
    Prefill,
    /// When it next waits for other ranks in the collective.
    Collective,
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
    /// A rank's thread ends, and with it all that runs there; the others go on.
    KillRank,
    /// A rank's thread is blocked for a while: it neither computes nor hears anything.
    HangRank,
}

/// What is done to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    Kill,
    /// Modelled time.
    Hang(Duration),
}

/// A fault of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RankFault {
    pub(crate) rank: u64,
    pub(crate) harm: Harm,
    pub(crate) after: After,
}

/// A fault that says too much or too little.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum BadFault {
    #[error("`{0}`: wanted with this mode, found none")]
    Missing(&'static str),
    #[error("`{0}`: not wanted with this mode")]
    Unwanted(&'static str),
    #[error("`duration_ms`: wanted 1 to {LONGEST_HANG_MS}, found {0}")]
    Duration(u64),
}

impl Fault {
    /// What it does to a rank; none: it is one of completions.
    pub(crate) fn of_rank(&self) -> Result<Option<RankFault>, BadFault> {
        let unwanted = |fields: &[(&'static str, bool)]| {
            let found = fields.iter().find(|(_, given)| *given);
            found.map_or(Ok(()), |(name, _)| Err(BadFault::Unwanted(name)))
        };
        let duration_ms = ("duration_ms", self.duration_ms.is_some());
        let acts_on_rank = matches!(self.mode, FaultMode::KillRank | FaultMode::HangRank);
        if !acts_on_rank {
            let (rank, after) = (self.rank.is_some(), self.after.is_some());
            unwanted(&[("rank", rank), ("after", after), duration_ms])?;
            return Ok(None);
        }
        let (count, retry_after) = (self.count.is_some(), self.retry_after.is_some());
        unwanted(&[("count", count), ("retry_after", retry_after)])?;
        let harm = if self.mode == FaultMode::KillRank {
            unwanted(&[duration_ms])?;
            Harm::Kill
        } else {
            match self.duration_ms {
                None => return Err(BadFault::Missing("duration_ms")),
                Some(ms @ 1..=LONGEST_HANG_MS) => Harm::Hang(Duration::from_millis(ms)),
                Some(ms) => return Err(BadFault::Duration(ms)),
            }
        };
        Ok(Some(RankFault {
            rank: self.rank.ok_or(BadFault::Missing("rank"))?,
            harm,
            after: self.after.unwrap_or(After::Now),
        }))
    }
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
    fn a_fault_of_a_rank_says_which_and_for_how_long_and_nothing_that_means_nothing() {
        let read = |text: &str| {
            let fault: Fault = serde_json::from_str(text).unwrap();
            fault.of_rank().map_err(|e| e.to_string())
        };
        let hang = Harm::Hang(Duration::from_millis(5));
        let good = [
            (r#"{"mode":"kill-rank","rank":1}"#, Harm::Kill, After::Now),
            (
                r#"{"mode":"kill-rank","rank":1,"after":"prefill"}"#,
                Harm::Kill,
                After::Prefill,
            ),
            (
                r#"{"mode":"hang-rank","rank":1,"duration_ms":5,"after":"collective"}"#,
                hang,
                After::Collective,
            ),
        ];
        for (text, harm, after) in good {
            let rank = 1;
            assert_eq!(read(text), Ok(Some(RankFault { rank, harm, after })));
        }
        assert_eq!(read(r#"{"mode":"error-500","count":1}"#), Ok(None));
        let bad = [
            (
                r#"{"mode":"kill-rank"}"#,
                "`rank`: wanted with this mode, found none",
            ),
            (
                r#"{"mode":"hang-rank","rank":0}"#,
                "`duration_ms`: wanted with",
            ),
            (
                r#"{"mode":"hang-rank","rank":0,"duration_ms":0}"#,
                "wanted 1 to 86400000, found 0",
            ),
            (
                r#"{"mode":"kill-rank","rank":0,"duration_ms":1}"#,
                "`duration_ms`: not wanted",
            ),
            (
                r#"{"mode":"kill-rank","rank":0,"count":1}"#,
                "`count`: not wanted",
            ),
            (r#"{"mode":"none","rank":0}"#, "`rank`: not wanted"),
            (r#"{"mode":"none","after":"now"}"#, "`after`: not wanted"),
        ];
        for (text, wanted) in bad {
            let error = read(text).unwrap_err();
            assert!(error.contains(wanted), "{wanted}: {error}");
        }
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
            "kill-rank",
            "hang-rank",
        ];
        for name in names {
            let fault: Fault = serde_json::from_value(serde_json::json!({"mode": name})).unwrap();
            assert_eq!(serde_json::to_value(fault.mode).unwrap(), name);
        }
    }
}
