//! How large a prompt is, and its beginning as a chain that tells what a session has sent before.

use crate::json::Scan;
use pointsman_core::{Chain, ChainBuilder};

/// Bytes of JSON that make up one token, until it is learnt from the engines' `usage`.
const BYTES_PER_TOKEN: u64 = 4;
/// A prompt that is one text is marked this often, so that the next turn's longer text shares it.
const BLOCK_BYTES: usize = 1024;

/// A prompt's size, and how to know what of it is new.
#[derive(Debug, Default)]
pub(crate) struct Estimate {
    pub(crate) prompt_tokens: u32,
    pub(crate) chain: Chain,
}

impl Estimate {
    /// From an inspected body.
    pub(crate) fn of(scan: &Scan) -> Estimate {
        let mut chain = ChainBuilder::default();
        let mut bytes = 0;
        let blocks = scan
            .text
            .iter()
            .flat_map(|text| text.as_bytes().chunks(BLOCK_BYTES));
        let parts = (scan.preamble.iter().chain(&scan.messages)).map(|part| part.as_bytes());
        for part in parts.chain(blocks) {
            bytes += part.len() as u64;
            chain.message(part, tokens(bytes));
        }
        Estimate {
            prompt_tokens: tokens(bytes),
            chain: chain.build(),
        }
    }

    /// From the length of a body that was not inspected; none: unknown.
    pub(crate) fn of_length(bytes: Option<u64>) -> Estimate {
        Estimate {
            prompt_tokens: tokens(bytes.unwrap_or(0)),
            chain: Chain::default(),
        }
    }
}

fn tokens(bytes: u64) -> u32 {
    u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_model_reads_is_counted() {
        let tokens = |body| Estimate::of(&Scan::of(body).unwrap()).prompt_tokens;
        assert_eq!(
            tokens(r#"{"messages":["12","34"],"tools":[123456],"user":"long"}"#),
            4
        );
        assert_eq!(tokens(r#"{"prompt":"123456"}"#), 2);
        assert_eq!(tokens(r#"{"model":"m"}"#), 0);
    }

    #[test]
    fn tools_come_before_the_messages_wherever_they_stand() {
        let chain = |body| Estimate::of(&Scan::of(body).unwrap()).chain;
        assert_eq!(
            chain(r#"{"messages":["a"],"tools":[1]}"#),
            chain(r#"{"tools":[1],"messages":["a"]}"#)
        );
    }
}
