//! One pass over a request's JSON body: what a data plane must know of it, without building a tree.

use http::header::{CONTENT_TYPE, HeaderMap};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// Top-level fields that are a rank to some engine.
const RANK_FIELDS: [&str; 2] = ["routed_dp_rank", "data_parallel_rank"];

/// More messages than this are not told apart: a body of millions must not take many times its size.
const MAX_MESSAGES: usize = 16_384;

/// What is needed again when the body is sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shape {
    /// top-level fields
    pub fields: usize,
    /// one of them is a rank to some engine
    pub rank_fields: bool,
}

/// A JSON object as the data plane sees it. Texts are raw JSON. Of doubles the last counts, as for
/// the engines.
#[derive(Debug, Default)]
pub struct Scan<'a> {
    /// what is needed when it is sent
    pub shape: Shape,
    /// the name of the model
    pub model: Option<Cow<'a, str>>,
    tools: Option<&'a str>,
    system: Option<&'a str>,
    instructions: Option<&'a str>,
    /// the elements of `messages`, or of an `input` that is a list, up to a bound
    pub messages: Vec<&'a str>,
    /// length of those beyond it
    pub more_bytes: u64,
    /// `prompt`, or an `input` that is one text
    pub text: Option<&'a str>,
    /// the most tokens the client wants back
    pub max_output_tokens: Option<u32>,
}

impl<'a> Scan<'a> {
    /// None: not a JSON object.
    pub fn of(body: &'a str) -> Option<Scan<'a>> {
        let mut scan = Scan::default();
        let mut json = serde_json::Deserializer::from_str(body);
        (&mut json).deserialize_map(Fields(&mut scan)).ok()?;
        json.end().ok()?;
        Some(scan)
    }

    /// What comes before the messages in every chat template.
    pub fn preamble(&self) -> impl Iterator<Item = &&'a str> {
        [&self.tools, &self.system, &self.instructions]
            .into_iter()
            .flatten()
    }
}

/// A string that borrows unless it has escapes.
#[derive(serde::Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

struct Fields<'s, 'a>(&'s mut Scan<'a>);

impl<'de> Visitor<'de> for Fields<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let scan = self.0;
        while let Some(Text(key)) = map.next_key()? {
            scan.shape.fields += 1;
            match &*key {
                "model" => scan.model = text(map.next_value()?),
                "messages" => map.next_value_seed(Items(scan))?,
                "tools" => scan.tools = Some(map.next_value::<&RawValue>()?.get()),
                "system" => scan.system = Some(map.next_value::<&RawValue>()?.get()),
                "instructions" => scan.instructions = Some(map.next_value::<&RawValue>()?.get()),
                "prompt" => scan.text = Some(map.next_value::<&RawValue>()?.get()),
                "input" => {
                    let raw = map.next_value::<&RawValue>()?.get();
                    if raw.starts_with('[') {
                        let mut json = serde_json::Deserializer::from_str(raw);
                        let items = Items(scan).deserialize(&mut json);
                        items.map_err(serde::de::Error::custom)?;
                    } else {
                        scan.text = Some(raw);
                    }
                }
                "max_tokens" | "max_completion_tokens" | "max_output_tokens" => {
                    let raw = map.next_value::<&RawValue>()?.get();
                    scan.max_output_tokens = raw.parse().ok().or(scan.max_output_tokens);
                }
                other => {
                    scan.shape.rank_fields |= RANK_FIELDS.contains(&other);
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text>(raw.get())
        .ok()
        .map(|text| text.0)
}

/// The elements of a list are messages; anything else has none.
struct Items<'s, 'a>(&'s mut Scan<'a>);

impl<'de> DeserializeSeed<'de> for Items<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.0.messages.clear();
        self.0.more_bytes = 0;
        while let Some(item) = seq.next_element::<&RawValue>()? {
            if self.0.messages.len() < MAX_MESSAGES {
                self.0.messages.push(item.get());
            } else {
                self.0.more_bytes += item.get().len() as u64;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// What a JSON pointer points at: strings as they are, everything else as JSON text.
pub(crate) fn at_pointer<'a>(body: &'a str, pointer: &str) -> Option<Cow<'a, str>> {
    let raw = (pointer.split('/').skip(1)).try_fold(body, |json, segment| {
        let segment = segment.replace("~1", "/").replace("~0", "~");
        step(json, &segment)
    })?;
    match serde_json::from_str::<Text>(raw) {
        Ok(text) => Some(text.0),
        Err(_) => Some(Cow::Borrowed(raw)),
    }
}

/// One level down. Keeps nothing of what it passes: a list may have millions of elements.
fn step<'a>(json: &'a str, segment: &str) -> Option<&'a str> {
    let mut found = None;
    let mut text = serde_json::Deserializer::from_str(json);
    if json.trim_start().starts_with('[') {
        let wanted = segment.parse::<usize>().ok()?;
        text.deserialize_seq(Elements(|at, raw| {
            if at == wanted {
                found = Some(raw);
            }
        }))
        .ok()?;
    } else {
        text.deserialize_map(Entries(|key: &str, raw| {
            if key == segment {
                found = Some(raw);
            }
        }))
        .ok()?;
    }
    found
}

