//! The job service: a REST API in front of the store, the start messages of jobs on their way to the broker, and the tasks of
//! paused jobs on their way to the store and back.
//!
//! It hides HTTP. Whoever composes it gives it a [`Store`], a [`Broker`] and [`ServiceOptions`] and calls
//! [`JobService::serve`]. The service keeps no state of its own: any number of them may serve one store.
//!
//! What must stay true:
//! - A request never talks to the broker. What must reach it is written to the outbox with the job, in one transaction;
//!   the relay takes it from there, so a job that was accepted is started, whatever is down right now.
//! - A start message may be sent twice (by a crash between publishing and noting it), never not at all.
//! - Every error that a client sees has the body `{"message": …}`, is described in the API document, and tells
//!   nothing of the database. A failure of ours is logged once, where it becomes an answer.
//! - Paths, statuses, texts and headers are CAF's. Where CAF answers 500 to bad input, this answers 400.
//!
//! One file a route below `routes/`; `request` decides what is a job, `filter` which jobs are meant, `start` what its first worker gets.

mod correlation;
mod error;
mod extract;
mod filter;
mod job_types;
mod partition_pattern;
mod prerequisites;
mod relay;
mod request;
mod routes;
mod start;
mod stower;
mod sweeper;
mod unstower;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use contract::rest::Expiry;
use framework::broker::Broker;
use store::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use correlation::HEADER as CORRELATION_ID;
pub use job_types::{JobTypes, JobTypesError};
pub use partition_pattern::{PartitionPattern, PatternError};
pub use routes::openapi;

/// Where the REST API begins.
pub const BASE_PATH: &str = "/job-service/v1";

/// How long requests may go on after a shutdown was asked for.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// Where workers find this API, e.g. `http://127.0.0.1:8080/job-service/v1`. Stands in every start message.
    pub webservice_url: String,
    /// The pipe of the tracking worker.
    pub tracking_pipe: String,
    /// The pipe to which workers hand over the tasks of paused jobs.
    pub paused_pipe: String,
    /// How long a worker may rely on a status it has read.
    pub status_check_interval: Duration,
    /// How many jobs a list shows when it is not told.
    pub page_size: u32,
    /// How many jobs are cancelled in one transaction, when many are.
    pub cancel_batch: u32,
    /// How many jobs are deleted in one transaction, when many are.
    pub delete_batch: u32,
    /// Partitions whose new jobs are kept until somebody dispatches them.
    pub suspended_partitions: Option<PartitionPattern>,
    /// The largest body of a request.
    pub max_body_bytes: usize,
    /// What jobs may be made from by parameters.
    pub job_types: JobTypes,
    /// How long jobs are kept that do not say it themselves.
    pub expiry: Expiry,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            webservice_url: format!("http://127.0.0.1:8080{BASE_PATH}"),
            tracking_pipe: "worker-jobtracking-in".to_owned(),
            paused_pipe: contract::PAUSED_PIPE.to_owned(),
            status_check_interval: Duration::from_secs(10),
            page_size: 25,
            cancel_batch: 100,
            delete_batch: 100,
            suspended_partitions: None,
            max_body_bytes: 16 * 1024 * 1024,
            job_types: JobTypes::default(),
            expiry: Expiry::default(),
        }
    }
}

/// The service, ready to be served. Cheap to clone.
#[derive(Debug, Clone)]
pub struct JobService(Arc<Parts>);

#[derive(Debug)]
pub(crate) struct Parts {
    pub store: Store,
    pub broker: Arc<dyn Broker>,
    pub options: ServiceOptions,
    /// Cancelled when the service is to end: whoever watches a job is told to go.
    pub ending: CancellationToken,
}

impl JobService {
    pub fn new(store: Store, broker: Arc<dyn Broker>, options: ServiceOptions) -> Self {
        Self(Arc::new(Parts {
            store,
            broker,
            options,
            ending: CancellationToken::new(),
        }))
    }

    /// Answers requests and runs what has to go on behind them ([`run_background`](Self::run_background)) until
    /// `shutdown`; then lets open requests end, for ten seconds at most, and stops the rest.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: CancellationToken,
    ) -> io::Result<()> {
        // Behind the requests and not beside them: the last job that is accepted is relayed, too, where there is time.
        let background = CancellationToken::new();
        // A caller that drops this future must not leave the background behind.
        let _stop_on_drop = background.clone().drop_guard();
        let tracker = TaskTracker::new();
        let service = self.clone();
        let token = background.clone();
        tracker.spawn(async move { service.run_background(token).await });
        tracker.close();

        let (ending, asked) = (self.0.ending.clone(), shutdown.clone());
        let server = axum::serve(listener, self.router()).with_graceful_shutdown(async move {
            asked.cancelled().await;
            ending.cancel();
        });
        let outcome = tokio::select! {
            ended = server.into_future() => ended,
            () = async { shutdown.cancelled().await; tokio::time::sleep(DRAIN_LIMIT).await } => {
                tracing::warn!("requests were still open {DRAIN_LIMIT:?} after the shutdown began; they are cut off");
                Ok(())
            }
        };
        background.cancel();
        tracker.wait().await;
        outcome
    }

    /// Relays messages, keeps the tasks of paused jobs, and sweeps the store until `shutdown`. Part of [`serve`](Self::serve); by itself it is for
    /// whoever serves the [`router`](Self::router) in another way.
    pub async fn run_background(&self, shutdown: CancellationToken) {
        let Parts {
            store,
            broker,
            options,
            ..
        } = &*self.0;
        tokio::join!(
            relay::run(store, broker.as_ref(), &shutdown),
            stower::run(store, broker, &options.paused_pipe, &shutdown),
            unstower::run(store, &shutdown),
            sweeper::run(store, &shutdown)
        );
    }

    /// Every URL of the service.
    pub fn router(&self) -> axum::Router {
        routes::router(Arc::clone(&self.0))
    }
}
