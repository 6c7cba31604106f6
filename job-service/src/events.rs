//! What happens to jobs, told to the clients that watch them.

mod feed;
pub mod page;
pub mod routes;
mod watched_jobs;

use framework::health::Health;
use store::Store;

use crate::events::feed::EventFeed;
use crate::events::watched_jobs::WatchedJobs;
use crate::pipes::seen_workers::SeenWorkers;

/// What the watchers of jobs share.
#[derive(Debug)]
pub struct EventsState {
    pub watched_jobs: WatchedJobs,
    pub feed: EventFeed,
}

impl EventsState {
    pub fn new(store: &Store, workers: &SeenWorkers, health: &Health) -> Self {
        Self {
            watched_jobs: WatchedJobs::new(store.clone(), workers.clone(), health.clone()),
            feed: EventFeed::new(store.clone(), health.clone()),
        }
    }

    /// Ends all watching.
    pub async fn stop(&self) {
        self.watched_jobs.stop().await;
        self.feed.stop().await;
    }
}
