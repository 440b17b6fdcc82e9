//! Recorded traffic: sessions, their turns and the blocks of each prompt.
//!
//! Lengths, times and block ids only; a trace carries no text.

mod error;
mod flat;
mod weka;

use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

pub use error::TraceError;

/// The sessions of one or more recordings, every parent before its children.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Roots and subagents alike.
    pub sessions: Vec<Session>,
}

/// One reasoning chain: its turns follow one another.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    /// Unique in the trace.
    pub id: String,
    /// The session that spawned this one; `None` for a root.
    pub parent: Option<String>,
    /// When the first turn was sent, in seconds since the root session began.
    pub start_s: f64,
    /// In the order they were sent; never empty.
    pub turns: Vec<Turn>,
}

/// One request of a session and the answer to it.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// When it was sent, in seconds since the root session began.
    pub at_s: f64,
    /// How long the answer took when it was recorded, in seconds.
    pub api_time_s: f64,
    /// Pause between the end of the previous answer and this turn, in seconds.
    pub think_time_s: f64,
    /// Prompt length as recorded.
    pub input_tokens: u64,
    /// Answer length as recorded.
    pub output_tokens: u64,
    /// The whole blocks of the prompt, 64 tokens each, first to last. Two
    /// prompts share a prefix exactly as far as their ids agree; ids mean
    /// nothing outside one root session and its descendants.
    pub blocks: Vec<u64>,
}

/// No recording runs longer than this; it keeps arithmetic on times safe.
const LONGEST_S: f64 = 1e8;

/// Longest prompt accepted, in blocks (67 million tokens).
const MOST_BLOCKS: usize = 1 << 20;

/// As much of the first JSON value as tells the two forms apart.
#[derive(Deserialize)]
struct Probe {
    requests: Option<IgnoredAny>,
    session_id: Option<IgnoredAny>,
}

impl Trace {
    /// Reads a trace file, whatever its name: raw weka, flattened JSON lines,
    /// or either of them compressed with gzip.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|cause| TraceError {
            file: name.clone(),
            place: "opening it".into(),
            wanted: "a readable file".into(),
            found: cause.to_string(),
            remedy: "check the path and its permissions".into(),
        })?;
        Self::parse(&name, &bytes)
    }

    /// Like [`read`](Self::read) for bytes at hand; `file` names them in errors.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, TraceError> {
        if bytes.starts_with(&[0x1f, 0x8b]) {
            return Self::parse_plain(file, &inflate(file, bytes)?);
        }
        Self::parse_plain(file, bytes)
    }

    /// Puts the sessions of another recording behind these.
    pub fn extend(&mut self, other: Trace) {
        self.sessions.extend(other.sessions);
    }

    /// Requests in the whole trace.
    pub fn requests(&self) -> usize {
        self.sessions.iter().map(|s| s.turns.len()).sum()
    }

    fn parse_plain(file: &str, bytes: &[u8]) -> Result<Self, TraceError> {
        let first = serde_json::Deserializer::from_slice(bytes)
            .into_iter::<Probe>()
            .next();
        match first {
            Some(Ok(Probe {
                requests: Some(_), ..
            })) => weka::parse(file, bytes),
            Some(Ok(Probe {
                session_id: Some(_),
                ..
            })) => flat::parse(file, bytes),
            Some(Ok(_)) => Err(unknown(file, "an object with neither".into())),
            Some(Err(cause)) => Err(unknown(file, cause.to_string())),
            None => Err(unknown(file, "an empty file".into())),
        }
    }
}

fn inflate(file: &str, bytes: &[u8]) -> Result<Vec<u8>, TraceError> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(bytes)
        .read_to_end(&mut plain)
        .map_err(|cause| TraceError {
            file: file.into(),
            place: "decompressing it".into(),
            wanted: "a whole gzip stream".into(),
            found: cause.to_string(),
            remedy: "fetch or compress the file again".into(),
        })?;
    Ok(plain)
}

fn unknown(file: &str, found: String) -> TraceError {
    TraceError {
        file: file.into(),
        place: "first JSON value".into(),
        wanted: "an object with `requests` (raw weka) or `session_id` (flattened)".into(),
        found,
        remedy: "give a weka_trace_*.json or an agentic-sessions.jsonl".into(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const WEKA: &str = r#"{"id":"w","block_size":64,"requests":[
        {"t":0.0,"type":"n","in":130,"out":9,"hash_ids":[1,2],"api_time":2.0,"think_time":0.0}]}"#;

    #[test]
    fn the_form_is_told_by_content_and_gzip_is_seen_through() {
        let plain = Trace::parse("x", WEKA.as_bytes()).unwrap();
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(WEKA.as_bytes()).unwrap();
        let zipped = gz.finish().unwrap();
        assert_eq!(Trace::parse("x", &zipped).unwrap(), plain);
        let cut_short = Trace::parse("x.gz", &zipped[..zipped.len() - 9]).unwrap_err();
        assert!(cut_short.to_string().contains("gzip"), "{cut_short}");
    }

    #[test]
    fn what_is_no_trace_is_refused_with_the_file_and_the_remedy() {
        for bad in ["", "hello", "{}", "[1]", "{\"requests\":"] {
            let error = Trace::parse("bad.json", bad.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("bad.json: "), "{error}");
            assert!(
                error.contains("wanted") && error.contains("found"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Trace::read(Path::new("/nowhere/at.all"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/nowhere/at.all"), "{error}");
    }
}
