//! How many bytes of JSON make up one token, per model, as the engines' own counts show it.
//!
//! Before anything is learnt it is 4. Each count moves it by an eighth of the way, so that a model's
//! usual prompts rule and a single odd one does not. Threads share one table without locks. It holds
//! a bounded number of models; the names come from clients, so those that find no place share one entry.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Fractions of a byte, in bits.
const FRACTION: u32 = 16;
const LEAST: u32 = 1 << FRACTION;
const INITIAL: u32 = 4 << FRACTION;
const MOST: u32 = 16 << FRACTION;
/// A count moves the ratio by one part in this many of the difference.
const INERTIA: i64 = 8;
/// Fewer tokens say more about the chat template than about prompts.
const MIN_TOKENS: u32 = 16;
/// Beyond [1/4, 64] bytes per token the two do not mean the same prompt: media inside the body, or a
/// conversation that the engine keeps.
const PLAUSIBLE: std::ops::RangeInclusive<u64> = (LEAST as u64) / 4..=(LEAST as u64) * 64;

const MODELS: usize = 256;
/// Places where a model is looked for.
const PROBES: usize = 16;

/// Bytes per token, at least 1, at most 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ratio(u32);

impl Default for Ratio {
    fn default() -> Self {
        Ratio(INITIAL)
    }
}

impl Ratio {
    /// How many tokens that many bytes are.
    pub fn tokens(self, bytes: u64) -> u64 {
        match bytes.checked_mul(1 << FRACTION) {
            Some(scaled) => scaled / u64::from(self.0.max(1)),
            None => u64::MAX,
        }
    }

    /// After an engine has counted `tokens` in `bytes`.
    fn after(self, bytes: u64, tokens: u32) -> Option<Ratio> {
        if tokens < MIN_TOKENS {
            return None;
        }
        let sample = bytes.checked_mul(1 << FRACTION)? / u64::from(tokens);
        if !PLAUSIBLE.contains(&sample) {
            return None;
        }
        let (old, sample) = (i64::from(self.0), i64::try_from(sample).ok()?);
        let sample = sample.clamp(i64::from(LEAST), i64::from(MOST));
        // Rounded away from zero: it arrives instead of stopping just short.
        let way = sample - old;
        let step = (way + (INERTIA - 1) * way.signum()) / INERTIA;
        u32::try_from(old + step).ok().map(Ratio)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Learner {
    models: Box<[Entry]>,
    others: AtomicU32,
}

#[derive(Debug)]
struct Entry {
    /// hash of the model's name; 0: free. Never changes once set.
    model: AtomicU64,
    ratio: AtomicU32,
}

impl Default for Learner {
    fn default() -> Self {
        let free = || Entry {
            model: AtomicU64::new(0),
            ratio: AtomicU32::new(INITIAL),
        };
        Learner {
            models: (0..MODELS).map(|_| free()).collect(),
            others: AtomicU32::new(INITIAL),
        }
    }
}

impl Learner {
    /// Of the model whose name has this hash; 0: the request names none.
    pub fn ratio(&self, model: u64) -> Ratio {
        for entry in self.places(model) {
            match entry.model.load(Relaxed) {
                0 => return Ratio::default(),
                found if found == model => return Ratio(entry.ratio.load(Relaxed)),
                _ => {}
            }
        }
        Ratio(self.others.load(Relaxed))
    }

    /// An engine has counted `tokens` in a prompt of `bytes`.
    pub fn learn(&self, model: u64, bytes: u64, tokens: u32) {
        // Counts that say nothing take no place in the table.
        if Ratio::default().after(bytes, tokens).is_none() {
            return;
        }
        let _ = self.place(model).fetch_update(Relaxed, Relaxed, |ratio| {
            let after = Ratio(ratio).after(bytes, tokens)?;
            (after.0 != ratio).then_some(after.0)
        });
    }

    /// Where a model's ratio stands; a new one takes a place, if there is one.
    fn place(&self, model: u64) -> &AtomicU32 {
        for entry in self.places(model) {
            let found = match entry.model.load(Relaxed) {
                0 => (entry.model.compare_exchange(0, model, Relaxed, Relaxed))
                    .map_or_else(|by_another_thread| by_another_thread, |_| model),
                found => found,
            };
            if found == model {
                return &entry.ratio;
            }
        }
        &self.others
    }

    fn places(&self, model: u64) -> impl Iterator<Item = &Entry> {
        let first = usize::try_from(model % MODELS as u64).unwrap_or(0);
        let probes = if model == 0 { 0 } else { PROBES };
        (self.models.iter().cycle()).skip(first).take(probes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_per_token(learner: &Learner, model: u64) -> f64 {
        f64::from(learner.ratio(model).0) / f64::from(LEAST)
    }

    #[test]
    fn it_starts_at_four_and_comes_to_what_the_engine_counts() {
        let learner = Learner::default();
        assert_eq!(learner.ratio(7).tokens(400), 100);
        for _ in 0..100 {
            learner.learn(7, 3000, 1000);
        }
        assert_eq!(bytes_per_token(&learner, 7), 3.0);
        assert_eq!(bytes_per_token(&learner, 8), 4.0, "each model has its own");
        for _ in 0..200 {
            learner.learn(7, 5000, 1000);
        }
        assert_eq!(bytes_per_token(&learner, 7), 5.0);
    }

    #[test]
    fn the_same_counts_in_the_same_order_teach_the_same() {
        let (a, b) = (Learner::default(), Learner::default());
        for learner in [&a, &b] {
            (1..500).for_each(|n| learner.learn(n % 3, 1000 + u64::from(n as u32), 100 + n as u32));
        }
        assert!((0..3).all(|model| a.ratio(model) == b.ratio(model)));
    }

    #[test]
    fn absurd_counts_teach_nothing_and_odd_ones_only_up_to_the_bounds() {
        let learner = Learner::default();
        for (bytes, tokens) in [
            (1000, 0),
            (0, 1000),
            (0, 0),
            (1000, u32::MAX),
            (u64::MAX, 1000),
            (1 << 50, 1000),
            (60, 15),
            (1000, 4001),
            (64_001_000, 1_000_000),
        ] {
            learner.learn(1, bytes, tokens);
            assert_eq!(bytes_per_token(&learner, 1), 4.0, "{bytes} {tokens}");
        }
        assert!(learner.models.iter().all(|e| e.model.load(Relaxed) == 0));
        for _ in 0..1000 {
            learner.learn(1, 60_000, 1000);
            learner.learn(2, 300, 1000);
        }
        assert_eq!(bytes_per_token(&learner, 1), 16.0);
        assert_eq!(bytes_per_token(&learner, 2), 1.0);
        assert_eq!(learner.ratio(1).tokens(u64::MAX), u64::MAX);
    }

    #[test]
    fn models_beyond_the_bound_share_one_entry() {
        let learner = Learner::default();
        for model in 1..=10_000 {
            learner.learn(model, 2000, 1000);
        }
        let known = |entry: &&Entry| entry.model.load(Relaxed) != 0;
        assert_eq!(learner.models.iter().filter(known).count(), MODELS);
        let one_step = 3.75;
        assert_eq!(bytes_per_token(&learner, 1), one_step);
        assert_eq!(bytes_per_token(&learner, 9_000), 2.0);
        assert_eq!(bytes_per_token(&learner, 0), 2.0, "nor does no name");
    }
}
