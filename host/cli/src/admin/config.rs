//! `/api/v1/config`: the configuration that the host runs with.

use super::Admin;
use super::refused::Refused;
use axum::Json;
use axum::extract::{ConnectInfo, State};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::Arc;

/// `GET config`
pub async fn show(State(admin): State<Arc<Admin>>) -> Json<Value> {
    Json(admin.reload.show())
}

/// `POST config/reload`
pub async fn reload(
    State(admin): State<Arc<Admin>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
) -> Result<Json<Value>, Refused> {
    (admin.reload.try_now(&client.to_string()).await).map(Json)
}
