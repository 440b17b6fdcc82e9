//! How large a prompt is, and its beginning as a chain that tells what a session has sent before.

use crate::json::Scan;
use crate::learn::Ratio;
use pointsman_core::{Chain, ChainBuilder};

/// No prompt counts for more: above the context windows that are served, and little enough that a
/// gigabyte on its way to one target does not outweigh everything else in the fleet.
pub const MAX_PROMPT_TOKENS: u32 = 2 << 20;
/// A prompt that is one text is marked this often, so that the next turn's longer text shares it.
const BLOCK_BYTES: usize = 1024;

/// A prompt's size, and how to know what of it is new.
#[derive(Debug, Default)]
pub struct Estimate {
    /// the whole prompt
    pub size: PromptSize,
    /// its messages
    pub chain: Chain,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct PromptSize {
    /// what the model reads, as JSON; 0: the body was not looked into
    pub bytes: u64,
    /// as estimated
    pub tokens: u32,
}

impl Estimate {
    /// From an inspected body.
    pub fn of(scan: &Scan, ratio: Ratio) -> Estimate {
        let mut chain = ChainBuilder::default();
        let mut bytes = 0;
        let blocks = scan
            .text
            .iter()
            .flat_map(|text| text.as_bytes().chunks(BLOCK_BYTES));
        let parts = (scan.preamble().chain(&scan.messages)).map(|part| part.as_bytes());
        for part in parts.chain(blocks) {
            bytes += part.len() as u64;
            chain.message(part, tokens(bytes, ratio));
        }
        // Of messages beyond the bound only the size counts: all of it is new.
        bytes += scan.more_bytes;
        Estimate {
            size: PromptSize {
                bytes,
                tokens: tokens(bytes, ratio),
            },
            chain: chain.build(),
        }
    }

    /// From the length of a body that was not inspected; none: unknown.
    pub fn of_length(bytes: Option<u64>, ratio: Ratio) -> Estimate {
        Estimate {
            size: PromptSize {
                bytes: 0,
                tokens: tokens(bytes.unwrap_or(0), ratio),
            },
            chain: Chain::default(),
        }
    }
}

fn tokens(bytes: u64, ratio: Ratio) -> u32 {
    u32::try_from(ratio.tokens(bytes)).map_or(MAX_PROMPT_TOKENS, |n| n.min(MAX_PROMPT_TOKENS))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &str) -> Estimate {
        Estimate::of(&Scan::of(body).unwrap(), Ratio::default())
    }

    #[test]
    fn only_what_the_model_reads_is_counted() {
        let tokens = |body| of(body).size.tokens;
        assert_eq!(
            tokens(r#"{"messages":["12","34"],"tools":[123456],"user":"long"}"#),
            4
        );
        assert_eq!(tokens(r#"{"prompt":"123456"}"#), 2);
        assert_eq!(tokens(r#"{"model":"m"}"#), 0);
    }

    #[test]
    fn tools_come_before_the_messages_wherever_they_stand() {
        let chain = |body| of(body).chain;
        assert_eq!(
            chain(r#"{"messages":["a"],"tools":[1],"system":"s"}"#),
            chain(r#"{"system":"s","tools":[1],"messages":["a"]}"#)
        );
    }

    #[test]
    fn no_length_is_more_than_the_longest_prompt() {
        for (bytes, tokens) in [
            (None, 0),
            (Some(4000), 1000),
            (Some(1 << 30), MAX_PROMPT_TOKENS),
            (Some(u64::MAX), MAX_PROMPT_TOKENS),
        ] {
            let estimate = Estimate::of_length(bytes, Ratio::default());
            assert_eq!(estimate.size.tokens, tokens);
        }
    }

    #[test]
    fn a_million_messages_are_counted_in_full_and_remembered_in_part() {
        let body = format!(
            r#"{{"messages":[{}"mmmmmm"]}}"#,
            r#""mmmmmm","#.repeat(1_000_000)
        );
        let estimate = of(&body);
        assert_eq!(estimate.size.tokens, 8 * 1_000_001 / 4);
        let bound = format!(
            r#"{{"messages":[{}"mmmmmm"]}}"#,
            r#""mmmmmm","#.repeat(16_383)
        );
        assert_eq!(estimate.chain, of(&bound).chain);
    }
}
