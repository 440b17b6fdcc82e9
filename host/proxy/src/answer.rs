//! The errors that the proxy itself answers with, in the shape that OpenAI clients read.

use crate::flow::Reply;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use pointsman_core::Refusal;
use pointsman_request::BadIdentity;

/// Says which error of the proxy this is; never on an engine's own answer.
const ERROR: &str = "x-pointsman-error";

/// An error for the client: what was wanted, what was found, what to do.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    /// one of a small, fixed set
    code: &'static str,
    message: String,
    retry_after_s: Option<u64>,
}

/// The client's fault: its identity headers.
impl From<BadIdentity> for Answer {
    fn from(bad: BadIdentity) -> Answer {
        Answer::new(StatusCode::BAD_REQUEST, "bad_session_identity", bad.0)
    }
}

impl Answer {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Answer {
        Answer {
            status,
            code,
            message: message.into(),
            retry_after_s: None,
        }
    }

    /// The client's fault: its body broke off.
    pub(crate) fn body(message: String) -> Answer {
        Answer::new(StatusCode::BAD_REQUEST, "bad_body", message)
    }

    /// The client's fault: its body is too long.
    pub(crate) fn too_long(limit: u64) -> Answer {
        Answer::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_long",
            format!("a request's body has at most {limit} bytes: send less, or raise the limit"),
        )
    }

    /// The client was too slow.
    pub(crate) fn slow_body() -> Answer {
        Answer::new(
            StatusCode::REQUEST_TIMEOUT,
            "slow_body",
            "the request's body stopped coming",
        )
    }

    /// A request for a host without a path (`GET h HTTP/1.1`).
    pub(crate) fn no_path() -> Answer {
        Answer::new(
            StatusCode::BAD_REQUEST,
            "no_path",
            "the request names no path: it begins with '/'",
        )
    }

    /// A tunnel cannot be routed.
    pub(crate) fn no_tunnel() -> Answer {
        Answer::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "no_tunnel",
            "CONNECT is not routed: send requests to the engines' API",
        )
    }

    /// The bound on requests in flight.
    pub(crate) fn overload() -> Answer {
        Answer {
            retry_after_s: Some(1),
            ..Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overload",
                "the proxy has as many requests in flight as it may: come back, or raise its limit",
            )
        }
    }

    /// The bound on connections.
    pub(crate) fn too_many_connections() -> Answer {
        Answer {
            retry_after_s: Some(1),
            ..Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too_many_connections",
                "the proxy has as many connections as it may: come back, or raise its limit",
            )
        }
    }

    /// The system gives the proxy no more connections, files or memory: no engine's fault.
    pub(crate) fn exhausted(error: &std::io::Error) -> Answer {
        Answer {
            retry_after_s: Some(1),
            ..Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "exhausted",
                format!("the system gives the proxy no connection to an engine: {error}"),
            )
        }
    }

    /// The decision was that it goes nowhere.
    pub(crate) fn refused(refusal: &Refusal) -> Answer {
        let status =
            StatusCode::from_u16(refusal.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        let code = match refusal.status {
            400 => "unknown_target",
            _ => "not_routed",
        };
        Answer {
            retry_after_s: (refusal.retry_after_ms).map(|ms| u64::from(ms).div_ceil(1000).max(1)),
            ..Answer::new(status, code, refusal.message.clone())
        }
    }

    /// No engine could be reached, or it hung up before it answered.
    pub(crate) fn unreachable(message: String) -> Answer {
        Answer::new(StatusCode::BAD_GATEWAY, "engine_unreachable", message)
    }

    /// The engine took too long to begin an answer.
    pub(crate) fn too_late(message: String) -> Answer {
        Answer::new(StatusCode::GATEWAY_TIMEOUT, "engine_timeout", message)
    }

    /// Also the reason in metrics where no policy was asked.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    fn json(&self) -> String {
        let kind = if self.status.is_client_error() {
            "invalid_request_error"
        } else {
            "server_error"
        };
        let body = serde_json::json!({
            "error": { "message": self.message, "type": kind, "code": self.code }
        });
        body.to_string()
    }

    /// As HTTP/1 has it, for a connection that ends with it.
    pub(crate) fn to_text(&self) -> String {
        let body = self.json();
        let retry_after = (self.retry_after_s).map(|seconds| format!("retry-after: {seconds}\r\n"));
        format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\n{ERROR}: {}\r\n{}\
             connection: close\r\ncontent-length: {}\r\n\r\n{body}",
            self.status,
            self.code,
            retry_after.unwrap_or_default(),
            body.len(),
        )
    }

    pub(crate) fn into_response(self) -> Response<Reply> {
        let mut response = Response::new(Reply::whole(Bytes::from(self.json())));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ERROR, HeaderValue::from_static(self.code));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
