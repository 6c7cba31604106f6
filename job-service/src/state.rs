//! What every request handler shares: the store, the broker and the options.

use std::sync::Arc;

use contract::ReservedPipes;
use framework::broker::{Broker, BrokerState};
use store::Store;
use tokio::sync::{OnceCell, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::backlog::BacklogReader;
use crate::batches::BatchQuestions;
use crate::conditions::Testers;
use crate::current_request::CurrentRequest;
use crate::error::{ApiError, ApiResult};
use crate::event_feed::EventFeed;
use crate::export::UsedPlaces;
use crate::full_conditions::FullConditions;
use crate::known_pipes::KnownPipes;
use crate::measured_pipes::MeasuredPipes;
use crate::options::{PipeAccess, ServiceOptions};
use crate::places::{Client, Patience, Place, Places};
use crate::seen_counts::SeenCounts;
use crate::seen_groups::SeenGroups;
use crate::seen_workers::SeenWorkers;
use crate::taken_messages::TakenMessages;
use crate::watched_jobs::WatchedJobs;

/// How many requests add to uploads at the same time.
const UPLOADS_AT_ONCE: usize = 16;

/// How many pieces of long bodies are read at the same time.
const PIECES_AT_ONCE: usize = 8;

/// The shared state of the request handlers and of the background tasks.
#[derive(Debug)]
pub struct AppState {
    pub store: Store,
    pub broker: Arc<dyn Broker>,
    pub options: Arc<ServiceOptions>,
    /// The pipes that no job may name.
    pub reserved_pipes: ReservedPipes,
    /// Cancelled when the service shuts down. Ends the event streams, which would otherwise stay
    /// open.
    pub shutting_down: CancellationToken,
    /// The bytes that further request bodies may have.
    pub body_bytes: Arc<Semaphore>,
    /// The number of further event streams. They take at most half of the connections.
    pub event_streams: Arc<Places>,
    /// The number of further pieces of long bodies that may be read at the same time.
    pub pieces_at_once: Semaphore,
    /// Those of streams of outputs. They take at most a quarter of the connections.
    pub output_streams: Arc<Places>,
    /// Those of requests that add to uploads, each of which holds a piece in memory.
    pub uploads_at_once: Arc<Places>,
    /// Those of readers of uploads. They take at most a quarter of the connections.
    pub upload_readers: Arc<Places>,
    pub export_places: UsedPlaces,
    pub watched_jobs: WatchedJobs,
    pub events: EventFeed,
    pub taken_messages: TakenMessages,
    pub workers: SeenWorkers,
    pub known_pipes: KnownPipes,
    pub measured_pipes: MeasuredPipes,
    /// The groups of failures that overviews show.
    pub seen_groups: SeenGroups,
    /// The numbers of jobs that lists on the page show.
    pub seen_counts: SeenCounts,
    pub backlog: BacklogReader,
    pub batch_questions: BatchQuestions,
    /// The conditions for which as many tasks wait as may.
    pub full_conditions: Arc<FullConditions>,
    pub testers: Testers,
    /// Set once the store knows over how many tracking pipes the service spreads jobs.
    pub noted_shards: OnceCell<()>,
}

impl AppState {
    pub fn new(store: Store, broker: Arc<dyn Broker>, options: ServiceOptions) -> Self {
        let event_streams = options.limits.connections.div_ceil(2);
        let quarter = options.limits.connections.div_ceil(4);
        let patience = Patience {
            receiving: options.limits.patience,
            sending: options.limits.patience,
        };
        let workers = SeenWorkers::default();
        let testers = Testers::new(options.conditions.clone(), &options.tls, workers.clone());
        Self {
            watched_jobs: WatchedJobs::new(store.clone(), workers.clone(), options.health.clone()),
            events: EventFeed::new(store.clone(), options.health.clone()),
            taken_messages: TakenMessages::new(),
            workers,
            known_pipes: KnownPipes::default(),
            measured_pipes: MeasuredPipes::default(),
            seen_groups: SeenGroups::default(),
            seen_counts: SeenCounts::default(),
            backlog: BacklogReader::default(),
            batch_questions: BatchQuestions::default(),
            full_conditions: Arc::default(),
            testers,
            noted_shards: OnceCell::new(),
            store,
            broker,
            reserved_pipes: options.all_reserved_pipes(),
            shutting_down: CancellationToken::new(),
            body_bytes: Arc::new(Semaphore::new(options.limits.body_bytes)),
            event_streams: Places::new(event_streams, patience),
            pieces_at_once: Semaphore::new(PIECES_AT_ONCE),
            output_streams: Places::new(quarter, patience),
            uploads_at_once: Places::new(UPLOADS_AT_ONCE.min(quarter), patience),
            upload_readers: Places::new(quarter, patience),
            export_places: UsedPlaces::default(),
            options: Arc::new(options),
        }
    }

    /// Returns the store for the request that this task handles. The history of the jobs that it
    /// changes names the request.
    pub fn store_of_request(&self) -> Store {
        let id = CurrentRequest::get().correlation_id;
        self.store.for_request(id.as_deref())
    }

    /// Returns why no job can be created now: the embedded broker is short of disk space. The store
    /// is on the same disk and must be able to cancel and delete jobs, which makes room.
    pub fn no_space_for_jobs(&self) -> Option<String> {
        match self.broker.state() {
            BrokerState::Blocked(reason) | BrokerState::Refusing(reason)
                if self.broker.kind() == "embedded" =>
            {
                Some(reason)
            }
            _ => None,
        }
    }

    /// Refuses a request for the messages of a pipe unless the operator gives access to them.
    pub fn check_pipe_access(&self) -> ApiResult<()> {
        match self.options.pipe_access {
            PipeAccess::On => Ok(()),
            PipeAccess::Auto | PipeAccess::Off => Err(ApiError::PipesNotServed),
        }
    }

    /// Returns the number of clients that watch a job or all of them.
    pub fn open_event_streams(&self) -> usize {
        self.event_streams.taken()
    }

    /// Takes the place of an event stream, or of a list that is streamed, for a client.
    pub fn event_stream(&self, client: &Client) -> ApiResult<Place> {
        let place = self.event_streams.take(client);
        place.ok_or(ApiError::Busy("as many event streams as it may have"))
    }
}
