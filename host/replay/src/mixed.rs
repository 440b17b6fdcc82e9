//! Prefill and decode in one engine, in virtual time: what a scheduler's settings do to TTFT, ITL and
//! throughput.
//!
//! All ranks tick together, as data-parallel ranks with a collective in the forward pass do: a tick
//! lasts as long as its longest step, so that a long prompt on one rank stops the streams of all.
//! The same [`Mix`] and the same [`Conductor`] give the same [`Mixed`], to the last digit.

mod load;
mod outcome;

use std::time::Duration;

use hashbrown::HashMap;
use pointsman_refengine::delayer::Thresholds;
use pointsman_refengine::lockstep::{Lockstep, Tick};
use pointsman_refengine::scheduler::{Request, Scheduler, TooLong};

pub use load::{Arrival, BadMix, Mix};
pub use outcome::{Mixed, MixedReports};

/// Who places requests, and who changes settings while they run.
pub trait Conductor {
    /// The rank of a request.
    ///
    /// # Errors
    /// Why there is none: the run ends.
    fn route(&mut self, now: Duration, arrival: &Arrival) -> Result<usize, String>;

    /// One of its tokens came out: its place in the output, from 0, and whether it is the last.
    fn output(&mut self, now: Duration, id: u64, index: usize, last: bool);

    /// A tick is over.
    ///
    /// # Errors
    /// What went wrong: the run ends.
    fn between(&mut self, now: Duration, engine: &mut Lockstep) -> Result<(), String>;
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub enum MixedError {
    /// a prompt that fits in no cache
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// a rank that is not there
    #[error("wanted one of {ranks} ranks, found rank {found}")]
    NoRank {
        /// how many there are
        ranks: usize,
        /// what was chosen
        found: usize,
    },
    /// the conductor's own
    #[error("{0}")]
    Conductor(String),
}

/// A request in the engine.
struct Running {
    arrived: Duration,
    last_output: Option<Duration>,
}

/// Plays the load until its last token. Thresholds: none is no delayer.
///
/// # Errors
/// See [`MixedError`].
pub fn play(
    mix: &Mix,
    thresholds: Option<Thresholds>,
    conductor: &mut dyn Conductor,
) -> Result<Mixed, MixedError> {
    let schedulers = (0..mix.ranks).map(|_| Scheduler::new(mix.preset.clone()));
    let mut engine = Lockstep::new(schedulers.collect(), thresholds);
    let mut arrivals = mix.arrivals().into_iter().peekable();
    let mut running = HashMap::new();
    let mut outcome = outcome::Recorder::default();
    let mut now = Duration::ZERO;
    loop {
        let tick = engine.tick(now);
        let end = match (&tick, arrivals.peek()) {
            (Some(tick), _) => now + tick.duration(),
            (None, Some(next)) => next.at,
            (None, None) => break,
        };
        // Whoever comes while the step runs is looked at by the next one.
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at <= end) {
            let rank = conductor
                .route(arrival.at, &arrival)
                .map_err(MixedError::Conductor)?;
            admit(&mut engine, &arrival, rank, mix.ranks)?;
            let arrived = arrival.at;
            running.insert(
                arrival.id,
                Running {
                    arrived,
                    last_output: None,
                },
            );
            outcome.arrived(&arrival);
        }
        now = end;
        if let Some(tick) = tick {
            engine.complete(&tick);
            outcome.ticked(&tick);
            deliver(&tick, now, &mut running, &mut outcome, conductor);
        }
        conductor
            .between(now, &mut engine)
            .map_err(MixedError::Conductor)?;
    }
    Ok(outcome.finish(now, engine.counts()))
}

fn admit(
    engine: &mut Lockstep,
    arrival: &Arrival,
    rank: usize,
    ranks: usize,
) -> Result<(), MixedError> {
    let request = Request {
        id: arrival.id,
        prompt_tokens: arrival.prompt_tokens,
        output_tokens: arrival.output_tokens,
        // Nobody shares a prefix: what is looked at is the scheduler.
        keys: [].into(),
        arrived: arrival.at,
    };
    let found = engine.rank(rank);
    let rank = found.ok_or(MixedError::NoRank { ranks, found: rank })?;
    Ok(rank.push(request)?)
}

fn deliver(
    tick: &Tick,
    now: Duration,
    running: &mut HashMap<u64, Running>,
    outcome: &mut outcome::Recorder,
    conductor: &mut dyn Conductor,
) {
    for token in tick.steps.iter().flatten().flat_map(|step| &step.tokens) {
        if let Some(request) = running.get_mut(&token.id) {
            match request.last_output.replace(now) {
                None => outcome.first(now.saturating_sub(request.arrived)),
                Some(before) => outcome.next(now.saturating_sub(before)),
            }
        }
        if token.last {
            running.remove(&token.id);
        }
        conductor.output(now, token.id, token.index, token.last);
    }
}

#[cfg(test)]
mod tests;
