//! `/api/v1/policy/shadow`: a second policy on the same requests, which decides nothing.

use super::Admin;
use super::policy::{canary, now};
use super::refused::Refused;
use super::wanted::Wanted;
use arc_swap::ArcSwapOption;
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::StatusCode;
use pointsman_core::{Core, Fallback, Source};
use pointsman_runtime::{Candidate, Engine, Protection, Slot};
use pointsman_shadow::Shadow;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::spawn_blocking;

type Answer = Result<Json<Value>, Refused>;
type Client = ConnectInfo<SocketAddr>;

/// The shadow, if there is one.
#[derive(Debug)]
pub struct Shadows {
    live: Arc<Core>,
    fallback: Fallback,
    /// where the data plane looks
    place: Arc<ArcSwapOption<Shadow>>,
    now: Mutex<Option<Cast>>,
}

/// A shadow at work.
#[derive(Clone, Debug)]
struct Cast {
    candidate: Candidate,
    slot: Arc<Slot>,
    shadow: Arc<Shadow>,
    since_ms: u64,
}

impl Shadows {
    pub fn new(live: Arc<Core>, fallback: Fallback, place: Arc<ArcSwapOption<Shadow>>) -> Shadows {
        Shadows {
            live,
            fallback,
            place,
            now: Mutex::default(),
        }
    }

    fn now(&self) -> MutexGuard<'_, Option<Cast>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn there(&self) -> Result<Cast, Refused> {
        self.now().clone().ok_or_else(|| {
            let cause = "no policy runs in the shadow";
            let remedy = "POST policy/shadow/start starts one: `pointsman policy shadow start`";
            Refused::new(StatusCode::NOT_FOUND, "shadow", cause, remedy)
        })
    }

    fn vacant(&self) -> Result<(), Refused> {
        match &*self.now() {
            None => Ok(()),
            Some(cast) => Err(Refused::new(
                StatusCode::CONFLICT,
                "shadow",
                format!("{} runs in the shadow already", cast.candidate.origin),
                "stop or promote it first",
            )),
        }
    }

    /// Takes a while: it copies the bindings.
    fn start(&self, engine: Arc<Engine>, candidate: Candidate) -> std::io::Result<Cast> {
        let own = Arc::new(self.live.beside());
        let first = candidate.clone();
        let slot = Arc::new(Slot::new(own.clone(), engine, first, Protection::default()));
        let source: Arc<dyn Source> = slot.clone();
        let shadow = Shadow::start(self.live.clone(), own, source, self.fallback)?;
        let cast = Cast {
            candidate,
            slot,
            shadow: Arc::new(shadow),
            since_ms: self.live.now_ms(),
        };
        *self.now() = Some(cast.clone());
        self.place.store(Some(cast.shadow.clone()));
        Ok(cast)
    }

    /// Ends it; what it was.
    fn stop(&self) -> Option<Cast> {
        let cast = self.now().take()?;
        self.place.store(None);
        cast.shadow.stop();
        Some(cast)
    }
}

/// `GET policy/shadow`
pub async fn report(State(admin): State<Arc<Admin>>) -> Answer {
    let cast = admin.shadows.there()?;
    Ok(Json(cast.report(&admin)))
}

/// `POST policy/shadow/start`: loaded as for a swap.
pub async fn start(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): Client,
    request: Request,
) -> Answer {
    let swapper = admin.swapper()?;
    let turn = swapper.turn()?;
    admin.shadows.vacant()?;
    let wanted = Wanted::read(request).await?;
    let origin = wanted.origin.clone();
    let loaded = turn.load(wanted).await.inspect_err(|refused| {
        tracing::warn!(%client, policy = origin, %refused, "shadow not started");
    })?;
    let (engine, candidate) = (swapper.slot().engine().clone(), loaded.candidate);
    let begin = {
        let admin = admin.clone();
        move || admin.shadows.start(engine, candidate)
    };
    let cast = (spawn_blocking(begin).await)
        .map_err(|error| Refused::failed("shadow", error))?
        .map_err(|error| Refused::failed("shadow", error))?;
    let sha256 = &cast.candidate.digest;
    tracing::info!(%client, policy = origin, sha256, "shadow started");
    let mut report = cast.report(&admin);
    if let Some(report) = report.as_object_mut() {
        report.insert("canary".to_owned(), canary(&loaded.rehearsed));
    }
    Ok(Json(report))
}

/// `POST policy/shadow/stop`: its last report.
pub async fn stop(State(admin): State<Arc<Admin>>, ConnectInfo(client): Client) -> Answer {
    let _turn = admin.swapper()?.turn()?;
    let cast = admin.shadows.there()?;
    ended(&admin).await?;
    tracing::info!(%client, policy = cast.candidate.origin, "shadow stopped");
    Ok(Json(cast.report(&admin)))
}

/// `POST policy/shadow/promote`: from now on it decides, over the bindings of the one before.
pub async fn promote(State(admin): State<Arc<Admin>>, ConnectInfo(client): Client) -> Answer {
    let turn = admin.swapper()?.turn()?;
    let cast = admin.shadows.there()?;
    let status = cast.slot.status();
    if status.rollbacks > 0 {
        return Err(Refused::new(
            StatusCode::CONFLICT,
            "shadow",
            format!("it failed in the shadow: {}", status.last),
            "mend it; policy swap puts it in place all the same",
        ));
    }
    let generation = turn.put(cast.candidate.clone()).await?;
    ended(&admin).await?;
    let (policy, sha256) = (&cast.candidate.origin, &cast.candidate.digest);
    tracing::info!(%client, policy, sha256, generation, "shadow promoted");
    let mut now = now(&admin)?;
    if let Some(now) = now.as_object_mut() {
        now.insert("shadow".to_owned(), cast.report(&admin));
    }
    Ok(Json(now))
}

async fn ended(admin: &Arc<Admin>) -> Result<(), Refused> {
    let end = {
        let admin = admin.clone();
        move || drop(admin.shadows.stop())
    };
    (spawn_blocking(end).await).map_err(|error| Refused::failed("shadow", error))
}

impl Cast {
    fn report(&self, admin: &Admin) -> Value {
        let (report, status) = (self.shadow.report(), self.slot.status());
        let ran_ms = admin.core.now_ms().saturating_sub(self.since_ms);
        json!({
            "name": status.policy.name, "version": status.policy.version, "origin": status.origin,
            "digest": status.digest, "last": status.last, "paused": status.paused_until_ms.is_some(),
            "ran_ms": ran_ms, "decided": report.decided, "agreed": report.agreed,
            "agreement": report.agreement(), "differences": report.differences,
            "failures": report.failures, "dropped": report.dropped, "in_flight": report.in_flight,
            "bindings": report.bindings,
            "decision": { "mean_ns": report.mean_ns, "max_ns": report.max_ns },
        })
    }
}
