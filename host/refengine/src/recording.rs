//! Recorded ticks, decided once more: for engine developers who compare their delayer with this one.
//!
//! A tick is a line of JSON, as in [`Tick`]. All ranks of a recording are played, each with a
//! [`Delayer`] of its own.

use serde::Deserialize;

use crate::config::MAX_RANKS;
use crate::delayer::{Cause, CollectiveError, Delayer, Outlook, Reduced, Thresholds};

/// One tick of all ranks.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tick {
    ranks: Vec<Rank>,
    /// The collective of this tick failed.
    #[serde(default)]
    collective_error: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rank {
    prefillable: bool,
    pending_tokens: u64,
    running_decode: u64,
    kv_usage: f64,
    has_partial: bool,
    oldest_age_ms: f64,
    /// A prefill forward really completed on this rank since the last decision.
    prefill_ran: bool,
}

impl Rank {
    fn outlook(&self) -> Outlook {
        Outlook {
            prefillable: self.prefillable,
            pending_tokens: self.pending_tokens,
            running_decode: self.running_decode,
            kv_usage: self.kv_usage,
            has_partial: self.has_partial,
            oldest_age_ms: self.oldest_age_ms,
        }
    }
}

/// A line is not a tick. To blame: whoever recorded it.
#[derive(Debug, thiserror::Error)]
pub enum BadTick {
    /// Not the JSON that is wanted.
    #[error(
        "wanted {{\"ranks\": [{{\"prefillable\": bool, \"pending_tokens\": n, \"running_decode\": n, \
         \"kv_usage\": 0 to 1, \"has_partial\": bool, \"oldest_age_ms\": ms, \"prefill_ran\": bool}}, …]}} \
         and at most \"collective_error\": bool beside it; found: {0}"
    )]
    Json(#[source] serde_json::Error),
    /// No ranks, or too many.
    #[error("`ranks`: wanted 1 to {MAX_RANKS} of them, found {0}")]
    Count(usize),
    /// Ranks come and go.
    #[error(
        "`ranks`: wanted {wanted}, as in the first tick, found {found}; record another group in \
         another file"
    )]
    Changed {
        /// Of the first tick.
        wanted: usize,
        /// Of this one.
        found: usize,
    },
    /// A number that cannot be.
    #[error("`{field}` of rank {rank}: wanted {wanted}, found {found}")]
    Range {
        /// Which rank.
        rank: usize,
        /// Which number.
        field: &'static str,
        /// What would have been right.
        wanted: &'static str,
        /// What was there.
        found: f64,
    },
    /// The delayer itself is wrong.
    #[error("ranks disagree: {0:?}; please report this recording")]
    Disagree(Vec<Cause>),
}

/// The delayers of a recording. See the module.
#[derive(Debug)]
pub struct Recording {
    thresholds: Thresholds,
    delayers: Vec<Delayer>,
}

impl Recording {
    /// Before its first tick.
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            delayers: Vec::new(),
        }
    }

    /// The decision of the tick in this line.
    ///
    /// # Errors
    /// The line is no tick of this recording; the recording is as before it.
    pub fn play(&mut self, line: &str) -> Result<Cause, BadTick> {
        let tick: Tick = serde_json::from_str(line).map_err(BadTick::Json)?;
        self.check(&tick.ranks)?;
        if self.delayers.is_empty() {
            self.delayers = vec![Delayer::new(self.thresholds); tick.ranks.len()];
        }
        let mut vectors = Vec::with_capacity(tick.ranks.len());
        for (delayer, rank) in self.delayers.iter_mut().zip(&tick.ranks) {
            if rank.prefill_ran {
                delayer.notify_prefill_executed();
            }
            vectors.push(delayer.contribution(&rank.outlook()));
        }
        let reduced = if tick.collective_error {
            Err(CollectiveError)
        } else {
            Ok(Reduced::of(&vectors))
        };
        let causes: Vec<_> = (self.delayers.iter_mut())
            .map(|delayer| delayer.decide(reduced))
            .collect();
        match causes.as_slice() {
            [cause, rest @ ..] if rest.iter().all(|other| other == cause) => Ok(*cause),
            _ => Err(BadTick::Disagree(causes)),
        }
    }

    fn check(&self, ranks: &[Rank]) -> Result<(), BadTick> {
        let (wanted, found) = (self.delayers.len(), ranks.len());
        if !(1..=MAX_RANKS).contains(&found) {
            return Err(BadTick::Count(found));
        }
        if wanted > 0 && wanted != found {
            return Err(BadTick::Changed { wanted, found });
        }
        for (rank, has) in ranks.iter().enumerate() {
            let range = |field, wanted, most, found| {
                let inside = (0.0..=most).contains(&found);
                let bad = BadTick::Range {
                    rank,
                    field,
                    wanted,
                    found,
                };
                if inside { Ok(()) } else { Err(bad) }
            };
            range("kv_usage", "0 to 1", 1.0, has.kv_usage)?;
            range("oldest_age_ms", "at least 0", f64::MAX, has.oldest_age_ms)?;
        }
        Ok(())
    }
}
