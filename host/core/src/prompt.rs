//! How much of a prompt the session has sent before: a hash chain over the messages.

use crate::image::{Image, put_u32};
use crate::types::Target;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The prompt up to and including one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    /// Half a hash is enough for an estimate: a false match in 2³².
    hash: u32,
    /// tokens up to here
    tokens: u32,
}

/// A prompt as a chain: after each message the hash of everything so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    links: Vec<Link>,
}

/// Builds a [`Chain`] message by message.
#[derive(Debug, Default)]
pub struct ChainBuilder {
    links: Vec<Link>,
    hash: u64,
}

impl ChainBuilder {
    /// Adds a message by its bytes; `tokens` is the prompt's length in tokens up to its end.
    pub fn message(&mut self, bytes: &[u8], tokens: u32) {
        self.hash = xxh3_64_with_seed(bytes, self.hash);
        self.links.push(Link {
            #[expect(clippy::cast_possible_truncation, reason = "half of the hash is meant")]
            hash: self.hash as u32,
            tokens,
        });
    }

    /// The chain of the messages so far.
    pub fn build(self) -> Chain {
        Chain { links: self.links }
    }
}

impl Chain {
    /// Tokens of the longest common beginning that both chains have a mark in.
    pub(crate) fn shared_with(&self, before: &Prompt) -> u32 {
        // A hash stands for all before it: after the first that differs none can be the same.
        // In this prompt's tokens: what a byte counts as may have been learnt meanwhile.
        (kept(before.messages).zip(&before.marks))
            .map_while(|(at, mark)| self.links.get(at).filter(|link| link.hash == *mark))
            .last()
            .map_or(0, |link| link.tokens)
    }

    /// What is kept of it when it is sent to a target.
    pub(crate) fn remember(&self, ran_on: Target) -> Prompt {
        let messages = u32::try_from(self.links.len()).unwrap_or(u32::MAX);
        let mut marks = Vec::with_capacity(kept(messages).count());
        marks.extend(
            kept(messages)
                .filter_map(|at| self.links.get(at))
                .map(|link| link.hash),
        );
        Prompt {
            ran_on,
            messages,
            marks: marks.into_boxed_slice(),
        }
    }
}

/// A session's previous prompt: where it ran, and marks of what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) ran_on: Target,
    messages: u32,
    /// the hashes of the messages that [`kept`] says
    marks: Box<[u32]>,
}

impl Prompt {
    /// One of which only that is known.
    pub(crate) fn ran_on(ran_on: Target) -> Prompt {
        Prompt {
            ran_on,
            messages: 0,
            marks: Box::default(),
        }
    }

    /// All of it, to be kept elsewhere.
    pub(crate) fn write(&self, image: &mut Vec<u8>) {
        put_u32(image, self.ran_on);
        put_u32(image, self.messages);
        // At most 33, see `kept`.
        image.push(u8::try_from(self.marks.len()).unwrap_or(0));
        for mark in self.marks.iter().take(usize::from(u8::MAX)) {
            put_u32(image, *mark);
        }
    }

    /// What [`Prompt::write`] wrote.
    pub(crate) fn read(image: &mut Image<'_>) -> Option<Prompt> {
        let (ran_on, messages, marks) = (image.u32()?, image.u32()?, image.u8()?);
        let marks = (0..marks).map(|_| image.u32()).collect::<Option<_>>()?;
        Some(Prompt {
            ran_on,
            messages,
            marks,
        })
    }
}

/// The messages of which a mark is kept, ascending: the first (often the system prompt, which
/// survives a compaction), and those 1, 2, 4, 8, … from the end. An appended conversation finds its
/// whole previous prompt, a cut one most of it, in at most 33 marks of 4 bytes.
fn kept(messages: u32) -> impl Iterator<Item = usize> {
    let from_the_end = (0..u32::BITS - messages.leading_zeros()).rev();
    let later = from_the_end.map(move |power| messages - (1 << power));
    (messages > 0)
        .then_some(0)
        .into_iter()
        .chain(later.filter(|at| *at > 0))
        .map(|at| at as usize)
}

/// How the shared part of a prompt becomes known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shared {
    /// it is given: scenarios, traces
    Given(u32),
    /// from the messages
    Chain(Chain),
}

impl Shared {
    /// Tokens in common with the session's previous prompt, where one is remembered.
    pub(crate) fn tokens(&self, before: Option<&Prompt>) -> u32 {
        match (self, before) {
            (Shared::Given(tokens), _) => *tokens,
            (Shared::Chain(chain), Some(before)) => chain.shared_with(before),
            (Shared::Chain(_), None) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(messages: &[&str]) -> Chain {
        let mut builder = ChainBuilder::default();
        let mut tokens = 0;
        for message in messages {
            tokens += 10;
            builder.message(message.as_bytes(), tokens);
        }
        builder.build()
    }

    #[test]
    fn an_appended_conversation_shares_its_whole_previous_prompt() {
        let before = chain(&["s", "u1", "a1"]).remember(0);
        assert_eq!(chain(&["s", "u1", "a1", "u2"]).shared_with(&before), 30);
    }

    #[test]
    fn the_shared_part_is_counted_as_this_prompt_counts_it() {
        let of = |tokens_each| {
            let mut builder = ChainBuilder::default();
            builder.message(b"s", tokens_each);
            builder.message(b"u", 2 * tokens_each);
            builder.build()
        };
        assert_eq!(of(15).shared_with(&of(10).remember(0)), 30);
    }

    #[test]
    fn a_compacted_conversation_shares_only_the_system_prompt() {
        let before = chain(&["s", "u1", "a1", "u2", "a2"]).remember(0);
        assert_eq!(chain(&["s", "summary"]).shared_with(&before), 10);
    }

    #[test]
    fn a_changed_first_message_shares_nothing() {
        let before = chain(&["s", "u1"]).remember(0);
        assert_eq!(chain(&["t", "u1"]).shared_with(&before), 0);
    }

    #[test]
    fn the_memory_of_a_long_conversation_is_small() {
        let names: Vec<String> = (0..5000).map(|i| i.to_string()).collect();
        let messages: Vec<&str> = names.iter().map(String::as_str).collect();
        let kept = chain(&messages).remember(0);
        assert!(kept.marks.len() <= 15, "{} marks", kept.marks.len());
        // cut after message 4000: the mark at 5000 - 1024 is still before the cut
        assert_eq!(chain(&messages[..4000]).shared_with(&kept), 39_770);
    }
}
