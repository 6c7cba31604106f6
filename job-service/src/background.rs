//! Everything that runs without a request. Each task sleeps until the store signals work or until
//! the next due time.
//!
//! - [`relay`] publishes the messages of the outbox.
//! - [`announcements`] announces the jobs that have changed to all workers.
//! - [`parked_in`] consumes the paused pipe and parks the tasks of paused jobs in the store.
//! - [`parked_out`] moves the parked tasks of resumed jobs to the outbox.
//! - [`blocked_in`] consumes the blocked pipe and keeps the tasks that wait for conditions in the
//!   store.
//! - [`outputs`] deletes the blobs of outputs that are no longer needed.
//! - [`uploads`] deletes uploaded sources that nobody needs any more.
//! - [`upload_questions`] tells batch workers where they read the others.
//! - [`conditions`] tests the conditions that tasks wait for, and lets the tasks go.
//! - [`letters`] keeps what is in reject and invalid pipes.
//! - [`sweeper`] deletes expired jobs and drops the task tables of finished ones.
//! - [`stuck`] names jobs that do not move, in the log and in their notes.

mod announcements;
mod blocked_in;
mod conditions;
mod letters;
mod outputs;
mod own_pipe;
mod parked_in;
mod parked_out;
mod relay;
mod stuck;
mod sweeper;
mod upload_questions;
mod uploads;
mod wakeup;

use std::sync::Arc;

use framework::broker::Broker;
use framework::supervision::supervise;
use store::Store;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use self::relay::Relay;
use crate::conditions::Testers;
use crate::full_conditions::FullConditions;
use crate::options::ServiceOptions;
pub use wakeup::backoff;

/// Runs all background tasks until `shutdown` is cancelled. Each begins again after a panic
/// ([`supervise`]).
pub async fn run(
    store: &Store,
    broker: &Arc<dyn Broker>,
    options: &ServiceOptions,
    (testers, full): (&Testers, &Arc<FullConditions>),
    shutdown: &CancellationToken,
) {
    let (health, reserved) = (&options.health, options.all_reserved_pipes());
    // It knows what it has leased and what is confirmed, also after a panic.
    let relay = Mutex::new(Relay::new(store, broker.as_ref(), &reserved, health));
    let send = || async { relay.lock().await.run(shutdown).await };
    let tell_workers = || announcements::run(store, broker.as_ref(), shutdown);
    let park = || parked_in::run(store, broker, options, shutdown);
    let block = || blocked_in::run(store, broker, options, full, shutdown);
    let (unpark, sweep) = (
        || parked_out::run(store, shutdown),
        || sweeper::run(store, shutdown),
    );
    let look_for_stuck = || stuck::run(store, options.stuck, shutdown);
    let collect = || letters::run(store, broker.as_ref(), &options.letters, health, shutdown);
    let look_after_conditions = || conditions::run(store, testers, shutdown);
    let delete_outputs = || outputs::run(store, &options.outputs, shutdown);
    let delete_uploads = || uploads::run(store, options, shutdown);
    let url = &options.webservice_url;
    let tell_readers = || upload_questions::run(store, broker.as_ref(), url, shutdown);
    tokio::join!(
        supervise(health, "job-service: relay", shutdown, send),
        supervise(health, "job-service: announcements", shutdown, tell_workers),
        supervise(health, "job-service: parked tasks", shutdown, park),
        supervise(health, "job-service: blocked tasks", shutdown, block),
        supervise(health, "job-service: resumed tasks", shutdown, unpark),
        supervise(health, "job-service: sweeper", shutdown, sweep),
        supervise(health, "job-service: outputs", shutdown, delete_outputs),
        supervise(health, "job-service: uploads", shutdown, delete_uploads),
        supervise(
            health,
            "job-service: readers of uploads",
            shutdown,
            tell_readers
        ),
        supervise(health, "job-service: stuck jobs", shutdown, look_for_stuck),
        supervise(health, "job-service: dead letters", shutdown, collect),
        supervise(
            health,
            "job-service: conditions",
            shutdown,
            look_after_conditions
        ),
    );
}
