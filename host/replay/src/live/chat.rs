//! The parts of the OpenAI chat API that playing needs.

use serde::{Deserialize, Serialize};

use crate::prompt::Message;

#[derive(Serialize)]
pub(super) struct ChatRequest<'a> {
    pub model: &'a str,
    pub messages: &'a [Message],
    pub stream: bool,
    pub stream_options: StreamOptions,
    pub max_tokens: u64,
}

#[derive(Serialize)]
pub(super) struct StreamOptions {
    pub include_usage: bool,
}

/// One event of the stream.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Chunk {
    choices: Vec<Choice>,
    pub usage: Option<Usage>,
    /// Engines report a late failure inside a stream that began with 200.
    pub error: Option<serde_json::Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Choice {
    delta: Option<Delta>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    content: Option<String>,
    reasoning_content: Option<String>,
}

/// Token counts, in the last event but `[DONE]`.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Usage {
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

impl Chunk {
    /// Whether the event brings output; the first one often brings only a role.
    pub fn has_output(&self) -> bool {
        let texts = self.choices.iter().filter_map(|c| c.delta.as_ref());
        texts
            .flat_map(|d| [&d.content, &d.reasoning_content])
            .any(|text| text.as_ref().is_some_and(|t| !t.is_empty()))
    }
}

impl Usage {
    /// Prompt tokens that the engine took from its prefix cache.
    pub fn cached_tokens(&self) -> u64 {
        let details = self.prompt_tokens_details.as_ref();
        details.and_then(|d| d.cached_tokens).unwrap_or_default()
    }
}
