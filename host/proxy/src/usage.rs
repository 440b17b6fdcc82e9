//! The engine's own counts, found in an answer as it passes: a streamed one or not, in the words of
//! chat completions, of responses or of messages. It looks for `"usage": {` wherever that stands and
//! keeps nothing but the object that follows. Inside a text the quotes would be escaped.

use memchr::memmem::Finder;
use pointsman_request::MAX_PROMPT_TOKENS;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::sync::LazyLock;

const WORD: &[u8] = br#""usage""#;
/// An object larger than this is not what is looked for.
const MAX_BYTES: usize = 1024;

static FINDER: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(WORD));

/// As an engine counted. None: it did not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) prompt_tokens: Option<u32>,
    /// of those, from its cache
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) output_tokens: Option<u32>,
}

/// Looks at an answer as it passes, cut anywhere.
#[derive(Debug, Default)]
pub(crate) struct UsageScanner {
    at: At,
    object: Vec<u8>,
    counted: Counted,
}

/// What the next byte is a part of.
#[derive(Clone, Copy, Debug)]
enum At {
    /// anything; so many bytes of the word stand before it
    Word(usize),
    /// the blanks after the word, or the colon
    Colon,
    /// the blanks after the colon, or what begins the value
    Value,
    /// the object
    Object { depth: u32, quote: Quote },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quote {
    Out,
    In,
    Escaped,
}

impl Default for At {
    fn default() -> Self {
        At::Word(0)
    }
}

impl UsageScanner {
    /// All that was said so far; of several counts the last.
    pub(crate) fn counted(&self) -> Counted {
        self.counted
    }

    /// The next bytes of the answer.
    pub(crate) fn pass(&mut self, chunk: &[u8]) {
        let mut rest = chunk;
        while let Some((&byte, after)) = rest.split_first() {
            match self.at {
                At::Word(0) => match FINDER.find(rest) {
                    Some(found) => {
                        self.at = At::Colon;
                        rest = rest.get(found + WORD.len()..).unwrap_or_default();
                    }
                    None => {
                        self.at = At::Word(begun(rest));
                        return;
                    }
                },
                At::Word(so_far) => {
                    if WORD.get(so_far) == Some(&byte) {
                        rest = after;
                        self.at = match so_far + 1 {
                            n if n == WORD.len() => At::Colon,
                            n => At::Word(n),
                        };
                    } else {
                        // Only its two ends are quotes: nothing of the word can begin within it.
                        self.at = At::Word(0);
                    }
                }
                At::Colon | At::Value if byte.is_ascii_whitespace() => rest = after,
                At::Colon if byte == b':' => (self.at, rest) = (At::Value, after),
                At::Value if byte == b'{' => {
                    self.object.clear();
                    let quote = Quote::Out;
                    self.at = At::Object { depth: 0, quote };
                }
                At::Colon | At::Value => self.at = At::Word(0),
                At::Object { depth, quote } => {
                    let (depth, quote) = step(depth, quote, byte);
                    self.object.push(byte);
                    self.at = At::Object { depth, quote };
                    if depth == 0 {
                        self.count();
                    }
                    if depth == 0 || self.object.len() >= MAX_BYTES {
                        self.at = At::Word(0);
                    }
                    rest = after;
                }
            }
        }
    }

    fn count(&mut self) {
        let said = std::str::from_utf8(&self.object).ok();
        let Some(said) = said.and_then(|text| serde_json::from_str::<Said>(text).ok()) else {
            return;
        };
        let said = said.counted();
        let counted = &mut self.counted;
        counted.prompt_tokens = said.prompt_tokens.or(counted.prompt_tokens);
        counted.cached_tokens = said.cached_tokens.or(counted.cached_tokens);
        counted.output_tokens = said.output_tokens.or(counted.output_tokens);
    }
}

/// How much of the word stands at the end.
fn begun(bytes: &[u8]) -> usize {
    let tail = bytes.len().saturating_sub(WORD.len() - 1);
    let begun = || {
        let tail = bytes.get(tail..)?;
        tail.get(memchr::memrchr(b'"', tail)?..)
    };
    match begun() {
        Some(begun) if WORD.starts_with(begun) => begun.len(),
        Some(_) | None => 0,
    }
}

fn step(depth: u32, quote: Quote, byte: u8) -> (u32, Quote) {
    match (quote, byte) {
        (Quote::Escaped, _) => (depth, Quote::In),
        (Quote::In, b'\\') => (depth, Quote::Escaped),
        (Quote::In, b'"') => (depth, Quote::Out),
        (Quote::Out, b'"') => (depth, Quote::In),
        (Quote::Out, b'{' | b'[') => (depth + 1, Quote::Out),
        (Quote::Out, b'}' | b']') => (depth.saturating_sub(1), Quote::Out),
        (quote, _) => (depth, quote),
    }
}

/// The object in the engine's words. Fields of an unexpected type are as if absent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Said<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens_details: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_read_input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    cache_creation_input_tokens: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Details<'a> {
    #[serde(borrow)]
    cached_tokens: Option<&'a RawValue>,
}

