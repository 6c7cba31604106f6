//! The workers of all processes, as they tell of themselves ([`framework::signs`]). Kept in memory,
//! each until it is silent for a while.
//!
//! What must stay true: the number of workers that a process remembers is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use contract::headers::job_and_path;
use contract::rest::{Job, TaskCounts};
use contract::{JobId, LongestTask, PartitionId, SignOfLife, Worker, Workers};
use framework::broker::{Broker, Event, Gauges};
use framework::clock::Clock;
use framework::signs::{EVERY, sign_of, tell};
use parking_lot::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

/// The most workers that are remembered.
const MOST: usize = 2000;
/// A worker that is silent for this long is forgotten.
const SILENCE: Duration = Duration::from_secs(30);
/// How long what runs in the slots of a worker counts, as it told.
const RUNNING: Duration = EVERY.saturating_mul(2);
/// How long to wait before the signs are listened to again.
const PAUSE: Duration = Duration::from_secs(1);

/// The workers that told of themselves lately. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct SeenWorkers(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By the ids of their runs.
    seen: BTreeMap<String, Seen>,
    /// When workers told of themselves that had no room.
    without_room: BTreeMap<String, Instant>,
}

#[derive(Debug)]
struct Seen {
    sign: SignOfLife,
    at: Instant,
    time: i64,
}

/// The items that run in slots of workers, by job. Approximate: they are as the workers told last.
#[derive(Debug, Default)]
pub struct RunningItems(BTreeMap<String, i64>);

/// A task that has been running for long.
#[derive(Debug, PartialEq, Eq)]
pub struct LongTask {
    /// Its path in the job.
    pub task: String,
    pub age: Duration,
    pub worker: String,
    pub host: String,
    pub process: u32,
}

/// The pipes of a worker.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct WorkerPipes {
    pub worker: String,
    pub input: Option<String>,
    pub output: Option<String>,
    pub reject: Option<String>,
    pub invalid: Option<String>,
}

impl SeenWorkers {
    /// Listens to the signs of all workers, and sends those of this job service, until `shutdown`
    /// is cancelled.
    pub async fn run(&self, broker: &dyn Broker, gauges: &Gauges, shutdown: &CancellationToken) {
        if !broker.carries_signs() {
            shutdown.cancelled().await;
            return;
        }
        tokio::join!(
            self.listen(broker, shutdown),
            self.tell_of_service(broker, gauges, shutdown)
        );
    }

    async fn listen(&self, broker: &dyn Broker, shutdown: &CancellationToken) {
        while !shutdown.is_cancelled() {
            if let Ok(mut signs) = broker.signs().await {
                while let Some(Some(event)) = shutdown.run_until_cancelled(signs.next()).await {
                    if let Event::Message(body) = event {
                        self.note(&body);
                    }
                }
            }
            shutdown.run_until_cancelled(sleep(PAUSE)).await;
        }
    }

    /// Sends a sign of this job service every few seconds, and a last one when `shutdown` is
    /// cancelled. A sign tells how fast the pipes are to which the outbox is sent. This process
    /// notes its own signs, too.
    async fn tell_of_service(
        &self,
        broker: &dyn Broker,
        gauges: &Gauges,
        shutdown: &CancellationToken,
    ) {
        let started = Instant::now();
        let mut sign = SignOfLife {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..sign_of("job-service")
        };
        loop {
            sign.age = millis(started.elapsed());
            sign.speeds = gauges.speeds(SignOfLife::MOST_SPEEDS);
            self.note(&serde_json::to_vec(&sign).unwrap_or_default());
            tell(broker, &sign).await;
            if shutdown.run_until_cancelled(sleep(EVERY)).await.is_none() {
                break;
            }
        }
        sign.ended = true;
        tell(broker, &sign).await;
    }

    /// Notes a sign. One that cannot be read comes from another version, and is ignored.
    fn note(&self, body: &[u8]) {
        if body.len() > SignOfLife::MAX_BYTES {
            return;
        }
        let Ok(sign) = serde_json::from_slice::<SignOfLife>(body) else {
            return;
        };
        let mut state = self.lock();
        let id = sign.id.clone();
        if sign.ended {
            state.seen.remove(&id);
            state.without_room.remove(&id);
        } else if state.seen.contains_key(&id) || state.has_room() {
            let seen = Seen {
                sign,
                at: Instant::now(),
                time: Clock::system().now_millis(),
            };
            state.without_room.remove(&id);
            state.seen.insert(id, seen);
        } else if state.without_room.len() < MOST {
            state.without_room.insert(id, Instant::now());
        }
    }

    /// Returns the workers, by name, the longest running first.
    pub fn list(&self) -> Workers {
        let mut state = self.lock();
        state.forget();
        let mut workers: Vec<Worker> = state.seen.values().map(worker).collect();
        workers.sort_by(|a, b| (&a.name, a.start_time).cmp(&(&b.name, b.start_time)));
        Workers {
            workers,
            more: state.without_room.len() as u64,
        }
    }

