//! When prefill may run: a delayer that waits until a prefill is worth a forward pass, and an
//! interval that belongs to decode after every prefill. A state machine without clock, threads or
//! I/O, to be copied into engines; ATOM's `PrefillDelayer` decides the same.
//!
//! A prefill forward costs about as much with 500 tokens as with 8,000, all ranks wait for it, and
//! those that decode stand still meanwhile. So each tick, before it schedules, every rank
//!
//! 1. says what it has: [`Delayer::contribution`],
//! 2. sums that over all ranks, in one `all_reduce(SUM)` of int64[8],
//! 3. decides on the sums: [`Delayer::decide`]. The same sums and the same past give the same
//!    decision: no rank ever disagrees.
//!
//! and after a prefill forward has completed, says so: [`Delayer::notify_prefill_executed`]. To
//! fire is permission, not execution: only that call arms the interval.
//!
//! No clock crosses ranks: ages are compared where they are measured, and only "too old" is summed.
//! What takes part in the decision besides is counted in ticks. An error of the collective fires:
//! a delayer that cannot tell must not keep requests waiting. With one rank there is no collective:
//! [`Delayer::decide_alone`].

mod counts;

pub use counts::Counts;

/// The thresholds, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Thresholds {
    /// Ticks that belong to decode after every executed prefill; 0: none.
    pub prefill_decode_interval: u32,
    /// Tokens of one rank's forward pass (`max_num_batched_tokens`).
    pub token_budget: u32,
    /// Fire when the pending tokens fill this part of the budgets of the prefillable ranks; taken
    /// as within 0.05 to 1.
    pub target_fill: f64,
    /// Fire after so many held ticks; 0 is taken as 1.
    pub ttft_max_ticks: u32,
    /// Fire after so many held ticks if a prompt is partly computed: it holds blocks; 0 is taken
    /// as 1.
    pub partial_max_ticks: u32,
    /// Fire when the pending tokens have not grown for so many ticks; 0 is taken as 1.
    pub stall_ticks: u32,
    /// Fire when a rank's cache is used to this part, 0 to 1: nothing more can gather there.
    pub kv_high_watermark: f64,
    /// Fire when a rank's cache is used less than this, 0 to 1: it starves. None: never.
    pub token_usage_low_watermark: Option<f64>,
    /// Fire when a rank's oldest waiting prompt has waited so many ms. None: never. The interval
    /// comes first: this is no hard bound on the time to first token.
    pub max_queue_ms: Option<f64>,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            prefill_decode_interval: 0,
            token_budget: 8192,
            target_fill: 0.9,
            ttft_max_ticks: 200,
            partial_max_ticks: 100,
            stall_ticks: 10,
            kv_high_watermark: 0.9,
            token_usage_low_watermark: None,
            max_queue_ms: None,
        }
    }
}

/// What one rank has before a tick.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outlook {
    /// A prompt could go on or begin now: there is a place in the batch and room in the cache.
    pub prefillable: bool,
    /// Prompt tokens to compute, of partly computed and of waiting prompts.
    pub pending_tokens: u64,
    /// Sequences that decode.
    pub running_decode: u64,
    /// The part of the cache that running sequences hold, 0 to 1.
    pub kv_usage: f64,
    /// A prompt is partly computed.
    pub has_partial: bool,
    /// How long the oldest waiting prompt has waited, ms; 0: none waits.
    pub oldest_age_ms: f64,
}

/// What the ranks sum: prefillable ranks, pending tokens, sequences that decode, then ranks with a
/// full cache, a starving cache, a partly computed prompt, a prompt that waited too long, and an
/// executed prefill.
pub type Vector = [i64; 8];

/// The sums, and over how many ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reduced {
    /// Slot by slot over all ranks.
    pub sums: Vector,
    /// The ranks that took part.
    pub ranks: usize,
}

impl Reduced {
    /// The sums over these ranks.
    #[must_use]
    pub fn of(vectors: &[Vector]) -> Self {
        let mut sums = Vector::default();
        for vector in vectors {
            add(&mut sums, vector);
        }
        Self {
            sums,
            ranks: vectors.len(),
        }
    }
}

