//! Many watchers of one job: first while another job changes ten times a second, then while their
//! own does. Beside them, one client reads a third job.
//!
//! The watchers, the client and the job service share this process, its threads and its limit of
//! open files.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use contract::rest::Job;
use contract::{JobStatus, JobTaskId};
use job_service::Limits;
use serde::Serialize;
use store::{EventKind, TrackingEvent};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::api::{ReadTimes, percentiles};
use super::service_alone::{ServiceAlone, StorePlace, job_that_nobody_runs};

const WATCHED: &str = "watched";
const OTHER: &str = "other";
const READ: &str = "read";
/// The time between two changes of a job.
const PACE: Duration = Duration::from_millis(100);
/// The number of streams that are opened at the same time.
const OPENING: usize = 64;
/// How long the watchers may take to see the end of their job.
const END_LIMIT: Duration = Duration::from_mins(1);

/// The settings of the measurement.
#[derive(Debug, Args)]
pub struct WatchersOptions {
    /// Number of watchers of one job.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    watchers: u32,
    /// Number of seconds for which each job changes.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    #[command(flatten)]
    place: StorePlace,
}

/// The results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WatchersResult {
    pub watchers: u32,
    /// The time until each watcher had its first event.
    pub opening_seconds: f64,
    pub beside_nothing: Phase,
    pub other_job_changes: Phase,
    pub watched_job_changes: Phase,
    /// The time from the end of the job until the last watcher saw it.
    pub end_seen_after_seconds: f64,
    pub store: String,
}

/// What happened while one job changed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Phase {
    pub changes: u64,
    /// The events of all watchers together.
    pub events: u64,
    pub get: ReadTimes,
    /// The time that the threads of this process were at work.
    pub busy_seconds: f64,
    pub seconds: f64,
}

/// Measures watchers. Nothing else should use the store at the same time.
pub async fn run(options: &WatchersOptions) -> anyhow::Result<WatchersResult> {
    let limits = Limits {
        // Event streams take at most half of the connections.
        connections: (usize::try_from(options.watchers)? + 100) * 2,
        ..Limits::default()
    };
    let measure = async |at: &ServiceAlone| at.watch(options).await;
    options.place.measure(limits, measure).await
}

impl ServiceAlone {
    async fn watch(&self, options: &WatchersOptions) -> anyhow::Result<WatchersResult> {
        for job in [WATCHED, OTHER, READ] {
            self.client.put(job, &job_that_nobody_runs()).await?;
        }
        let time = Duration::from_secs(options.seconds.into());
        let events = Arc::new(watch::Sender::new(0));
        let beside_nothing = self.phase(None, time, &events).await?;
        let began = Instant::now();
        let mut watchers = self.open(options.watchers, &events);
        let mut opened = events.subscribe();
        opened
            .wait_for(|events| *events >= u64::from(options.watchers))
            .await?;
        let opening_seconds = began.elapsed().as_secs_f64();
        let other_job_changes = self.phase(Some(OTHER), time, &events).await?;
        let watched_job_changes = self.phase(Some(WATCHED), time, &events).await?;
        let ended = Instant::now();
        self.complete(WATCHED, "").await?;
        let all_end = async {
            while let Some(watcher) = watchers.join_next().await {
                let last = watcher??;
                ensure!(last.status == JobStatus::Completed, "a watcher ended early");
            }
            anyhow::Ok(())
        };
        timeout(END_LIMIT, all_end)
            .await
            .context("not every watcher saw the end of its job")??;
        Ok(WatchersResult {
            watchers: options.watchers,
            opening_seconds,
            beside_nothing,
            other_job_changes,
            watched_job_changes,
            end_seen_after_seconds: ended.elapsed().as_secs_f64(),
            store: self.store.kind().to_owned(),
        })
    }

    /// Starts the watchers. Each counts its events, and returns the last state that it saw.
    fn open(
        &self,
        watchers: u32,
        events: &Arc<watch::Sender<u64>>,
    ) -> JoinSet<anyhow::Result<Job>> {
        let opening = Arc::new(Semaphore::new(OPENING));
        (0..watchers)
            .map(|_| {
                let (client, opening) = (self.client.clone(), Arc::clone(&opening));
                let events = Arc::clone(events);
                async move {
                    let place = opening.acquire().await?;
                    let mut watch = client.watch(WATCHED).await?;
                    let mut last = None;
                    let mut place = Some(place);
                    while let Some(job) = watch.next().await {
                        drop(place.take());
                        events.send_modify(|events| *events += 1);
                        last = Some(job);
                    }
                    let Some(last) = last else {
                        bail!("an event stream had no event");
                    };
                    Ok(last)
                }
            })
            .collect()
    }

    /// Changes a job ten times a second, and reads another one all the while.
    async fn phase(
        &self,
        job: Option<&str>,
        time: Duration,
        events: &watch::Sender<u64>,
    ) -> anyhow::Result<Phase> {
        let (began, worked, events_before) = (Instant::now(), busy_time(), *events.borrow());
        let changing = async {
            let mut ticks = interval(PACE);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            let mut changes = 0;
            while began.elapsed() < time {
                ticks.tick().await;
                if let Some(job) = job {
                    changes += 1;
                    self.complete(job, &format!(".{changes}")).await?;
                }
            }
            anyhow::Ok(changes)
        };
        let reading = async {
            let mut times = Vec::new();
            let mut pauses = interval(PACE / 10);
            pauses.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while began.elapsed() < time {
                pauses.tick().await;
                let asked = Instant::now();
                self.client.get(READ).await?;
                times.push(asked.elapsed());
            }
            anyhow::Ok(percentiles("one job", times))
        };
        let (changes, get) = tokio::try_join!(changing, reading)?;
        Ok(Phase {
            changes,
            events: *events.borrow() - events_before,
            get,
            busy_seconds: busy_time().saturating_sub(worked).as_secs_f64(),
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    /// Reports a task of a job complete, or the job itself where the path is empty.
    async fn complete(&self, job: &str, path: &str) -> anyhow::Result<()> {
        let task = JobTaskId::parse(&format!("{}:{job}{path}", self.partition))?;
        let kind = EventKind::Complete;
        self.store.record(&[TrackingEvent { task, kind }]).await?;
        Ok(())
    }
}

/// Returns how long the threads of the runtime have been at work.
fn busy_time() -> Duration {
    let metrics = Handle::current().metrics();
    (0..metrics.num_workers())
        .map(|worker| metrics.worker_total_busy_duration(worker))
        .sum()
}
