//! Why an operator's wish was not granted: what was wanted, what was found, what to do.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use pointsman_runtime::{CONTRACT, LoadError, Stage, SwapError};
use serde_json::json;

/// See the module. The running policy is untouched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    status: StatusCode,
    /// how far it came: a stage of loading a policy, or the part of the request that is wrong
    pub stage: String,
    pub cause: String,
    pub remedy: String,
}

impl Refused {
    pub fn new(
        status: StatusCode,
        stage: &str,
        cause: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Refused {
        Refused {
            status,
            stage: stage.to_owned(),
            cause: cause.into(),
            remedy: remedy.into(),
        }
    }

    /// A request that says nothing that could be done.
    pub fn request(cause: impl Into<String>, remedy: impl Into<String>) -> Refused {
        Refused::new(StatusCode::BAD_REQUEST, "request", cause, remedy)
    }

    /// A policy that failed at this stage, by its name.
    pub fn stage(stage: &str, cause: impl Into<String>) -> Refused {
        let remedy = match stage {
            "parse" => {
                "send a component, as `pointsman policy build` writes it, and all of it".to_owned()
            }
            "contract" | "link" => {
                format!("build it anew against {CONTRACT}, with the SDK of this host")
            }
            "configure" => "give a configuration that it takes: `pointsman policy check FILE \
                            --config JSON` tries one, and with --json prints its schema"
                .to_owned(),
            "canary" => {
                "mend the policy: `pointsman policy record recent` fetches the decisions, and \
                         `policy check FILE --recording` tries it on them"
                    .to_owned()
            }
            "description" => "mend what the policy says of itself".to_owned(),
            "pin" => "put the file that was pinned in place, or give its sha256".to_owned(),
            _ => "see what `pointsman policy check FILE` says of it, and build it anew".to_owned(),
        };
        Refused::new(StatusCode::UNPROCESSABLE_ENTITY, stage, cause, remedy)
    }

    /// The host's own failure.
    pub fn failed(stage: &str, cause: impl std::fmt::Display) -> Refused {
        Refused::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            stage,
            cause.to_string(),
            "the log of the host says more",
        )
    }
}

impl From<LoadError> for Refused {
    fn from(error: LoadError) -> Refused {
        let refused = Refused::stage(error.stage().as_str(), error.to_string());
        match (error.stage(), &error) {
            (Stage::Configure, LoadError::Failed(_)) => Refused {
                remedy: "mend the policy: it must come up within its time and memory limit"
                    .to_owned(),
                ..refused
            },
            _ => refused,
        }
    }
}

impl From<SwapError> for Refused {
    fn from(error: SwapError) -> Refused {
        let remedy = match error {
            SwapError::Banned { .. } => "wait, or put a policy in place that does not fail",
            SwapError::NoPrevious => "name the policy that you want: policy swap",
        };
        Refused::new(StatusCode::CONFLICT, "swap", error.to_string(), remedy)
    }
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Refused {
            stage,
            cause,
            remedy,
            ..
        } = self;
        write!(f, "stage {stage}: {cause}; {remedy}")
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let Refused {
            stage,
            cause,
            remedy,
            ..
        } = self;
        let error = json!({ "error": { "stage": stage, "cause": cause, "remedy": remedy } });
        (self.status, Json(error)).into_response()
    }
}
