//! A profiling window: what the ranks did between `POST /start_profile` and `POST /stop_profile`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use serde::Serialize;

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::stats::RankStats;
use crate::trace::{About, Begin, Trace, chrome_trace};

/// The window that is open, if one is, and the traces of the last one that ended.
#[derive(Debug, Default)]
pub(crate) struct Profiler(Mutex<Windows>);

#[derive(Debug, Default)]
struct Windows {
    open: Option<(Begin, Vec<RankStats>)>,
    last: Option<Arc<Window>>,
}

/// One that has ended.
#[derive(Debug)]
pub(crate) struct Window {
    begin: Begin,
    duration_us: u64,
    traces: Vec<Trace>,
}

/// The answer of `POST /stop_profile`.
#[derive(Debug, Serialize)]
pub(crate) struct Profile {
    duration_ms: u64,
    ranks: Vec<RankProfile>,
    /// Where to read them: `GET /profile/trace?rank=N`.
    traces: Vec<TraceSummary>,
}

#[derive(Debug, Serialize)]
struct RankProfile {
    steps: u64,
    prefill_tokens_computed: u64,
    generation_tokens: u64,
    busy_seconds: f64,
}

#[derive(Debug, Serialize)]
struct TraceSummary {
    rank: usize,
    /// Those in the trace, other than the names of process and thread.
    events: usize,
    /// Those beyond what is kept.
    dropped: u64,
}

impl Profiler {
    /// Forgets the last window. False: a window is open already.
    pub(crate) fn start(&self, engine: &Engine) -> bool {
        let mut windows = self.windows();
        if windows.open.is_some() {
            return false;
        }
        windows.last = None;
        let begin = Begin::now();
        windows.open = Some((begin, engine.stats()));
        engine.trace(begin);
        true
    }

    /// None: no window is open.
    pub(crate) fn stop(&self, engine: &Engine) -> Option<Profile> {
        let mut windows = self.windows();
        let (begin, before) = windows.open.take()?;
        let traces = engine.traced();
        // After the last event, so that all of them are within it.
        let duration = Instant::now().duration_since(begin.instant);
        let ranks = (engine.stats().iter().zip(&before))
            .map(|(now, before)| RankProfile::of(now, before))
            .collect();
        let summary = |(rank, trace): (usize, &Trace)| TraceSummary {
            rank,
            events: trace.events.len(),
            dropped: trace.dropped,
        };
        let profile = Profile {
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            ranks,
            traces: traces.iter().enumerate().map(summary).collect(),
        };
        windows.last = Some(Arc::new(Window {
            begin,
            duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
            traces,
        }));
        Some(profile)
    }

    /// The last window that ended.
    pub(crate) fn last(&self) -> Option<Arc<Window>> {
        self.windows().last.clone()
    }

    /// Frees what it kept of the last window.
    pub(crate) fn forget(&self) {
        self.windows().last = None;
    }

    fn windows(&self) -> MutexGuard<'_, Windows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RankProfile {
    /// A reset in between counts from there.
    fn of(now: &RankStats, before: &RankStats) -> Self {
        Self {
            steps: now.steps_total.saturating_sub(before.steps_total),
            prefill_tokens_computed: (now.prefill_tokens_computed_total)
                .saturating_sub(before.prefill_tokens_computed_total),
            generation_tokens: (now.generation_tokens_total)
                .saturating_sub(before.generation_tokens_total),
            busy_seconds: (now.busy_seconds_total - before.busy_seconds_total).max(0.0),
        }
    }
}

impl Window {
    /// A rank's trace in the Chrome trace event format; none: no such rank.
    pub(crate) fn chrome_trace(&self, config: &EngineConfig, rank: usize) -> Option<Vec<u8>> {
        let about = About {
            engine: config.name.clone(),
            rank,
            time_scale: config.time_scale,
            begin: self.begin,
            duration_us: self.duration_us,
        };
        Some(chrome_trace(&about, self.traces.get(rank)?))
    }
}
