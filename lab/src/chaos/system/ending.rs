//! The end of a system: what the job service counted, the effects and the outputs are compared.

use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use batchwright::batch::BatchWorker;
use contract::rest::KeptOutput;
use contract::{TaskMessage, TaskStatus, blocked_pipe, delay_pipe, reports_pipe, rounds_pipe};
use faults::poll;
use framework::broker::Broker;
use tokio::time::{sleep, timeout};

use super::{JOB, System};
use crate::chaos::outcome::{Outcome, OutputsIn, Survived};
use crate::chaos::roles::{
    BATCH_PIPE, CHAOS_WORKER, INPUT_PIPE, KEPT_PIPE, OUTPUT_PIPE, PAUSED_PIPE, TRACKING_PIPE,
    letter_pipe,
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
    /// Stops the system and compares what the job service counted, the effects and the outputs.
    /// Returns the ground for another system. A job that did not end is not waited for.
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
        // Only the job service can read what it keeps. One that has not brought the job to its end
        // may not respond.
        let kept = match (self.options.work.keep_outputs, has_ended) {
            (true, true) => Some(self.kept_outputs().await?),
            (true, false) => Some(Outputs::none(self.options.items)?),
            (false, _) => None,
        };
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
        let (pipe, items) = (self.pipe(OUTPUT_PIPE), self.options.items);
        let sent = Outputs::take(&*broker, &pipe, items).await;
        let kind = broker.kind().to_owned();
        broker.close().await;
        let sent = sent?;
        let outputs = kept.as_ref().unwrap_or(&sent);
        let effects = self.effects.count(items).await?;
        let counted = u64::try_from(job.completed_items).unwrap_or(0);
        let longest = *self.longest.lock();
        Ok(Outcome {
            seed: 0,
            items,
            job_status: job.status,
            completed_items: job.completed_items,
            items_lost: items - effects.items.min(outputs.items).min(counted).min(items),
            counted_twice: counted.saturating_sub(items),
            blocked: effects.blocked,
            replayed: self.replayed.load(Ordering::Relaxed),
            run_more_than_once: effects.runs - effects.items,
            outputs: if kept.is_some() {
                OutputsIn::Service
            } else {
                OutputsIn::Pipe
            },
            outputs_lost: items - outputs.items,
            sent_more_than_once: sent.all - sent.items,
            outputs_twice: kept.as_ref().map_or(0, |kept| kept.all - kept.items),
            failed: u64::try_from(job.failed_tasks).unwrap_or(0) + given_up,
            left_in_pipes: left,
            percentage_fell: self.percentage_fell.load(Ordering::Relaxed),
            survived: Survived::default(),
            skipped: 0,
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

    /// Reads the outputs that the service has kept of the job.
    async fn kept_outputs(&self) -> anyhow::Result<Outputs> {
        let kept = poll(DRAIN_LIMIT, async || -> anyhow::Result<Outputs> {
            let mut outputs = Outputs::none(self.options.items)?;
            let mut lines = self.client.outputs(JOB, &[]).await?;
            while let Some(line) = lines.next().await? {
                outputs.add_line(&line)?;
            }
            Ok(outputs)
        });
        kept.await
            .map_err(|last| anyhow!("cannot read the kept outputs: {last}"))
    }

    /// Waits until the workers have discarded the remaining messages of the job, and stops them.
    /// Returns how many are left.
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
        // Batches come back although their job has ended.
        for delay in BatchWorker::DELAYS {
            let millis = i64::try_from(delay.as_millis())?;
            left += broker
                .depth(&delay_pipe(&self.pipe(BATCH_PIPE), millis))
                .await?;
        }
        let mut pipes = [BATCH_PIPE, INPUT_PIPE, PAUSED_PIPE, KEPT_PIPE]
            .map(str::to_owned)
            .to_vec();
        pipes.push(blocked_pipe(PAUSED_PIPE));
        let tracking = self.options.work.tracking_shards.pipes(TRACKING_PIPE);
        pipes.extend(tracking.iter().map(|pipe| rounds_pipe(pipe)));
        pipes.extend(tracking.iter().filter_map(|pipe| reports_pipe(pipe)));
        pipes.extend(tracking);
        for pipe in &pipes {
            for suffix in ["", ".suspects", ".bundles"] {
                let pipe = format!("{}{suffix}", self.pipe(pipe));
                left += broker.depth(&pipe).await?;
            }
        }
        if self.options.work.given_up > 0 {
            left += broker.depth(&letter_pipe()).await?;
        }
        Ok(left)
    }
}

/// The outputs in the pipe, or those that the service keeps.
struct Outputs {
    /// Whether each item has one.
    seen: Vec<bool>,
    all: u64,
    /// The number of different items that have an output.
    items: u64,
}

impl Outputs {
    async fn take(broker: &dyn Broker, pipe: &str, items: u64) -> anyhow::Result<Self> {
        let mut outputs = Self::none(items)?;
        empty(broker, pipe, |body| {
            outputs.add_message(&TaskMessage::decode(body)?)
        })
        .await?;
        Ok(outputs)
    }

    fn none(items: u64) -> anyhow::Result<Self> {
        Ok(Self {
            seen: vec![false; usize::try_from(items)? + 1],
            all: 0,
            items: 0,
        })
    }

    fn add_message(&mut self, message: &TaskMessage) -> anyhow::Result<()> {
        if message.task_status != Some(TaskStatus::ResultSuccess) {
            // An item that failed. It is done in a later round.
            return Ok(());
        }
        ensure!(
            message.tracking.is_none(),
            "tracking does not end in the output pipe: {message:?}"
        );
        let data = message.task_data.as_deref().unwrap_or_default();
        self.add(&serde_json::from_slice(data)?)
    }

    /// Adds a line of the service. One without a result is one too many.
    fn add_line(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let line: KeptOutput = serde_json::from_slice(line)?;
        let Some(output) = line.output else {
            self.all += 1;
            return Ok(());
        };
        self.add(&serde_json::from_value(output)?)
    }

    fn add(&mut self, output: &ChaosOutput) -> anyhow::Result<()> {
        let Some(seen) = self.seen.get_mut(usize::try_from(output.number)?) else {
            bail!("the output of {} is not of any item", output.number)
        };
        self.all += 1;
        self.items += u64::from(!std::mem::replace(seen, true));
        Ok(())
    }
}

/// Takes all messages out of a pipe, and calls `each` with their bodies.
pub async fn empty(
    broker: &dyn Broker,
    pipe: &str,
    mut each: impl FnMut(&[u8]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let waiting = broker.depth(pipe).await?;
    if waiting == 0 {
        return Ok(());
    }
    let mut consumer = broker.consume(pipe, 2000).await?;
    let (mut taken, mut deliveries) = (0, Vec::new());
    while taken < waiting {
        let next = timeout(DRAIN_LIMIT, consumer.next_many(&mut deliveries, 1000)).await;
        ensure!(
            matches!(next, Ok(1..)),
            "only {taken} of {waiting} messages arrive from {pipe}"
        );
        for delivery in deliveries.drain(..) {
            each(&delivery.body())?;
            delivery.ack();
            taken += 1;
        }
    }
    Ok(())
}

/// Returns how many messages are in the pipes for tasks that were given up or not understood.
pub async fn given_up(broker: &dyn Broker) -> anyhow::Result<u64> {
    let mut all = 0;
    for worker in [
        "worker-batch",
        "worker-jobtracking",
        "worker-output",
        CHAOS_WORKER,
    ] {
        for kind in ["reject", "invalid"] {
            all += broker.depth(&format!("{worker}-{kind}")).await?;
        }
    }
    Ok(all)
}