/// The elements of a list, in order.
struct Elements<F>(F);

impl<'de, F: FnMut(usize, &'de str)> Visitor<'de> for Elements<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON array")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<(), A::Error> {
        let mut at = 0;
        while let Some(item) = seq.next_element::<&RawValue>()? {
            (self.0)(at, item.get());
            at += 1;
        }
        Ok(())
    }
}

/// The fields of an object in order, doubles included.
struct Entries<F>(F);

impl<'de, F: FnMut(&str, &'de str)> Visitor<'de> for Entries<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((Text(key), value)) = map.next_entry::<Text, &RawValue>()? {
            (self.0)(&key, value.get());
        }
        Ok(())
    }
}

/// The object with `field` set to `value`, and no other field that is a rank to some engine. Order
/// and values of the others stay as they are.
pub fn with_field(body: &str, field: &str, value: u32) -> Option<String> {
    let mut out = String::with_capacity(body.len() + field.len() + 16);
    out.push('{');
    let mut json = serde_json::Deserializer::from_str(body);
    json.deserialize_map(Entries(|key: &str, value: &str| {
        if !RANK_FIELDS.contains(&key) {
            out.push_str(&serde_json::Value::from(key).to_string());
            out.push(':');
            out.push_str(value);
            out.push(',');
        }
    }))
    .ok()?;
    out.push_str(&format!("\"{field}\":{value}}}"));
    Some(out)
}

