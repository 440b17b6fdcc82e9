//! What a rank did while a profiling window was open: its forward passes, its waits for the other
//! ranks, what the delayer held, and how many requests ran and waited.
//!
//! Real time, not modelled, so that it lines up with traces of other engines and of other programs.
//! Noted is what begins and ends while the window is open.

mod chrome;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use crate::delayer::Cause;

pub(crate) use chrome::{About, chrome_trace};

/// The most events of one rank, and of all ranks of an engine together. Those beyond are counted.
const RANK_EVENTS: usize = 100_000;
const ENGINE_EVENTS: usize = 2_000_000;

/// A rank's pen. Without a window it costs a load of one flag.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    open: AtomicBool,
    log: Mutex<Option<Log>>,
}

#[derive(Debug)]
struct Log {
    begin: Instant,
    limit: usize,
    trace: Trace,
    /// Running and waiting, as noted last.
    load: Option<(u64, u64)>,
}

/// One rank's events of a window.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Trace {
    pub(crate) events: Vec<Event>,
    /// Events beyond the limit.
    pub(crate) dropped: u64,
}

/// When the window opened, on both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begin {
    pub(crate) instant: Instant,
    /// µs since the Unix epoch.
    pub(crate) unix_us: u64,
}

/// Something that happened, µs since the window opened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Event {
    pub(crate) begin_us: u64,
    pub(crate) end_us: u64,
    pub(crate) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum What {
    /// A forward pass.
    Pass(Pass),
    /// From this rank's arrival in the collective to the decision.
    Wait(Cause),
    /// The delayer held prefill back in this tick.
    Hold(Cause),
    /// Requests in the batch, and waiting for it.
    Load { running: u64, waiting: u64 },
}

/// What a forward pass did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pass {
    pub(crate) prefill_tokens: usize,
    pub(crate) decode_sequences: usize,
    /// Prompt tokens that the prefix cache spared the requests that began here.
    pub(crate) cached_tokens: usize,
    /// The part of the cache that running sequences hold at its end, 0 to 1.
    pub(crate) kv_usage: f64,
    pub(crate) modelled_us: u64,
}

impl Begin {
    pub(crate) fn now() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            instant: Instant::now(),
            unix_us: since_epoch.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX)),
        }
    }
}

impl Tracer {
    /// Begins to note; `ranks` share the room.
    pub(crate) fn open(&self, begin: Begin, ranks: usize) {
        *self.log() = Some(Log {
            begin: begin.instant,
            limit: RANK_EVENTS.min(ENGINE_EVENTS / ranks.max(1)),
            trace: Trace::default(),
            load: None,
        });
        self.open.store(true, Ordering::Release);
    }

    /// Ends that, and hands out what was noted, in order of begin.
    pub(crate) fn close(&self) -> Trace {
        self.open.store(false, Ordering::Release);
        let mut trace = self.log().take().map(|log| log.trace).unwrap_or_default();
        trace.events.sort_by_key(|event| event.begin_us);
        trace.events.shrink_to_fit();
        trace
    }

    /// When something begins that will be noted; none: nobody wants to know.
    pub(crate) fn begin(&self) -> Option<Instant> {
        self.is_open().then(Instant::now)
    }

    /// It has ended now. Without a begin (the window opened in between) nothing is known of it.
    pub(crate) fn end(&self, begin: Option<Instant>, what: What) {
        if let Some(begin) = begin {
            self.note(begin, what);
        }
    }

    /// It happens now.
    pub(crate) fn mark(&self, what: What) {
        if self.is_open() {
            self.note(Instant::now(), what);
        }
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    fn note(&self, begin: Instant, what: What) {
        if let Some(log) = self.log().as_mut() {
            log.note(begin, what);
        }
    }

    fn log(&self) -> MutexGuard<'_, Option<Log>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log {
    fn note(&mut self, begin: Instant, what: What) {
        // Begun in an earlier window.
        if begin < self.begin {
            return;
        }
        if let What::Load { running, waiting } = what
            && self.load.replace((running, waiting)) == Some((running, waiting))
        {
            return;
        }
        if self.trace.events.len() >= self.limit {
            self.trace.dropped += 1;
            return;
        }
        let us = |at: Instant| {
            u64::try_from(at.duration_since(self.begin).as_micros()).unwrap_or(u64::MAX)
        };
        let begin_us = us(begin);
        let end_us = match what {
            What::Pass(_) | What::Wait(_) => us(Instant::now()),
            What::Hold(_) | What::Load { .. } => begin_us,
        };
        self.trace.events.push(Event {
            begin_us,
            end_us,
            what,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_window_nothing_is_noted_and_beyond_the_limit_it_is_counted() {
        let tracer = Tracer::default();
        tracer.mark(What::Hold(Cause::Wait));
        assert_eq!(tracer.begin(), None);
        assert_eq!(tracer.close(), Trace::default());

        // A window of so many ranks leaves room for 20 events each.
        tracer.open(Begin::now(), ENGINE_EVENTS / 20);
        for _ in 0..25 {
            tracer.mark(What::Hold(Cause::Wait));
        }
        let trace = tracer.close();
        assert_eq!((trace.events.len(), trace.dropped), (20, 5));
    }

    #[test]
    fn what_began_before_the_window_is_not_in_it_and_an_unchanged_load_is_not_noted_again() {
        let tracer = Tracer::default();
        let before = Instant::now();
        tracer.open(Begin::now(), 1);
        tracer.end(Some(before), What::Wait(Cause::Fill));
        tracer.end(tracer.begin(), What::Wait(Cause::First));
        let load = |running| What::Load {
            running,
            waiting: 0,
        };
        for running in [1, 1, 2, 2, 1] {
            tracer.mark(load(running));
        }
        let trace = tracer.close();
        let whats: Vec<_> = trace.events.iter().map(|event| event.what).collect();
        assert_eq!(whats, [What::Wait(Cause::First), load(1), load(2), load(1)]);
    }
}
