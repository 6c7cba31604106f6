//! The end of a system: what the job service counted, the effects and the outputs are compared.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use contract::TaskMessage;
use faults::poll;
use framework::broker::Broker;
use tokio::time::{sleep, timeout};

use super::{JOB, System};
use crate::chaos::outcome::{Outcome, Survived};
use crate::chaos::roles::{
    BATCH_PIPE, CHAOS_WORKER, INPUT_PIPE, OUTPUT_PIPE, PAUSED_PIPE, TRACKING_PIPE,
};
use crate::chaos::servers::Ground;
use crate::chaos::worker::ChaosOutput;

/// How long pipes may take to become empty after the end of the job.
const DRAIN_LIMIT: Duration = Duration::from_mins(2);
/// How often and how long the process of an embedded system runs again to empty its pipes.
const MOST_LOOKS: u32 = 20;
/// See [`MOST_LOOKS`].
const DRAIN_PAUSE: Duration = Duration::from_secs(1);

impl System {
    /// Stops the system and compares what the job service counted, the effects and the outputs. Returns the ground for another
    /// system. A job that did not end is not waited for.
    pub async fn finish(mut self, has_ended: bool) -> anyhow::Result<(Outcome, Ground)> {
        let compared = self.compare(has_ended).await;
        let outcome = compared.map_err(|error| anyhow!("{error:#}\n{}", self.all_logs()));
        self.effects.close().await;
        // Nothing may use the database any more.
        self.processes.clear();
        if let Some(addresses) = &self.addresses {
            self.ground.forget(addresses).await?;
        }
        Ok((outcome?, self.ground))
    }

    async fn compare(&self, has_ended: bool) -> anyhow::Result<Outcome> {
        let job = self
            .seen
            .borrow()
            .clone()
            .context("the job was never read")?;
        let left = if has_ended {
            self.drained().await?
        } else {
            self.processes
                .values()
                .for_each(|(process, _)| drop(process.kill()));
            0
        };
        let broker = self.broker().await?;
        let given_up = given_up(&*broker).await?.saturating_sub(self.given_up);
        let outputs = Outputs::take(&*broker, &self.pipe(OUTPUT_PIPE), self.options.items).await;
        let kind = broker.kind().to_owned();
        broker.close().await;
        let (outputs, items) = (outputs?, self.options.items);
        let effects = self.effects.count(items).await?;
        let counted = u64::try_from(job.completed_items).unwrap_or(0);
        let longest = *self.longest.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Outcome {
            seed: 0,
            items,
            job_status: job.status,
            completed_items: job.completed_items,
            items_lost: items - effects.items.min(outputs.items).min(counted).min(items),
            counted_twice: counted.saturating_sub(items),
            run_more_than_once: effects.runs - effects.items,
            sent_more_than_once: outputs.all - outputs.items,
            failed: u64::try_from(job.failed_tasks).unwrap_or(0) + given_up,
            left_in_pipes: left,
            percentage_fell: self.percentage_fell.load(Ordering::Relaxed),
            survived: Survived::default(),
            longest_stall_seconds: longest.as_secs_f64(),
            seconds: 0.0,
            broker: kind,
            store: match self.addresses {
                Some(_) => "postgres".to_owned(),
                None => "sqlite".to_owned(),
            },
            trouble: None,
            kept: self.kept().await?,
        })
    }

    /// Waits until the workers have discarded the remaining messages of the job, and stops them. Returns how many are left.
    async fn drained(&self) -> anyhow::Result<u64> {
        if self.addresses.is_none() {
            return self.drained_embedded().await;
        }
        let broker = self.broker().await?;
        let drained = poll(DRAIN_LIMIT, async || match self.left(&*broker).await {
            Ok(0) => Ok(()),
            Ok(left) => Err(format!("{left} are left")),
            Err(error) => Err(error.to_string()),
        });
        let left = match drained.await {
            Ok(()) => 0,
            Err(_) => self.left(&*broker).await?,
        };
        broker.close().await;
        self.terminate().await?;
        Ok(left)
    }

    /// Looks into the pipes of an embedded system, which only works while its process does not run.
    async fn drained_embedded(&self) -> anyhow::Result<u64> {
        let mut looks = 1;
        loop {
            self.terminate().await?;
            let broker = self.broker().await?;
            let left = self.left(&*broker).await?;
            broker.close().await;
            if left == 0 || looks == MOST_LOOKS {
                return Ok(left);
            }
            looks += 1;
            self.start_all()?;
            self.asked("reach the job service", async || {
                self.client.get(JOB).await.map(drop)
            })
            .await?;
            sleep(DRAIN_PAUSE).await;
        }
    }

    /// Stops all processes.
    async fn terminate(&self) -> anyhow::Result<()> {
        for (role, (process, _)) in &self.processes {
            let code = process.terminate().await?;
            ensure!(
                code == Some(0),
                "{role} ended with {code:?}\n{}",
                process.log_tail()
            );
        }
        Ok(())
    }

    /// Returns how many messages of the job wait.
    async fn left(&self, broker: &dyn Broker) -> anyhow::Result<u64> {
        let mut left = 0;
        for pipe in [BATCH_PIPE, INPUT_PIPE, TRACKING_PIPE, PAUSED_PIPE] {
            for suffix in ["", ".suspects"] {
                let pipe = format!("{}{suffix}", self.pipe(pipe));
                left += broker.depth(&pipe).await?;
            }
        }
        Ok(left)
    }
}

/// The messages in the output pipe.
struct Outputs {
    all: u64,
    /// The number of different items that have an output.
    items: u64,
}

impl Outputs {
    async fn take(broker: &dyn Broker, pipe: &str, items: u64) -> anyhow::Result<Self> {
        let mut outputs = Self {
            all: broker.depth(pipe).await?,
            items: 0,
        };
        let mut seen = vec![false; usize::try_from(items)? + 1];
        let mut consumer = broker.consume(pipe, 2000).await?;
        let (mut taken, mut deliveries) = (0, Vec::new());
        while taken < outputs.all {
            let next = timeout(DRAIN_LIMIT, consumer.next_many(&mut deliveries, 1000)).await;
            ensure!(
                matches!(next, Ok(1..)),
                "only {taken} of {} outputs arrive",
                outputs.all
            );
            for delivery in deliveries.drain(..) {
                let message = TaskMessage::decode(&delivery.body)?;
                ensure!(
                    message.tracking.is_none(),
                    "tracking does not end in the output pipe: {message:?}"
                );
                let output: ChaosOutput =
                    serde_json::from_slice(message.task_data.as_deref().unwrap_or_default())?;
                match seen.get_mut(usize::try_from(output.number)?) {
                    Some(seen) => outputs.items += u64::from(!std::mem::replace(seen, true)),
                    None => bail!("the output of {} is not of any item", output.number),
                }
                delivery.ack();
                taken += 1;
            }
        }
        Ok(outputs)
    }
}

/// Returns how many messages are in the pipes for tasks that were given up or not understood.
pub async fn given_up(broker: &dyn Broker) -> anyhow::Result<u64> {
    let mut all = 0;
    for worker in ["worker-batch", "worker-jobtracking", CHAOS_WORKER] {
        for kind in ["reject", "invalid"] {
            all += broker.depth(&format!("{worker}-{kind}")).await?;
        }
    }
    Ok(all)
}
