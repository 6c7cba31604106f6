//! The job service: a REST API in front of the store, and the background tasks that move messages
//! between the store and the broker.
//!
//! This crate hides HTTP. Its user passes a [`Store`], a [`Broker`] and [`ServiceOptions`] and
//! calls [`JobService::serve`]. What must not be lost is in the store, so any number of instances
//! can serve one store. A process keeps caches, and messages that a client has taken from a pipe
//! and not acknowledged; these go back to the broker when it ends.
//!
//! What must stay true:
//! - A request never waits for the broker. The transaction that creates a job also writes its start
//!   message to the outbox; the relay publishes it later. An accepted job is therefore started even
//!   if the broker or the service is down now.
//! - A start message is never lost. It is sent twice if the relay crashes after publishing it and
//!   before recording that.
//! - Every error response has the body `{"message": …}`, is described in the OpenAPI document and
//!   reveals nothing about the database. An internal failure is logged once, when it becomes a
//!   response.
//! - Paths, statuses, error texts and headers are CAF's. Invalid input for which CAF returns 500
//!   returns 400 here.
//!
//! Where to look: each feature has a folder with its routes, its pages, its loops and its state:
//! `jobs`, `tasks`, `outputs`, `sources`, `conditions`, `letters`, `pipes`, `events` and `outbox`.
//! `rights` decides who may do what.
//! `http` and `html` have what all need. `api`, `page` and `background` list the operations, the
//! pages and the loops of all features; `state` and `options` hold theirs.

#![warn(missing_docs)]

mod api;
mod background;
mod backlog;
mod conditions;
mod events;
mod html;
mod http;
mod jobs;
mod letters;
mod options;
mod outbox;
mod outputs;
mod page;
mod pipes;
mod rights;
mod router;
mod sources;
mod state;
mod stuck;
mod tasks;
mod wakeup;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use framework::broker::Broker;
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::http::{connections, health_check, measured};
use self::state::AppState;

pub use self::api::openapi;
pub use self::conditions::{ConditionDatabase, ConditionOptions, ConditionPace, ConditionTarget};
pub use self::http::access::{AllowError, AllowedHost, AllowedOrigin};
pub use self::http::correlation::HEADER as CORRELATION_ID;
pub use self::jobs::job_types::JobTypes;
#[cfg(feature = "job-types")]
pub use self::jobs::job_types::{JobTypesError, ScriptProcess, limit_script, run_script};
pub use self::jobs::partition_pattern::{PartitionPattern, PatternError};
pub use self::options::{
    BASE_PATH, LetterOptions, Limits, OutputOptions, PagePipes, PipeAccess, ServiceOptions,
    UploadOptions,
};
pub use self::rights::routes::create_in as create_token;
pub use self::rights::{
    Authentication, Callers, GroupAccess, ProxyOptions, SecretHash, TokenSecret,
};
pub use self::stuck::StuckLimits;

/// How long open requests may continue after a shutdown begins.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// The job service. Cheap to clone; clones share one state.
#[derive(Debug, Clone)]
pub struct JobService(Arc<AppState>);

impl JobService {
    /// Creates a service. It does nothing until [`serve`](Self::serve) or
    /// [`run_background`](Self::run_background) runs.
    pub fn new(store: Store, broker: Arc<dyn Broker>, options: ServiceOptions) -> Self {
        Self(Arc::new(AppState::new(store, broker, options)))
    }

    /// Serves requests and runs the background tasks ([`run_background`](Self::run_background))
    /// until `shutdown` is cancelled. Then stops accepting requests and waits at most ten seconds
    /// for the open ones.
    ///
    /// # Errors
    ///
    /// Returns the error of the listener, and why the process gives up if it does
    /// ([`ServiceOptions::health`]).
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        // The background tasks stop after the server, so the relay can still send the last accepted
        // job.
        let background = CancellationToken::new();
        // If the caller drops this future, the background tasks must stop too.
        let _stop_on_drop = background.clone().drop_guard();
        let tracker = TaskTracker::new();
        let service = self.clone();
        let token = background.clone();
        tracker.spawn(async move { service.run_background(token).await });
        tracker.close();

        let _measured = (
            measured::measure(&self.0),
            health_check::measure_readiness(&self.0),
        );
        let router = router::router(Arc::clone(&self.0), Some(listener.local_addr()?));
        let shutting_down = &self.0.http.shutting_down;
        let (health, limits) = (&self.0.options.health, &self.0.options.limits);
        let server = connections::serve(listener, router, limits, health, shutting_down);
        let drained = async {
            tokio::select! {
                () = shutdown.cancelled() => {}
                _ = health.given_up() => {}
            }
            shutting_down.cancel();
            tokio::time::sleep(DRAIN_LIMIT).await;
        };
        tokio::select! {
            () = server => {}
            () = drained => {
                tracing::warn!("requests were still open {DRAIN_LIMIT:?} after the shutdown began; they are aborted");
            }
        }
        background.cancel();
        self.0.events.stop().await;
        self.0.backlog.stop().await;
        self.0.outputs.exports.stop().await;
        tracker.wait().await;
        health
            .given_up_now()
            .map_or(Ok(()), |reason| Err(io::Error::other(reason)))
    }

    /// Runs the background tasks until `shutdown` is cancelled: relays the outbox, parks and
    /// returns the tasks of paused jobs, and sweeps the store.
    ///
    /// [`serve`](Self::serve) does this too. Call this method only if you serve the
    /// [`router`](Self::router) yourself.
    pub async fn run_background(&self, shutdown: CancellationToken) {
        background::run(&self.0, &shutdown).await;
    }

    /// Returns the router with every URL of the service: the REST API, the web page, the health
    /// check, the metrics and Swagger UI.
    ///
    /// The host of a request is checked only if the options allow certain hosts: the router does
    /// not know where it is served.
    pub fn router(&self) -> axum::Router {
        router::router(Arc::clone(&self.0), None)
    }
}
