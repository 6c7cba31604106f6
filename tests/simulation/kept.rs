//! The outputs of the simulated job that the service keeps.

use std::collections::BTreeSet;

use blobs::BlobName;
use contract::RangeItem;
use contract::rest::{Job, OutputStatus};
use serde::Deserialize;
use store::KeptBlob;
use tokio::io::AsyncReadExt as _;

use crate::invariants::Items;
use crate::simulation::Simulation;

/// More blobs than a scenario writes.
const BLOBS: u32 = 10_000;

/// A line as it is stored, without its number.
#[derive(Deserialize)]
struct Line {
    task: String,
    status: OutputStatus,
    #[serde(default)]
    output: Option<serde_json::Value>,
}

impl Simulation {
    /// Returns what is wrong with the outputs that are kept: each result must be there once, and
    /// nothing else.
    pub async fn check_kept(&self, job: &Job, items: &Items) -> Vec<String> {
        let lines = match self.kept_lines(job).await {
            Ok(lines) => lines,
            Err(error) => return vec![format!("the outputs cannot be read: {error}")],
        };
        let (mut broken, mut done) = (Vec::new(), BTreeSet::new());
        let (results, failures): (Vec<Line>, Vec<Line>) = lines
            .into_iter()
            .partition(|line| line.status == OutputStatus::Done);
        let tasks: BTreeSet<&String> = results.iter().map(|line| &line.task).collect();
        if tasks.len() < results.len() {
            broken.push(format!(
                "{} tasks have {} kept results",
                tasks.len(),
                results.len()
            ));
        }
        for line in &results {
            let item = line.output.clone().map(serde_json::from_value::<RangeItem>);
            match item {
                Some(Ok(item)) => drop(done.insert(item.number)),
                other => broken.push(format!("{} has no item: {other:?}", line.task)),
            }
        }
        let (all, failing) = (&items.done, items.failed);
        let failed: BTreeSet<&String> = failures.iter().map(|line| &line.task).collect();
        let failed = failed.difference(&tasks).count();
        if done != *all || failed != failing {
            broken.push(format!(
                "the results of {done:?} are kept, not {all:?}; {failing} fail, and {failed} failures are kept"
            ));
        }
        let counted = job.outputs.as_ref().map_or(0, |outputs| outputs.done);
        if usize::try_from(counted) != Ok(results.len()) {
            broken.push(format!(
                "{} results are kept, and {counted} are counted",
                results.len()
            ));
        }
        broken
    }

    async fn kept_lines(&self, job: &Job) -> Result<Vec<Line>, String> {
        let store = &self.0.store;
        let owner = self.insist(|| store.blob_owner()).await?;
        let blobs = self
            .insist(|| store.kept_blobs(job.incarnation, 0, None, BLOBS))
            .await?;
        let mut lines = Vec::new();
        for KeptBlob {
            name, lines: count, ..
        } in blobs
        {
            let name = BlobName {
                owner: owner.clone(),
                group: job.incarnation,
                name,
            };
            let mut text = String::new();
            let reader = self.0.blobs.open(&name).await;
            let mut reader = reader.map_err(|error| error.to_string())?;
            let read = reader.read_to_string(&mut text).await;
            read.map_err(|error| error.to_string())?;
            let before = lines.len();
            for line in text.lines() {
                lines.push(serde_json::from_str(line).map_err(|error| error.to_string())?);
            }
            if u64::try_from(lines.len() - before) != Ok(count) {
                return Err(format!("{} does not have {count} lines", name.name));
            }
        }
        Ok(lines)
    }
}
