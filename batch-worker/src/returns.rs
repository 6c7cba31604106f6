//! When a batch comes back that waits for its turn.
//!
//! A batch that waits is a message in a delay pipe. If all of them came back often, a process would
//! do nothing else; if all came back rarely, workers would wait. So of each level of a job a few
//! come back soon, more of them later, and the rest late.
//!
//! What must stay true:
//! - Waiting costs little, however many batches of a partition wait: some six hundred a second
//!   come back, or as many as the workers of their pipe need.
//! - No partition takes the early returns of all others, and no job those of its partition.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How long batches wait. Each delay is a pipe of its own, so they are few.
pub const DELAYS: [Duration; 4] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(30),
];
/// The number of delays that are shorter than the last one.
const SHORTER: usize = DELAYS.len() - 1;
/// How many batches on one level of a job come back after each of the shorter delays, at least, if
/// there is a place. The rest wait for the last one.
const OF_A_LEVEL: [usize; SHORTER] = [8, 8, 20];
/// How many batches of all jobs come back after each of them.
const OF_ALL: [usize; SHORTER] = [80, 100, 500];
/// How often those are forgotten that wait for nothing any more.
const PRUNED_EVERY: Duration = Duration::from_millis(100);
/// How much more than enough come back before the next delay is over.
const SPARE: f64 = 1.5;

/// The batches of a process that come back.
#[derive(Debug, Default)]
pub struct Returns(Mutex<Schedule>);

#[derive(Debug, Default)]
struct Schedule {
    partitions: HashMap<String, Partition>,
    /// When partitions and jobs that wait for nothing were last forgotten.
    pruned: Option<Instant>,
}

#[derive(Debug, Default)]
struct Partition {
    due: Due,
    /// By job and level.
    jobs: HashMap<(String, usize), Due>,
}

/// When batches come back that wait for each of the shorter delays, oldest first.
#[derive(Debug, Default)]
struct Due([VecDeque<Instant>; SHORTER]);

impl Due {
    fn forget_those_before(&mut self, now: Instant) {
        for due in &mut self.0 {
            while due.front().is_some_and(|at| *at <= now) {
                due.pop_front();
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(VecDeque::is_empty)
    }
}

impl Returns {
    /// Returns how long a batch waits on this level of the tree of its job. The workers of its pipe
    /// take this many batches of its size in a second; while that is not known, all of the job come
    /// back as soon as they can.
    pub fn wait(
        &self,
        partition: &str,
        (job, level): (&str, usize),
        batches_a_second: Option<f64>,
    ) -> Duration {
        let now = Instant::now();
        let mut waiting = self.0.lock();
        if waiting.pruned.is_none_or(|at| now >= at + PRUNED_EVERY) {
            waiting.prune(now);
        }
        let partitions = &mut waiting.partitions;
        let all = partitions.len() + usize::from(!partitions.contains_key(partition));
        let partition = partitions.entry(partition.to_owned()).or_default();
        let of_level = partition.jobs.entry((job.to_owned(), level)).or_default();
        partition.due.forget_those_before(now);
        of_level.forget_those_before(now);
        for place in 0..SHORTER {
            // Until those come back that wait for longer, these must be enough.
            let next = DELAYS[place + 1].as_secs_f64();
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a number of batches"
            )]
            let enough = batches_a_second.map_or(OF_ALL[place], |batches| {
                (batches * next * SPARE).ceil() as usize
            });
            let of_partition = (OF_ALL[place] / all).max(enough).max(1);
            if of_level.0[place].len() < OF_A_LEVEL[place].max(enough)
                && partition.due.0[place].len() < of_partition
            {
                let at = now + DELAYS[place];
                of_level.0[place].push_back(at);
                partition.due.0[place].push_back(at);
                return DELAYS[place];
            }
        }
        DELAYS[SHORTER]
    }
}

impl Schedule {
    fn prune(&mut self, now: Instant) {
        self.pruned = Some(now);
        self.partitions.retain(|_, partition| {
            partition.due.forget_those_before(now);
            partition.jobs.retain(|_, due| {
                due.forget_those_before(now);
                !due.is_empty()
            });
            !partition.due.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts how many of the batches wait for each delay.
    fn counted(delays: impl Iterator<Item = Duration>) -> [usize; 4] {
        let mut counts = [0; 4];
        for delay in delays {
            counts[DELAYS.iter().position(|it| *it == delay).unwrap()] += 1;
        }
        counts
    }

    #[tokio::test(start_paused = true)]
    async fn of_each_level_a_few_batches_come_back_soon_and_the_rest_late() {
        let returns = Returns::default();
        for level in [1, 2] {
            let waits = counted((0..1000).map(|_| returns.wait("p", ("a", level), Some(0.0))));
            assert_eq!(waits, [8, 8, 20, 964], "{level}");
        }
        tokio::time::advance(DELAYS[0]).await;
        let waits = counted((0..12).map(|_| returns.wait("p", ("a", 1), Some(0.0))));
        assert_eq!(waits, [8, 0, 0, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn workers_that_take_ten_batches_a_second_always_have_one() {
        let returns = Returns::default();
        let wait = || Instant::now() + returns.wait("p", ("j", 1), Some(10.0));
        // When each of a thousand batches comes back.
        let mut due: Vec<Instant> = (0..1000).map(|_| wait()).collect();
        tokio::time::advance(DELAYS[0]).await;
        for taken in 0..499 {
            let now = Instant::now();
            let (back, later): (Vec<_>, Vec<_>) = due.into_iter().partition(|at| *at <= now);
            assert!(back.len() >= 2, "{taken}");
            // The others that are back are told to wait once more.
            due = later;
            due.extend((2..back.len()).map(|_| wait()));
            tokio::time::advance(DELAYS[0]).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_jobs_of_a_partition_leave_early_returns_to_another_one() {
        let returns = Returns::default();
        let waits = (0..10_000).map(|job| returns.wait("p", (&job.to_string(), 1), Some(0.0)));
        assert_eq!(counted(waits), [80, 100, 500, 9320]);
        assert_eq!(returns.wait("another", ("j", 1), Some(0.0)), DELAYS[0]);
    }
}
