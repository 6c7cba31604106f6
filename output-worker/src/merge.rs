//! Merges the small blobs of a job, so that a slow job does not leave a file for each of its
//! batches.
//!
//! A batch of outputs is written at once, however small it is, because its tasks are complete only
//! then. When this process has written [`MERGED_AT`] small blobs of a job, it joins those that
//! follow each other.
//!
//! What must stay true:
//! - The numbers of lines do not change, and no line is missing at any moment: the merged blob is
//!   safe before the store names it, and the others are deleted only after the store has confirmed
//!   that it does.
//! - Blobs are merged only as they were written. If one has changed on the disk, all stay, and the
//!   job says so.
//! - Merging is not needed for anything. If it fails or breaks off, no line is lost, and it is
//!   tried later. No batch waits for it.
//! - A byte is rewritten a few times only, however long a job runs: a blob joins others that have
//!   at least a quarter of its size together.

use std::ops::Range;

use blobs::{BlobError, BlobName, Fingerprint};
use contract::metrics::BLOBS_MERGED;
use metrics::counter;
use store::{Incarnation, KeptBlob, NewBlob, StoreError};
use tracing::warn;
use uuid::Uuid;

use crate::OutputWorker;
use crate::keep::BLOB;

/// The size from which on a blob that is written is not small, in bytes.
const SMALL: u64 = (BLOB / 4) as u64;
/// The number of new small blobs of a job at which they are merged.
const MERGED_AT: u32 = 64;
/// How many of the last blobs of a job are looked at.
const LOOKED_AT: u32 = 4 * MERGED_AT;
/// The smallest number of blobs that are merged into one.
const FEWEST: usize = 4;
/// The size up to which a blob joins any others, in bytes.
const TINY: u64 = 64 * 1024;
/// The number of jobs whose small blobs are counted. Beyond it, the counting begins anew.
const COUNTED: usize = 10_000;

/// Why blobs are not merged.
#[derive(Debug, thiserror::Error)]
enum MergeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Blob(#[from] BlobError),
}

impl OutputWorker {
    /// Counts the new blobs of a job that are small.
    pub(crate) fn count_small(&self, job: &Incarnation, blobs: &[NewBlob]) {
        let small = blobs.iter().filter(|blob| blob.bytes < SMALL).count();
        if small == 0 {
            return;
        }
        let counts = &mut self.state().small;
        if counts.len() >= COUNTED && !counts.contains_key(&job.number) {
            counts.clear();
        }
        let (_, count) = counts.entry(job.number).or_insert_with(|| (job.clone(), 0));
        *count = count.saturating_add(u32::try_from(small).unwrap_or(u32::MAX));
        if *count >= MERGED_AT {
            self.due.notify_one();
        }
    }

    /// Merges the small blobs of the jobs that have many of them, those of the job with most first.
    pub(crate) async fn merge_small(&self) {
        while let Some(job) = self.due() {
            let Err(error) = self.merge_of(&job).await else {
                continue;
            };
            warn!(job = %job.job, %error, "small blobs are not merged; they stay as they are");
            if let MergeError::Blob(error) = &error
                && let Some(blob) = error.damaged_blob()
            {
                // Only the note is missing if this fails.
                let noted = self.store.note_damaged_outputs(job.number, Some(blob));
                let _ = noted.await;
            }
        }
    }

    fn due(&self) -> Option<Incarnation> {
        let counts = &mut self.state().small;
        let most = counts.iter().max_by_key(|(_, (_, count))| *count);
        let (number, _) = most.filter(|(_, (_, count))| *count >= MERGED_AT)?;
        let number = *number;
        counts.remove(&number).map(|(job, _)| job)
    }

    async fn merge_of(&self, job: &Incarnation) -> Result<(), MergeError> {
        let owner = self.owner().await?;
        let last = self.store.last_kept_blobs(job.number, LOOKED_AT).await?;
        for run in runs(&last) {
            let run = &last[run];
            let name = |name: &str| BlobName {
                owner: owner.clone(),
                group: job.number,
                name: name.to_owned(),
            };
            let written = |blob: &KeptBlob| Fingerprint {
                bytes: blob.bytes,
                crc32: blob.crc32,
            };
            let parts: Vec<(BlobName, Fingerprint)> = run
                .iter()
                .map(|blob| (name(&blob.name), written(blob)))
                .collect();
            let merged = name(&format!("{}.ndjson", Uuid::now_v7()));
            let crc32 = self.blobs.join(&parts, &merged).await?.crc32;
            // If this fails, nobody knows which blobs the store names. The others are deleted as
            // orphans.
            let named = (merged.name.as_str(), crc32);
            let is_merged = self.store.merge_kept_blobs(job, run, named).await?;
            let unnamed: Vec<BlobName> = if is_merged {
                counter!(BLOBS_MERGED).increment(run.len() as u64);
                parts.into_iter().map(|(name, _)| name).collect()
            } else {
                vec![merged]
            };
            self.blobs.delete_all(&unnamed).await?;
        }
        Ok(())
    }
}

