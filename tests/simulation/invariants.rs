//! The invariants that must hold once the system has come to rest.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bytes::Bytes;
use contract::rest::{Above, FailureLimit, Job, Tolerance};
use contract::{Bundle, JobStatus, OnFailure, RangeItem, TaskMessage, TaskStatus};
use framework::broker::Broker as _;

use crate::rounds::start_id;
use crate::simulation::{
    Expected, ITEMS_OUT, ITEMS_REJECT, OUTPUT_BUNDLES, Put, Simulation, job_id, lock, partition,
};

/// What must have become of the items of the job in its last round.
pub struct Items {
    /// Those that were done, in this round or in an earlier one.
    pub done: BTreeSet<u64>,
    /// The number of those that have failed and were never done.
    pub failed: usize,
    /// The number of those that have failed and were done in an earlier round, so that it depends
    /// on the order of reports whether they have failed first.
    pub worse: usize,
}

impl Items {
    /// Returns the least and the largest number of failures that the job may have seen at one time.
    fn failures(&self) -> RangeInclusive<usize> {
        self.failed..=self.failed + self.worse
    }
}

impl Simulation {
    /// Returns the invariants that do not hold.
    pub async fn check(&self, put: &Put) -> Vec<String> {
        let scenario = &self.0.scenario;
        let mut broken = Vec::new();
        let Some(job) = self.0.observer.look().await else {
            return broken;
        };
        let round = job.round.unwrap_or(1);
        let items = self.items(put, round);
        let may_be = |status| {
            let outcome = |failed| self.outcome(failed, put.items) == status;
            outcome(items.failed) || outcome(items.failed + items.worse)
        };
        let is_right = match put.expected {
            Expected::Cancelled => job.status == JobStatus::Cancelled,
            _ => may_be(job.status),
        };
        if !is_right {
            broken.push(format!(
                "of {} items {:?} fail, and the job is {}: {job:?}",
                put.items,
                items.failures(),
                job.status
            ));
        }
        if put.expected == Expected::Outcome {
            broken.extend(self.check_counts(&job, put, &items));
        }
        if put.expected == Expected::Outcome && !self.drops_parked(job.status) {
            broken.extend(self.check_work(put));
            if scenario.output {
                broken.extend(self.check_output(put, round, &items).await);
            }
            if scenario.kept {
                broken.extend(self.check_kept(&job, &items).await);
            }
            if scenario.letters {
                broken.extend(self.check_letters(put, round).await);
            }
            let hopeless = (1..=put.items)
                .filter(|number| !scenario.fails_untried(*number, round))
                .filter(|number| scenario.fails(*number, round))
                .count() as u64;
            let copies = self.0.pipes.depth(ITEMS_REJECT).await.unwrap_or(0);
            if copies < hopeless && !scenario.letters {
                broken.push(format!(
                    "{hopeless} tasks were given up, but {copies} copies are in the reject pipe"
                ));
            }
        }
        match self.0.store.history(partition(), job_id()).await {
            Ok(history)
                if history.iter().filter(|step| step.to.is_finished()).count()
                    == round as usize => {}
            other => broken.push(format!(
                "not one outcome in each of {round} rounds: {other:?}"
            )),
        }
        broken.extend(self.check_blocks(put, &job));
        broken
    }

    fn items(&self, put: &Put, round: u32) -> Items {
        let scenario = &self.0.scenario;
        let fails = |number: &u64| scenario.fails(*number, round);
        let succeeded = lock(&self.0.succeeded);
        let incarnation = put.task_id();
        let was_done = |number: &u64| {
            scenario.worsening.is_some() && succeeded.contains(&(incarnation.clone(), *number))
        };
        Items {
            done: (1..=put.items)
                .filter(|number| !fails(number) || was_done(number))
                .collect(),
            failed: (1..=put.items)
                .filter(|number| fails(number) && !was_done(number))
                .count(),
            worse: (1..=put.items)
                .filter(|number| fails(number) && was_done(number))
                .count(),
        }
    }

    /// Returns how a job ends of which so many of its items have failed.
    fn outcome(&self, failed: usize, items: u64) -> JobStatus {
        let is_tolerated = match self.0.scenario.on_failure {
            OnFailure::Stop | OnFailure::Continue => false,
            OnFailure::Tolerate(tolerance) => failed as u64 <= tolerated(tolerance, items),
        };
        if failed == 0 || is_tolerated {
            JobStatus::Completed
        } else {
            JobStatus::Failed
        }
    }

    fn check_counts(&self, job: &Job, put: &Put, of: &Items) -> Option<String> {
        let number = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let all = i64::try_from(put.items).unwrap_or(i64::MAX);
        let failures = of.failures();
        let failures = number(*failures.start())..=number(*failures.end());
        let most = number(of.done.len());
        let done = if put.counted_nothing {
            all - failures.end()..=most
        } else if self.drops_parked(job.status) {
            0..=most
        } else {
            most..=most
        };
        let is_completed = job.status == JobStatus::Completed;
        let stopped = self.stopped_by().filter(|_| !is_completed);
        let failed_in_range = match stopped {
            // What was done in an earlier round does not stay failed.
            _ if is_completed => job.failed_tasks == all - job.completed_items,
            // What is reported after the failure that ended the job counts as well.
            Some(least) => (least..=*failures.end()).contains(&job.failed_tasks),
            None => failures.contains(&job.failed_tasks),
        };
        let counted: i64 = job.failure_counts.values().sum();
        // Every item is known once every task is done or has failed, whatever announcement was
        // lost.
        let exact = failed_in_range
            && done.contains(&job.completed_items)
            && counted == job.failed_tasks
            && i64::try_from(job.failures.len()) == Ok(job.failed_tasks.min(100))
            && knows_items(job, all, stopped.is_none());
        (!exact).then(|| {
            format!(
                "{done:?} of {all} items are done and {failures:?} fail, but the counts are {job:?}"
            )
        })
    }

