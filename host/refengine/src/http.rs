//! Paths, heads, and what a request becomes.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Serialize;

use crate::config::EngineConfig;
use crate::engine::{Engine, Generation, Refused};
use crate::fault::{Fault, FaultMode, FaultSwitch};
use crate::openai::{Answer, Api, ApiError, Call, ModelList};
use crate::profile::Profiler;
use crate::settings::{Changes, ServerInfo};
use crate::stats::EngineStats;
use crate::stream::{AfterFirst, Cut, EngineBody, Tear, TokenStream};

/// Request header: the rank that shall serve it.
pub const DP_RANK_HEADER: &str = "x-data-parallel-rank";
/// Response header of every completion: the rank that really serves it.
pub const ENGINE_RANK_HEADER: &str = "x-engine-rank";
/// Response header of every response: the engine's name.
pub const ENGINE_NAME_HEADER: &str = "x-engine-name";
/// Request header that comes back on the response.
pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// One engine behind HTTP.
#[derive(Debug)]
pub(crate) struct App {
    config: EngineConfig,
    name: HeaderValue,
    engine: Arc<Engine>,
    faults: FaultSwitch,
    profiler: Profiler,
}

/// `Err`: the connection is closed without an answer.
type Outcome = Result<Response<EngineBody>, Cut>;

/// What a path leads to.
#[derive(Debug, Clone, Copy)]
enum Endpoint {
    Completion(Api),
    Models,
    Health,
    Metrics,
    Stats,
    ServerInfo,
    SetInternalState,
    StartProfile,
    StopProfile,
    Trace,
    Reset,
    Fault,
}

impl Endpoint {
    fn of(path: &str) -> Option<(Method, Self)> {
        Some(match path {
            "/v1/chat/completions" => (Method::POST, Self::Completion(Api::Chat)),
            "/v1/completions" => (Method::POST, Self::Completion(Api::Text)),
            "/v1/models" => (Method::GET, Self::Models),
            "/health" => (Method::GET, Self::Health),
            "/metrics" => (Method::GET, Self::Metrics),
            "/stats" => (Method::GET, Self::Stats),
            "/server_info" | "/get_server_info" => (Method::GET, Self::ServerInfo),
            "/set_internal_state" => (Method::POST, Self::SetInternalState),
            "/start_profile" => (Method::POST, Self::StartProfile),
            "/stop_profile" => (Method::POST, Self::StopProfile),
            "/profile/trace" => (Method::GET, Self::Trace),
            "/reset" => (Method::POST, Self::Reset),
            "/fault" => (Method::POST, Self::Fault),
            _ => return None,
        })
    }
}

impl App {
    pub(crate) fn new(config: EngineConfig, name: HeaderValue, engine: Arc<Engine>) -> Self {
        Self {
            config,
            name,
            engine,
            faults: FaultSwitch::default(),
            profiler: Profiler::default(),
        }
    }

    /// Answers one request.
    pub(crate) async fn handle(&self, request: Request<Incoming>) -> Outcome {
        let request_id = request.headers().get(REQUEST_ID_HEADER).cloned();
        let mut response = match self.dispatch(request).await {
            Ok(response) => response,
            Err(Failure::Answer(error)) => refusal(&error),
            Err(Failure::Cut(cut)) => return Err(cut),
        };
        let headers = response.headers_mut();
        headers.insert(ENGINE_NAME_HEADER, self.name.clone());
        if let Some(id) = request_id {
            headers.insert(REQUEST_ID_HEADER, id);
        }
        Ok(response)
    }

