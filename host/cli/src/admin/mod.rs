//! The admin API: `/api/v1` on the operators' address, for who has the token. Never on the address of
//! the clients.
//!
//! ```text
//! GET    policies                              those of the binary, and the one that decides
//! GET    policy                                the one that decides
//! POST   policy/load  policy/swap              {"policy": NAME, "config": {…}, "sha256": "…"}, or the
//!                                              .wasm as application/wasm, ?origin= &config= &sha256=
//! POST   policy/rollback
//! GET    policy/shadow                         how it compares with the one that decides
//! POST   policy/shadow/start                   as policy/swap
//! POST   policy/shadow/stop  policy/shadow/promote
//! GET    recorder
//! GET    recorder/recent                       the last decisions, as lines of JSON
//! POST   recorder/start                        {"file": "NAME", "decisions": N}
//! POST   recorder/stop
//! GET    config                                the running one: file, pools, what needs a restart
//! POST   config/reload                         reads the file anew, as SIGHUP does
//! GET    engines                               those that have a driver, and their ranks' knobs now
//! GET    profile                               profiling windows, and what the last ones left
//! POST   profile/start  profile/stop           {"roles": ["prefill"], "duration_ms": N}, each optional
//!                                              stop also: {"window": ID}, that one and no other
//! GET    profile/windows/ID                    the index of one; …/ID/FILE: a file that it names
//! GET    targets
//! POST   targets/drain  targets/undrain        {"target": "a/0"} or {"endpoint": "a"}
//! GET    bindings?session=ID[&model=M]
//! DELETE bindings?session=ID[&model=M]
//! ```
//!
//! An error is `{"error": {"stage": …, "cause": …, "remedy": …}}`. A client that leaves before the
//! answer has not replaced anything, unless the answer was on its way.

mod compiler;
mod config;
mod engines;
mod policy;
mod profile;
mod recorder;
mod refused;
mod reload;
mod sessions;
mod shadow;
mod swapper;
mod targets;
mod token;
mod wanted;
mod watch;

pub use compiler::Folders;
pub use reload::Reload;
pub use shadow::Shadows;
pub use swapper::Swapper;
pub use token::{Token, read as read_token};
pub use watch::{Watch, follow};

use crate::engines::Driven;
use axum::Router;
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{any, get, post};
use pointsman_core::Core;
use pointsman_engine::windows::Collector;
use pointsman_proxy::Witnesses;
use refused::Refused;
use std::path::PathBuf;
use std::sync::Arc;

/// What the API works on.
#[derive(Debug)]
pub struct Admin {
    pub core: Arc<Core>,
    pub witnesses: Witnesses,
    pub shadows: Shadows,
    /// for recordings; none: there are none
    pub recordings: Option<PathBuf>,
    /// none: a baseline decides, which cannot be replaced
    pub swapper: Option<Arc<Swapper>>,
    /// those that have a driver
    pub engines: Arc<Driven>,
    /// profiling windows on them
    pub windows: Arc<Collector>,
    /// the route's name
    pub route: String,
    pub reload: Arc<Reload>,
}

impl Admin {
    fn swapper(&self) -> Result<&Swapper, Refused> {
        self.swapper.as_deref().ok_or_else(|| {
            Refused::new(
                StatusCode::CONFLICT,
                "policy",
                "this host runs a native: baseline, which is no policy and cannot be replaced",
                "configure a policy with [policy] use, and start the host anew",
            )
        })
    }
}

/// The routes, behind the token.
pub fn routes(admin: Admin, token: Token) -> Router {
    let routes = Router::new()
        .route("/policies", get(policy::list))
        .route("/policy", get(policy::status))
        .route("/policy/load", post(policy::load))
        .route("/policy/swap", post(policy::swap))
        .route("/policy/rollback", post(policy::rollback))
        .route("/policy/shadow", get(shadow::report))
        .route("/policy/shadow/start", post(shadow::start))
        .route("/policy/shadow/stop", post(shadow::stop))
        .route("/policy/shadow/promote", post(shadow::promote))
        .route("/recorder", get(recorder::status))
        .route("/recorder/recent", get(recorder::recent))
        .route("/recorder/start", post(recorder::start))
        .route("/recorder/stop", post(recorder::stop))
        .route("/config", get(config::show))
        .route("/config/reload", post(config::reload))
        .route("/engines", get(engines::look))
        .route("/profile", get(profile::look))
        .route("/profile/start", post(profile::start))
        .route("/profile/stop", post(profile::stop))
        .route("/profile/windows/{window}", get(profile::window))
        .route("/profile/windows/{window}/{file}", get(profile::file))
        .route("/targets", get(targets::list))
        .route("/targets/drain", post(targets::drain))
        .route("/targets/undrain", post(targets::undrain))
        .route("/bindings", get(sessions::look).delete(sessions::unbind))
        .route("/{*other}", any(unknown))
        .with_state(Arc::new(admin))
        .layer(from_fn_with_state(token, token::check));
    Router::new().nest("/api/v1", routes)
}

async fn unknown() -> Refused {
    Refused::new(
        StatusCode::NOT_FOUND,
        "request",
        "there is nothing at this path",
        "policy, policies, recorder, config, engines, profile, targets and bindings are, under /api/v1",
    )
}
