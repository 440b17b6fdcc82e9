//! What one request came to.

use std::time::Duration;

/// One request that was played. Times count from the start of the run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Session that sent it.
    pub session: String,
    /// The session's parent, if it is a subagent.
    pub parent: Option<String>,
    /// 0-based in the session.
    pub turn: usize,
    /// When it was sent.
    pub start: Duration,
    /// When the first output token arrived.
    pub first_output: Option<Duration>,
    /// When the last output token arrived.
    pub last_output: Option<Duration>,
    /// When the answer, or the failure, was complete.
    pub end: Duration,
    /// HTTP status; `None` if no answer came.
    pub status: Option<u16>,
    /// The target it ran on, "endpoint/rank".
    pub target: Option<String>,
    /// The rank the engine says it ran on.
    pub engine_rank: Option<String>,
    /// The policy's word for why.
    pub reason: Option<String>,
    /// Prompt tokens, as the engine counted them.
    pub prompt_tokens: u64,
    /// Those of them it had in its prefix cache.
    pub cached_tokens: u64,
    /// Output tokens, as the engine counted them.
    pub output_tokens: u64,
    /// What went wrong; `None` = success.
    pub error: Option<String>,
}

impl Record {
    /// Time to first token, in seconds.
    pub fn ttft_s(&self) -> Option<f64> {
        Some(self.first_output?.saturating_sub(self.start).as_secs_f64())
    }

    /// Mean time between the output tokens of this request, in seconds;
    /// `None` below two tokens.
    pub fn itl_s(&self) -> Option<f64> {
        let gaps = self.output_tokens.checked_sub(1).filter(|n| *n > 0)?;
        let span = self.last_output?.saturating_sub(self.first_output?);
        Some(span.as_secs_f64() / gaps as f64)
    }
}
