//! One pass over a request's JSON body: what the proxy must know of it, without building a tree.

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;
use smallvec::SmallVec;
use std::borrow::Cow;
use std::fmt;

/// Top-level fields that are a rank to some engine.
const RANK_FIELDS: [&str; 2] = ["routed_dp_rank", "data_parallel_rank"];

/// What is needed again when the body is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    /// top-level fields
    pub(crate) fields: usize,
    /// one of them is a rank to some engine
    pub(crate) rank_fields: bool,
}

/// A JSON object as the data plane sees it. Texts are raw JSON.
#[derive(Debug, Default)]
pub(crate) struct Scan<'a> {
    pub(crate) shape: Shape,
    pub(crate) model: Option<Cow<'a, str>>,
    /// tools, system, instructions: before the messages in every chat template
    pub(crate) preamble: SmallVec<[&'a str; 3]>,
    /// the elements of `messages`, or of an `input` that is a list
    pub(crate) messages: Vec<&'a str>,
    /// `prompt`, or an `input` that is one text
    pub(crate) text: Option<&'a str>,
    pub(crate) max_output_tokens: Option<u32>,
}

impl<'a> Scan<'a> {
    /// None: not a JSON object.
    pub(crate) fn of(body: &'a str) -> Option<Scan<'a>> {
        let mut scan = Scan::default();
        let mut json = serde_json::Deserializer::from_str(body);
        (&mut json).deserialize_map(Fields(&mut scan)).ok()?;
        json.end().ok()?;
        Some(scan)
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
                "messages" => map.next_value_seed(Items(&mut scan.messages))?,
                "tools" | "system" | "instructions" => {
                    scan.preamble.push(map.next_value::<&RawValue>()?.get());
                }
                "prompt" => scan.text = Some(map.next_value::<&RawValue>()?.get()),
                "input" => {
                    let raw = map.next_value::<&RawValue>()?.get();
                    match serde_json::from_str::<Vec<&RawValue>>(raw) {
                        Ok(items) => scan.messages.extend(items.iter().map(|item| item.get())),
                        Err(_) => scan.text = Some(raw),
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

/// The elements of a list; anything else has none.
struct Items<'v, 'a>(&'v mut Vec<&'a str>);

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
        while let Some(item) = seq.next_element::<&RawValue>()? {
            self.0.push(item.get());
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

/// One level down. (An untagged enum cannot hold raw values.)
fn step<'a>(json: &'a str, segment: &str) -> Option<&'a str> {
    if json.trim_start().starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(json).ok()?;
        return Some(items.get(segment.parse::<usize>().ok()?)?.get());
    }
    let Entries(entries) = serde_json::from_str(json).ok()?;
    let (_, value) = entries.into_iter().rev().find(|(key, _)| key == segment)?;
    Some(value.get())
}

/// The fields of an object in order, doubles included.
struct Entries<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Entries<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some((Text(key), value)) = map.next_entry()? {
                    entries.push((key, value));
                }
                Ok(Entries(entries))
            }
        }
        json.deserialize_map(Collect)
    }
}

/// The object with `field` set to `value`, and no other field that is a rank to some engine. Order
/// and values of the others stay as they are.
pub(crate) fn with_field(body: &str, field: &str, value: u32) -> Option<String> {
    let Entries(entries) = serde_json::from_str(body).ok()?;
    let mut out = String::with_capacity(body.len() + field.len() + 16);
    out.push('{');
    for (key, value) in entries {
        if RANK_FIELDS.contains(&&*key) {
            continue;
        }
        out.push_str(&serde_json::to_string(&key).ok()?);
        out.push(':');
        out.push_str(value.get());
        out.push(',');
    }
    out.push_str(&format!("\"{field}\":{value}}}"));
    Some(out)
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
        assert_eq!(&*scan.preamble, ["[1]"]);
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
