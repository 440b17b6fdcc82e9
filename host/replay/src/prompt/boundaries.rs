//! Where the messages of a family's prompts end.

use std::collections::HashMap;

use super::{BLOCK_TOKENS, Role, Span, mix};
use crate::trace::Session;

/// Longest system message, in blocks (8,192 tokens): a trace does not say
/// where the system prompt ends.
const SYSTEM_BLOCKS: usize = 128;

/// The places, in all prompts of one root session and its descendants, where
/// a message ends: keyed by everything before the place, so that two prompts
/// that agree up to there are also split alike up to there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Boundaries {
    /// Hash of the leading blocks → role of the message that they end with.
    ends: HashMap<u64, Role>,
}

impl Boundaries {
    /// The boundaries of a family: the end of every prompt, the end of every
    /// answer in the prompt after it, and every block where two prompts part.
    pub fn of(family: &[&Session]) -> Self {
        let mut boundaries = Self::default();
        let prompts = family
            .iter()
            .flat_map(|s| &s.turns)
            .map(|t| t.blocks.as_slice());
        let mut sorted: Vec<&[u64]> = prompts.clone().collect();
        sorted.sort_unstable();
        for (a, b) in sorted.iter().zip(sorted.iter().skip(1)) {
            boundaries.mark(a, shared(a, b), Role::User);
        }
        for session in family {
            for (turn, next) in session.turns.iter().zip(session.turns.iter().skip(1)) {
                let grown = next.blocks.len().saturating_sub(turn.blocks.len());
                if grown >= 2 && next.blocks.starts_with(&turn.blocks) {
                    let tokens = usize::try_from(turn.output_tokens).unwrap_or(usize::MAX);
                    let answer = tokens.div_ceil(BLOCK_TOKENS).clamp(1, grown - 1);
                    boundaries.mark(&next.blocks, turn.blocks.len() + answer, Role::Assistant);
                }
            }
        }
        // Last, so that a prompt never ends with the assistant's words.
        for prompt in prompts {
            boundaries.mark(prompt, prompt.len(), Role::User);
        }
        boundaries
    }

    /// The messages of a prompt, in order, together all of its blocks.
    pub fn split(&self, blocks: &[u64]) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        let mut begin = 0;
        for (n, chain) in chains(blocks).enumerate() {
            let end = n + 1;
            let known = self.ends.get(&chain).copied();
            let system = begin == 0 && end == SYSTEM_BLOCKS;
            if known.is_none() && !system && end != blocks.len() {
                continue;
            }
            let role = if begin == 0 {
                Role::System
            } else {
                known.unwrap_or(Role::User)
            };
            spans.push(Span {
                role,
                blocks: begin..end,
            });
            begin = end;
        }
        spans
    }

    fn mark(&mut self, blocks: &[u64], len: usize, role: Role) {
        if let Some(chain) = len.checked_sub(1).and_then(|n| chains(blocks).nth(n)) {
            self.ends.insert(chain, role);
        }
    }
}

/// For each block the hash of it and everything before it.
fn chains(blocks: &[u64]) -> impl Iterator<Item = u64> + '_ {
    blocks.iter().scan(0, |chain, id| {
        *chain = mix(*chain ^ mix(*id));
        Some(*chain)
    })
}

fn shared(a: &[u64], b: &[u64]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::Role::{Assistant, System, User};
    use super::*;
    use crate::trace::Turn;

    /// A session whose answers are two blocks long.
    fn session(prompts: &[&[u64]]) -> Session {
        let turn = |blocks: &&[u64]| Turn {
            at_s: 0.0,
            api_time_s: 0.0,
            think_time_s: 0.0,
            input_tokens: 0,
            output_tokens: 128,
            blocks: blocks.to_vec(),
        };
        Session {
            id: "s".into(),
            parent: None,
            start_s: 0.0,
            turns: prompts.iter().map(turn).collect(),
        }
    }

    fn split(boundaries: &Boundaries, blocks: &[u64]) -> Vec<(Role, Range<usize>)> {
        let spans = boundaries.split(blocks).into_iter();
        spans.map(|s| (s.role, s.blocks)).collect()
    }

    #[test]
    fn siblings_that_part_inside_an_answer_are_split_alike_up_to_there() {
        let a = session(&[&[1, 2, 3, 4], &[1, 2, 3, 4, 5, 6, 7, 8]]);
        let b = session(&[&[1, 2, 3, 4, 5, 9, 10]]);
        let boundaries = Boundaries::of(&[&a, &b]);
        assert_eq!(
            split(&boundaries, &a.turns[1].blocks),
            [
                (System, 0..4),
                (User, 4..5),
                (Assistant, 5..6),
                (User, 6..8)
            ]
        );
        assert_eq!(
            split(&boundaries, &b.turns[0].blocks),
            [(System, 0..4), (User, 4..5), (User, 5..7)]
        );
    }

    #[test]
    fn a_prompt_never_ends_with_the_assistant_even_where_a_siblings_answer_ends() {
        let a = session(&[&[1, 2], &[1, 2, 3, 4, 5]]);
        let b = session(&[&[1, 2, 3, 4]]);
        let boundaries = Boundaries::of(&[&a, &b]);
        assert_eq!(
            split(&boundaries, &b.turns[0].blocks),
            [(System, 0..2), (User, 2..4)]
        );
        assert_eq!(
            split(&boundaries, &a.turns[1].blocks),
            [(System, 0..2), (User, 2..4), (User, 4..5)]
        );
    }

    #[test]
    fn the_system_message_is_bounded() {
        let long: Vec<u64> = (0..300).collect();
        let boundaries = Boundaries::of(&[&session(&[&long])]);
        assert_eq!(
            split(&boundaries, &long),
            [(System, 0..128), (User, 128..300)]
        );
    }
}
