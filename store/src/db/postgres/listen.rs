//! Listens for the commits of other processes, on a connection of its own.
//!
//! A notification that is sent while the connection is down is lost. So all signals wake once after
//! each reconnect. The listener also notifies itself every 15 s, and reconnects when it has missed
//! two of these heartbeats.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use super::opening::Database;
use super::supervision::supervise;
use crate::StoreError;
use crate::db::{Signals, Wakes};

/// The channel of the notifications. What a payload says is known to [`Wakes`].
pub const CHANNEL: &str = "batchwright";

/// The name of the task in the log.
const NAME: &str = "database: notifications";
const HEARTBEAT: &str = "heartbeat";
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The task that listens. It ends when this is dropped.
#[derive(Debug)]
pub struct Listener {
    tasks: TaskTracker,
    token: CancellationToken,
    _guard: DropGuard,
}

impl Listener {
    /// Starts the task, and returns once it listens or has failed to. A database that is `not_yet`
    /// available is opened first, in the background.
    pub async fn start(
        database: Arc<Database>,
        signals: Arc<Signals>,
        not_yet: Option<StoreError>,
    ) -> Self {
        let (tasks, token) = (TaskTracker::new(), CancellationToken::new());
        let stop = token.clone();
        // Receivers look before they wait, so nothing is missed yet; but a look fails while the
        // database is not open.
        let (mut first, mut missed) = if not_yet.is_none() {
            (Some(connect(&database.options).await), false)
        } else {
            (None, true)
        };
        let mut not_yet = not_yet;
        tasks.spawn(async move {
            let listen = || {
                // Only the first time: after a panic, anything may have been missed.
                let (first, missed) = (first.take(), std::mem::replace(&mut missed, true));
                open_and_listen(not_yet.take(), first, missed, &database, &signals)
            };
            let panicked = |panic: &str| {
                database.unavailable(&format!("{NAME} begins again after a panic: {panic}"));
            };
            let supervised = supervise(NAME, listen, panicked);
            if let Some(Err(reason)) = stop.run_until_cancelled(supervised).await {
                database.give_up(&reason);
            }
        });
        tasks.close();
        Self {
            tasks,
            _guard: token.clone().drop_guard(),
            token,
        }
    }

    pub async fn stop(&self) {
        self.token.cancel();
        self.tasks.wait().await;
    }
}

/// Opens the database if that is not done yet, and listens.
async fn open_and_listen(
    not_yet: Option<StoreError>,
    first: Option<Result<PgListener, String>>,
    missed: bool,
    database: &Database,
    signals: &Signals,
) {
    let not_yet = not_yet.or_else(|| {
        let is_open = database.check_open().is_ok();
        (!is_open).then(|| StoreError::Unavailable("it has not been opened yet".into()))
    });
    if let Some(error) = not_yet
        && !database.open_when_possible(error).await
    {
        return;
    }
    let first = match first {
        Some(first) => first,
        None => connect(&database.options).await,
    };
    listen_forever(first, missed, database, signals).await;
}

async fn listen_forever(
    first: Result<PgListener, String>,
    missed: bool,
    database: &Database,
    signals: &Signals,
) {
    let mut pause = FIRST_PAUSE;
    let mut missed = missed || first.is_err();
    let mut connected = first;
    loop {
        match connected {
            Ok(listener) => {
                pause = FIRST_PAUSE;
                database.available();
                if missed {
                    // Commits whose notifications were lost may have been about any signal.
                    signals.wake(&Wakes::all());
                }
                missed = true;
                let reason = listen(listener, database, signals).await;
                tracing::warn!(
                    reason,
                    "lost the connection that listens to the database; reconnecting"
                );
            }
            Err(reason) => database.unavailable(&reason),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        connected = connect(&database.options).await;
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgListener, String> {
    let connecting = async {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options.clone())
            .await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    timeout(LIMIT, connecting)
        .await
        .map_err(|_| "no response".to_owned())?
        .map_err(|error| error.to_string())
}

/// Wakes signals until the connection is lost. Returns why it counts as lost.
async fn listen(mut listener: PgListener, database: &Database, signals: &Signals) -> String {
    let mut misses = 0;
    let mut beat = interval(HEARTBEAT_EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            heard = listener.try_recv() => match heard {
                Ok(Some(notification)) => {
                    // Any notification shows that the connection works.
                    misses = 0;
                    #[cfg(test)]
                    assert_ne!(notification.payload(), "panic", "a planned panic");
                    signals.wake(&Wakes::parse(notification.payload()));
                }
                Ok(None) => return "it was closed".to_owned(),
                Err(error) => return error.to_string(),
            },
            _ = beat.tick() => {
                if misses == 2 {
                    return "two heartbeats in a row did not arrive".to_owned();
                }
                misses += 1;
                let heartbeat = sqlx::query("select pg_notify($1, $2)").bind(CHANNEL).bind(HEARTBEAT).execute(&database.pool);
                match timeout(LIMIT, heartbeat).await {
                    Ok(Ok(_)) => database.available(),
                    Ok(Err(error)) => database.unavailable(&error.to_string()),
                    Err(_) => database.unavailable("no response"),
                }
            }
        }
    }
}
