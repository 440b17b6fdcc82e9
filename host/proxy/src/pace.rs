//! How fast an engine answers one request, for the window of its target: the time from the moment that
//! it was sent there to the first bytes of a streamed answer, and the times between its events from then
//! on. Costs a clock reading and an uncontended lock an arrival, and nothing where nobody wants to know.

use pointsman_core::{Core, SharedLatency, Target};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// See the module.
#[derive(Debug)]
pub(crate) struct Pace {
    window: SharedLatency,
    sent: Instant,
    /// the same moment by the core's clock
    sent_ms: u64,
    /// when the last events came
    last: Option<Instant>,
}

impl Pace {
    /// The request goes out now. None: nobody wants to know.
    pub(crate) fn begin(core: &Core, target: Target) -> Option<Pace> {
        Some(Pace {
            window: core.measured.of(target)?,
            sent: Instant::now(),
            sent_ms: core.now_ms(),
            last: None,
        })
    }

    /// A piece of the stream came, and so many events ended with it.
    pub(crate) fn arrived(&mut self, events: u32) {
        let first = self.last.is_none();
        // What carries no event is no token: a comment, half an event, the stream's own end.
        if events == 0 && !first {
            return;
        }
        let now = Instant::now();
        let took = now.saturating_duration_since(self.last.unwrap_or(self.sent));
        let since_sent = now.saturating_duration_since(self.sent).as_millis();
        let now_ms = (self.sent_ms).saturating_add(u64::try_from(since_sent).unwrap_or(u64::MAX));
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        if first {
            window.ttft(now_ms, micros(took));
        } else {
            window.itl(now_ms, micros(took), events);
        }
        self.last = Some(now);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
