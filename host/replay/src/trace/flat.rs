//! The flattened form, `agentic-sessions.jsonl`: one JSON line a request,
//! with the number of blocks it shares with the turn before instead of ids.
//!
//! The ids are rebuilt: the shared leading blocks keep theirs, the others are
//! new. How much siblings share is not in the file beyond "same first block";
//! their first prompts are given the share that was measured over the corpus.

use std::collections::HashMap;

use serde::Deserialize;

use super::{LONGEST_S, MOST_BLOCKS, Session, Trace, TraceError, Turn};

/// Measured overlap of a child's first prompt with an earlier sibling's.
const SIBLING_SHARE: f64 = 0.931;

#[derive(Deserialize)]
struct Row {
    session_id: String,
    parent_session_id: Option<String>,
    turn: usize,
    t: f64,
    r#in: u64,
    out: u64,
    blocks: usize,
    shared_prev_blocks: usize,
    first_block: u64,
    api_time: f64,
    think_time: f64,
}

pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Trace, TraceError> {
    let mut builder = Builder::default();
    for (n, line) in bytes.split(|b| *b == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let at = |(field, wanted, found): Flaw| TraceError {
            file: file.into(),
            place: format!("line {}{field}", n + 1),
            wanted: wanted.into(),
            found,
            remedy: "keep whole sessions, one request a line, turns in order".into(),
        };
        let row: Row = serde_json::from_slice(line).map_err(|cause| {
            at((
                "",
                "a request with session_id, turn, t, in, out, blocks",
                cause.to_string(),
            ))
        })?;
        builder.add(row).map_err(at)?;
    }
    Ok(builder.trace)
}

/// Field, what was wanted there, what was found.
type Flaw = (&'static str, &'static str, String);

#[derive(Default)]
struct Builder {
    trace: Trace,
    /// Position in `trace.sessions` by id.
    by_id: HashMap<String, usize>,
    /// The first child seen of each (parent, first block).
    eldest: HashMap<(String, u64), usize>,
    fresh: u64,
}

impl Builder {
    fn add(&mut self, row: Row) -> Result<(), Flaw> {
        for (field, value) in [
            (", t", row.t),
            (", api_time", row.api_time),
            (", think_time", row.think_time),
        ] {
            if !(0.0..=LONGEST_S).contains(&value) {
                return Err((field, "0 to 1e8 seconds", value.to_string()));
            }
        }
        if row.blocks == 0 || row.blocks > MOST_BLOCKS {
            return Err((", blocks", "1 to 1048576", row.blocks.to_string()));
        }
        let known = self.by_id.get(&row.session_id).copied();
        let session = known.and_then(|n| self.trace.sessions.get(n));
        if row.turn != session.map_or(0, |s| s.turns.len()) {
            return Err((
                ", turn",
                "the turn after the session's previous one",
                row.turn.to_string(),
            ));
        }
        let mut blocks = match session.and_then(|s| s.turns.last()) {
            Some(previous) => {
                let shared = row.shared_prev_blocks;
                if shared > row.blocks {
                    return Err((
                        ", shared_prev_blocks",
                        "at most `blocks`",
                        shared.to_string(),
                    ));
                }
                let Some(kept) = previous.blocks.get(..shared) else {
                    return Err((
                        ", shared_prev_blocks",
                        "at most the previous turn's blocks",
                        shared.to_string(),
                    ));
                };
                kept.to_vec()
            }
            None => self.inherited(&row),
        };
        while blocks.len() < row.blocks {
            self.fresh += 1;
            blocks.push(self.fresh);
        }
        let turn = Turn {
            at_s: row.t,
            api_time_s: row.api_time,
            think_time_s: row.think_time,
            input_tokens: row.r#in,
            output_tokens: row.out,
            blocks,
        };
        match known.and_then(|n| self.trace.sessions.get_mut(n)) {
            Some(session) => session.turns.push(turn),
            None => self.open(row, turn),
        }
        Ok(())
    }

    /// The leading blocks a session's first prompt has from its eldest sibling.
    fn inherited(&self, row: &Row) -> Vec<u64> {
        let eldest = row
            .parent_session_id
            .as_ref()
            .and_then(|parent| self.eldest.get(&(parent.clone(), row.first_block)))
            .and_then(|n| self.trace.sessions.get(*n))
            .and_then(|sibling| sibling.turns.first());
        let Some(first) = eldest else {
            return Vec::new();
        };
        let shared = (row.blocks as f64 * SIBLING_SHARE) as usize;
        first.blocks.iter().take(shared).copied().collect()
    }

    fn open(&mut self, row: Row, turn: Turn) {
        let n = self.trace.sessions.len();
        self.by_id.insert(row.session_id.clone(), n);
        if let Some(parent) = &row.parent_session_id {
            self.eldest
                .entry((parent.clone(), row.first_block))
                .or_insert(n);
        }
        self.trace.sessions.push(Session {
            id: row.session_id,
            parent: row.parent_session_id,
            start_s: turn.at_s,
            turns: vec![turn],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, parent: &str, turn: u32, blocks: u32, shared: u32) -> String {
        format!(
            r#"{{"session_id":"{id}","parent_session_id":{parent},"turn":{turn},"t":{turn}.5,"model":"m","in":100,"out":7,"blocks":{blocks},"shared_prev_blocks":{shared},"first_block":1,"api_time":1.0,"think_time":0.5,"stop":null,"agent":null}}"#
        )
    }

    #[test]
    fn shared_blocks_keep_their_ids_and_siblings_share_the_measured_part() {
        let text = [
            row("r", "null", 0, 10, 0),
            row("r/a", "\"r\"", 0, 100, 0),
            row("r/b", "\"r\"", 0, 100, 0),
            row("r", "null", 1, 12, 9),
            row("s", "null", 0, 10, 0),
        ]
        .join("\n");
        let trace = parse("f.jsonl", text.as_bytes()).unwrap();
        let ids: Vec<_> = trace.sessions.iter().map(|s| s.id.as_str()).collect();
        assert_eq!(ids, ["r", "r/a", "r/b", "s"]);
        let root = &trace.sessions[0].turns;
        assert_eq!(root[0].blocks[..9], root[1].blocks[..9]);
        assert_ne!(root[0].blocks[9], root[1].blocks[9]);
        let (a, b) = (
            &trace.sessions[1].turns[0].blocks,
            &trace.sessions[2].turns[0].blocks,
        );
        assert_eq!((&a[..93], a.len(), b.len()), (&b[..93], 100, 100));
        assert_ne!(a[93], b[93]);
        assert_ne!(root[0].blocks[0], trace.sessions[3].turns[0].blocks[0]);
    }

    #[test]
    fn a_bad_row_is_named_by_its_line_and_field() {
        let good = row("r", "null", 0, 10, 0);
        let cases = [
            (row("r", "null", 2, 10, 0), "line 2, turn"),
            (row("r", "null", 1, 12, 11), "line 2, shared_prev_blocks"),
            (row("r", "null", 1, 3, 4), "line 2, shared_prev_blocks"),
            (row("r", "null", 1, 0, 0), "line 2, blocks"),
            (
                row("r", "null", 1, 9, 0).replace("1.5", "-1.5"),
                "line 2, t",
            ),
            ("{\"session_id\":\"x\"}".into(), "line 2: "),
        ];
        for (bad, place) in cases {
            let error = parse("f.jsonl", format!("{good}\n{bad}\n").as_bytes())
                .unwrap_err()
                .to_string();
            assert!(error.contains(place), "{place} is not in: {error}");
        }
    }
}