/// Returns which of the last blobs of a job, in the order of their lines, are merged: those of each
/// range into one.
fn runs(blobs: &[KeptBlob]) -> Vec<Range<usize>> {
    let (mut runs, mut run, mut bytes) = (Vec::new(), blobs.len()..blobs.len(), 0);
    for (at, blob) in blobs.iter().enumerate().rev() {
        let is_alike = blobs
            .get(at + 1)
            .is_none_or(|next| next.status == blob.status);
        let joins =
            is_alike && blob.bytes <= TINY.max(bytes * 4) && bytes + blob.bytes <= BLOB as u64;
        if !joins {
            runs.push(std::mem::replace(&mut run, at + 1..at + 1));
            bytes = 0;
        }
        run.start = at;
        bytes += blob.bytes;
    }
    runs.push(run);
    runs.retain(|run| run.len() >= FEWEST);
    runs
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use blobs::Blobs;
    use contract::rest::OutputStatus;
    use contract::{JobId, PartitionId};
    use harness::wait_for;
    use store::{JobRequest, OutputsOf, Store, StoreOptions};
    use tokio::io::AsyncReadExt as _;

    use super::*;
    use crate::keep::JobOutputs;
    use crate::line::Output;

    fn blob(first_line: u64, bytes: u64, status: OutputStatus) -> KeptBlob {
        KeptBlob {
            name: String::new(),
            first_line,
            lines: 1,
            bytes,
            crc32: 0,
            status,
        }
    }

    /// Keeps an output of each of these tasks in a blob of its own. Returns the job.
    async fn keep_singly(worker: &OutputWorker, tasks: Range<u32>) -> Incarnation {
        let (partition, id) = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        let request = JobRequest {
            output_pipe: Some("out".to_owned()),
            ..JobRequest::new(partition.clone(), id.clone())
        };
        let created = worker
            .store
            .create_job(&request, |_| ("in".to_owned(), Vec::new()));
        created.await.unwrap();
        let mut job = None;
        for number in tasks {
            let of = worker
                .store
                .outputs_of(&partition, &id, None)
                .await
                .unwrap();
            let OutputsOf::Kept(incarnation, kept) = of else {
                panic!("{of:?}")
            };
            let output = Output {
                partition: partition.clone(),
                job: id.clone(),
                incarnation: None,
                task: vec![number],
                status: OutputStatus::Done,
                line: line(number).into_bytes(),
            };
            let new = JobOutputs {
                job: (*incarnation).clone(),
                kept,
                outputs: vec![(0, output)],
            };
            worker.keep_of(vec![new]).await.unwrap();
            job = Some(*incarnation);
        }
        job.unwrap()
    }

    fn line(number: u32) -> String {
        format!("{{\"task\":\"{number}\"}}\n")
    }

    async fn names(worker: &OutputWorker, job: &Incarnation) -> BTreeSet<String> {
        let owner = worker.owner().await.unwrap();
        let listed = worker.blobs.list(&owner, job.number).await.unwrap();
        listed.into_iter().map(|blob| blob.name).collect()
    }

    async fn name(worker: &OutputWorker, job: &Incarnation, name: &str) -> BlobName {
        BlobName {
            owner: worker.owner().await.unwrap(),
            group: job.number,
            name: name.to_owned(),
        }
    }

    #[tokio::test]
    async fn small_blobs_of_a_slow_job_become_one_with_every_line_in_its_place() {
        let worker = OutputWorker::new(Store::temporary(StoreOptions::default()), Blobs::memory());
        let job = keep_singly(&worker, 1..MERGED_AT + 1).await;
        assert_eq!(names(&worker, &job).await.len(), MERGED_AT as usize);
        worker.merge_small().await;
        let last = worker.store.last_kept_blobs(job.number, 10).await.unwrap();
        let [merged] = &last[..] else {
            panic!("{last:?}")
        };
        assert_eq!((merged.first_line, merged.lines), (0, MERGED_AT.into()));
        assert_eq!(names(&worker, &job).await, [merged.name.clone()].into());
        let name = name(&worker, &job, &merged.name).await;
        let mut content = String::new();
        let mut reader = worker.blobs.open(&name).await.unwrap();
        reader.read_to_string(&mut content).await.unwrap();
        let expected: String = (1..=MERGED_AT).map(line).collect();
        assert_eq!(content, expected);
        assert_eq!(merged.crc32, Fingerprint::of(content.as_bytes()).crc32);
    }

    #[tokio::test]
    async fn batch_does_not_wait_until_small_blobs_are_merged() {
        let worker = OutputWorker::new(Store::temporary(StoreOptions::default()), Blobs::memory());
        let job = keep_singly(&worker, 1..MERGED_AT + 1).await;
        worker.gather(&[]).await;
        assert_eq!(names(&worker, &job).await.len(), MERGED_AT as usize);
        let merged = wait_for("the merged blob", async || {
            let names = names(&worker, &job).await;
            if names.len() == 1 {
                Ok(())
            } else {
                Err(format!("{names:?}"))
            }
        });
        tokio::select! {
            () = worker.merge() => unreachable!("merging has no end"),
            () = merged => {}
        }
    }

    #[tokio::test]
    async fn outputs_wait_and_say_why_they_do_now_until_their_place_takes_them() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("outputs");
        std::fs::write(&place, "not a folder").unwrap();
        let store = Store::temporary(StoreOptions::default());
        let worker = OutputWorker::new(store.clone(), Blobs::folder(&place));
        let (partition, id) = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        let waiting = async || {
            let job = store.job(&partition, &id).await.unwrap();
            job.and_then(|job| job.outputs?.waiting)
        };
        let repaired = async {
            let reason = wait_for("the note of the job", async || {
                waiting().await.ok_or_else(|| "there is none".to_owned())
            })
            .await;
            assert!(reason.contains("cannot be written"), "{reason}");
            // Another trouble follows: a link to itself.
            std::fs::remove_file(&place).unwrap();
            std::os::unix::fs::symlink(&place, &place).unwrap();
            wait_for("the note of the other reason", async || {
                let now = waiting().await.unwrap_or_default();
                if now.contains("symbolic links") {
                    Ok(())
                } else {
                    Err(now)
                }
            })
            .await;
            std::fs::remove_file(&place).unwrap();
        };
        let (job, ()) = tokio::join!(keep_singly(&worker, 1..2), repaired);
        assert_eq!(waiting().await, None);
        assert_eq!(names(&worker, &job).await.len(), 1);
    }

    #[tokio::test]
    async fn blobs_stay_as_they_are_and_the_job_says_so_if_one_has_changed_on_the_disk() {
        for changed in ["{", "{\"task\":\"9\"}\n"] {
            let worker =
                OutputWorker::new(Store::temporary(StoreOptions::default()), Blobs::memory());
            let job = keep_singly(&worker, 1..MERGED_AT + 1).await;
            let last = worker.store.last_kept_blobs(job.number, 100).await.unwrap();
            let seventh = name(&worker, &job, &last[7].name).await;
            worker.blobs.write(&seventh, changed.into()).await.unwrap();
            let before = names(&worker, &job).await;
            worker.merge_small().await;
            let after = worker.store.last_kept_blobs(job.number, 100).await.unwrap();
            assert_eq!((&after, names(&worker, &job).await), (&last, before));
            let said = worker.store.job(&job.partition, &job.job).await.unwrap();
            let damaged = said.unwrap().outputs.unwrap().damaged;
            assert_eq!(damaged, Some(last[7].name.clone()), "{changed}");
        }
    }

    #[test]
    fn blobs_of_one_kind_that_follow_each_other_are_merged_up_to_the_size_of_a_blob() {
        use OutputStatus::{Done, Failed};
        let mib = 1 << 20;
        for (blobs, expected) in [
            (vec![], vec![]),
            (vec![(10, Done); 3], vec![]),
            (vec![(10, Done); 5], vec![(0, 5)]),
            // Failures are among them.
            (
                [vec![(10, Done); 4], vec![(10, Failed)], vec![(10, Done); 6]].concat(),
                vec![(5, 11), (0, 4)],
            ),
            // The first one is large beside the others.
            (
                [vec![(3 * mib, Done)], vec![(100, Done); 8]].concat(),
                vec![(1, 9)],
            ),
            (
                [vec![(3 * mib, Done)], vec![(mib, Done); 4]].concat(),
                vec![(0, 5)],
            ),
            (
                [vec![(3 * mib, Done); 6], vec![(60_000, Done); 20]].concat(),
                vec![(2, 26)],
            ),
        ] {
            let blobs: Vec<KeptBlob> = (0..)
                .zip(&blobs)
                .map(|(line, (bytes, status))| blob(line, *bytes, *status))
                .collect();
            let found = runs(&blobs).into_iter().map(|run| (run.start, run.end));
            let found: Vec<(usize, usize)> = found.collect();
            assert_eq!(found, expected, "{blobs:?}");
        }
    }

    #[test]
    fn a_job_that_writes_small_blobs_for_long_has_few_and_rewrites_each_byte_a_few_times() {
        for bytes in [100, 10_000, 200_000] {
            let (mut blobs, mut rewritten, mut most) = (Vec::new(), 0, 0);
            let count = 20_000_u64;
            for line in 0..count {
                blobs.push(blob(line, bytes, OutputStatus::Done));
                if line % u64::from(MERGED_AT) != 0 {
                    continue;
                }
                let begin = blobs.len().saturating_sub(LOOKED_AT as usize);
                for run in runs(&blobs[begin..]) {
                    let run = begin + run.start..begin + run.end;
                    let sum: u64 = blobs[run.clone()].iter().map(|blob| blob.bytes).sum();
                    let merged = blob(blobs[run.start].first_line, sum, OutputStatus::Done);
                    rewritten += sum;
                    blobs.splice(run, [merged]);
                }
                let full = line * bytes / (BLOB as u64 / 2);
                most = most.max((blobs.len() as u64).saturating_sub(full));
            }
            assert!(most < 200, "{bytes}: {most} blobs");
            assert!(rewritten < count * bytes * 30, "{bytes}: {rewritten}");
        }
    }
}