    async fn dispatch(&self, request: Request<Incoming>) -> Result<Response<EngineBody>, Failure> {
        let path = request.uri().path();
        let Some((method, endpoint)) = Endpoint::of(path) else {
            let message = format!("no such path: {path}");
            return Err(ApiError::new(StatusCode::NOT_FOUND, message).into());
        };
        if request.method() != method {
            let message = format!("{path} wants {method}, found {}", request.method());
            let mut response = refusal(&ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message));
            if let Ok(allow) = HeaderValue::from_str(method.as_str()) {
                response.headers_mut().insert(ALLOW, allow);
            }
            return Ok(response);
        }
        match endpoint {
            Endpoint::Completion(api) => self.complete(api, request).await,
            Endpoint::Models => Ok(json(&ModelList::new(
                &self.config.model,
                self.config.preset.max_context(),
            ))),
            Endpoint::Health if !self.engine.is_alive() => Err(Refused::AllDead.into()),
            Endpoint::Health => Ok(plain(Bytes::new(), "text/plain")),
            Endpoint::Metrics => {
                let text = self.stats().to_prometheus();
                Ok(plain(
                    text.into(),
                    "text/plain; version=0.0.4; charset=utf-8",
                ))
            }
            Endpoint::Stats => Ok(json(&self.stats())),
            Endpoint::ServerInfo => Ok(json(&ServerInfo::of(&self.config, &self.engine))),
            Endpoint::SetInternalState => {
                let body = self.read(request.into_body()).await?;
                let bad = |e: &dyn std::fmt::Display| {
                    ApiError::new(StatusCode::BAD_REQUEST, e.to_string())
                };
                let changes: Changes = serde_json::from_slice(&body).map_err(|e| bad(&e))?;
                let server_args = self
                    .engine
                    .change(changes.server_args)
                    .map_err(|e| bad(&e))?;
                Ok(json(
                    &serde_json::json!({ "updated": true, "server_args": server_args }),
                ))
            }
            Endpoint::StartProfile => {
                if !self.profiler.start(&self.engine) {
                    let message = "a profiling window is open already: POST /stop_profile";
                    return Err(ApiError::new(StatusCode::BAD_REQUEST, message).into());
                }
                Ok(json(&serde_json::json!({ "profiling": true })))
            }
            Endpoint::StopProfile => match self.profiler.stop(&self.engine) {
                Some(profile) => Ok(json(&profile)),
                None => {
                    let message = "no profiling window is open: POST /start_profile";
                    Err(ApiError::new(StatusCode::BAD_REQUEST, message).into())
                }
            },
            Endpoint::Trace => self.trace(request.uri().query()).await,
            Endpoint::Reset => {
                self.profiler.forget();
                self.engine.reset().await;
                Ok(json(&self.stats()))
            }
            Endpoint::Fault => {
                let body = self.read(request.into_body()).await?;
                let fault: Fault = serde_json::from_slice(&body).map_err(|e| {
                    ApiError::new(
                        StatusCode::BAD_REQUEST,
                        format!("the body is not a fault: {e}"),
                    )
                })?;
                let bad = |e: &dyn std::fmt::Display| {
                    ApiError::new(StatusCode::BAD_REQUEST, e.to_string())
                };
                match fault.of_rank().map_err(|e| bad(&e))? {
                    Some(fault) => self.engine.harm(fault).await.map_err(|e| bad(&e))?,
                    None => self.faults.set(fault),
                }
                Ok(json(&fault))
            }
        }
    }

    /// A rank's trace of the last window.
    async fn trace(&self, query: Option<&str>) -> Result<Response<EngineBody>, Failure> {
        let given = query.unwrap_or_default();
        let rank = given.strip_prefix("rank=").and_then(|n| n.parse().ok());
        let last = self.config.ranks.saturating_sub(1);
        let Some(rank) = rank.filter(|rank| *rank <= last) else {
            let message =
                format!("wanted /profile/trace?rank=N with N from 0 to {last}, found `{given}`");
            return Err(ApiError::invalid("rank", message).into());
        };
        let Some(window) = self.profiler.last() else {
            let message = "no profiling window has ended since the start, the begin of the last one \
                           or the last reset: POST /start_profile, then /stop_profile";
            return Err(ApiError::new(StatusCode::NOT_FOUND, message).into());
        };
        // Some megabytes: other requests' tokens do not wait for that.
        let config = self.config.clone();
        let written = tokio::task::spawn_blocking(move || window.chrome_trace(&config, rank)).await;
        let trace = written.ok().flatten().ok_or_else(|| {
            let message = "the trace could not be written";
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message)
        })?;
        Ok(plain(trace.into(), "application/json"))
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            name: self.config.name.clone(),
            faults_total: self.faults.happened(),
            ranks: self.engine.stats(),
            prefill_delayer: self.engine.decisions(),
        }
    }

    /// One completion: read, check, misbehave if told to, queue, answer.
    async fn complete(
        &self,
        api: Api,
        request: Request<Incoming>,
    ) -> Result<Response<EngineBody>, Failure> {
        let (head, body) = request.into_parts();
        let body = self.read(body).await?;
        let call = Call::parse(api, &head.headers, &body, self.config.ranks)?;
        drop(body);
        let fault = self.faults.take();
        before_head(fault).await?;

        let generation = self
            .engine
            .submit(call.rank, &call.prompt, call.output_tokens)?;
        let model = call.model.unwrap_or_else(|| self.config.model.clone());
        let answer = Answer::new(api, generation.id, model, call.include_usage);
        let rank = generation.rank();
        let mut response = if call.stream {
            stream(generation, answer, fault.mode)
        } else {
            whole(generation, answer, fault.mode).await?
        };
        response
            .headers_mut()
            .insert(ENGINE_RANK_HEADER, HeaderValue::from(rank));
        Ok(response)
    }

    async fn read(&self, body: Incoming) -> Result<Bytes, ApiError> {
        let limit = self.config.max_body_bytes;
        let too_large = || {
            let message = format!("the body may have {limit} bytes; send a shorter prompt");
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        };
        if body.size_hint().lower() > limit as u64 {
            return Err(too_large());
        }
        match Limited::new(body, limit).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(e) if e.is::<LengthLimitError>() => Err(too_large()),
            Err(e) => {
                let message = format!("the body broke off: {e}");
                Err(ApiError::new(StatusCode::BAD_REQUEST, message))
            }
        }
    }
}

