//! Named sets of costs and capacities.

use serde::{Deserialize, Serialize};

use crate::cost::CostModel;
use crate::error::ConfigError;

/// What one rank runs on: costs, batch limits, cache.
///
/// The named presets are plausible round numbers (weights over memory bandwidth, FLOPs over what
/// a good kernel reaches, KV bytes a token over what memory is left), not measurements. Compare
/// policies with them, not accelerators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// The preset's name, for people.
    pub name: String,
    /// Durations.
    pub cost: CostModel,
    /// The most tokens one step computes, prefill and decode together; at least `max_num_seqs`,
    /// so that every running sequence can decode in every step.
    pub max_num_batched_tokens: usize,
    /// The most sequences that run at once, at least 1; fewer where the cache has no room for them.
    pub max_num_seqs: usize,
    /// Tokens in a cache block, 1 to 4096.
    pub block_tokens: usize,
    /// Cache blocks of a rank, at least 1. A request needs them for prompt and output together.
    pub cache_blocks: usize,
}

const H200_8B: CostModel = CostModel {
    step_base_us: 5_000.0,
    prefill_token_us: 25.0,
    prefill_attention_us: 0.001,
    decode_sequence_us: 20.0,
    decode_context_us: 0.03,
};
const H200_70B: CostModel = CostModel {
    step_base_us: 12_000.0,
    prefill_token_us: 60.0,
    prefill_attention_us: 0.002,
    decode_sequence_us: 40.0,
    decode_context_us: 0.01,
};
const MI300X_70B: CostModel = CostModel {
    step_base_us: 12_000.0,
    prefill_token_us: 80.0,
    prefill_attention_us: 0.002,
    decode_sequence_us: 40.0,
    decode_context_us: 0.01,
};
const CPU_TINY: CostModel = CostModel {
    step_base_us: 2_000.0,
    prefill_token_us: 200.0,
    prefill_attention_us: 0.02,
    decode_sequence_us: 500.0,
    decode_context_us: 0.5,
};

/// name, costs, max_num_batched_tokens, max_num_seqs, cache_blocks
const PRESETS: [(&str, CostModel, usize, usize, usize); 4] = [
    // One GPU a rank, BF16; about 0.8 M tokens of KV cache.
    ("h200-8b", H200_8B, 8192, 256, 12_500),
    // Eight GPUs a rank (TP 8), BF16; about 2.5 M tokens.
    ("h200-70b", H200_70B, 8192, 256, 40_000),
    // Eight GPUs a rank (TP 8), BF16; about 3.6 M tokens.
    ("mi300x-70b", MI300X_70B, 8192, 256, 56_000),
    // A toy model on a few cores: a small cache that a demo fills in seconds.
    ("cpu-tiny", CPU_TINY, 512, 16, 512),
];

impl Preset {
    /// Cache blocks have this many tokens in every named preset.
    pub const BLOCK_TOKENS: usize = 64;

    /// The names that [`Preset::named`] knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|p| p.0)
    }

    /// The preset of that name.
    ///
    /// # Errors
    /// An unknown name; the error lists the known ones.
    pub fn named(name: &str) -> Result<Self, ConfigError> {
        let found = PRESETS.iter().find(|p| p.0 == name).ok_or_else(|| {
            let known: Vec<_> = Self::names().collect();
            ConfigError::new("preset", format!("one of {}", known.join(", ")), name)
        })?;
        Ok(Self::from_row(*found))
    }

    fn from_row(
        (name, cost, max_num_batched_tokens, max_num_seqs, cache_blocks): (
            &str,
            CostModel,
            usize,
            usize,
            usize,
        ),
    ) -> Self {
        Self {
            name: name.into(),
            cost,
            max_num_batched_tokens,
            max_num_seqs,
            block_tokens: Self::BLOCK_TOKENS,
            cache_blocks,
        }
    }

    /// The most tokens of prompt and output together that fit the cache of a rank.
    #[must_use]
    pub fn max_context(&self) -> usize {
        self.block_tokens.saturating_mul(self.cache_blocks)
    }

    /// Checks every range.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        for (setting, us) in self.cost.fields() {
            if !(us.is_finite() && us >= 0.0) {
                return Err(ConfigError::new(setting, "a number of at least 0", us));
            }
        }
        if !(1..=4096).contains(&self.block_tokens) {
            return Err(ConfigError::new(
                "block_tokens",
                "1 to 4096",
                self.block_tokens,
            ));
        }
        if self.cache_blocks == 0 {
            return Err(ConfigError::new("cache_blocks", "at least 1", 0));
        }
        if self.max_num_seqs == 0 {
            return Err(ConfigError::new("max_num_seqs", "at least 1", 0));
        }
        if self.max_num_batched_tokens < self.max_num_seqs {
            return Err(ConfigError::new(
                "max_num_batched_tokens",
                format!(
                    "at least max_num_seqs = {}, so that each running sequence gets its token",
                    self.max_num_seqs
                ),
                self.max_num_batched_tokens,
            ));
        }
        if u32::try_from(self.max_num_batched_tokens).is_err() {
            return Err(ConfigError::new(
                "max_num_batched_tokens",
                format!("at most {}", u32::MAX),
                self.max_num_batched_tokens,
            ));
        }
        Ok(())
    }
}

impl Default for Preset {
    /// `h200-8b`.
    fn default() -> Self {
        let [first, ..] = PRESETS;
        Self::from_row(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_preset_is_valid_and_an_unknown_name_lists_them() {
        for name in Preset::names() {
            let preset = Preset::named(name).unwrap();
            assert_eq!((preset.name.as_str(), preset.validate()), (name, Ok(())));
        }
        assert_eq!(Preset::default(), Preset::named("h200-8b").unwrap());
        let error = Preset::named("h100").unwrap_err().to_string();
        assert!(
            error.contains("h200-70b, mi300x-70b") && error.contains("h100"),
            "{error}"
        );
    }

    #[test]
    fn each_capacity_out_of_range_is_named() {
        let ok = Preset::default();
        let bad = [
            (
                "block_tokens",
                Preset {
                    block_tokens: 0,
                    ..ok.clone()
                },
            ),
            (
                "cache_blocks",
                Preset {
                    cache_blocks: 0,
                    ..ok.clone()
                },
            ),
            (
                "max_num_seqs",
                Preset {
                    max_num_seqs: 0,
                    ..ok.clone()
                },
            ),
            (
                "max_num_batched_tokens",
                Preset {
                    max_num_batched_tokens: 8,
                    ..ok.clone()
                },
            ),
            (
                "max_num_batched_tokens",
                Preset {
                    max_num_batched_tokens: 1 << 40,
                    ..ok.clone()
                },
            ),
            (
                "decode_context_us",
                Preset {
                    cost: CostModel {
                        decode_context_us: -1.0,
                        ..ok.cost
                    },
                    ..ok.clone()
                },
            ),
        ];
        for (setting, preset) in bad {
            assert_eq!(preset.validate().unwrap_err().setting, setting);
        }
    }
}
