//! The invariants that must hold once the system has come to rest.

use std::collections::BTreeSet;

use contract::rest::{Items, Job};
use contract::{JobStatus, OnFailure, RangeItem, TaskMessage, TaskStatus};
use framework::broker::Broker as _;

use crate::rounds::start_id;
use crate::simulation::{
    Expected, ITEMS_OUT, ITEMS_REJECT, Put, Simulation, job_id, lock, partition,
};

impl Simulation {
    /// Returns the invariants that do not hold.
    pub async fn check(&self, put: &Put) -> Vec<String> {
        let scenario = &self.0.scenario;
        let mut broken = Vec::new();
        let Some(job) = self.0.observer.look().await else {
            return broken;
        };
        let round = job.round.unwrap_or(1);
        let failing = (1..=put.items)
            .filter(|number| scenario.fails(*number, round))
            .count();
        let status = match put.expected {
            Expected::Cancelled => JobStatus::Cancelled,
            _ if failing > 0 => JobStatus::Failed,
            _ => JobStatus::Completed,
        };
        if job.status != status {
            broken.push(format!("the job must be {status}: {job:?}"));
        }
        if put.expected == Expected::Outcome {
            broken.extend(self.check_counts(&job, put.items, failing));
            broken.extend(self.check_work(put));
            if scenario.output {
                broken.extend(self.check_output(put, round, failing).await);
            }
            if scenario.kept {
                broken.extend(self.check_kept(&job, put, failing).await);
            }
            let hopeless = (1..=put.items)
                .filter(|number| !scenario.fails_at_once(*number, round))
                .filter(|number| scenario.fails(*number, round))
                .count() as u64;
            let copies = self.0.pipes.depth(ITEMS_REJECT).await.unwrap_or(0);
            if copies < hopeless {
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
        broken
    }

    fn check_counts(&self, job: &Job, items: u64, failing: usize) -> Option<String> {
        let items = i64::try_from(items).unwrap_or(i64::MAX);
        let failing = i64::try_from(failing).unwrap_or(i64::MAX);
        let counted: i64 = job.failure_counts.values().sum();
        let exact = match self.0.scenario.on_failure {
            _ if failing == 0 => job.completed_items == items && job.failed_tasks == 0,
            // What is reported after the failure that ended the job counts as well.
            OnFailure::Stop => {
                job.completed_items <= items - failing
                    && (1..=failing).contains(&job.failed_tasks)
                    && i64::try_from(job.failures.len()) == Ok(job.failed_tasks.min(100))
            }
            OnFailure::Continue | OnFailure::Tolerate(_) => {
                job.completed_items == items - failing
                    && job.failed_tasks == failing
                    && i64::try_from(job.failures.len()) == Ok(failing.min(100))
            }
        };
        let Items {
            total,
            total_is_final,
            done,
            failed,
            ..
        } = job.items;
        // Every item is known once every task is done or has failed, whatever announcement was lost.
        let all_known = failing == 0 || self.0.scenario.on_failure == OnFailure::Continue;
        let known = total.unwrap_or(0);
        let exact = exact
            && (done, failed) == (job.completed_items, job.failed_tasks)
            && known <= items
            && (known == items || !(all_known || total_is_final));
        (!exact || counted != job.failed_tasks)
            .then(|| format!("of {items} items {failing} fail, but the counts are {job:?}"))
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

    async fn check_output(&self, put: &Put, round: u32, failing: usize) -> Vec<String> {
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
        let all: BTreeSet<u64> = (1..=put.items)
            .filter(|number| !self.0.scenario.fails(*number, round))
            .collect();
        if done != all || failed.len() != failing {
            broken.push(format!("the output pipe has the results of {done:?}, not {all:?}; {failing} fail, and there are {failed:?}"));
        }
        broken
    }

    /// Takes all messages out of the output pipe.
    async fn outputs(&self) -> Vec<TaskMessage> {
        let waiting = self.0.pipes.depth(ITEMS_OUT).await.unwrap_or(0);
        let mut consumer = self
            .0
            .pipes
            .consume(ITEMS_OUT, u32::try_from(waiting).unwrap_or(u32::MAX))
            .await
            .unwrap();
        let (mut deliveries, mut messages) = (Vec::new(), Vec::new());
        if waiting > 0 {
            consumer
                .next_many(
                    &mut deliveries,
                    usize::try_from(waiting).unwrap_or(usize::MAX),
                )
                .await;
        }
        for delivery in deliveries {
            messages.push(TaskMessage::decode(&delivery.body).unwrap());
            delivery.ack();
        }
        messages
    }
}