    /// Returns the running items that no report has counted as running.
    pub fn running(&self) -> RunningItems {
        let mut running = RunningItems::default();
        let (state, now) = (self.lock(), Instant::now());
        let fresh = state.seen.values();
        for seen in fresh.filter(|seen| now.duration_since(seen.at) < RUNNING) {
            for job in &seen.sign.jobs {
                *running.0.entry(job.job.clone()).or_default() += i64::from(job.tasks);
            }
        }
        running
    }

    /// Returns how many items run in slots of the workers of this pipe that no report has counted
    /// as running.
    pub fn running_of(&self, pipe: &str) -> u64 {
        let (state, now) = (self.lock(), Instant::now());
        let fresh = state.seen.values();
        let fresh = fresh.filter(|seen| now.duration_since(seen.at) < RUNNING);
        let of_pipe = fresh.filter(|seen| seen.sign.input.as_deref() == Some(pipe));
        let jobs = of_pipe.flat_map(|seen| &seen.sign.jobs);
        jobs.map(|job| u64::from(job.tasks)).sum()
    }

    /// Returns how many items a second the workers of this pipe take while some wait in it, as
    /// those have measured who dispatch to it. Each of them sees at most that, so the largest
    /// counts.
    pub fn speed_of(&self, pipe: &str) -> Option<u64> {
        let (state, now) = (self.lock(), Instant::now());
        let fresh = state.seen.values();
        let fresh = fresh.filter(|seen| now.duration_since(seen.at) < RUNNING);
        let speeds = fresh.flat_map(|seen| &seen.sign.speeds);
        let of_pipe = speeds.filter(|speed| speed.pipe == pipe);
        of_pipe.map(|speed| speed.items).max()
    }

    /// Returns the task of this job that runs longest, if it has run for this time: of those that
    /// run longest in their workers.
    pub fn longest_of(
        &self,
        partition: &PartitionId,
        job: &str,
        limit: Duration,
    ) -> Option<LongTask> {
        let id = format!("{partition}:{job}");
        let (state, now) = (self.lock(), Instant::now());
        let fresh = state.seen.values();
        let fresh = fresh.filter(|seen| now.duration_since(seen.at) < SILENCE);
        let long = fresh.filter_map(|seen| {
            let longest = seen.sign.longest.as_ref()?;
            let age = Duration::from_millis(longest.age) + now.duration_since(seen.at);
            let (of, task) = job_and_path(&longest.task)?;
            (of == id && age >= limit).then(|| LongTask {
                task: task.into_owned(),
                age,
                worker: seen.sign.name.clone(),
                host: seen.sign.host.clone(),
                process: seen.sign.process,
            })
        });
        long.max_by_key(|long| long.age)
    }

