//! The raw form of `callanjfox/kv-cache-tester`: one JSON document a root
//! session, subagents nested where the root spawned them.

use serde::Deserialize;

use super::{LONGEST_S, MOST_BLOCKS, Session, Trace, TraceError, Turn};

#[derive(Deserialize)]
struct Document {
    id: String,
    block_size: u64,
    requests: Vec<Entry>,
}

/// A request, or a subagent with requests of its own. One struct for both,
/// because `type` has more values than "subagent" and "the rest".
#[derive(Deserialize)]
struct Entry {
    /// Seconds since the enclosing session began.
    t: f64,
    #[serde(rename = "type")]
    kind: String,
    agent_id: Option<String>,
    requests: Option<Vec<Entry>>,
    r#in: Option<u64>,
    out: Option<u64>,
    hash_ids: Option<Vec<u64>>,
    #[serde(default)]
    api_time: f64,
    #[serde(default)]
    think_time: f64,
}

pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    let reader = Reader { file };
    let mut trace = Trace::default();
    for document in serde_json::Deserializer::from_slice(bytes).into_iter::<Document>() {
        let document = document.map_err(|cause| {
            reader.error(
                format!("line {} column {}", cause.line(), cause.column()),
                "a document with id, block_size and requests of numbers and hash_ids",
                cause.to_string(),
            )
        })?;
        if document.block_size != 64 {
            return Err(reader.error(
                "block_size".into(),
                "64 tokens a block",
                document.block_size.to_string(),
            ));
        }
        let root = Place {
            id: document.id,
            parent: None,
            start_s: 0.0,
            path: "requests".into(),
        };
        reader.session(root, document.requests, &mut trace)?;
    }
    Ok(trace)
}

/// Where a session stands: in the tree, in time and in the file.
struct Place {
    id: String,
    parent: Option<String>,
    start_s: f64,
    path: String,
}

struct Reader<'a> {
    file: &'a str,
}

