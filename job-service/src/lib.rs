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
//! Where to look: `routes` has the operations of the API, most with a file of their own, `page` has
//! the web page, and `router` puts both together. `new_job` validates a request to create a job and
//! builds its start message. `job_list` parses the parameters that select jobs. `job_types` builds
//! tasks from parameters. `background` has everything that runs without a request.

#![warn(missing_docs)]

mod access;
mod background;
mod backlog;
mod batches;
mod conditions;
mod correlation;
mod current_request;
mod error;
mod event_feed;
mod export;
mod extract;
mod full_conditions;
mod html;
mod job_list;
#[cfg(feature = "job-types")]
mod job_types;
#[cfg(not(feature = "job-types"))]
#[path = "no_job_types.rs"]
mod job_types;
mod kept_outputs;
mod known_pipes;
mod letters;
mod measured;
mod measured_pipes;
mod new_job;
mod notes;
mod options;
mod page;
mod partition_pattern;
mod paths;
mod pipe_states;
mod places;
mod request_body;
mod router;
mod routes;
mod seen_counts;
mod seen_groups;
mod seen_workers;
mod server;
mod silent_pipes;
mod state;
mod stored_message;
mod stuck;
mod submission;
mod taken_messages;
mod tracking_pipes;
mod unstored;
mod uploading;
mod uploads;
mod watched_jobs;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use framework::broker::Broker;
use framework::supervision::supervise;
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::state::AppState;

pub use self::access::{AllowError, AllowedHost, AllowedOrigin};
pub use self::conditions::{ConditionDatabase, ConditionOptions, ConditionPace, ConditionTarget};
pub use self::correlation::HEADER as CORRELATION_ID;
pub use self::job_types::JobTypes;
#[cfg(feature = "job-types")]
pub use self::job_types::{JobTypesError, ScriptProcess, limit_script, run_script};
pub use self::options::{
    BASE_PATH, LetterOptions, Limits, OutputOptions, PagePipes, PipeAccess, ServiceOptions,
    UploadOptions,
};
pub use self::partition_pattern::{PartitionPattern, PatternError};
pub use self::routes::openapi;
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
            routes::measure_readiness(&self.0),
        );
        let router = router::router(Arc::clone(&self.0), Some(listener.local_addr()?));
        let shutting_down = &self.0.shutting_down;
        let (health, limits) = (&self.0.options.health, &self.0.options.limits);
        let server = server::serve(listener, router, limits, health, shutting_down);
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
        self.0.watched_jobs.stop().await;
        self.0.events.stop().await;
        self.0.backlog.stop().await;
        self.0.export_places.stop().await;
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
        let AppState {
            store,
            broker,
            options,
            taken_messages,
            workers,
            testers,
            full_conditions,
            ..
        } = &*self.0;
        let conditions = (testers, full_conditions);
        let return_taken = || taken_messages.run(&shutdown);
        let listen = || workers.run(&**broker, &shutdown);
        tokio::join!(
            background::run(store, broker, options, conditions, &shutdown),
            supervise(
                &options.health,
                "job-service: taken messages",
                &shutdown,
                return_taken
            ),
            supervise(
                &options.health,
                "job-service: signs of life",
                &shutdown,
                listen
            ),
        );
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
