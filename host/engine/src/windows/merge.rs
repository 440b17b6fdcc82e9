//! Many ranks' traces as one: every process gets a number of its own and the name of its rank, so that
//! a viewer shows all of them above one another on one axis of time.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::trace::{self, Event};

/// The merged file, as it grows.
pub(super) struct Merge<W> {
    out: W,
    processes: u64,
    events: u64,
}

/// What is in a trace, found before anything of it is written.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Without those that only name things.
    pub events: u64,
    /// Its processes in order of appearance, and how it names them.
    processes: Vec<(String, Option<String>)>,
}

impl Found {
    /// Reads a trace to its end.
    ///
    /// # Errors
    /// Why it is none.
    pub(super) fn of(trace: &[u8]) -> Result<Found, String> {
        let mut found = Found::default();
        let mut at = HashMap::new();
        trace::read(trace, &mut |event| {
            trace::check(&event)?;
            let of = process(&event);
            let n = *at.entry(of.clone()).or_insert(found.processes.len());
            if n == found.processes.len() {
                if n >= MAX_PROCESSES {
                    return Err(format!("more than {MAX_PROCESSES} processes"));
                }
                found.processes.push((of, None));
            }
            if event.get("ph").and_then(Value::as_str) != Some("M") {
                found.events += 1;
            } else if is_name(&event)
                && let Some((_, name)) = found.processes.get_mut(n)
            {
                let said = event.get("args").and_then(|args| args.get("name"));
                *name = said.and_then(Value::as_str).map(str::to_owned);
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Of one trace: an engine and its devices.
const MAX_PROCESSES: usize = 256;

impl<W: Write> Merge<W> {
    /// Begins the file.
    pub(super) fn new(mut out: W) -> io::Result<Self> {
        out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")?;
        Ok(Self {
            out,
            processes: 0,
            events: 0,
        })
    }

    /// Adds the trace of a rank, "a/0". It was read before: see [`Found::of`].
    pub(super) fn add(&mut self, rank: &str, found: &Found, trace: &[u8]) -> io::Result<()> {
        let mut numbers = HashMap::new();
        for ((of, name), n) in found.processes.iter().zip(0..) {
            self.processes += 1;
            numbers.insert(of.as_str(), self.processes);
            let name = match (n, name) {
                (0, _) => rank.to_owned(),
                (_, Some(name)) => format!("{rank} {name}"),
                (_, None) => format!("{rank} {of}"),
            };
            let names = json!({ "ph": "M", "name": "process_name", "pid": self.processes,
                                "tid": 0, "args": { "name": name } });
            let order = json!({ "ph": "M", "name": "process_sort_index", "pid": self.processes,
                                "tid": 0, "args": { "sort_index": self.processes } });
            self.put(&names)?;
            self.put(&order)?;
        }
        let mut failed = None;
        let read = trace::read(trace, &mut |mut event| {
            let number = numbers.get(process(&event).as_str()).copied();
            if is_name(&event) || is(&event, "process_sort_index") {
                return Ok(());
            }
            let number = number.ok_or("a process that was not there before")?;
            // Ids of flows and of asynchronous events are one space for the whole file.
            if let Some(id) = event.get_mut("id") {
                let text = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
                *id = Value::String(format!("{number}/{text}"));
            }
            event.insert("pid".to_owned(), number.into());
            self.put(&Value::Object(event)).map_err(|error| {
                let text = error.to_string();
                failed = Some(error);
                text
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
        read.map_err(io::Error::other)
    }

    /// Ends the file; what it was written to, and how many events are in it.
    pub(super) fn end(mut self) -> io::Result<(W, u64)> {
        self.out.write_all(b"\n]}\n")?;
        self.out.flush()?;
        Ok((self.out, self.events))
    }

    fn put(&mut self, event: &Value) -> io::Result<()> {
        let separator: &[u8] = if self.events == 0 { b"\n" } else { b",\n" };
        self.out.write_all(separator)?;
        serde_json::to_writer(&mut self.out, event)?;
        self.events += 1;
        Ok(())
    }
}

/// What stands for the process of an event; numbers in most traces, texts in some.
fn process(event: &Event) -> String {
    match event.get("pid") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

fn is_name(event: &Event) -> bool {
    is(event, "process_name")
}

fn is(event: &Event, name: &str) -> bool {
    event.get("ph").and_then(Value::as_str) == Some("M")
        && event.get("name").and_then(Value::as_str) == Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_call_themselves_alike_are_told_apart_and_nothing_else_changes() {
        let trace = br#"{"traceEvents":[
            {"ph":"M","name":"process_name","pid":7,"args":{"name":"engine"}},
            {"ph":"M","name":"thread_name","pid":7,"tid":3,"args":{"name":"rank"}},
            {"ph":"X","name":"prefill","pid":7,"tid":3,"ts":1764460000000000,"dur":5,"args":{"tokens":64}},
            {"ph":"s","name":"flow","pid":7,"tid":3,"ts":2,"id":1},
            {"ph":"X","name":"copy","pid":"gpu","tid":0,"ts":3,"dur":1}]}"#;
        let found = Found::of(trace).unwrap();
        assert_eq!(found.events, 3);
        let mut merge = Merge::new(Vec::new()).unwrap();
        merge.add("a/0", &found, trace).unwrap();
        merge.add("a/1", &found, trace).unwrap();
        let (bytes, events) = merge.end().unwrap();
        let all: Value = serde_json::from_slice(&bytes).unwrap();
        let all = all["traceEvents"].as_array().unwrap();
        assert_eq!((all.len(), events), (16, 16));
        let names: Vec<_> = (all.iter())
            .filter(|e| e["name"] == "process_name")
            .map(|e| {
                (
                    e["pid"].as_u64().unwrap(),
                    e["args"]["name"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(
            names,
            [(1, "a/0"), (2, "a/0 gpu"), (3, "a/1"), (4, "a/1 gpu")]
        );
        let prefills: Vec<_> = all.iter().filter(|e| e["name"] == "prefill").collect();
        assert_eq!(prefills.len(), 2);
        assert_eq!(
            prefills[1],
            &json!({ "ph": "X", "name": "prefill", "pid": 3, "tid": 3, "ts": 1_764_460_000_000_000_u64,
                     "dur": 5, "args": { "tokens": 64 } })
        );
        let flows: Vec<_> = all
            .iter()
            .filter(|e| e["name"] == "flow")
            .map(|e| &e["id"])
            .collect();
        assert_eq!(flows, ["1/1", "3/1"]);
    }

    #[test]
    fn nothing_merged_is_a_trace_too() {
        let (bytes, events) = Merge::new(Vec::new()).unwrap().end().unwrap();
        let all: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&all["traceEvents"], events), (&json!([]), 0));
    }
}
