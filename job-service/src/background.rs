//! Everything that runs without a request. Each task sleeps until the store signals work or until the next due time.
//!
//! - [`relay`] publishes the messages of the outbox.
//! - [`parked_in`] consumes the paused pipe and parks the tasks of paused jobs in the store.
//! - [`parked_out`] moves the parked tasks of resumed jobs to the outbox.
//! - [`sweeper`] deletes expired jobs and drops the task tables of finished ones.

mod parked_in;
mod parked_out;
mod relay;
mod stored_message;
mod sweeper;
mod wakeup;

use std::sync::Arc;

use framework::broker::Broker;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::options::ServiceOptions;
pub use wakeup::backoff;

/// Runs all background tasks until `shutdown` is cancelled.
pub async fn run(
    store: &Store,
    broker: &Arc<dyn Broker>,
    options: &ServiceOptions,
    shutdown: &CancellationToken,
) {
    let reserved = options.all_reserved_pipes();
    tokio::join!(
        relay::run(store, broker.as_ref(), &reserved, shutdown),
        parked_in::run(store, broker, options, shutdown),
        parked_out::run(store, shutdown),
        sweeper::run(store, shutdown)
    );
}
