//! How long a forward pass takes.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// No step is modelled as longer than this, whatever the numbers say.
const LONGEST_STEP: Duration = Duration::from_secs(24 * 3600);

/// The duration of one step of one rank, linear in what the step does. Microseconds throughout;
/// each number finite and not negative.
///
/// A step is one forward pass over prefill chunks and decoding sequences together, so `base` is
/// paid once. Prefill is bound by arithmetic (per token, and per token and context for
/// attention), decode by memory traffic (per sequence, and per context token for its KV cache).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostModel {
    /// Per step: reading the weights, launching kernels.
    pub step_base_us: f64,
    /// Per prompt token computed.
    pub prefill_token_us: f64,
    /// Per prompt token computed and token of context that it attends to.
    pub prefill_attention_us: f64,
    /// Per decoding sequence.
    pub decode_sequence_us: f64,
    /// Per token of context of each decoding sequence.
    pub decode_context_us: f64,
}

/// What one step does, as far as its duration depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Prompt tokens computed.
    pub prefill_tokens: usize,
    /// Sum over those tokens of the context each attends to.
    pub prefill_attention: f64,
    /// Sequences that get one more token from decoding.
    pub decode_sequences: usize,
    /// Sum of the decoding sequences' contexts, tokens.
    pub decode_context: usize,
}

impl Work {
    /// Adds a chunk of `tokens` prompt tokens after `context` tokens that are already computed.
    pub fn prefill(&mut self, tokens: usize, context: usize) {
        let n = tokens as f64;
        self.prefill_tokens += tokens;
        // Causal: the first token of the chunk sees `context`, the last `context + tokens`.
        self.prefill_attention += n * (context as f64 + n / 2.0);
    }

    /// Adds one decode token of a sequence with `context` tokens.
    pub fn decode(&mut self, context: usize) {
        self.decode_sequences += 1;
        self.decode_context += context;
    }

    /// Nothing to do: no step takes place.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prefill_tokens == 0 && self.decode_sequences == 0
    }
}

impl CostModel {
    /// The duration of a step that does `work`.
    #[must_use]
    pub fn step(&self, work: &Work) -> Duration {
        let us = self.step_base_us
            + self.prefill_token_us * work.prefill_tokens as f64
            + self.prefill_attention_us * work.prefill_attention
            + self.decode_sequence_us * work.decode_sequences as f64
            + self.decode_context_us * work.decode_context as f64;
        Duration::try_from_secs_f64(us / 1e6).map_or(LONGEST_STEP, |d| d.min(LONGEST_STEP))
    }

    pub(crate) fn fields(&self) -> [(&'static str, f64); 5] {
        [
            ("step_base_us", self.step_base_us),
            ("prefill_token_us", self.prefill_token_us),
            ("prefill_attention_us", self.prefill_attention_us),
            ("decode_sequence_us", self.decode_sequence_us),
            ("decode_context_us", self.decode_context_us),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: CostModel = CostModel {
        step_base_us: 1000.0,
        prefill_token_us: 10.0,
        prefill_attention_us: 0.5,
        decode_sequence_us: 100.0,
        decode_context_us: 2.0,
    };

    #[test]
    fn a_step_is_the_sum_of_its_parts() {
        let mut work = Work::default();
        assert!(work.is_empty());
        work.prefill(10, 100); // 10·10 + 0.5·10·105
        work.decode(50); // 100 + 2·50
        assert_eq!(
            MODEL.step(&work),
            Duration::from_micros(1000 + 100 + 525 + 100 + 100)
        );
    }

    #[test]
    fn a_prompt_costs_the_same_attention_in_one_chunk_or_in_many() {
        let (mut whole, mut chunks) = (Work::default(), Work::default());
        whole.prefill(100, 0);
        (0..10).for_each(|i| chunks.prefill(10, 10 * i));
        assert_eq!(whole, chunks);
    }

    #[test]
    fn absurd_numbers_give_the_longest_step_not_a_panic() {
        let model = CostModel {
            step_base_us: f64::MAX,
            ..MODEL
        };
        assert_eq!(model.step(&Work::default()), LONGEST_STEP);
    }
}