impl Said<'_> {
    fn counted(&self) -> Counted {
        let details = (self.prompt_tokens_details.or(self.input_tokens_details))
            .and_then(|raw| serde_json::from_str::<Details>(raw.get()).ok());
        let cached = details.and_then(|details| number(details.cached_tokens));
        // Messages count what comes from the cache apart from the rest of the input.
        let read = number(self.cache_read_input_tokens);
        let apart = read
            .unwrap_or(0)
            .saturating_add(number(self.cache_creation_input_tokens).unwrap_or(0));
        let input = number(self.input_tokens).map(|n| n.saturating_add(apart));
        let prompt = number(self.prompt_tokens).or(input);
        // Zero is what is said before anything was counted.
        let sane = |n: &u32| (1..=MAX_PROMPT_TOKENS).contains(n);
        Counted {
            prompt_tokens: prompt.filter(sane),
            cached_tokens: cached.or(read).filter(|n| *n <= MAX_PROMPT_TOKENS),
            output_tokens: (number(self.completion_tokens).or(number(self.output_tokens)))
                .filter(sane),
        }
    }
}

fn number(raw: Option<&RawValue>) -> Option<u32> {
    raw?.get().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(chunks: &[&[u8]]) -> (u32, u32, u32) {
        let mut scanner = UsageScanner::default();
        chunks.iter().for_each(|chunk| scanner.pass(chunk));
        assert!(scanner.object.len() <= MAX_BYTES);
        let Counted {
            prompt_tokens,
            cached_tokens,
            output_tokens,
        } = scanner.counted();
        let [prompt, cached, output] = [prompt_tokens, cached_tokens, output_tokens];
        (
            prompt.unwrap_or(0),
            cached.unwrap_or(0),
            output.unwrap_or(0),
        )
    }

    fn of(text: &str) -> (u32, u32, u32) {
        counted(&[text.as_bytes()])
    }

    #[test]
    fn the_last_chunk_of_a_stream_is_read_however_it_is_cut() {
        let stream = b"data: {\"choices\":[{\"delta\":{\"content\":\"\\\"usage\\\": {\\\"prompt_tokens\\\": 9}\"}}],\"usage\":null}\n\n\
            data: {\"choices\":[],\"usage\": {\"prompt_tokens\":70,\"note\":\"}\\\"{\",\"total_tokens\":75,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":64}}}\n\n\
            data: [DONE]\n\n";
        let whole = (70, 64, 5);
        assert_eq!(counted(&[stream]), whole);
        for cut in 0..stream.len() {
            assert_eq!(counted(&[&stream[..cut], &stream[cut..]]), whole, "{cut}");
        }
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        assert_eq!(counted(&bytes), whole);
    }

    #[test]
    fn of_counts_in_every_chunk_the_last_one_holds() {
        let chunk = |n: u32| {
            format!("data: {{\"usage\":{{\"prompt_tokens\":7,\"completion_tokens\":{n}}}}}\n\n")
        };
        assert_eq!(of(&(1..=20).map(chunk).collect::<String>()), (7, 0, 20));
    }

    #[test]
    fn messages_and_responses_are_understood() {
        let messages = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"cache_read_input_tokens\":100,\"cache_creation_input_tokens\":null,\"output_tokens\":1}}}\n\n\
            event: message_delta\ndata: {\"usage\":{\"output_tokens\":15}}\n\n";
        assert_eq!(of(messages), (125, 100, 15));
        let responses = r#"data: {"type":"response.created","response":{"usage":null}}

data: {"type":"response.completed","response":{"output":[{"text":"usage"}],"usage":{"input_tokens":36,"input_tokens_details":{"cached_tokens":8},"output_tokens":87,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":123}}}"#;
        assert_eq!(of(responses), (36, 8, 87));
    }

    #[test]
    fn what_is_no_count_is_no_count() {
        for usage in [
            "null",
            "7",
            "[1]",
            "{}",
            r#"{"prompt_tokens":-1,"completion_tokens":1e99}"#,
            r#"{"prompt_tokens":"12","completion_tokens":{}}"#,
            r#"{"prompt_tokens":0}"#,
            r#"{"prompt_tokens":99999999999}"#,
            r#"{"prompt_tokens":4294967295}"#,
            r#"{"prompt_tokens":7,"prompt_tokens":8}"#,
            r#"{"prompt_tokens":7"#,
            r#"{"prompt_tokens":7]"#,
            r#"{]"#,
            "{\"\\",
        ] {
            assert_eq!(of(&format!("{{\"usage\":{usage}")), (0, 0, 0), "{usage}");
        }
        assert_eq!(of(r#"{"token":"usage"},{"prompt_tokens":7}"#), (0, 0, 0));
        assert_eq!(
            of(
                r#"{"prompt_tokens_details":1,"usage":{"prompt_tokens":7,"prompt_tokens_details":"x"}}"#
            ),
            (7, 0, 0)
        );
        let endless = format!("{{\"usage\":{}", "{".repeat(1 << 20));
        assert_eq!(of(&endless), (0, 0, 0));
        let after_it = format!("{endless},\"usage\":{{\"prompt_tokens\":3}}");
        assert_eq!(of(&after_it), (3, 0, 0), "what follows is read again");
        counted(&[&[0xff; 100], b"\"usage\":{\xff}", &[0; 100]]);
    }
}
