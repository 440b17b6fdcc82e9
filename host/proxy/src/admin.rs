//! The operators' address: `/metrics`, `/healthz`, and what the caller adds.

use crate::metrics::Scrape;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub(crate) async fn serve(
    listener: TcpListener,
    scrape: Scrape,
    more: Router,
) -> std::io::Result<()> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(scrape));
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(Arc::new(registry))
        .merge(more)
        .into_make_service_with_connect_info::<SocketAddr>();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    axum::serve(listener, routes).await
}

async fn metrics(State(registry): State<Arc<Registry>>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => (StatusCode::OK, [(CONTENT_TYPE, OPENMETRICS)], text),
        Err(error) => {
            let text = format!("the metrics cannot be written: {error}\n");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                [(CONTENT_TYPE, "text/plain")],
                text,
            )
        }
    }
}
