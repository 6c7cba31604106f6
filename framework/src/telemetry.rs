//! The HTTP endpoint of a worker: its health checks, `/health-check?name=all&type=ALIVE|READY`, and its metrics,
//! `/metrics`.
//!
//! No other file of the framework serves HTTP.

mod health;
mod measure;

use std::net::SocketAddr;

use axum::extract::{Query, State};
use axum::http::header;
use axum::routing::get;
use axum::{Json, Router};
use contract::metrics::READY;
use futures_util::FutureExt as _;
use futures_util::future::ready;
use metrics::gauge;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(crate) use health::Health;
use health::Selection;
pub(crate) use measure::measure;

use crate::meters::{self, on_scrape};

/// Binds the address. The error names it.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}; choose another address"))
}

/// Serves health checks and metrics until `shutdown` is cancelled.
pub(crate) async fn serve(listener: TcpListener, health: Health, shutdown: CancellationToken) {
    let _measured = on_scrape({
        let health = health.clone();
        move || {
            gauge!(READY).set(u32::from(health.is_ready()));
            ready(()).boxed()
        }
    });
    let metrics = get(|| async {
        let kind = [(header::CONTENT_TYPE, meters::CONTENT_TYPE)];
        (kind, meters::scrape().await)
    });
    let check = get(
        |State(health): State<Health>, Query(selection): Query<Selection>| async move {
            let (code, checks) = health.respond(&selection);
            (code, Json(checks))
        },
    );
    let router = Router::new()
        .route("/health-check", check)
        .route("/metrics", metrics)
        .with_state(health);
    let served = axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await;
    if let Err(error) = served {
        tracing::warn!(%error, "the health endpoint has stopped");
    }
}
