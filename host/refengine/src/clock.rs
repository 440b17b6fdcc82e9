//! Modelled time and the machine's.

use std::time::Duration;

use tokio::time::Instant;

/// Nothing takes longer than this.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Modelled time since the engine started; at time scale 0 the machine's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
    scale: f64,
}

impl Clock {
    pub(crate) fn start(time_scale: f64) -> Self {
        let scale = if time_scale > 0.0 { time_scale } else { 1.0 };
        Self {
            start: Instant::now(),
            scale,
        }
    }

    pub(crate) fn now(self) -> Duration {
        let seconds = self.start.elapsed().as_secs_f64() / self.scale;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// How long a modelled duration takes on the machine.
    pub(crate) fn real(self, modelled: Duration) -> Duration {
        Duration::try_from_secs_f64(modelled.as_secs_f64() * self.scale)
            .map_or(LONGEST, |real| real.min(LONGEST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn modelled_time_runs_as_much_faster_as_the_scale_is_small() {
        let (scaled, machine) = (Clock::start(0.01), Clock::start(0.0));
        tokio::time::advance(Duration::from_millis(10)).await;
        let second = Duration::from_secs(1);
        assert_eq!(scaled.now(), second);
        assert_eq!(machine.now(), Duration::from_millis(10));
        assert_eq!(scaled.real(second), Duration::from_millis(10));
        assert_eq!(machine.real(second), second);
        assert_eq!(Clock::start(f64::MAX).real(second), LONGEST);
    }
}
