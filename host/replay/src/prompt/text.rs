//! 256 bytes of words for a block id.

use std::fmt::Write as _;

/// Tokens in a block of the traces.
pub const BLOCK_TOKENS: usize = 64;

/// Bytes of text for one block: four a token, as English has.
pub const BLOCK_BYTES: usize = 4 * BLOCK_TOKENS;

#[rustfmt::skip]
const WORDS: [&str; 64] = [
    "async", "await", "batch", "block", "borrow", "branch", "buffer", "build",
    "cache", "call", "check", "clone", "commit", "const", "copy", "crate",
    "debug", "decode", "drop", "edit", "engine", "error", "event", "false",
    "fetch", "field", "file", "fleet", "format", "frame", "grep", "handle",
    "header", "host", "import", "index", "input", "layer", "lease", "limit",
    "line", "list", "lock", "match", "merge", "module", "move", "none",
    "output", "parse", "patch", "path", "policy", "prefill", "queue", "rank",
    "read", "result", "return", "route", "session", "string", "token", "trait",
];

/// Appends the text of block `id`: [`BLOCK_BYTES`] bytes of ASCII that need no
/// escape in JSON. It begins with both numbers, so no two blocks are alike.
pub(crate) fn push_block(text: &mut String, salt: u64, id: u64) {
    let end = text.len() + BLOCK_BYTES - 1;
    let _ = write!(text, "{salt:016x}.{id:x}"); // a String takes every write
    let mut state = mix(salt ^ mix(id));
    while text.len() < end {
        state = mix(state);
        text.push(' ');
        text.push_str(
            WORDS
                .get((state % 64) as usize)
                .copied()
                .unwrap_or_default(),
        );
    }
    text.truncate(end);
    text.push('.');
}

/// splitmix64's step: spreads every bit of `x` over the result, one to one.
pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_block_is_256_bytes_of_its_own_and_the_same_each_time() {
        let mut seen = HashSet::new();
        for salt in [0, 1, u64::MAX] {
            for id in (0..500).chain([u64::MAX]) {
                let (mut text, mut again) = (String::new(), String::from("before "));
                push_block(&mut text, salt, id);
                push_block(&mut again, salt, id);
                assert_eq!(text.len(), BLOCK_BYTES);
                assert!(
                    text.bytes().all(|b| b.is_ascii_graphic() || b == b' '),
                    "{text}"
                );
                assert_eq!(again.strip_prefix("before "), Some(text.as_str()));
                assert!(seen.insert(text));
            }
        }
    }
}
