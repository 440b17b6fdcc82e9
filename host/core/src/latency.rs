//! How fast an engine answers, over the last seconds: time to first token (TTFT) and inter-token latency
//! (ITL), as somebody outside of it measured them.
//!
//! A window is the last [`WINDOW_MS`] and the part of a second before them: it moves a second at a time, so
//! that nothing younger is ever missing and nothing older than a second more is in it. It takes 6.4 KiB,
//! however much is measured. No clock and no I/O: times are passed in, real or virtual.
//!
//! | | unit | range | error |
//! |---|---|---|---|
//! | mean | ms | any | none |
//! | quantiles (nearest rank) | ms | 16 µs to 18 min; what lies outside counts as the end that it is beyond | 5 % at most |
//!
//! Samples are counted in buckets, ten to each power of two, 65 535 a second in each; more than that are in
//! the mean alone. An exact order of all samples would need memory for each of them.

/// What a window covers at least, in ms.
pub const WINDOW_MS: u64 = 5000;

/// It moves by so much, in ms.
const SLOT_MS: u64 = 1000;
/// The one that is being filled, and those before it.
const SLOTS: usize = (WINDOW_MS / SLOT_MS) as usize + 1;
/// Buckets of one power of two: a bucket's ends differ by a tenth at most, so that the value that is as far
/// from both is 1 / 21 away.
const STEPS: u64 = 10;
/// The lowest value that is told from others, in µs, is 2 to this power; …
const LOW: u32 = 4;
/// … and all from 2 to this power on are one.
const HIGH: u32 = 30;
const BUCKETS: usize = (HIGH - LOW) as usize * STEPS as usize;

/// TTFT and ITL of one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    ttft: Window,
    itl: Window,
}

impl Latency {
    /// The names of [`Latency::stat`], all in ms.
    pub const STATS: [&str; 8] = [
        "ttft_ms_mean",
        "ttft_ms_p50",
        "ttft_ms_p90",
        "ttft_ms_p99",
        "itl_ms_mean",
        "itl_ms_p50",
        "itl_ms_p90",
        "itl_ms_p99",
    ];

    /// A first token came at `now_ms`, `us` µs after its request was sent.
    ///
    /// `now_ms` counts from any moment, the same for all calls; it need not grow from one call to the next,
    /// but what comes more than a window late is dropped.
    pub fn ttft(&mut self, now_ms: u64, us: u64) {
        self.ttft.add(now_ms, us, 1);
    }

    /// `tokens` came together at `now_ms`, `us` µs after those before them: as many samples of `us / tokens`.
    pub fn itl(&mut self, now_ms: u64, us: u64, tokens: u32) {
        self.itl.add(now_ms, us, tokens);
    }

    /// One of [`Latency::STATS`] at `now_ms`, in ms. None: another name, or nothing was measured within the
    /// window.
    #[must_use]
    pub fn stat(&self, now_ms: u64, name: &str) -> Option<f64> {
        let (window, stat) = match name.split_once("_ms_")? {
            ("ttft", stat) => (&self.ttft, stat),
            ("itl", stat) => (&self.itl, stat),
            _ => return None,
        };
        match stat {
            "mean" => window.mean(now_ms),
            "p50" => window.quantile(now_ms, 50),
            "p90" => window.quantile(now_ms, 90),
            "p99" => window.quantile(now_ms, 99),
            _ => None,
        }
    }
}

/// One kind of time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Window {
    /// that of a second at its number mod the number of slots
    slots: [Slot; SLOTS],
}

/// What was measured in one second.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Slot {
    /// which
    second: u64,
    samples: u64,
    sum_us: u64,
    buckets: [u16; BUCKETS],
}

impl Default for Slot {
    fn default() -> Self {
        Slot::of(0)
    }
}

impl Slot {
    fn of(second: u64) -> Slot {
        Slot {
            second,
            samples: 0,
            sum_us: 0,
            buckets: [0; BUCKETS],
        }
    }
}

