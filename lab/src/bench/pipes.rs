//! What waits in the pipes of a measurement: nothing may at its beginning, and what does at its end
//! says why it does not go on.

use anyhow::bail;
use batchwright::batch::BatchWorker;
use batchwright::{Stack, StackOptions};
use contract::{bundle_pipe, delay_pipe, reports_pipe};
use framework::broker::{Broker, BrokerError};

use super::system::{Load, Pipes};

impl Load {
    /// Returns every pipe of the measurement, also those of bundles, of gathered reports, of
    /// shards, and of batches that come back.
    pub fn all_pipes(&self) -> Vec<String> {
        let Pipes {
            batch,
            tracking,
            input,
            output,
        } = self.pipes();
        let delays = BatchWorker::DELAYS.map(|delay| {
            let millis = i64::try_from(delay.as_millis()).unwrap_or(i64::MAX);
            delay_pipe(&batch, millis)
        });
        let mut all = Vec::from(delays);
        all.push(batch);
        for pipe in [input, output] {
            let bundles = bundle_pipe(&pipe);
            all.push(pipe);
            all.extend(bundles);
        }
        let mut shards = self.tracking_shards.pipes(&tracking);
        if !shards.contains(&tracking) {
            // The tracking worker reads it beside the shards.
            shards.push(tracking);
        }
        for shard in shards {
            let reports = reports_pipe(&shard);
            all.push(shard);
            all.extend(reports);
        }
        all
    }

    /// Returns an error if messages wait in the pipes of a system that is not started yet: they
    /// would be worked off in the measured time.
    pub async fn refuse_leftovers(&self, system: StackOptions) -> anyhow::Result<()> {
        let is_embedded = system.broker.is_none();
        let broker_alone = StackOptions {
            roles: Vec::new(),
            ..system
        };
        let running = Box::pin(Stack::new(broker_alone).start()).await?;
        let waiting = waiting(&**running.broker(), &self.all_pipes()).await;
        running.stop().await;
        let waiting = waiting?;
        if waiting.is_empty() {
            return Ok(());
        }
        let remedy = if is_embedded {
            "another --data"
        } else {
            "delete them with `batchwright take PIPE --force >/dev/null`"
        };
        bail!(
            "messages of an earlier run wait and would be measured, too: {}; pass another --name, or {remedy}",
            text(&waiting)
        )
    }
}

/// Returns the pipes that exist.
pub async fn existing(broker: &dyn Broker, pipes: &[String]) -> Result<Vec<String>, BrokerError> {
    let mut existing = Vec::new();
    for pipe in pipes {
        if broker.exists(pipe).await? {
            existing.push(pipe.clone());
        }
    }
    Ok(existing)
}

/// Returns the pipes in which messages wait, and how many.
pub async fn waiting(
    broker: &dyn Broker,
    pipes: &[String],
) -> Result<Vec<(String, u64)>, BrokerError> {
    let mut waiting = Vec::new();
    for pipe in pipes {
        let messages = broker.depth(pipe).await?;
        if messages > 0 {
            waiting.push((pipe.clone(), messages));
        }
    }
    Ok(waiting)
}

/// Returns what waits as a part of a sentence.
pub fn text(waiting: &[(String, u64)]) -> String {
    let each = waiting
        .iter()
        .map(|(pipe, messages)| format!("{messages} in '{pipe}'"));
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        load: Load,
    }

    #[test]
    fn pipes_contain_those_of_bundles_reports_and_shards() {
        let pipes = |arguments: &[&str]| {
            let arguments = [&["bench", "--name", "b"], arguments].concat();
            Command::parse_from(arguments).load.all_pipes()
        };
        let of_items = [
            "b-batch-in.delay.200",
            "b-batch-in.delay.1000",
            "b-batch-in.delay.5000",
            "b-batch-in.delay.30000",
            "b-batch-in",
            "b-worker-in",
            "b-worker-in.bundles",
            "b-worker-out",
            "b-worker-out.bundles",
        ];
        let one = ["b-jobtracking-in", "b-jobtracking-in.reports"];
        assert_eq!(pipes(&[]), [&of_items[..], &one].concat());
        let two = [
            "b-jobtracking-in-0",
            "b-jobtracking-in-0.reports",
            "b-jobtracking-in-1",
            "b-jobtracking-in-1.reports",
        ];
        let all = [&of_items[..], &two, &one].concat();
        assert_eq!(pipes(&["--tracking-shards", "2"]), all);
    }
}
