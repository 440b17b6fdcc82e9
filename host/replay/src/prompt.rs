//! Text for block ids: what a turn of a trace says when it is played.
//!
//! Equal blocks must give equal bytes from the first message on, or the
//! engines would see less sharing than was recorded. So both the text of a
//! block and the place where one message ends and the next begins follow from
//! the blocks alone, never from the session that sends them.

mod boundaries;
mod text;

use std::ops::Range;

use serde::Serialize;

pub(crate) use boundaries::Boundaries;
pub use text::{BLOCK_BYTES, BLOCK_TOKENS};
pub(crate) use text::{mix, push_block};

/// One message of an OpenAI chat request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who said it.
    pub role: Role,
    /// A multiple of [`BLOCK_BYTES`] of ASCII words.
    pub content: String,
}

/// Who said a message. What tools return goes out as `user`: engines refuse
/// a `tool` message that answers no `tool_calls`, and a trace has neither.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The first message of every prompt.
    System,
    /// The person, or what a tool returned.
    User,
    /// The model's earlier answers.
    Assistant,
}

/// A message before it is text: a run of blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub role: Role,
    pub blocks: Range<usize>,
}

/// The messages of a prompt. Prompts of different `salt` share nothing.
pub(crate) fn messages(salt: u64, blocks: &[u64], boundaries: &Boundaries) -> Vec<Message> {
    let spans = boundaries.split(blocks);
    spans
        .into_iter()
        .map(|span| {
            let ids = blocks.get(span.blocks).unwrap_or_default();
            let mut content = String::with_capacity(ids.len() * BLOCK_BYTES);
            for id in ids {
                push_block(&mut content, salt, *id);
            }
            Message {
                role: span.role,
                content,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cut;

    fn rendered(messages: &[Message]) -> String {
        messages
            .iter()
            .map(|m| format!("{:?}:{}\n", m.role, m.content))
            .collect()
    }

    fn common<T: PartialEq>(a: &[T], b: &[T]) -> usize {
        a.iter().zip(b).take_while(|(x, y)| x == y).count()
    }

    #[test]
    fn prompts_of_the_cut_share_text_exactly_as_far_as_they_share_blocks() {
        let trace = Cut::embedded().unwrap();
        let family: Vec<_> = trace
            .sessions
            .iter()
            .filter(|s| s.id.starts_with("trace_0277"))
            .collect();
        let boundaries = Boundaries::of(&family);
        let prompts: Vec<_> = family
            .iter()
            .flat_map(|s| s.turns.iter().map(|t| &t.blocks))
            .map(|blocks| (blocks, rendered(&messages(7, blocks, &boundaries))))
            .collect();
        for (a, text_a) in &prompts {
            for (b, text_b) in &prompts {
                let blocks = common(a, b);
                let bytes = common(text_a.as_bytes(), text_b.as_bytes());
                assert!(
                    bytes >= blocks * BLOCK_BYTES,
                    "{blocks} blocks, {bytes} bytes"
                );
                if blocks < a.len().min(b.len()) {
                    // The next block differs, whatever the roles before it took.
                    assert!(
                        bytes < (blocks + 1) * BLOCK_BYTES + 2000,
                        "{blocks} blocks, {bytes} bytes"
                    );
                }
            }
        }
    }

    #[test]
    fn a_turn_that_only_grew_repeats_the_messages_before_it() {
        let trace = Cut::embedded().unwrap();
        let family: Vec<_> = trace
            .sessions
            .iter()
            .filter(|s| s.id.starts_with("trace_0274"))
            .collect();
        let boundaries = Boundaries::of(&family);
        let mut grown = 0;
        for pair in family.iter().flat_map(|s| s.turns.windows(2)) {
            let before = messages(1, &pair[0].blocks, &boundaries);
            let after = messages(1, &pair[1].blocks, &boundaries);
            assert_eq!(before[0].role, Role::System);
            if pair[1].blocks.starts_with(&pair[0].blocks) {
                grown += 1;
                assert_eq!(after[..before.len()], before);
                assert_ne!(after.last().unwrap().role, Role::Assistant);
            }
        }
        assert!(grown > 20, "{grown}");
    }

    #[test]
    fn another_salt_shares_not_even_the_first_block() {
        let boundaries = Boundaries::default();
        let (a, b) = (
            messages(1, &[5, 6], &boundaries),
            messages(2, &[5, 6], &boundaries),
        );
        assert!(common(a[0].content.as_bytes(), b[0].content.as_bytes()) < BLOCK_BYTES);
    }
}
