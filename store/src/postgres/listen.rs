//! Hears what other processes have committed, over one connection of its own.
//!
//! A notification that falls into a lost connection is lost. So everybody is woken once after each connect, and the listener
//! hears itself every 15 s: two misses, and it connects anew.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPool, PgPoolOptions};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::backend::{Signal, Signals};

/// Notifications go to the database's own channel of this name; the payload says who is to wake.
pub const CHANNEL: &str = "batchwright";

const HEARTBEAT: &str = "heartbeat";
const HEARTBEAT_EVERY: Duration = Duration::from_secs(15);
const LIMIT: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The task that listens; it ends when this is dropped.
#[derive(Debug)]
pub struct Listener {
    tasks: TaskTracker,
    token: CancellationToken,
    _guard: DropGuard,
}

impl Listener {
    /// Listens by the time it answers, if the database lets it.
    pub async fn start(options: PgConnectOptions, pool: PgPool, signals: Arc<Signals>) -> Self {
        let (tasks, token) = (TaskTracker::new(), CancellationToken::new());
        let stop = token.clone();
        let first = connect(&options).await;
        tasks.spawn(async move { stop.run_until_cancelled(listen_for_ever(first, options, pool, signals)).await });
        tasks.close();
        Self { tasks, _guard: token.clone().drop_guard(), token }
    }

    pub async fn stop(&self) {
        self.token.cancel();
        self.tasks.wait().await;
    }
}

async fn listen_for_ever(first: Result<PgListener, String>, options: PgConnectOptions, pool: PgPool, signals: Arc<Signals>) {
    let mut pause = Duration::from_millis(100);
    // Nobody can have waited before the first connect, and whoever begins to wait looks first.
    let mut missed = first.is_err();
    let mut connected = first;
    loop {
        match connected {
            Ok(listener) => {
                pause = Duration::from_millis(100);
                if missed {
                    // Whatever was committed while nobody listened.
                    for signal in Signal::ALL {
                        signals.wake(signal);
                    }
                }
                missed = true;
                let reason = listen(listener, &pool, &signals).await;
                tracing::warn!(reason, "the connection that listens to the database is made anew");
            }
            Err(reason) => tracing::warn!(reason, "cannot listen to the database"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        connected = connect(&options).await;
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgListener, String> {
    let connecting = async {
        let pool = PgPoolOptions::new().max_connections(1).idle_timeout(None).max_lifetime(None).connect_with(options.clone()).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(CHANNEL).await?;
        Ok::<_, sqlx::Error>(listener)
    };
    timeout(LIMIT, connecting).await.map_err(|_| "no answer".to_owned())?.map_err(|error| error.to_string())
}

/// Wakes whom notifications are for, until the connection is lost; answers why it is taken for lost.
async fn listen(mut listener: PgListener, pool: &PgPool, signals: &Signals) -> String {
    let mut misses = 0;
    let mut beat = interval(HEARTBEAT_EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            heard = listener.try_recv() => match heard {
                Ok(Some(notification)) => {
                    // Any notification shows that the connection lives.
                    misses = 0;
                    let names = notification.payload().split(' ');
                    for signal in names.filter_map(|name| Signal::ALL.into_iter().find(|signal| signal.name() == name)) {
                        signals.wake(signal);
                    }
                }
                Ok(None) => return "it was closed".to_owned(),
                Err(error) => return error.to_string(),
            },
            _ = beat.tick() => {
                if misses == 2 {
                    return "it has not heard itself twice".to_owned();
                }
                misses += 1;
                let say = sqlx::query("select pg_notify($1, $2)").bind(CHANNEL).bind(HEARTBEAT).execute(pool);
                if let Ok(Err(error)) = timeout(LIMIT, say).await {
                    tracing::debug!(%error, "cannot notify");
                }
            }
        }
    }
}
