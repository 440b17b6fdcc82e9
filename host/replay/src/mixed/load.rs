//! A made load: prompts that are long or short, at random times, the same for the same seed.

use std::time::Duration;

use pointsman_core::splitmix64;
use pointsman_refengine::Preset;

/// The most requests of a load: a minute or so of computing.
const MAX_REQUESTS: f64 = 200_000.0;

/// An engine and what comes to it. Times between requests are exponential (a Poisson process), lengths
/// uniform from half to one and a half times what is said here.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// data-parallel ranks, 1 to 1024
    pub ranks: usize,
    /// what each of them runs on
    pub preset: Preset,
    /// another one, another load
    pub seed: u64,
    /// for how long requests come
    pub duration: Duration,
    /// to all ranks together, more than 0
    pub requests_per_s: f64,
    /// the part of them that are long, 0 to 1
    pub long_share: f64,
    /// tokens of a long prompt
    pub long_prompt: usize,
    /// tokens of the others
    pub short_prompt: usize,
    /// tokens generated for each of them
    pub output: usize,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            ranks: 8,
            preset: Preset::default(),
            seed: 1,
            duration: Duration::from_secs(600),
            requests_per_s: 12.0,
            long_share: 0.1,
            long_prompt: 16_384,
            short_prompt: 512,
            output: 256,
        }
    }
}

/// One request.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrival {
    /// from 0, in order
    pub id: u64,
    /// since the beginning
    pub at: Duration,
    /// at least 1
    pub prompt_tokens: usize,
    /// at least 1
    pub output_tokens: usize,
}

/// A load that cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{what}: wanted {wanted}, found {found}")]
pub struct BadMix {
    what: &'static str,
    wanted: String,
    found: String,
}

/// Uniform in 0 to 1, neither included.
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(1);
        ((splitmix64(self.0) >> 12) as f64 + 0.5) / (1u64 << 52) as f64
    }

    fn around(&mut self, tokens: usize) -> usize {
        let tokens = tokens as f64 * (0.5 + self.next());
        (tokens.round() as usize).max(1)
    }
}

impl Mix {
    /// Checks every range.
    ///
    /// # Errors
    /// The first that is out of its range.
    pub fn validate(&self) -> Result<(), BadMix> {
        let bad = |what, wanted: &str, found: String| {
            Err(BadMix {
                what,
                wanted: wanted.to_owned(),
                found,
            })
        };
        if !(1..=1024).contains(&self.ranks) {
            return bad("ranks", "1 to 1024", self.ranks.to_string());
        }
        let rate = self.requests_per_s;
        if !(rate.is_finite() && rate > 0.0) {
            return bad("requests per second", "more than 0", rate.to_string());
        }
        let requests = rate * self.duration.as_secs_f64();
        if requests > MAX_REQUESTS {
            let wanted = format!("at most {MAX_REQUESTS}");
            return bad(
                "requests per second × seconds",
                &wanted,
                format!("{requests:e}"),
            );
        }
        if !(0.0..=1.0).contains(&self.long_share) {
            return bad("long share", "0 to 1", self.long_share.to_string());
        }
        let longest = self.long_prompt.max(self.short_prompt);
        let most = longest.saturating_add(self.output).saturating_mul(3) / 2;
        let room = self.preset.max_context();
        if most > room {
            let wanted = format!("at most {room}: the cache of a rank");
            return bad(
                "one and a half times prompt and output",
                &wanted,
                most.to_string(),
            );
        }
        Ok(())
    }

    /// All requests, in order.
    #[must_use]
    pub fn arrivals(&self) -> Vec<Arrival> {
        let mut chance = Chance(splitmix64(self.seed));
        let mut at = 0.0;
        let mut all = Vec::new();
        loop {
            at -= chance.next().ln() / self.requests_per_s;
            let Ok(now) = Duration::try_from_secs_f64(at) else {
                return all;
            };
            if now >= self.duration || all.len() as f64 >= 2.0 * MAX_REQUESTS {
                return all;
            }
            let is_long = chance.next() < self.long_share;
            let prompt = if is_long {
                self.long_prompt
            } else {
                self.short_prompt
            };
            all.push(Arrival {
                id: all.len() as u64,
                at: now,
                prompt_tokens: chance.around(prompt),
                output_tokens: chance.around(self.output),
            });
        }
    }
}
