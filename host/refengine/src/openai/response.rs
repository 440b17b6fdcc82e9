//! What a completion looks like on the wire, whole or in server-sent events.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;

use super::{Api, ApiError};
use crate::engine::{Generation, Word};

/// The engine always generates as much as was asked for.
const FINISH_REASON: &str = "length";

/// Writes one request's answer.
#[derive(Debug)]
pub(crate) struct Answer {
    api: Api,
    id: String,
    /// Seconds since 1970.
    created: u64,
    model: String,
    include_usage: bool,
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
}

#[derive(Default, Serialize)]
struct Choice<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<Message<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    /// Always null.
    logprobs: (),
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct Message<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
}

#[derive(Serialize)]
struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptTokensDetails,
}

#[derive(Serialize)]
struct PromptTokensDetails {
    cached_tokens: usize,
}

impl Usage {
    /// Of a generation that is over.
    fn of(generation: &Generation) -> Self {
        Self {
            prompt_tokens: generation.prompt_tokens,
            completion_tokens: generation.output_tokens,
            total_tokens: generation.prompt_tokens + generation.output_tokens,
            prompt_tokens_details: PromptTokensDetails {
                cached_tokens: generation.cached_tokens(),
            },
        }
    }
}

impl Answer {
    pub(crate) fn new(api: Api, id: u64, model: String, include_usage: bool) -> Self {
        let prefix = match api {
            Api::Chat => "chatcmpl",
            Api::Text => "cmpl",
        };
        Self {
            api,
            id: format!("{prefix}-{id}"),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |d| d.as_secs()),
            model,
            include_usage,
        }
    }

    /// The whole answer as one JSON object.
    pub(crate) fn whole(&self, text: &str, generation: &Generation) -> Bytes {
        let (object, content) = match self.api {
            Api::Chat => {
                let message = Message {
                    role: Some("assistant"),
                    content: Some(text),
                };
                (
                    "chat.completion",
                    Choice {
                        message: Some(message),
                        ..Choice::default()
                    },
                )
            }
            Api::Text => (
                "text_completion",
                Choice {
                    text: Some(text),
                    ..Choice::default()
                },
            ),
        };
        let choice = Choice {
            finish_reason: Some(FINISH_REASON),
            ..content
        };
        let mut out = Vec::new();
        self.write(&mut out, object, &[choice], Some(Usage::of(generation)));
        out.into()
    }

    /// The events of one more word: before the first the assistant's role, after the last the
    /// finish reason, the usage if asked for, and the end mark.
    pub(crate) fn events(&self, word: Word, generation: &Generation) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        if word.first && self.api == Api::Chat {
            let role = Message {
                role: Some("assistant"),
                content: Some(""),
            };
            self.event(
                &mut out,
                &[Choice {
                    delta: Some(role),
                    ..Choice::default()
                }],
                None,
            );
        }
        self.event(&mut out, &[self.piece(Some(word.text))], None);
        if word.last {
            let end = Choice {
                finish_reason: Some(FINISH_REASON),
                ..self.piece(None)
            };
            self.event(&mut out, &[end], None);
            if self.include_usage {
                self.event(&mut out, &[], Some(Usage::of(generation)));
            }
            out.extend_from_slice(b"data: [DONE]\n\n");
        }
        out
    }

    /// An error in the middle of a stream, as vLLM sends it.
    pub(crate) fn error_events(error: &ApiError) -> Vec<u8> {
        format!("data: {}\n\ndata: [DONE]\n\n", error.to_json()).into_bytes()
    }

    fn piece<'a>(&self, text: Option<&'a str>) -> Choice<'a> {
        match self.api {
            Api::Chat => {
                let delta = Message {
                    role: None,
                    content: text,
                };
                Choice {
                    delta: Some(delta),
                    ..Choice::default()
                }
            }
            Api::Text => Choice {
                text: Some(text.unwrap_or_default()),
                ..Choice::default()
            },
        }
    }

    fn event(&self, out: &mut Vec<u8>, choices: &[Choice<'_>], usage: Option<Usage>) {
        let object = match self.api {
            Api::Chat => "chat.completion.chunk",
            Api::Text => "text_completion",
        };
        out.extend_from_slice(b"data: ");
        self.write(out, object, choices, usage);
        out.extend_from_slice(b"\n\n");
    }

    fn write(
        &self,
        out: &mut Vec<u8>,
        object: &'static str,
        choices: &[Choice<'_>],
        usage: Option<Usage>,
    ) {
        let (id, created, model) = (&self.id, self.created, &self.model);
        let completion = Completion {
            id,
            object,
            created,
            model,
            choices,
            usage,
        };
        // Strings and numbers into memory: cannot fail.
        let _ = serde_json::to_writer(out, &completion);
    }
}

/// The body of `GET /v1/models`.
#[derive(Serialize)]
pub(crate) struct ModelList<'a> {
    object: &'static str,
    data: [Model<'a>; 1],
}

#[derive(Serialize)]
struct Model<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Prompt and output together, tokens; vLLM's name for it.
    max_model_len: usize,
}

impl<'a> ModelList<'a> {
    pub(crate) fn new(id: &'a str, max_model_len: usize) -> Self {
        let model = Model {
            id,
            object: "model",
            created: 0,
            owned_by: "pointsman",
            max_model_len,
        };
        Self {
            object: "list",
            data: [model],
        }
    }
}