impl Window {
    /// `us` is the sum of all `samples`, which are alike.
    fn add(&mut self, now_ms: u64, us: u64, samples: u32) {
        let Some(each) = us.checked_div(samples.into()) else {
            return;
        };
        let second = now_ms / SLOT_MS;
        let Some(slot) = self.slots.get_mut(place(second)) else {
            return;
        };
        if slot.second > second {
            return;
        }
        if slot.second < second {
            *slot = Slot::of(second);
        }
        slot.samples = slot.samples.saturating_add(samples.into());
        slot.sum_us = slot.sum_us.saturating_add(us);
        if let Some(bucket) = slot.buckets.get_mut(bucket(each)) {
            let more = u16::try_from(samples).unwrap_or(u16::MAX);
            *bucket = bucket.saturating_add(more);
        }
    }

    /// Those of the slots that are within the window.
    fn within(&self, now_ms: u64) -> impl Iterator<Item = &Slot> {
        let now = now_ms / SLOT_MS;
        let first = (now + 1).saturating_sub(SLOTS as u64);
        (self.slots.iter()).filter(move |slot| (first..=now).contains(&slot.second))
    }

    #[expect(clippy::cast_precision_loss, reason = "to 2⁵³ µs, 285 years, exact")]
    fn mean(&self, now_ms: u64) -> Option<f64> {
        let (samples, us) = (self.within(now_ms)).fold((0_u64, 0_u64), |(samples, us), slot| {
            (
                samples.saturating_add(slot.samples),
                us.saturating_add(slot.sum_us),
            )
        });
        (samples > 0).then(|| us as f64 / samples as f64 / 1000.0)
    }

    /// The lowest value that `percent` of all do not exceed.
    fn quantile(&self, now_ms: u64, percent: u64) -> Option<f64> {
        let mut buckets = [0_u64; BUCKETS];
        for slot in self.within(now_ms) {
            for (sum, &n) in buckets.iter_mut().zip(&slot.buckets) {
                *sum += u64::from(n);
            }
        }
        let all: u64 = buckets.iter().sum();
        let rank = (all * percent).div_ceil(100).max(1);
        let mut below = 0;
        let found = buckets.iter().position(|&n| {
            below += n;
            below >= rank
        });
        found.map(middle_ms)
    }
}

fn place(second: u64) -> usize {
    usize::try_from(second % SLOTS as u64).unwrap_or(0)
}

/// The bucket of a value in µs.
fn bucket(us: u64) -> usize {
    let us = us.clamp(1 << LOW, (1 << HIGH) - 1);
    let power = us.ilog2();
    let step = ((us * STEPS) >> power) - STEPS;
    let bucket = u64::from(power - LOW) * STEPS + step;
    usize::try_from(bucket).unwrap_or(BUCKETS - 1)
}

