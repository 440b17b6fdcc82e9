//! Errors in OpenAI's shape.

use http::StatusCode;
use serde_json::json;

use crate::engine::Refused;

/// An answer other than 2xx: `{"error": {"message", "type", "param", "code"}}`.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The request's field or header that is to blame.
    pub(crate) param: Option<&'static str>,
    pub(crate) code: Option<&'static str>,
    /// Seconds, sent as `Retry-After`.
    pub(crate) retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// The request is wrong in the field or header `param`.
    pub(crate) fn invalid(param: &'static str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param),
            ..Self::new(StatusCode::BAD_REQUEST, message)
        }
    }

    pub(crate) fn to_json(&self) -> String {
        let kind = match self.status {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            s if s.is_server_error() => "server_error",
            _ => "invalid_request_error",
        };
        json!({"error": {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.code,
        }})
        .to_string()
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let message = refused.to_string();
        match refused {
            Refused::UnknownRank { .. } => Self::new(StatusCode::BAD_REQUEST, message),
            Refused::TooLong(_) => Self {
                code: Some("context_length_exceeded"),
                ..Self::new(StatusCode::BAD_REQUEST, message)
            },
            // Without `Retry-After`: this is no overload, and waiting does not help.
            Refused::Dead { .. } | Refused::AllDead => Self {
                code: Some("rank_dead"),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
            },
            Refused::QueueFull { .. } => Self {
                code: Some("queue_full"),
                retry_after: Some(1),
                ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
            },
        }
    }
}
