//! A profiling window: what the ranks did between `POST /start_profile` and `POST /stop_profile`.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tokio::time::Instant;

use crate::stats::RankStats;

/// The window that is open, if one is.
#[derive(Debug, Default)]
pub(crate) struct Profiler(Mutex<Option<(Instant, Vec<RankStats>)>>);

/// The answer of `POST /stop_profile`.
#[derive(Debug, Serialize)]
pub(crate) struct Profile {
    duration_ms: u64,
    ranks: Vec<RankProfile>,
}

#[derive(Debug, Serialize)]
struct RankProfile {
    steps: u64,
    prefill_tokens_computed: u64,
    generation_tokens: u64,
    busy_seconds: f64,
}

impl Profiler {
    /// False: a window is open already.
    pub(crate) fn start(&self, ranks: Vec<RankStats>) -> bool {
        let mut window = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let opens = window.is_none();
        window.get_or_insert_with(|| (Instant::now(), ranks));
        opens
    }

    /// None: no window is open.
    pub(crate) fn stop(&self, ranks: &[RankStats]) -> Option<Profile> {
        let window = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (start, before) = window?;
        let rank = |(now, before): (&RankStats, &RankStats)| RankProfile {
            // A reset in between counts from there.
            steps: now.steps_total.saturating_sub(before.steps_total),
            prefill_tokens_computed: (now.prefill_tokens_computed_total)
                .saturating_sub(before.prefill_tokens_computed_total),
            generation_tokens: (now.generation_tokens_total)
                .saturating_sub(before.generation_tokens_total),
            busy_seconds: (now.busy_seconds_total - before.busy_seconds_total).max(0.0),
        };
        Some(Profile {
            duration_ms: u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX),
            ranks: ranks.iter().zip(&before).map(rank).collect(),
        })
    }
}
