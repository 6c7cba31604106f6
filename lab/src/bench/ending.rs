//! How a measurement ends that is asked to stop: its jobs are cancelled, and its pipes run empty,
//! so that the next one can use them.

use std::time::{Duration, Instant};

use anyhow::bail;
use batchwright::Running;
use batchwright::client::ClientError;
use framework::broker::Broker;
use framework::runtime::stop_signal;

use super::pipes;
use super::system::Load;
use batchwright_cli::remark;

/// The time between two looks at the pipes.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the pipes must stay empty to count as empty; longer than a batch waits for room.
const QUIET: Duration = Duration::from_secs(2);
/// How long the pipes may take after the jobs were cancelled.
const EMPTY_LIMIT: Duration = Duration::from_mins(1);

/// The process was asked to stop: by `SIGTERM` or Ctrl-C.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the measurement was stopped")]
pub struct Stopped;

/// Returns what the work returns, or the error [`Stopped`] if the process is asked to stop before.
pub async fn unless_stopped<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::select! {
        // First, so that no signal is missed that follows the beginning of the work.
        biased;
        () = stop_signal() => bail!(Stopped),
        ended = work => ended,
    }
}

/// Returns whether a measurement ended because the process was asked to stop.
pub fn is_stopped<T>(measured: &anyhow::Result<T>) -> bool {
    matches!(measured, Err(error) if error.is::<Stopped>())
}

/// Cancels what runs and waits until the pipes are empty, a minute at the most; a second request to
/// stop ends that at once. Says which messages are left.
pub async fn clear(
    load: &Load,
    running: &Running,
    cancel: impl Future<Output = Result<(), ClientError>>,
) {
    remark!("stopping: the pipes run empty; stop it again to leave them as they are");
    let (broker, all) = (&**running.broker(), load.all_pipes());
    let cleared = async {
        // There may be nothing to cancel yet, or any more.
        drop(cancel.await);
        tokio::select! {
            emptied = until_empty(broker, &all, EMPTY_LIMIT) => emptied.map(drop),
            failed = drop_outputs(load, running) => failed,
        }
    };
    // What cannot be cleared is told below, or by the next measurement.
    drop(unless_stopped(cleared).await);
    if let Ok(waiting) = pipes::waiting(broker, &all).await
        && !waiting.is_empty()
    {
        remark!("messages are left: {}", pipes::text(&waiting));
    }
}

/// Waits until the pipes stay empty. Returns after how many seconds they were; `None` if they were
/// not within the limit.
pub async fn until_empty(
    broker: &dyn Broker,
    all: &[String],
    limit: Duration,
) -> anyhow::Result<Option<f64>> {
    let began = Instant::now();
    // RabbitMQ logs each question about a queue that does not exist.
    let existing = pipes::existing(broker, all).await?;
    let mut empty_since: Option<Duration> = None;
    while began.elapsed() < limit {
        let is_empty = pipes::waiting(broker, &existing).await?.is_empty();
        let since = is_empty.then(|| empty_since.unwrap_or_else(|| began.elapsed()));
        match since {
            Some(since) if began.elapsed() >= since + QUIET => {
                return Ok(Some(since.as_secs_f64()));
            }
            since => empty_since = since,
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    Ok(None)
}

/// Takes the outputs that nobody counts any more, until the broker is closed.
async fn drop_outputs(load: &Load, running: &Running) -> anyhow::Result<()> {
    let mut outputs = load.outputs(running).await?;
    while let Some(output) = outputs.next().await? {
        output.done();
    }
    Ok(())
}
