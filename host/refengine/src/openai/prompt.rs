//! Prompts as text, whatever form they come in.

use serde_json::{Map, Value};

use super::ApiError;

/// A simple chat template: tools, then the messages, then the cue for the assistant. What the
/// assistant says continues the text exactly as it will stand in the next turn's prompt, so that
/// the blocks of its answer are found again.
pub(super) fn of_chat(
    messages: Option<&[Map<String, Value>]>,
    tools: Option<&Value>,
) -> Result<Vec<u8>, ApiError> {
    let messages = messages.filter(|m| !m.is_empty()).ok_or_else(|| {
        ApiError::invalid(
            "messages",
            "messages: wanted a list of at least one message, found none",
        )
    })?;
    let mut text = String::new();
    if let Some(tools) = tools.filter(|t| !is_nothing(t)) {
        text += &format!("<|tools|>\n{tools}\n");
    }
    for message in messages {
        let role = message.get("role").and_then(Value::as_str).ok_or_else(|| {
            ApiError::invalid(
                "messages",
                "messages: every message needs a role that is a string",
            )
        })?;
        text += &format!("<|{role}|>\n");
        match message.get("content") {
            Some(Value::Array(parts)) => parts.iter().for_each(|part| push_part(&mut text, part)),
            Some(content) => push_part(&mut text, content),
            None => {}
        }
        // Tool calls and whatever else the message says.
        let rest = message
            .iter()
            .filter(|(key, _)| !matches!(key.as_str(), "role" | "content"));
        for (key, value) in rest.filter(|(_, value)| !is_nothing(value)) {
            text += &format!("\n{key}: {value}");
        }
        text.push('\n');
    }
    text += "<|assistant|>\n";
    Ok(text.into_bytes())
}

/// Content, or one part of it: text as it is, anything else (an image's address) as JSON.
fn push_part(text: &mut String, part: &Value) {
    match part
        .as_str()
        .or_else(|| part.get("text").and_then(Value::as_str))
    {
        Some(part) => *text += part,
        None if is_nothing(part) => {}
        None => *text += &part.to_string(),
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

/// A string, token ids (4 bytes each), or a list of one of these.
pub(super) fn of_text(prompt: Option<&Value>) -> Result<Vec<u8>, ApiError> {
    let text = |text: &str| (!text.is_empty()).then(|| text.as_bytes().to_vec());
    let bytes = match prompt {
        Some(Value::String(prompt)) => text(prompt),
        Some(Value::Array(items)) => match items.as_slice() {
            [Value::String(prompt)] => text(prompt),
            [Value::Array(ids)] => token_ids(ids),
            ids => token_ids(ids),
        },
        _ => None,
    };
    bytes.ok_or_else(|| {
        let wanted = "prompt: wanted one prompt that is not empty, a string or a list of token ids";
        let found = match prompt {
            None | Some(Value::Null) => "none",
            Some(Value::String(_)) => "an empty string",
            Some(Value::Array(_)) => "a list of something else, or of several prompts",
            Some(_) => "something else",
        };
        ApiError::invalid("prompt", format!("{wanted}, found {found}"))
    })
}

fn token_ids(ids: &[Value]) -> Option<Vec<u8>> {
    let bytes = |id: &Value| Some(u32::try_from(id.as_u64()?).ok()?.to_le_bytes());
    let ids: Option<Vec<_>> = ids.iter().map(bytes).collect();
    ids.filter(|ids| !ids.is_empty()).map(|ids| ids.concat())
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;
    use serde_json::json;

    use super::*;
    use crate::openai::{Api, Call};

    fn parse(api: Api, body: Value) -> Result<Call, ApiError> {
        Call::parse(api, &HeaderMap::new(), body.to_string().as_bytes(), 4)
    }

    fn prompt(api: Api, body: Value) -> String {
        String::from_utf8(parse(api, body).unwrap().prompt).unwrap()
    }

    #[test]
    fn a_chat_is_rendered_as_text_whatever_form_the_content_has() {
        let text = prompt(
            Api::Chat,
            json!({"tools": [{"name": "t"}], "messages": [
                {"role": "system", "content": "be"},
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url"}]},
                {"role": "assistant", "content": null, "refusal": null, "tool_calls": [{"id": "x"}]},
            ]}),
        );
        assert_eq!(
            text,
            "<|tools|>\n[{\"name\":\"t\"}]\n<|system|>\nbe\n<|user|>\na{\"type\":\"image_url\"}\n\
             <|assistant|>\n\ntool_calls: [{\"id\":\"x\"}]\n<|assistant|>\n"
        );
    }

    #[test]
    fn a_turn_begins_with_the_prompt_and_the_answer_of_the_turn_before() {
        let user = json!({"role": "user", "content": "hi"});
        let answer = json!({"role": "assistant", "content": "the sea "});
        let first = prompt(Api::Chat, json!({"messages": [user]}));
        let second = prompt(Api::Chat, json!({"messages": [user, answer, user]}));
        assert!(second.starts_with(&(first + "the sea ")));
    }

    #[test]
    fn a_text_prompt_is_a_string_or_token_ids() {
        for body in [json!("abc"), json!(["abc"])] {
            assert_eq!(prompt(Api::Text, json!({"prompt": body})), "abc");
        }
        for body in [json!([1, 2]), json!([[1, 2]])] {
            let call = parse(Api::Text, json!({"prompt": body})).unwrap();
            assert_eq!(call.prompt, [1, 0, 0, 0, 2, 0, 0, 0]);
        }
        let bad = [
            json!(null),
            json!(""),
            json!([]),
            json!([[]]),
            json!(["a", "b"]),
            json!([-1]),
            json!(7),
        ];
        for body in bad {
            let error = parse(Api::Text, json!({"prompt": body})).unwrap_err();
            assert_eq!(error.param, Some("prompt"), "{body}");
        }
    }
}