/// Why there is no completion.
enum Failure {
    Answer(ApiError),
    Cut(Cut),
}

impl<E: Into<ApiError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Answer(error.into())
    }
}

/// The faults that show before the response's head.
async fn before_head(fault: Fault) -> Result<(), Failure> {
    let status = match fault.mode {
        FaultMode::None | FaultMode::ResetMidStream | FaultMode::SseError => return Ok(()),
        // Those act on a rank, and are never set for completions.
        FaultMode::KillRank | FaultMode::HangRank => return Ok(()),
        FaultMode::HangBeforeHead => return std::future::pending().await,
        FaultMode::ResetBeforeHead => return Err(Failure::Cut(Cut)),
        FaultMode::Error500 => StatusCode::INTERNAL_SERVER_ERROR,
        FaultMode::Error503 => StatusCode::SERVICE_UNAVAILABLE,
        FaultMode::Error429 => StatusCode::TOO_MANY_REQUESTS,
    };
    let message = format!("injected fault: {}", status.as_u16());
    Err(ApiError {
        retry_after: fault.retry_after,
        ..ApiError::new(status, message)
    }
    .into())
}

/// The head goes out at once, as vLLM's does; the first byte of the body is the first token.
fn stream(generation: Generation, answer: Answer, fault: FaultMode) -> Response<EngineBody> {
    let after_first = match fault {
        FaultMode::ResetMidStream => AfterFirst::Cut,
        FaultMode::SseError => AfterFirst::ErrorEvent,
        _ => AfterFirst::Tokens,
    };
    let stream = TokenStream::new(generation, answer, after_first);
    let mut response = Response::new(EngineBody::Stream(Box::new(stream)));
    let headers = response.headers_mut();
    set(headers, CONTENT_TYPE, "text/event-stream; charset=utf-8");
    set(headers, CACHE_CONTROL, "no-cache");
    response
}

async fn whole(
    mut generation: Generation,
    answer: Answer,
    fault: FaultMode,
) -> Result<Response<EngineBody>, ApiError> {
    let mut text = String::new();
    loop {
        let Some(word) = generation.word().await else {
            let (status, message) = (StatusCode::SERVICE_UNAVAILABLE, generation.broken_off());
            return Err(ApiError {
                code: Some("rank_dead"),
                ..ApiError::new(status, message)
            });
        };
        text += word.text;
        if word.last {
            break;
        }
    }
    let body = answer.whole(&text, &generation);
    match fault {
        FaultMode::SseError => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            Err(ApiError::new(status, "injected fault: sse-error"))
        }
        FaultMode::ResetMidStream => {
            let half = body.slice(..body.len() / 2);
            let mut response = plain(Bytes::new(), "application/json");
            *response.body_mut() = EngineBody::Torn(half, Tear::Flush);
            Ok(response)
        }
        _ => Ok(plain(body, "application/json")),
    }
}

fn refusal(error: &ApiError) -> Response<EngineBody> {
    let mut response = plain(error.to_json().into(), "application/json");
    *response.status_mut() = error.status;
    if let Some(seconds) = error.retry_after {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn json(body: &impl Serialize) -> Response<EngineBody> {
    // Our own types, with string keys: cannot fail.
    let body = serde_json::to_vec(body).unwrap_or_default();
    plain(body.into(), "application/json")
}

fn plain(body: Bytes, content_type: &'static str) -> Response<EngineBody> {
    let mut response = Response::new(EngineBody::Whole(body));
    set(response.headers_mut(), CONTENT_TYPE, content_type);
    response
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &'static str) {
    headers.insert(name, HeaderValue::from_static(value));
}
