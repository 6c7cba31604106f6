//! Reads the outputs of the items, and counts them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use batchwright::Running;
use framework::{Output, Outputs, Runtime, Settings};

use super::system::{ItemOutput, Load, RUN};

/// How long the next output may take.
const NEXT_LIMIT: Duration = Duration::from_secs(20);

/// The outputs that a run sends: one for each item of each job.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// What the items have as the parameter `run`.
    pub run: &'a str,
    /// Several jobs have the ids `1`, `2`, ….
    pub jobs: u64,
    pub items_per_job: u64,
}

impl Load {
    /// Begins to read the outputs of the items.
    pub async fn outputs(&self, running: &Running) -> anyhow::Result<Outputs<ItemOutput>> {
        let settings = Settings {
            input: self.pipes().output,
            prefetch: Some(2000),
            bundle: self.bundle,
            ..Settings::new("bench-outputs")
        };
        let runtime = Runtime::new(settings, Arc::clone(running.broker()));
        Ok(runtime.outputs().await?)
    }
}

impl Expected<'_> {
    /// Takes outputs until all are there, or none comes any more. Returns the number of distinct
    /// ones.
    pub async fn count(self, mut outputs: Outputs<ItemOutput>) -> anyhow::Result<u64> {
        let all = self.jobs * self.items_per_job;
        let mut seen = vec![false; usize::try_from(all)?];
        let mut found = 0;
        while found < all {
            let next = tokio::time::timeout(NEXT_LIMIT, outputs.next()).await;
            let Ok(Some(output)) = next.unwrap_or(Ok(None)) else {
                break;
            };
            let job = self.job(&output);
            let Ok(output) = output.take() else {
                continue;
            };
            if output.params.get(RUN).is_none_or(|run| run != self.run) {
                continue;
            }
            match job.and_then(|job| seen.get_mut(self.place(job, output.number)?)) {
                Some(seen) => found += u64::from(!std::mem::replace(seen, true)),
                None => bail!(
                    "the output of number {} is not of any item of a job",
                    output.number
                ),
            }
        }
        outputs.close().await;
        Ok(found)
    }

    /// Returns the number of the job of an output, from 1.
    fn job(self, output: &Output<ItemOutput>) -> Option<u64> {
        match self.jobs {
            1 => Some(1),
            _ => output.job.as_deref()?.parse().ok(),
        }
    }

    /// Returns the place of an item among all; `None` if there is no such item.
    fn place(self, job: u64, number: u64) -> Option<usize> {
        let exists = (1..=self.jobs).contains(&job) && (1..=self.items_per_job).contains(&number);
        let place = exists.then(|| (job - 1) * self.items_per_job + number - 1)?;
        usize::try_from(place).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_item_of_each_job_has_a_place_of_its_own() {
        let expected = Expected {
            run: "r",
            jobs: 2,
            items_per_job: 3,
        };
        let places = [(1, 1), (1, 3), (2, 1), (2, 3)].map(|(job, item)| expected.place(job, item));
        assert_eq!(places, [Some(0), Some(2), Some(3), Some(5)]);
        for (job, item) in [(0, 1), (1, 0), (1, 4), (3, 1)] {
            assert_eq!(expected.place(job, item), None, "{job} {item}");
        }
    }
}
