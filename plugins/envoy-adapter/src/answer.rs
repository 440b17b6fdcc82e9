//! What the adapter itself answers with, in the shape that OpenAI clients read.

use pointsman_core::Refusal;
use pointsman_request::BadIdentity;

/// An error for the client: what was wanted, what was found, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status
    pub status: u32,
    /// one of a small, fixed set
    pub code: &'static str,
    /// for the client
    pub message: String,
    /// in seconds
    pub retry_after_s: Option<u64>,
}

impl Answer {
    pub(crate) fn bad_request(code: &'static str, message: String) -> Answer {
        Answer {
            status: 400,
            code,
            message,
            retry_after_s: None,
        }
    }

    /// The headers.
    pub fn headers(&self) -> Vec<(&'static str, String)> {
        let mut headers = vec![
            ("content-type", "application/json".to_owned()),
            ("x-pointsman-error", self.code.to_owned()),
        ];
        if let Some(seconds) = self.retry_after_s {
            headers.push(("retry-after", seconds.to_string()));
        }
        headers
    }

    /// The body.
    pub fn body(&self) -> String {
        let kind = if self.status < 500 {
            "invalid_request_error"
        } else {
            "server_error"
        };
        serde_json::json!({
            "error": { "message": self.message, "type": kind, "code": self.code }
        })
        .to_string()
    }
}

/// Nobody takes the request.
impl From<&Refusal> for Answer {
    fn from(refusal: &Refusal) -> Answer {
        Answer {
            status: u32::from(refusal.status),
            code: match refusal.status {
                400 => "unknown_target",
                _ => "not_routed",
            },
            message: refusal.message.clone(),
            retry_after_s: (refusal.retry_after_ms).map(|ms| u64::from(ms).div_ceil(1000).max(1)),
        }
    }
}

impl From<BadIdentity> for Answer {
    fn from(bad: BadIdentity) -> Answer {
        Answer::bad_request("bad_session_identity", bad.0)
    }
}
