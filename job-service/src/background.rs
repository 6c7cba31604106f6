//! Everything that runs without a request. Each task sleeps until the store or the broker signals
//! work, or until the next due time.

use framework::supervision::supervise;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::conditions::{blocked_in, keeper};
use crate::letters::collector;
use crate::outbox::announcements;
use crate::outbox::relay::Relay;
use crate::sources::questions;
use crate::state::AppState;
use crate::stuck::watch;
use crate::tasks::{parked_in, parked_out};
use crate::{jobs, outputs, sources};

/// Runs all background tasks until `shutdown` is cancelled. Each begins again after a panic
/// ([`supervise`]).
pub async fn run(state: &AppState, shutdown: &CancellationToken) {
    let AppState {
        store,
        broker,
        options,
        conditions,
        pipes,
        ..
    } = state;
    let health = &options.health;
    // It knows what it has leased and what is confirmed, also after a panic.
    let relay = Relay::new(store, &**broker, pipes, health);
    let relay = Mutex::new(relay);
    let publish_outbox = || async { relay.lock().await.run(shutdown).await };
    let announce_changes = || announcements::run(store, &**broker, shutdown);
    let park_tasks = || parked_in::run(store, broker, options, shutdown);
    let return_parked = || parked_out::run(store, shutdown);
    let store_blocked = || blocked_in::run(store, broker, options, &conditions.full, shutdown);
    let test_conditions = || keeper::run(store, &conditions.testers, shutdown);
    let delete_jobs = || jobs::sweeper::run(store, shutdown);
    let delete_outputs = || outputs::sweeper::run(store, &options.outputs, shutdown);
    let delete_uploads = || sources::sweeper::run(store, options, shutdown);
    let answer_readers = || questions::run(store, &**broker, &options.webservice_url, shutdown);
    let name_stuck_jobs = || watch::run(store, options.stuck, shutdown);
    let keep_letters = || collector::run(store, &**broker, &options.letters, health, shutdown);
    let return_taken = || pipes.taken.run(shutdown);
    let listen_to_workers = || pipes.workers.run(&**broker, &pipes.gauges, shutdown);
    tokio::join!(
        supervise(health, "job-service: relay", shutdown, publish_outbox),
        supervise(
            health,
            "job-service: announcements",
            shutdown,
            announce_changes
        ),
        supervise(health, "job-service: parked tasks", shutdown, park_tasks),
        supervise(
            health,
            "job-service: resumed tasks",
            shutdown,
            return_parked
        ),
        supervise(
            health,
            "job-service: blocked tasks",
            shutdown,
            store_blocked
        ),
        supervise(health, "job-service: conditions", shutdown, test_conditions),
        supervise(health, "job-service: sweeper", shutdown, delete_jobs),
        supervise(health, "job-service: outputs", shutdown, delete_outputs),
        supervise(health, "job-service: uploads", shutdown, delete_uploads),
        supervise(
            health,
            "job-service: readers of uploads",
            shutdown,
            answer_readers
        ),
        supervise(health, "job-service: stuck jobs", shutdown, name_stuck_jobs),
        supervise(health, "job-service: dead letters", shutdown, keep_letters),
        supervise(
            health,
            "job-service: taken messages",
            shutdown,
            return_taken
        ),
        supervise(
            health,
            "job-service: signs of life",
            shutdown,
            listen_to_workers
        ),
    );
}
