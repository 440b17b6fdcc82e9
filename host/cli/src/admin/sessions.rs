//! `/api/v1/bindings`: where a session lives.

use super::Admin;
use super::refused::Refused;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{ConnectInfo, Query, State};
use pointsman_core::{Key, Phase, Scope, hash_text};
use serde::Deserialize;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;

type Answer = Result<Json<Value>, Refused>;
type Asked = Result<Query<Which>, QueryRejection>;

/// A session, and the model that it talks to.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Which {
    session: String,
    model: Option<String>,
}

/// `GET bindings?session=ID[&model=M]`. Without a model: those that the configuration names, and
/// requests that name none.
pub async fn look(State(admin): State<Arc<Admin>>, asked: Asked) -> Answer {
    let which = which(asked)?;
    let bindings = bindings(&admin, &which);
    Ok(Json(
        json!({ "session": which.session, "bindings": bindings }),
    ))
}

/// `DELETE bindings?session=ID`: the session is placed anew with its next request, whatever its model.
/// Requests in flight end normally.
pub async fn unbind(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    asked: Asked,
) -> Answer {
    let which = which(asked)?;
    let were = bindings(&admin, &which);
    let session = hash_text(&which.session);
    admin.core.end_session(session);
    admin.witnesses.session_ended(session);
    let left = bindings(&admin, &which);
    tracing::info!(%client, session = which.session, "session unbound");
    Ok(Json(
        json!({ "session": which.session, "were": were, "bindings": left }),
    ))
}

fn which(asked: Asked) -> Result<Which, Refused> {
    let remedy = "ask for ?session=ID, and &model=M if the requests name one";
    let Query(which) = asked.map_err(|error| Refused::request(error.body_text(), remedy))?;
    let session = which.session.trim().to_owned();
    if session.is_empty() {
        return Err(Refused::request("the session is empty", remedy));
    }
    Ok(Which { session, ..which })
}

fn bindings(admin: &Admin, which: &Which) -> Vec<Value> {
    let fleet = admin.core.fleet.snapshot();
    let session = hash_text(&which.session);
    let bound = |model: Option<&str>| {
        // As the proxy does: a request without a model is of model 0.
        let model = (model, model.map_or(0, hash_text));
        let scope = Scope::new(hash_text(&admin.route), Phase::Serve, model.1);
        let target = admin.core.bound(scope, Key::Session, session)?;
        let name = fleet.spec(target)?.endpoint.name.as_str();
        Some(json!({ "model": model.0, "target": name }))
    };
    match &which.model {
        Some(model) => bound(Some(model)).into_iter().collect(),
        None => std::iter::once(None)
            .chain(
                admin
                    .reload
                    .models()
                    .iter()
                    .map(|model| Some(model.as_str())),
            )
            .filter_map(bound)
            .collect(),
    }
}