    /// Returns how many failures end the job before the end of every task, at least; `None` if none
    /// do.
    fn stopped_by(&self) -> Option<i64> {
        match self.0.scenario.on_failure {
            OnFailure::Stop => Some(1),
            OnFailure::Continue => None,
            OnFailure::Tolerate(tolerance) => match (tolerance.above, tolerance.limit) {
                (Above::Continue, _) => None,
                (Above::Stop, FailureLimit::Items(most)) => i64::try_from(most + 1).ok(),
                (Above::Stop, FailureLimit::Share(_)) => Some(1),
            },
        }
    }

    /// Whether tasks may have been dropped because they were parked when failures ended the job.
    fn drops_parked(&self, status: JobStatus) -> bool {
        let is_paused = self.0.scenario.pauses_hold.is_some();
        is_paused && status == JobStatus::Failed && self.stopped_by().is_some()
    }

    fn check_work(&self, put: &Put) -> Option<String> {
        let executed = lock(&self.0.executed);
        let incarnation = put.task_id();
        let missed: Vec<u64> = (1..=put.items)
            .filter(|number| !executed.contains_key(&(incarnation.clone(), *number)))
            .collect();
        let strange: Vec<_> = executed
            .keys()
            .filter(|(of, number)| *of == incarnation && !(1..=put.items).contains(number))
            .collect();
        (!missed.is_empty() || !strange.is_empty())
            .then(|| format!("never executed: {missed:?}; executed, but no items: {strange:?}"))
    }

    async fn check_output(&self, put: &Put, round: u32, items: &Items) -> Vec<String> {
        let (incarnation, mut broken) = (put.task_id(), Vec::new());
        let start = start_id(&incarnation, round);
        let (mut done, mut failed) = (BTreeSet::new(), BTreeSet::new());
        for message in self.outputs().await {
            if message.tracking.is_some() {
                broken.push(format!(
                    "tracking has ended, but a message in the output pipe has some: {message:?}"
                ));
            }
            match message.task_status {
                Some(TaskStatus::ResultSuccess) => {
                    let item: RangeItem =
                        serde_json::from_slice(&message.task_data.unwrap_or_default()).unwrap();
                    done.extend(
                        (item.params.get("incarnation") == Some(&incarnation))
                            .then_some(item.number),
                    );
                }
                _ => failed.extend(
                    message
                        .task_id
                        .starts_with(&format!("{start}."))
                        .then_some(message.task_id),
                ),
            }
        }
        // If nothing was left to do, the last round has no tasks.
        let (all, failing) = (&items.done, items.failures());
        if done != *all || !failing.contains(&failed.len()) {
            broken.push(format!("the output pipe has the results of {done:?}, not {all:?}; {failing:?} fail, and there are {failed:?}"));
        }
        broken
    }

    /// Takes all messages out of the output pipe, and all members out of the bundles beside it.
    async fn outputs(&self) -> Vec<TaskMessage> {
        drop(lock(&self.0.reader).take());
        let mut messages = Vec::new();
        for body in self.all_of(ITEMS_OUT).await {
            messages.push(TaskMessage::decode(&body).unwrap());
        }
        for body in self.all_of(OUTPUT_BUNDLES).await {
            let bundle = Bundle::decode(&body).unwrap();
            let members = 0..bundle.members.len();
            messages.extend(members.map(|index| bundle.message(index, &body).unwrap()));
        }
        messages
    }

    /// Takes all messages out of a pipe.
    async fn all_of(&self, pipe: &str) -> Vec<Bytes> {
        let pipes = &self.0.pipes;
        let waiting = pipes.depth(pipe).await.unwrap_or(0);
        if waiting == 0 {
            return Vec::new();
        }
        let prefetch = u32::try_from(waiting).unwrap_or(u32::MAX);
        let mut consumer = pipes.consume(pipe, prefetch).await.unwrap();
        let mut deliveries = Vec::new();
        let most = usize::try_from(waiting).unwrap_or(usize::MAX);
        consumer.next_many(&mut deliveries, most).await;
        let bodies = deliveries.into_iter().map(|delivery| {
            let body = delivery.body();
            delivery.ack();
            body
        });
        bodies.collect()
    }
}

/// Returns how many of these items may fail. Judges the limit as it is written: `3` or `20%`.
fn tolerated(tolerance: Tolerance, items: u64) -> u64 {
    let text = tolerance.limit.to_string();
    let number = |text: &str| text.parse::<u64>().unwrap();
    match text.strip_suffix('%') {
        Some(percent) => items * number(percent) / 100,
        None => number(&text),
    }
}

/// Returns whether what the job says of its items agrees with its totals and with their real
/// number.
fn knows_items(job: &Job, items: i64, all_known: bool) -> bool {
    let known = job.items.total.unwrap_or(0);
    (job.items.done, job.items.failed) == (job.completed_items, job.failed_tasks)
        && known <= items
        && (known == items || !(all_known || job.items.total_is_final))
}
