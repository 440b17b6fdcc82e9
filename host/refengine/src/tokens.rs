//! Text as tokens and cache blocks.
//!
//! A token is 4 bytes of text (the last one may be shorter), a block a fixed number of tokens. A
//! block's key is XXH3-64 of its bytes, seeded with the key of the block before it: it stands for
//! the whole text up to its end and for nothing else, neither session nor model.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes of text in one token.
pub const TOKEN_BYTES: usize = 4;

/// The tokens of `bytes` bytes of text, rounded up.
#[must_use]
pub const fn tokens_of(bytes: usize) -> usize {
    bytes.div_ceil(TOKEN_BYTES)
}

/// The keys of a growing text's full blocks.
#[derive(Debug, Clone)]
pub struct Chain {
    keys: Vec<u64>,
    last: u64,
    /// What does not fill a block yet.
    tail: Vec<u8>,
    block_bytes: usize,
}

impl Chain {
    /// The empty text, in blocks of `block_tokens` tokens (at least 1).
    #[must_use]
    pub fn new(block_tokens: usize) -> Self {
        let block_bytes = block_tokens.max(1) * TOKEN_BYTES;
        Self {
            keys: Vec::new(),
            last: 0,
            tail: Vec::with_capacity(block_bytes),
            block_bytes,
        }
    }

    /// Appends text.
    pub fn extend(&mut self, mut text: &[u8]) {
        while !text.is_empty() {
            let missing = self.block_bytes - self.tail.len();
            let (head, rest) = text.split_at(missing.min(text.len()));
            self.tail.extend_from_slice(head);
            text = rest;
            if self.tail.len() == self.block_bytes {
                self.last = self.digest();
                self.keys.push(self.last);
                self.tail.clear();
            }
        }
    }

    /// Stands for the whole text so far, full block or not.
    #[must_use]
    pub fn digest(&self) -> u64 {
        xxh3_64_with_seed(&self.tail, self.last)
    }

    /// One key for each full block, in order.
    #[must_use]
    pub fn into_keys(self) -> Vec<u64> {
        self.keys
    }
}

/// The text the engine generates: one word a token, 4 bytes each, decided by a seed alone.
///
/// The seed is the prompt's digest: the same prompt always gets the same answer. So the keys of
/// the blocks of prompt and answer are known from the start, and the next turn of a conversation,
/// which contains the answer, finds them in the cache.
#[derive(Debug, Clone, Copy)]
pub struct Words {
    seed: u64,
}

const WORDS: [&str; 64] = [
    "the ", "and ", "for ", "but ", "not ", "you ", "all ", "any ", "can ", "had ", "her ", "was ",
    "one ", "our ", "out ", "day ", "get ", "has ", "him ", "his ", "how ", "man ", "new ", "now ",
    "old ", "see ", "two ", "way ", "who ", "boy ", "did ", "its ", "let ", "put ", "say ", "she ",
    "too ", "use ", "run ", "red ", "sea ", "sky ", "sun ", "top ", "big ", "far ", "few ", "got ",
    "low ", "may ", "own ", "try ", "why ", "yes ", "yet ", "ask ", "end ", "ten ", "six ", "map ",
    "key ", "set ", "add ", "act ",
];

impl Words {
    /// The words that follow a prompt of that digest.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { seed }
    }

    /// The word of the token at `index`, counted from 0.
    #[must_use]
    pub fn word(&self, index: usize) -> &'static str {
        let bits = splitmix64(self.seed ^ index as u64);
        WORDS.get((bits % 64) as usize).copied().unwrap_or("the ")
    }
}

/// Sebastiano Vigna's finaliser: neighbouring inputs give unrelated outputs.
const fn splitmix64(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &[u8]) -> Vec<u64> {
        let mut chain = Chain::new(64);
        chain.extend(text);
        chain.into_keys()
    }

    #[test]
    fn four_bytes_are_a_token_and_the_last_one_may_be_short() {
        assert_eq!([0, 1, 4, 5, 256].map(tokens_of), [0, 1, 1, 2, 64]);
        assert!(WORDS.iter().all(|w| w.len() == TOKEN_BYTES));
    }

    #[test]
    fn only_full_blocks_have_a_key() {
        assert_eq!(
            [255, 256, 511, 512].map(|n| keys(&vec![b'x'; n]).len()),
            [0, 1, 1, 2]
        );
    }

    #[test]
    fn a_key_depends_on_everything_before_it_and_on_nothing_after() {
        let text = vec![b'x'; 1024];
        let (mut first, mut last) = (text.clone(), text.clone());
        first[0] = b'y';
        last[1023] = b'y';
        let shared = |other: &[u8]| {
            keys(&text)
                .iter()
                .zip(keys(other))
                .take_while(|(a, b)| **a == *b)
                .count()
        };
        assert_eq!((shared(&text), shared(&first), shared(&last)), (4, 0, 3));
        assert_ne!(keys(&text)[0], keys(&text)[1]);
    }

    #[test]
    fn text_in_pieces_gives_the_same_keys_as_in_one() {
        let text: Vec<u8> = (0..2000u32).map(|i| (i % 251) as u8).collect();
        let mut chain = Chain::new(64);
        text.chunks(7).for_each(|piece| chain.extend(piece));
        let mut whole = Chain::new(64);
        whole.extend(&text);
        assert_eq!(chain.digest(), whole.digest());
        assert_eq!(chain.into_keys(), whole.into_keys());
    }
}
