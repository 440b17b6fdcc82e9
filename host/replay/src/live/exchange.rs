//! One request and its streamed answer.

use bytes::{Buf as _, Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use tokio::time::Instant;

use super::chat::{ChatRequest, Chunk, StreamOptions};
use super::connection::{Connection, Upstream};
use crate::prompt::Message;
use crate::record::Record;

/// As much of an error answer as a record keeps.
const ERROR_BYTES: usize = 300;

/// Longest line of a stream; a longer one is an error, not memory.
const LINE_BYTES: usize = 1 << 20;

/// The request for one turn.
pub(super) fn request(
    upstream: &Upstream,
    session: &str,
    parent: Option<&str>,
    model: &str,
    max_tokens: u64,
    messages: &[Message],
) -> Result<Request<Full<Bytes>>, String> {
    let body = serde_json::to_vec(&ChatRequest {
        model,
        messages,
        stream: true,
        stream_options: StreamOptions {
            include_usage: true,
        },
        max_tokens,
    })
    .map_err(|e| format!("writing the request: {e}"))?;
    let mut request = Request::post("/v1/chat/completions")
        .header("host", &upstream.authority)
        .header("content-type", "application/json")
        .header("x-pointsman-explain", "1")
        .header("x-dynamo-session-id", session);
    if let Some(parent) = parent {
        request = request.header("x-dynamo-parent-session-id", parent);
    }
    request
        .body(Full::new(Bytes::from(body)))
        .map_err(|e| format!("writing the request: {e}"))
}

/// Sends it and notes in `record` what comes back, up to the end or the
/// first thing that goes wrong.
pub(super) async fn exchange(
    connection: &mut Connection,
    upstream: &Upstream,
    request: Request<Full<Bytes>>,
    origin: Instant,
    record: &mut Record,
) -> Result<(), String> {
    let response = connection.send(upstream, request).await?;
    let (head, body) = response.into_parts();
    record.status = Some(head.status.as_u16());
    record.target = text(&head.headers, "x-pointsman-target");
    record.reason = text(&head.headers, "x-pointsman-reason");
    record.engine_rank = text(&head.headers, "x-engine-rank");
    if head.status != StatusCode::OK {
        return Err(format!("{}: {}", head.status, opening(body).await));
    }
    stream(body, origin, record).await
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(String::from)
}

/// The first bytes of an error answer, on one line.
async fn opening(mut body: Incoming) -> String {
    let mut bytes = BytesMut::new();
    while bytes.len() < ERROR_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
    }
    bytes.truncate(ERROR_BYTES);
    String::from_utf8_lossy(&bytes)
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// Reads the events of a stream to its end.
async fn stream(mut body: Incoming, origin: Instant, record: &mut Record) -> Result<(), String> {
    let mut lines = BytesMut::new();
    let mut outputs = 0;
    let mut finished = false;
    let mut counted = false;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| format!("reading the stream: {e}"))?;
        let now = origin.elapsed();
        if let Some(data) = frame.data_ref() {
            lines.extend_from_slice(data);
        }
        while let Some(end) = lines.iter().position(|b| *b == b'\n') {
            let line = lines.split_to(end);
            lines.advance(1);
            let Some(event) = line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) else {
                continue;
            };
            if event == b"[DONE]" {
                finished = true;
                continue;
            }
            let chunk: Chunk =
                serde_json::from_slice(event).map_err(|e| format!("reading an event: {e}"))?;
            if let Some(error) = chunk.error {
                return Err(format!("error inside the stream: {error}"));
            }
            if chunk.has_output() {
                outputs += 1;
                record.first_output.get_or_insert(now);
                record.last_output = Some(now);
            }
            if let Some(usage) = chunk.usage {
                counted = true;
                record.prompt_tokens = usage.prompt_tokens;
                record.cached_tokens = usage.cached_tokens().min(usage.prompt_tokens);
                record.output_tokens = usage.completion_tokens;
            }
        }
        if lines.len() > LINE_BYTES {
            return Err(format!(
                "reading the stream: a line of more than {LINE_BYTES} bytes"
            ));
        }
    }
    if !finished {
        return Err("the stream ended before [DONE]".into());
    }
    if !counted {
        record.output_tokens = outputs;
        return Err(
            "the stream held no usage; the engine must honour stream_options.include_usage".into(),
        );
    }
    Ok(())
}