/// Adds slot by slot; what would overflow stays at the end of the range.
pub fn add(sums: &mut Vector, vector: &Vector) {
    for (sum, slot) in sums.iter_mut().zip(vector) {
        *sum = sum.saturating_add(*slot);
    }
}

/// The collective did not come about: a rank is gone, or did not come in time. What waits is not made to
/// wait longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the ranks' all_reduce failed: a rank is gone, or did not come in time")]
pub struct CollectiveError;

/// A decision by its cause; [`Cause::fires`] says which one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Fires: the first tick.
    First,
    /// Holds: the interval after a prefill belongs to decode.
    Interval,
    /// Fires: nothing to prefill.
    Vacuous,
    /// Fires: nobody decodes, so nobody gains by waiting.
    NoDecode,
    /// Fires: a cache is full, or starves.
    Kv,
    /// Fires: a prompt waited too long.
    QueueMs,
    /// Fires: held for as many ticks as may be.
    Ttft,
    /// Fires: held for as many ticks as a partly computed prompt may be.
    Partial,
    /// Holds: a rank has nothing to prefill yet.
    Align,
    /// Fires: what is pending is worth a forward pass.
    Fill,
    /// Fires: no more is coming.
    Stall,
    /// Holds: more may come.
    Wait,
    /// Fires: the collective failed.
    Error,
}

impl Cause {
    /// Every cause, in the order in which they are looked at.
    pub const ALL: [Self; 13] = [
        Self::First,
        Self::Interval,
        Self::Vacuous,
        Self::NoDecode,
        Self::Kv,
        Self::QueueMs,
        Self::Ttft,
        Self::Partial,
        Self::Align,
        Self::Fill,
        Self::Stall,
        Self::Wait,
        Self::Error,
    ];

    /// Prefill may run; otherwise it is held back.
    #[must_use]
    pub fn fires(self) -> bool {
        !matches!(self, Self::Interval | Self::Align | Self::Wait)
    }

    /// `fire` or `hold`.
    #[must_use]
    pub fn decision(self) -> &'static str {
        if self.fires() { "fire" } else { "hold" }
    }

    /// Its word in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Interval => "interval",
            Self::Vacuous => "vacuous",
            Self::NoDecode => "nodecode",
            Self::Kv => "kv",
            Self::QueueMs => "queue_ms",
            Self::Ttft => "ttft",
            Self::Partial => "partial",
            Self::Align => "align",
            Self::Fill => "fill",
            Self::Stall => "stall",
            Self::Wait => "wait",
            Self::Error => "error",
        }
    }
}

/// One rank's delayer. See the module.
#[derive(Debug, Clone)]
pub struct Delayer {
    thresholds: Thresholds,
    /// No decision was made on sums yet.
    first: bool,
    /// This rank executed a prefill since the last decision. The only part of the state that is
    /// not the same on every rank.
    prefill_ran: bool,
    /// Ticks of the interval that are left.
    interval_left: u32,
    episode: Episode,
}

/// From one fire to the next.
#[derive(Debug, Clone, Copy, Default)]
struct Episode {
    hold_ticks: u32,
    stall: u32,
    /// Pending tokens at the last tick that had a look at them.
    pending: Option<i64>,
}

impl Delayer {
    /// Before its first tick.
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Self {
        let mut delayer = Self {
            thresholds,
            first: true,
            prefill_ran: false,
            interval_left: 0,
            episode: Episode::default(),
        };
        delayer.set(thresholds);
        delayer
    }

    /// Begins anew, as all ranks do when one of them has missed ticks. What this rank executed is
    /// still to be heard of.
    pub fn restart(&mut self) {
        self.first = true;
        self.interval_left = 0;
        self.episode = Episode::default();
    }

    /// Other thresholds from the next call on. All ranks at the same tick, or they disagree.
    pub fn set(&mut self, thresholds: Thresholds) {
        self.thresholds = Thresholds {
            // At or below 0 it would fire at every tick, above 1 never.
            target_fill: thresholds.target_fill.clamp(0.05, 1.0),
            ttft_max_ticks: thresholds.ttft_max_ticks.max(1),
            partial_max_ticks: thresholds.partial_max_ticks.max(1),
            stall_ticks: thresholds.stall_ticks.max(1),
            ..thresholds
        };
        self.interval_left = self.interval_left.min(thresholds.prefill_decode_interval);
    }