/// Whether the headers say that the body is JSON.
pub fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let kind = kind.and_then(|kind| kind.split(|&byte| byte == b';').next());
    let kind = kind.unwrap_or_default().trim_ascii().to_ascii_lowercase();
    kind == b"application/json" || (kind.starts_with(b"application/") && kind.ends_with(b"+json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chat_is_its_model_its_preamble_and_its_messages() {
        let scan = Scan::of(
            r#"{"messages":[{"role":"user","content":"a"}, {"b":[1]}],"model":"m\u0061","tools":[1],"max_tokens":7,"stream":true}"#,
        )
        .unwrap();
        assert_eq!(scan.model.as_deref(), Some("ma"));
        assert_eq!(
            scan.messages,
            [r#"{"role":"user","content":"a"}"#, r#"{"b":[1]}"#]
        );
        assert_eq!(scan.preamble().collect::<Vec<_>>(), [&"[1]"]);
        assert_eq!(scan.max_output_tokens, Some(7));
        assert_eq!(scan.shape.fields, 5);
    }

    #[test]
    fn fields_of_an_unexpected_type_do_not_matter() {
        for odd in [
            "1",
            "-1",
            "1.5",
            "null",
            "true",
            r#""x""#,
            r#"{"a":1}"#,
            "[]",
        ] {
            let body = format!(
                r#"{{"model":{odd},"messages":{odd},"prompt":{odd},"input":{odd},"tools":{odd},"max_tokens":{odd}}}"#
            );
            assert!(Scan::of(&body).is_some(), "{odd}");
        }
    }

    #[test]
    fn absurd_limits_of_output_are_none() {
        for absurd in ["-1", "1e99", "1.5", r#""7""#, "99999999999", "[7]", "null"] {
            let limit = |body: &str| Scan::of(body).unwrap().max_output_tokens;
            assert_eq!(limit(&format!(r#"{{"max_tokens":{absurd}}}"#)), None);
            let both = format!(r#"{{"max_completion_tokens":5,"max_tokens":{absurd}}}"#);
            assert_eq!(limit(&both), Some(5), "{absurd}");
        }
    }

    #[test]
    fn of_doubles_the_last_counts() {
        let body = r#"{"messages":["a","b"],"model":"x","tools":[1],"messages":["c"],"model":"y","tools":[2],"input":["d"]}"#;
        let scan = Scan::of(body).unwrap();
        assert_eq!(scan.messages, [r#""d""#]);
        assert_eq!(scan.preamble().collect::<Vec<_>>(), [&"[2]"]);
        assert_eq!(scan.model.as_deref(), Some("y"));
        assert_eq!(at_pointer(r#"{"a":1,"a":2}"#, "/a").as_deref(), Some("2"));
    }

    #[test]
    fn depth_and_length_and_odd_bytes_are_survived() {
        let deep = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
        for odd in [
            deep(1_000_000),
            format!("[{}1]", deep(100_000) + ","),
            format!(r#"{}1{}"#, r#"{"a":"#.repeat(200_000), "}".repeat(200_000)),
            "9".repeat(1_000_000),
            format!("1e{}", "9".repeat(1000)),
            format!("[{}1]", "1,".repeat(1_000_000)),
            format!(r#"{{{}"a":1}}"#, r#""a":1,"#.repeat(500_000)),
            r#""\u0000\ud83d\ude00""#.to_owned(),
        ] {
            let start = &odd[..odd.len().min(20)];
            let others = format!(
                r#"{{"tools":{odd},"prompt":{odd},"input":{odd},"max_tokens":{odd},"model":{odd},"x":{odd}}}"#
            );
            let scan = Scan::of(&others).unwrap_or_else(|| panic!("{start}"));
            assert!(scan.messages.len() <= MAX_MESSAGES, "{start}");
            // A list of messages is never that deep or that large a number.
            if let Some(scan) = Scan::of(&format!(r#"{{"messages":{odd}}}"#)) {
                assert!(scan.messages.len() <= MAX_MESSAGES, "{start}");
            }
            at_pointer(&others, "/input/0/0/a/a");
            at_pointer(&others, "/input/999999");
            with_field(&others, "data_parallel_rank", 1).unwrap();
        }
        for broken in [
            "{\"a\":\"\0\"}",
            "{\"\0\":1}",
            r#"{"a":"\ud800"#,
            "\0",
            "{\0}",
        ] {
            assert!(Scan::of(broken).is_none(), "{broken:?}");
        }
        assert!(Scan::of(r#"{"a":"\ud800","model":"\ud800"}"#).is_some());
    }

    #[test]
    fn what_is_no_object_is_not_scanned() {
        for body in ["", "[]", "1", "{", r#"{"a":1} x"#, r#"{"a"}"#] {
            assert!(Scan::of(body).is_none(), "{body}");
        }
    }

    #[test]
    fn a_pointer_finds_strings_numbers_and_nothing() {
        let body = r#"{"a":{"b/c":["x",{"d":5}]},"e":"q\"r"}"#;
        assert_eq!(at_pointer(body, "/a/b~1c/0").as_deref(), Some("x"));
        assert_eq!(at_pointer(body, "/a/b~1c/1/d").as_deref(), Some("5"));
        assert_eq!(at_pointer(body, "/e").as_deref(), Some("q\"r"));
        assert_eq!(at_pointer(body, "/a/z"), None);
        assert_eq!(at_pointer(body, "/e/z"), None);
    }
}
