//! What every request handler shares: the store, the broker, the options, and the state of each
//! feature.

use std::sync::Arc;

use contract::rest::Access;
use framework::broker::{Broker, BrokerState};
use store::Store;

use crate::backlog::BacklogReader;
use crate::conditions::{ConditionsState, Testers};
use crate::events::EventsState;
use crate::http::HttpState;
use crate::http::current_request::CurrentRequest;
use crate::http::error::{ApiError, ApiResult};
use crate::jobs::JobsState;
use crate::options::{PipeAccess, ServiceOptions};
use crate::outputs::OutputsState;
use crate::pipes::PipesState;
use crate::rights::{Known, KnownTokens, Subject};
use crate::sources::SourcesState;

/// The shared state of the request handlers and of the background tasks.
#[derive(Debug)]
pub struct AppState {
    pub store: Store,
    pub broker: Arc<dyn Broker>,
    pub options: Arc<ServiceOptions>,
    pub http: HttpState,
    pub jobs: JobsState,
    pub outputs: OutputsState,
    pub sources: SourcesState,
    pub conditions: ConditionsState,
    pub pipes: PipesState,
    pub events: EventsState,
    pub backlog: BacklogReader,
    pub tokens: KnownTokens,
    /// Whoever has the token that the operator has chosen.
    pub administrator: Arc<Subject>,
}

impl AppState {
    pub fn new(store: Store, broker: Arc<dyn Broker>, options: ServiceOptions) -> Self {
        let limits = &options.limits;
        let pipes = PipesState::new(options.all_reserved_pipes());
        let workers = &pipes.workers;
        let testers = Testers::new(options.conditions.clone(), &options.tls, workers.clone());
        Self {
            http: HttpState::new(limits),
            jobs: JobsState::default(),
            outputs: OutputsState::new(limits),
            sources: SourcesState::new(limits),
            conditions: ConditionsState {
                full: Arc::default(),
                testers,
            },
            events: EventsState::new(&store, workers, &options.health),
            pipes,
            backlog: BacklogReader::default(),
            tokens: KnownTokens::new(&store),
            administrator: Arc::new(Subject::new(
                "administrator".to_owned(),
                vec![Access::full()],
                Known::ByToken,
            )),
            store,
            broker,
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
}
