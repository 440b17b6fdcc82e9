//! The policy that an operator wants.

use super::refused::Refused;
use crate::policies::{BUILT_IN, built_in};
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Query, Request};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use serde::Deserialize;
use serde_json::Value;

/// Of a `.wasm`, in bytes: what the runtime takes.
const MAX_WASM: usize = 64 << 20;
/// Of JSON, in bytes.
pub const MAX_JSON: usize = 64 << 10;
/// Of the name of a file, in characters.
const MAX_ORIGIN: usize = 256;

/// See the module.
#[derive(Clone, Debug)]
pub struct Wanted {
    pub wasm: Bytes,
    /// where it is from, for people
    pub origin: String,
    /// JSON
    pub config: String,
    /// the SHA-256 that it must have; empty: any
    pub pin: String,
}

/// A policy that the binary carries.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    policy: String,
    #[serde(default)]
    config: Value,
    #[serde(default)]
    sha256: String,
}

/// Said in the query beside a `.wasm` as the body.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Upload {
    origin: String,
    config: String,
    sha256: String,
}

impl Default for Upload {
    fn default() -> Self {
        Upload {
            origin: "(uploaded)".to_owned(),
            config: String::new(),
            sha256: String::new(),
        }
    }
}

impl Wanted {
    /// Of a request: JSON that names a built-in policy, or the `.wasm` itself.
    pub async fn read(request: Request) -> Result<Wanted, Refused> {
        let content = request.headers().get(CONTENT_TYPE);
        let content = content.and_then(|value| value.to_str().ok()).unwrap_or("");
        match content.split(';').next().unwrap_or("").trim() {
            "application/wasm" => uploaded(request).await,
            "application/json" => named(&body(request.into_body(), MAX_JSON).await?),
            other => Err(Refused::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "request",
                format!("content-type {other:?} is no policy"),
                "send application/json with {\"policy\": NAME}, or the .wasm as application/wasm",
            )),
        }
    }
}

fn named(body: &[u8]) -> Result<Wanted, Refused> {
    let named: Named = json(body)?;
    let policy = built_in(&named.policy).ok_or_else(|| {
        let names: Vec<&str> = BUILT_IN.iter().map(|policy| policy.name).collect();
        Refused::request(
            format!("there is no built-in policy {:?}", named.policy),
            format!(
                "name one of {}, or send the .wasm itself as application/wasm",
                names.join(", ")
            ),
        )
    })?;
    Ok(Wanted {
        wasm: Bytes::from_static(policy.wasm),
        origin: policy.name.to_owned(),
        config: match named.config {
            Value::Null => String::new(),
            config => config.to_string(),
        },
        pin: named.sha256,
    })
}

async fn uploaded(request: Request) -> Result<Wanted, Refused> {
    let query = Query::<Upload>::try_from_uri(request.uri());
    let Query(upload) = query.map_err(|error| {
        let remedy = "the query may say origin, config and sha256";
        Refused::request(format!("the query cannot be used: {error}"), remedy)
    })?;
    Ok(Wanted {
        wasm: body(request.into_body(), MAX_WASM).await?,
        // It is shown in logs and on terminals.
        origin: (upload.origin.chars())
            .filter(|c| !c.is_control())
            .take(MAX_ORIGIN)
            .collect(),
        config: upload.config,
        pin: upload.sha256,
    })
}

/// The whole of a body of at most `most` bytes.
pub async fn body(body: Body, most: usize) -> Result<Bytes, Refused> {
    to_bytes(body, most).await.map_err(|error| {
        Refused::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "request",
            format!("the body cannot be taken: {error}"),
            format!("send at most {most} bytes, and all of them"),
        )
    })
}

/// Reads JSON.
pub fn json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refused> {
    serde_json::from_slice(body).map_err(|error| {
        let cause = format!("the body is not what is wanted here: {error}");
        Refused::request(cause, "see the operators' guide for its fields")
    })
}