    /// Returns the pipes of the workers.
    pub fn pipes(&self) -> BTreeSet<WorkerPipes> {
        let mut state = self.lock();
        state.forget();
        let pipes = state.seen.values().map(|Seen { sign, .. }| WorkerPipes {
            worker: sign.name.clone(),
            input: sign.input.clone(),
            output: sign.output.clone(),
            reject: sign.reject.clone(),
            invalid: sign.invalid.clone(),
        });
        pipes.collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl RunningItems {
    /// Counts the running items of a job as running, and not as waiting.
    pub fn show(&self, partition: &PartitionId, job: &mut Job) {
        if !job.status.is_finished() {
            let items = &mut job.items;
            self.count(
                &format!("{partition}:{}", job.id),
                (&mut items.running, &mut items.waiting),
            );
        }
    }

    /// Does the same for the tasks of a job.
    pub fn show_in(&self, partition: &PartitionId, job: &JobId, counts: &mut TaskCounts) {
        self.count(
            &format!("{partition}:{job}"),
            (&mut counts.running, &mut counts.waiting),
        );
    }

    /// Counts items as running that count as waiting. There are never more than these.
    fn count(&self, job: &str, (running, waiting): (&mut Option<i64>, &mut Option<i64>)) {
        if let (Some(items), Some(running), Some(waiting)) = (self.0.get(job), running, waiting) {
            let more = (*items).min(*waiting);
            *running += more;
            *waiting -= more;
        }
    }
}

impl State {
    fn has_room(&mut self) -> bool {
        if self.seen.len() >= MOST {
            self.forget();
        }
        self.seen.len() < MOST
    }

    fn forget(&mut self) {
        let now = Instant::now();
        let is_heard = |at: Instant| now.duration_since(at) < SILENCE;
        self.seen.retain(|_, seen| is_heard(seen.at));
        self.without_room.retain(|_, at| is_heard(*at));
    }
}

fn worker(Seen { sign, time, .. }: &Seen) -> Worker {
    let before = |age: u64| time.saturating_sub_unsigned(age);
    Worker {
        id: sign.id.clone(),
        name: sign.name.clone(),
        version: sign.version.clone(),
        host: sign.host.clone(),
        process: sign.process,
        input: sign.input.clone(),
        output: sign.output.clone(),
        slots: sign.slots,
        slots_in_use: sign.slots_in_use,
        open_deliveries: sign.open,
        longest: sign.longest.as_ref().map(|longest| LongestTask {
            task: longest.task.clone(),
            since: before(longest.age),
        }),
        unavailable: sign.unavailable.clone(),
        start_time: before(sign.age),
        last_sign_time: *time,
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use contract::{JobSlots, RunningTask};

    use super::*;

    fn sign(id: &str) -> Vec<u8> {
        let sign = SignOfLife {
            id: id.to_owned(),
            name: "w".to_owned(),
            ..SignOfLife::default()
        };
        serde_json::to_vec(&sign).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn items_in_slots_run_and_do_not_wait() {
        let tell = |seen: &SeenWorkers, id: &str, jobs: &[(&str, u32)]| {
            let slots = |(job, tasks): &(&str, u32)| JobSlots {
                job: (*job).to_owned(),
                tasks: *tasks,
            };
            let sign = SignOfLife {
                id: id.to_owned(),
                jobs: jobs.iter().map(slots).collect(),
                ..SignOfLife::default()
            };
            seen.note(&serde_json::to_vec(&sign).unwrap());
        };
        let shown = |seen: &SeenWorkers, job: &str| {
            let (mut running, mut waiting) = (Some(2), Some(7));
            seen.running().count(job, (&mut running, &mut waiting));
            (running.unwrap(), waiting.unwrap())
        };
        let seen = SeenWorkers::default();
        tell(&seen, "1", &[("p:a", 3), ("p:b", 100), ("q:a", 1)]);
        tell(&seen, "2", &[("p:a", 1)]);
        assert_eq!(shown(&seen, "p:a"), (6, 3));
        // Never more than wait.
        assert_eq!(shown(&seen, "p:b"), (9, 0));
        assert_eq!(shown(&seen, "p:c"), (2, 7));
        // What is not known stays so.
        let (mut running, mut waiting) = (None, None);
        seen.running().count("p:a", (&mut running, &mut waiting));
        assert_eq!((running, waiting), (None, None));
        tell(&seen, "2", &[]);
        assert_eq!(shown(&seen, "p:a"), (5, 4));
        tokio::time::advance(RUNNING).await;
        assert_eq!(shown(&seen, "p:a"), (2, 7));
        assert_eq!(seen.list().workers.len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_task_of_a_job_that_runs_longest_is_known_once_it_has_run_for_long() {
        const LIMIT: Duration = Duration::from_mins(5);
        let seen = SeenWorkers::default();
        for (id, task, minutes) in [
            ("1", "p:a!7.3.1", 4),
            ("2", "p:a.2*", 6),
            ("3", "p:b.1", 9),
            ("4", "no job", 99),
        ] {
            let sign = SignOfLife {
                id: id.to_owned(),
                name: format!("w{id}"),
                longest: Some(RunningTask {
                    task: task.to_owned(),
                    age: minutes * 60_000,
                }),
                ..SignOfLife::default()
            };
            seen.note(&serde_json::to_vec(&sign).unwrap());
        }
        let p = PartitionId::parse("p").unwrap();
        let longest = |job: &str| {
            let long = seen.longest_of(&p, job, LIMIT)?;
            Some((long.task, long.worker, long.age.as_secs()))
        };
        assert_eq!(longest("a"), Some(("2".to_owned(), "w2".to_owned(), 360)));
        assert_eq!(longest("b"), Some(("1".to_owned(), "w3".to_owned(), 540)));
        assert_eq!(longest("c"), None);
        // Nobody knows whether they still run.
        tokio::time::advance(SILENCE).await;
        assert_eq!(longest("b"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn workers_are_forgotten_when_they_end_or_are_silent_and_bounded_in_number() {
        let seen = SeenWorkers::default();
        for at in 0..MOST + 3 {
            seen.note(&sign(&at.to_string()));
        }
        let listed = seen.list();
        assert_eq!((listed.workers.len(), listed.more), (MOST, 3));
        tokio::time::advance(Duration::from_secs(29)).await;
        seen.note(&sign("0"));
        let ended = SignOfLife {
            id: "1".to_owned(),
            ended: true,
            ..SignOfLife::default()
        };
        seen.note(&serde_json::to_vec(&ended).unwrap());
        assert_eq!(seen.list().workers.len(), MOST - 1);
        tokio::time::advance(PAUSE).await;
        let listed = seen.list();
        assert_eq!((listed.workers.len(), listed.more), (1, 0));
        // What cannot be a sign changes nothing.
        seen.note(b"{");
        seen.note(&sign(&"x".repeat(SignOfLife::MAX_BYTES)));
        // Another version knows more, and tells less.
        seen.note(br#"{"id": "new", "colour": "red"}"#);
        assert_eq!(seen.list().workers.len(), 2);
    }
}