/// The value whose relative distance from both ends of a bucket is the same, in ms.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn middle_ms(bucket: usize) -> f64 {
    let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    let us = (1_u64 << (power + u64::from(LOW))) as f64 / STEPS as f64;
    let (low, high) = ((STEPS + step) as f64 * us, (STEPS + step + 1) as f64 * us);
    2.0 * low * high / (low + high) / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::splitmix64;

    /// Random times between 20 µs and 2000 s, as many short as long ones.
    fn samples(seed: u64, n: u64) -> Vec<u64> {
        let random = |at: u64| splitmix64(seed.wrapping_mul(0x9e37_79b9).wrapping_add(at));
        let spread = |x: u64| 20 + (x >> 32) % (1 << (5 + x % 21));
        (0..n).map(|at| spread(random(at))).collect()
    }

    /// By nearest rank, in ms.
    fn exact(samples: &[u64], percent: usize) -> f64 {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted[rank - 1] as f64 / 1000.0
    }

    fn near(found: Option<f64>, wanted: f64, share: f64) {
        let found = found.unwrap();
        let error = (found - wanted).abs() / wanted;
        assert!(error <= share, "wanted {wanted}, found {found}: {error}");
    }

    #[test]
    fn quantiles_of_random_samples_are_within_5_percent_and_means_are_exact() {
        for seed in 0..50 {
            let samples = samples(seed, 1 + seed * 37);
            let mut latency = Latency::default();
            for (&us, at) in samples.iter().zip(0..) {
                // Over all slots of a window.
                latency.ttft(7_000 + at % 6_000, us);
                latency.itl(7_000 + at % 6_000, us * 3, 3);
            }
            let mean = samples.iter().sum::<u64>() as f64 / samples.len() as f64 / 1000.0;
            for kind in ["ttft", "itl"] {
                let stat = |name| latency.stat(12_999, &format!("{kind}_ms_{name}"));
                near(stat("mean"), mean, 1e-9);
                near(stat("p50"), exact(&samples, 50), 0.05);
                near(stat("p90"), exact(&samples, 90), 0.05);
                near(stat("p99"), exact(&samples, 99), 0.05);
            }
        }
    }

    #[test]
    fn what_is_beyond_the_range_counts_as_its_end() {
        for (us, wanted) in [(0, 0.016), (1, 0.016), (u64::MAX, 1_073_741.0)] {
            let mut latency = Latency::default();
            latency.ttft(0, us);
            near(latency.stat(0, "ttft_ms_p99"), wanted, 0.05);
        }
        let every = (0..BUCKETS).map(middle_ms);
        assert!(every.is_sorted_by(|a, b| a < b));
        for at in 0..BUCKETS {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "it is one"
            )]
            let us = (middle_ms(at) * 1000.0).round() as u64;
            // Below 10 · 2⁴ µs a bucket is narrower than the microsecond.
            assert!(bucket(us).abs_diff(at) <= usize::from(us < 160), "{at}");
        }
    }

    #[test]
    fn five_seconds_are_always_there_and_six_never() {
        for start in [0, 1, 499, 999, 1_000_000] {
            let mut latency = Latency::default();
            latency.ttft(start, 40_000);
            latency.itl(start, 90_000, 3);
            for (later, is_there) in [(0, true), (4_999, true), (5_000, true), (6_000, false)] {
                for name in Latency::STATS {
                    let found = latency.stat(start + later, name);
                    assert_eq!(found.is_some(), is_there, "{name} {start} + {later}");
                }
            }
            latency.ttft(start + 5_000, 80_000);
            near(latency.stat(start + 5_000, "ttft_ms_mean"), 60.0, 1e-9);
            near(latency.stat(start + 6_000, "ttft_ms_mean"), 80.0, 1e-9);
            near(latency.stat(start + 6_000, "ttft_ms_p50"), 80.0, 0.05);
        }
    }

    #[test]
    fn silence_is_none_and_so_is_another_name() {
        let mut latency = Latency::default();
        for name in Latency::STATS {
            assert_eq!(latency.stat(0, name), None);
        }
        latency.ttft(10, 5);
        latency.itl(10, 5, 0);
        assert_eq!(
            latency.stat(10, "itl_ms_mean"),
            None,
            "no token is no sample"
        );
        for name in [
            "",
            "ttft",
            "ttft_ms_",
            "ttft_ms_p95",
            "itl_s_mean",
            "x_ms_p50",
        ] {
            assert_eq!(latency.stat(10, name), None, "{name}");
        }
    }

    #[test]
    fn late_samples_count_in_their_own_second_or_not_at_all() {
        let mut latency = Latency::default();
        latency.ttft(20_000, 100);
        latency.ttft(16_000, 300);
        near(latency.stat(20_000, "ttft_ms_mean"), 0.2, 1e-9);
        latency.ttft(14_000, 900);
        near(latency.stat(20_000, "ttft_ms_mean"), 0.2, 1e-9);
        near(latency.stat(22_000, "ttft_ms_mean"), 0.1, 1e-9);
    }

    #[test]
    fn it_takes_a_few_kib_and_a_flood_overflows_nothing() {
        assert!(size_of::<Latency>() < 7 << 10, "{}", size_of::<Latency>());
        let mut latency = Latency::default();
        for _ in 0..3 {
            latency.itl(0, u64::MAX, u32::MAX);
            latency.ttft(u64::MAX, u64::MAX);
        }
        assert!(latency.stat(0, "itl_ms_p99").is_some_and(f64::is_finite));
        assert!(
            latency
                .stat(u64::MAX, "ttft_ms_mean")
                .is_some_and(f64::is_finite)
        );
    }
}
