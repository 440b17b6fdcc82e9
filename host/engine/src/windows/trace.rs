//! A trace in the Chrome trace event format, read event by event: no tree of it is ever in memory.

use std::fmt;

use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

/// One event, its fields by name.
pub(super) type Event = Map<String, Value>;

/// Hands every event to `each`. Both forms are taken: an object with `traceEvents`, and a list.
///
/// # Errors
/// It is no trace, up to where; or what `each` says.
pub(super) fn read(
    trace: &[u8],
    each: &mut dyn FnMut(Event) -> Result<(), String>,
) -> Result<(), String> {
    let mut json = serde_json::Deserializer::from_slice(trace);
    let found = Whole { each }
        .deserialize(&mut json)
        .map_err(|e| e.to_string())?;
    json.end().map_err(|e| e.to_string())?;
    if found {
        Ok(())
    } else {
        Err("wanted an object with `traceEvents`, found none".to_owned())
    }
}

/// Whether an event is one: it has a phase, and a time unless it only names something.
pub(super) fn check(event: &Event) -> Result<(), String> {
    let phase = event.get("ph").and_then(Value::as_str).unwrap_or_default();
    let timed = phase == "M" || event.get("ts").is_some_and(Value::is_number);
    if phase.is_empty() || !timed {
        let start: String = Value::Object(event.clone())
            .to_string()
            .chars()
            .take(100)
            .collect();
        return Err(format!("an event without phase or time: {start}"));
    }
    Ok(())
}

struct Whole<'a> {
    each: &'a mut dyn FnMut(Event) -> Result<(), String>,
}

impl<'de> DeserializeSeed<'de> for Whole<'_> {
    type Value = bool;

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<bool, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Whole<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a trace: an object with `traceEvents`, or a list of events")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<bool, A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "traceEvents" && !found {
                found = true;
                map.next_value_seed(Events { each: self.each })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<bool, A::Error> {
        Events { each: self.each }.visit_seq(seq)?;
        Ok(true)
    }
}

struct Events<'a> {
    each: &'a mut dyn FnMut(Event) -> Result<(), String>,
}

impl<'de> DeserializeSeed<'de> for Events<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Events<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of events")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(event) = seq.next_element::<Event>()? {
            (self.each)(event).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(trace: &str) -> Result<usize, String> {
        let mut found = 0;
        read(trace.as_bytes(), &mut |event| {
            check(&event)?;
            found += 1;
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn both_forms_are_read_and_what_is_no_trace_says_so() {
        let event = r#"{"ph":"X","ts":1.5,"dur":2,"name":"prefill","pid":1,"tid":0}"#;
        let meta = r#"{"ph":"M","name":"process_name","args":{"name":"x"}}"#;
        assert_eq!(count(&format!("[{event},{meta}]")), Ok(2));
        let object = format!(r#"{{"otherData":{{"a":[1]}},"traceEvents":[{event}],"z":0}}"#);
        assert_eq!(count(&object), Ok(1));
        assert_eq!(count(r#"{"traceEvents":[]}"#), Ok(0));
        let half = &object[..object.len() - 20];
        for (trace, wanted) in [
            ("{}", "wanted an object with `traceEvents`"),
            ("7", "a trace: an object"),
            ("", "EOF"),
            (half, "EOF"),
            ("[1]", "expected a map"),
            (r#"{"traceEvents":7}"#, "a list of events"),
            (r#"[{"name":"x"}]"#, "without phase or time"),
            (r#"[{"ph":"X"}]"#, "without phase or time"),
            ("[] []", "trailing characters"),
        ] {
            let error = count(trace).unwrap_err();
            assert!(error.contains(wanted), "{trace}: {error}");
        }
        let deep = "[".repeat(100_000);
        assert!(count(&deep).is_err(), "and no stack is used up");
    }
}
