//! What a completion request asks for.

use http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{ApiError, prompt};
use crate::config::MAX_OUTPUT_TOKENS;
use crate::http::DP_RANK_HEADER;

/// Generated when the request says nothing; OpenAI's own default for text completions.
const DEFAULT_OUTPUT_TOKENS: usize = 16;

/// Which of the two endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Text,
}

/// A request, checked.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) model: Option<String>,
    /// The prompt as text, whatever form it came in.
    pub(crate) prompt: Vec<u8>,
    pub(crate) output_tokens: usize,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) rank: Option<u64>,
}

/// Fields that are not here (temperature, stop, …) are accepted and have no effect.
#[derive(Debug, Deserialize)]
struct Body {
    model: Option<String>,
    messages: Option<Vec<Map<String, Value>>>,
    tools: Option<Value>,
    prompt: Option<Value>,
    max_tokens: Option<u64>,
    max_completion_tokens: Option<u64>,
    n: Option<u64>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    routed_dp_rank: Option<Value>,
    data_parallel_rank: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
}

impl Call {
    /// Reads a request for an engine with `ranks` ranks.
    pub(crate) fn parse(
        api: Api,
        headers: &HeaderMap,
        body: &[u8],
        ranks: usize,
    ) -> Result<Self, ApiError> {
        let body: Body = serde_json::from_slice(body).map_err(|e| {
            let status = http::StatusCode::BAD_REQUEST;
            ApiError::new(
                status,
                format!("the body is not a completion request in JSON: {e}"),
            )
        })?;
        if let Some(n) = body.n.filter(|n| *n != 1) {
            return Err(ApiError::invalid("n", format!("wanted n = 1, found {n}")));
        }
        let rank = rank(headers, &body, ranks)?;
        let output_tokens = output_tokens(&body)?;
        let prompt = match api {
            Api::Chat => prompt::of_chat(body.messages.as_deref(), body.tools.as_ref())?,
            Api::Text => prompt::of_text(body.prompt.as_ref())?,
        };
        Ok(Self {
            model: body.model,
            prompt,
            output_tokens,
            stream: body.stream.unwrap_or(false),
            include_usage: body
                .stream_options
                .and_then(|o| o.include_usage)
                .unwrap_or(false),
            rank,
        })
    }
}

/// The header (vLLM) wins over the body fields (SGLang, ATOM).
fn rank(headers: &HeaderMap, body: &Body, ranks: usize) -> Result<Option<u64>, ApiError> {
    let check = |param, rank: Option<u64>, found: String| match rank {
        Some(rank) if rank < ranks as u64 => Ok(Some(rank)),
        _ => Err(ApiError::invalid(
            param,
            format!(
                "{param}: wanted a rank from 0 to {}, found {found}",
                ranks.saturating_sub(1)
            ),
        )),
    };
    if let Some(value) = headers.get(DP_RANK_HEADER) {
        let text = String::from_utf8_lossy(value.as_bytes());
        return check(
            DP_RANK_HEADER,
            text.trim().parse().ok(),
            format!("{text:?}"),
        );
    }
    let fields = [
        ("routed_dp_rank", &body.routed_dp_rank),
        ("data_parallel_rank", &body.data_parallel_rank),
    ];
    for (param, value) in fields {
        if let Some(value) = value {
            return check(param, value.as_u64(), value.to_string());
        }
    }
    Ok(None)
}

fn output_tokens(body: &Body) -> Result<usize, ApiError> {
    let (param, asked) = match (body.max_completion_tokens, body.max_tokens) {
        (Some(n), _) => ("max_completion_tokens", n),
        (None, Some(n)) => ("max_tokens", n),
        (None, None) => return Ok(DEFAULT_OUTPUT_TOKENS),
    };
    match usize::try_from(asked) {
        Ok(n) if (1..=MAX_OUTPUT_TOKENS).contains(&n) => Ok(n),
        _ => Err(ApiError::invalid(
            param,
            format!("{param}: wanted 1 to {MAX_OUTPUT_TOKENS}, found {asked}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(api: Api, body: Value) -> Result<Call, ApiError> {
        Call::parse(api, &HeaderMap::new(), body.to_string().as_bytes(), 4)
    }

    #[test]
    fn what_is_missing_or_out_of_range_is_named() {
        let chat = |extra: Value| {
            let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
            body.as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            body
        };
        let cases = [
            ("messages", json!({})),
            ("messages", json!({"messages": []})),
            ("messages", json!({"messages": [{"content": "x"}]})),
            ("n", chat(json!({"n": 2}))),
            ("max_tokens", chat(json!({"max_tokens": 0}))),
            (
                "max_completion_tokens",
                chat(json!({"max_tokens": 1, "max_completion_tokens": 32769})),
            ),
            (
                "routed_dp_rank",
                chat(json!({"routed_dp_rank": 4, "data_parallel_rank": 1})),
            ),
            (
                "data_parallel_rank",
                chat(json!({"data_parallel_rank": -1})),
            ),
            (
                "data_parallel_rank",
                chat(json!({"data_parallel_rank": "1"})),
            ),
        ];
        for (param, body) in cases {
            let error = parse(Api::Chat, body.clone()).unwrap_err();
            assert_eq!(
                (error.param, error.status.as_u16()),
                (Some(param), 400),
                "{body}"
            );
        }
        assert_eq!(parse(Api::Chat, chat(json!({}))).unwrap().output_tokens, 16);
    }

    #[test]
    fn the_header_wins_over_the_body_and_has_to_be_a_rank() {
        let body = json!({"prompt": "x", "data_parallel_rank": 1}).to_string();
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(DP_RANK_HEADER, value.parse().unwrap());
            Call::parse(Api::Text, &headers, body.as_bytes(), 4)
        };
        assert_eq!(with("3").unwrap().rank, Some(3));
        for bad in ["4", "", "x", "-1", "1.0", "99999999999999999999"] {
            let error = with(bad).unwrap_err();
            assert!(error.message.contains("from 0 to 3"), "{}", error.message);
        }
        let call = Call::parse(Api::Text, &HeaderMap::new(), body.as_bytes(), 4).unwrap();
        assert_eq!(call.rank, Some(1));
    }
}
