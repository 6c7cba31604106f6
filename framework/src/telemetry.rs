//! The HTTP endpoint of a worker: its health checks, `/health-check?name=all&type=ALIVE|READY`, and
//! its metrics, `/metrics`.
//!
//! No other file of the framework serves HTTP.

mod health;
mod listener;
mod measure;

use std::net::SocketAddr;
use std::sync::Arc;

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

pub(crate) use health::Checks;
use health::Selection;
use listener::Bounded;
pub(crate) use measure::measure;

use crate::meters::{self, on_scrape};

/// What the endpoint serves, and where.
pub(crate) struct Endpoint {
    pub listener: Arc<TcpListener>,
    pub checks: Checks,
}

/// Binds the address. The error names it.
pub(crate) async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address)
        .await
        .map_err(|error| format!("cannot listen on {address}: {error}; stop the process that uses the port, or choose another address (BATCHWRIGHT_LISTEN)"))
}

impl Endpoint {
    /// Serves health checks and metrics until `shutdown` is cancelled.
    pub async fn serve(&self, shutdown: CancellationToken) {
        let checks = self.checks.clone();
        let _measured = on_scrape(move || {
            gauge!(READY).set(u32::from(checks.is_ready()));
            ready(()).boxed()
        });
        let metrics = get(|| async {
            let kind = [(header::CONTENT_TYPE, meters::CONTENT_TYPE)];
            (kind, meters::scrape().await)
        });
        let check = get(
            |State(checks): State<Checks>, Query(selection): Query<Selection>| async move {
                let (code, checks) = checks.respond(&selection);
                (code, Json(checks))
            },
        );
        let router = Router::new()
            .route("/health-check", check)
            .route("/metrics", metrics)
            .with_state(self.checks.clone());
        let listener = Bounded::new(Arc::clone(&self.listener));
        let served = axum::serve(listener, router)
            .with_graceful_shutdown(shutdown.cancelled_owned())
            .await;
        if let Err(error) = served {
            tracing::warn!(%error, "the health endpoint has stopped");
        }
    }
}