    /// The thresholds as they count.
    #[must_use]
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// What this rank adds to the sums.
    #[must_use]
    pub fn contribution(&self, has: &Outlook) -> Vector {
        let set = &self.thresholds;
        let starves = |low| has.kv_usage < low;
        let too_old = |limit| has.oldest_age_ms >= limit;
        [
            has.prefillable.into(),
            has.pending_tokens
                .min(set.token_budget.into())
                .cast_signed(),
            i64::try_from(has.running_decode).unwrap_or(i64::MAX),
            (has.prefillable && has.kv_usage >= set.kv_high_watermark).into(),
            (has.prefillable && set.token_usage_low_watermark.is_some_and(starves)).into(),
            has.has_partial.into(),
            (has.prefillable && set.max_queue_ms.is_some_and(too_old)).into(),
            self.prefill_ran.into(),
        ]
    }

    /// A prefill forward has completed on this rank: not begun, not permitted.
    pub fn notify_prefill_executed(&mut self) {
        self.prefill_ran = true;
    }

    /// The decision of the only rank: there is nobody to sum with.
    pub fn decide_alone(&mut self, has: &Outlook) -> Cause {
        self.decide(Ok(Reduced::of(&[self.contribution(has)])))
    }

    /// The decision of this tick, on what the collective yielded.
    pub fn decide(&mut self, reduced: Result<Reduced, CollectiveError>) -> Cause {
        let Ok(reduced) = reduced else {
            // `prefill_ran` stays: nobody has heard of it.
            self.episode = Episode::default();
            return Cause::Error;
        };
        let cause = self.judge(&reduced);
        if cause.fires() {
            self.episode = Episode::default();
        } else if cause != Cause::Interval {
            // The interval's ticks do not count against what bounds the wait.
            self.episode.hold_ticks = self.episode.hold_ticks.saturating_add(1);
        }
        cause
    }

    fn judge(&mut self, reduced: &Reduced) -> Cause {
        let [
            prefillable,
            pending,
            decoding,
            kv_high,
            kv_low,
            partial,
            queue_hot,
            prefill_ran,
        ] = reduced.sums;
        let set = &self.thresholds;

        self.prefill_ran = false;
        if prefill_ran > 0 {
            self.interval_left = set.prefill_decode_interval;
        }
        if std::mem::take(&mut self.first) {
            return Cause::First;
        }
        if self.interval_left > 0 {
            self.interval_left -= 1;
            if prefillable > 0 && decoding > 0 {
                return Cause::Interval;
            }
        }
        if prefillable == 0 {
            return Cause::Vacuous;
        }

        // Whatever gathers, and whoever is not ready.
        if decoding == 0 {
            return Cause::NoDecode;
        }
        if kv_high > 0 || kv_low > 0 {
            return Cause::Kv;
        }
        if queue_hot > 0 {
            return Cause::QueueMs;
        }
        if self.episode.hold_ticks >= set.ttft_max_ticks {
            return Cause::Ttft;
        }
        if partial > 0 && self.episode.hold_ticks >= set.partial_max_ticks {
            return Cause::Partial;
        }

        // A prefill of some ranks makes the others wait for it: all together, or none.
        if usize::try_from(prefillable).is_ok_and(|ready| ready < reduced.ranks) {
            return Cause::Align;
        }
        let budget = prefillable as f64 * f64::from(set.token_budget);
        if budget <= 0.0 || pending as f64 / budget >= set.target_fill {
            return Cause::Fill;
        }
        self.episode.stall = match self.episode.pending {
            Some(before) if pending <= before => self.episode.stall.saturating_add(1),
            _ => 0,
        };
        self.episode.pending = Some(pending);
        if self.episode.stall >= set.stall_ticks {
            return Cause::Stall;
        }
        Cause::Wait
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod traffic;