impl Reader<'_> {
    /// Adds the session at `place`, then everything it spawned.
    fn session(
        &self,
        place: Place,
        entries: Vec<Entry>,
        trace: &mut Trace,
    ) -> Result<(), TraceError> {
        let mut turns = Vec::new();
        let mut spawned = Vec::new();
        for (n, entry) in entries.into_iter().enumerate() {
            let path = format!("{}[{n}]", place.path);
            let at_s = place.start_s + self.seconds(&path, "t", entry.t)?;
            if entry.kind == "subagent" {
                let Some(agent) = entry.agent_id else {
                    return Err(self.missing(&path, "agent_id"));
                };
                let Some(requests) = entry.requests else {
                    return Err(self.missing(&path, "requests"));
                };
                let child = Place {
                    id: format!("{}/{agent}", place.id),
                    parent: Some(place.id.clone()),
                    start_s: at_s,
                    path: format!("{path}.requests"),
                };
                spawned.push((child, requests));
            } else {
                turns.push(self.turn(&path, at_s, entry)?);
            }
        }
        if turns.is_empty() {
            return Err(self.error(place.path, "at least one request", "none".into()));
        }
        trace.sessions.push(Session {
            id: place.id,
            parent: place.parent,
            start_s: turns.first().map_or(place.start_s, |t| t.at_s),
            turns,
        });
        for (child, requests) in spawned {
            self.session(child, requests, trace)?;
        }
        Ok(())
    }

    fn turn(&self, path: &str, at_s: f64, entry: Entry) -> Result<Turn, TraceError> {
        let Some(input_tokens) = entry.r#in else {
            return Err(self.missing(path, "in"));
        };
        let Some(output_tokens) = entry.out else {
            return Err(self.missing(path, "out"));
        };
        let Some(blocks) = entry.hash_ids else {
            return Err(self.missing(path, "hash_ids"));
        };
        if blocks.is_empty() || blocks.len() > MOST_BLOCKS {
            return Err(self.error(
                format!("{path}.hash_ids"),
                &format!("1 to {MOST_BLOCKS} blocks"),
                blocks.len().to_string(),
            ));
        }
        Ok(Turn {
            at_s,
            api_time_s: self.seconds(path, "api_time", entry.api_time)?,
            think_time_s: self.seconds(path, "think_time", entry.think_time)?,
            input_tokens,
            output_tokens,
            blocks,
        })
    }

    fn seconds(&self, path: &str, field: &str, value: f64) -> Result<f64, TraceError> {
        if (0.0..=LONGEST_S).contains(&value) {
            return Ok(value);
        }
        let wanted = format!("0 to {LONGEST_S} seconds");
        Err(self.error(format!("{path}.{field}"), &wanted, value.to_string()))
    }

    fn missing(&self, path: &str, field: &str) -> TraceError {
        self.error(format!("{path}.{field}"), "this field", "nothing".into())
    }

    fn error(&self, place: String, wanted: &str, found: String) -> TraceError {
        TraceError {
            file: self.file.into(),
            place,
            wanted: wanted.into(),
            found,
            remedy: "use the trace as published by callanjfox/kv-cache-tester".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subagents_become_children_that_start_where_they_were_spawned() {
        let text = r#"{"id":"w","block_size":64,"requests":[
          {"t":0,"type":"n","in":130,"out":9,"hash_ids":[1,2],"api_time":2.5,"think_time":0},
          {"t":10.5,"type":"subagent","agent_id":"a","requests":[
            {"t":0,"type":"n","in":70,"out":3,"hash_ids":[7],"api_time":1,"think_time":0},
            {"t":4,"type":"s","in":140,"out":3,"hash_ids":[7,8],"api_time":1,"think_time":3}]},
          {"t":20,"type":"n","in":200,"out":5,"hash_ids":[1,2,3],"api_time":1,"think_time":17.5}]}"#;
        let trace = parse("w.json", text.as_bytes()).unwrap();
        assert_eq!(trace.sessions.len(), 2);
        let (root, child) = (&trace.sessions[0], &trace.sessions[1]);
        assert_eq!((root.id.as_str(), root.turns.len()), ("w", 2));
        assert_eq!(root.turns[1].blocks, [1, 2, 3]);
        assert_eq!(root.turns[1].think_time_s, 17.5);
        assert_eq!(child.id, "w/a");
        assert_eq!(child.parent.as_deref(), Some("w"));
        assert_eq!(child.start_s, 10.5);
        assert_eq!(child.turns[1].at_s, 14.5);
    }

    #[test]
    fn a_bad_field_is_named_by_its_path() {
        let cases = [
            (
                r#"{"t":0,"type":"n","in":1,"out":1}"#,
                "requests[0].hash_ids",
            ),
            (
                r#"{"t":0,"type":"n","out":1,"hash_ids":[1]}"#,
                "requests[0].in",
            ),
            (
                r#"{"t":-1,"type":"n","in":1,"out":1,"hash_ids":[1]}"#,
                "requests[0].t",
            ),
            (
                r#"{"t":0,"type":"n","in":1,"out":1,"hash_ids":[]}"#,
                "requests[0].hash_ids",
            ),
            (
                r#"{"t":0,"type":"subagent","requests":[]}"#,
                "requests[0].agent_id",
            ),
            (
                r#"{"t":0,"type":"subagent","agent_id":"a","requests":[{"t":0,"type":"n","in":1,"hash_ids":[1]}]},
               {"t":0,"type":"n","in":1,"out":1,"hash_ids":[1]}"#,
                "requests[0].requests[0].out",
            ),
            (r#"{"t":"soon","type":"n"}"#, "line 1 column"),
        ];
        for (entries, place) in cases {
            let text = format!(r#"{{"id":"w","block_size":64,"requests":[{entries}]}}"#);
            let error = parse("w.json", text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(place), "{place} is not in: {error}");
        }
    }

    #[test]
    fn another_block_size_is_refused() {
        let error = parse("w", br#"{"id":"w","block_size":512,"requests":[]}"#).unwrap_err();
        assert_eq!(
            (error.place.as_str(), error.found.as_str()),
            ("block_size", "512")
        );
    }
}
