//! Deletes the blobs of outputs that are no longer needed: of deleted jobs, of jobs that ended long
//! ago, and those that a crash has left without a line in the store.
//!
//! What must stay true: blobs go before the rows that name their job, so that a crash in between
//! forgets none.

use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use blobs::{BlobName, Blobs};
use framework::clock::Clock;
use store::Store;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::options::OutputOptions;
use crate::wakeup::{backoff, wait};

/// The time between two sweeps without a signal.
const INTERVAL: Duration = Duration::from_mins(10);
/// The time in which further signals are served by the same sweep.
const GATHERED: Duration = Duration::from_secs(5);
/// The time between two searches for blobs that nothing names.
const SEARCH: Duration = Duration::from_hours(24);
/// The age from which on a blob that nothing names is deleted. A blob waits no longer to be named.
const ORPHAN: Duration = Duration::from_hours(24);
/// The number of blobs that are looked up at a time.
const BLOBS: u32 = 1000;

/// Runs until `shutdown` is cancelled.
pub async fn run(store: &Store, options: &OutputOptions, shutdown: &CancellationToken) {
    let Some(blobs) = &options.blobs else {
        return shutdown.cancelled().await;
    };
    let mut signal = store.sweep_signal();
    let (mut failures, mut due, mut search_due) = (0, None, Instant::now());
    while wait(&mut signal, due, shutdown).await {
        let swept = async {
            sweep(store, blobs, options.keep).await?;
            if Instant::now() >= search_due {
                delete_orphans(store, blobs).await?;
                search_due = Instant::now() + SEARCH;
            }
            Ok::<_, String>(())
        };
        let pause = match swept.await {
            Ok(()) => {
                failures = 0;
                INTERVAL
            }
            Err(error) => {
                if failures == 0 {
                    tracing::warn!(error, "cannot delete outputs; trying again");
                }
                failures += 1;
                backoff(failures)
            }
        };
        due = Instant::now().checked_add(pause);
        shutdown.run_until_cancelled(sleep(GATHERED)).await;
    }
}

/// Deletes what deleted jobs have left, and the outputs of jobs that ended longer than `keep` ago.
/// If those of one job cannot be deleted, those of the others are, and the error is returned
/// afterwards.
async fn sweep(store: &Store, blobs: &Blobs, keep: Option<Duration>) -> Result<(), String> {
    let mut owner = None;
    loop {
        let doomed = store.doomed_outputs(keep).await;
        let doomed = doomed.map_err(|error| error.to_string())?;
        if doomed.is_empty() {
            return Ok(());
        }
        let owner: &String = match &owner {
            Some(owner) => owner,
            None => owner.insert(
                store
                    .blob_owner()
                    .await
                    .map_err(|error| error.to_string())?,
            ),
        };
        let mut failed = Ok(());
        for incarnation in doomed {
            match forget(store, blobs, owner, incarnation).await {
                Ok(()) => tracing::info!(incarnation, "deleted the outputs of a job"),
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed?;
    }
}

async fn forget(store: &Store, blobs: &Blobs, owner: &str, incarnation: i64) -> Result<(), String> {
    let deleted = blobs.delete_group(owner, incarnation).await;
    deleted.map_err(|error| error.to_string())?;
    let forgotten = store.forget_outputs(incarnation).await;
    forgotten.map_err(|error| error.to_string())
}

/// Deletes blobs that no row names, because a process was killed before it could commit one.
async fn delete_orphans(store: &Store, blobs: &Blobs) -> Result<(), String> {
    let owner = store
        .blob_owner()
        .await
        .map_err(|error| error.to_string())?;
    let now = Clock::system().now_millis();
    let now = UNIX_EPOCH + Duration::from_millis(u64::try_from(now).unwrap_or_default());
    let mut deleted = 0;
    let groups = blobs.groups(&owner).await;
    for group in groups.map_err(|error| error.to_string())? {
        let listed = blobs.list(&owner, group).await;
        let listed = listed.map_err(|error| error.to_string())?;
        let old: Vec<String> = listed
            .into_iter()
            .filter(|listed| is_old(listed.written, now))
            .map(|listed| listed.name)
            .collect();
        if old.is_empty() {
            continue;
        }
        let named = named(store, group).await?;
        for name in old.into_iter().filter(|name| !named.contains(name)) {
            let name = BlobName {
                owner: owner.clone(),
                group,
                name,
            };
            blobs
                .delete(&name)
                .await
                .map_err(|error| error.to_string())?;
            deleted += 1;
        }
    }
    if deleted > 0 {
        tracing::info!(deleted, "deleted blobs that no job has");
    }
    Ok(())
}

/// Returns the names of all blobs of an incarnation that the store knows.
async fn named(store: &Store, incarnation: i64) -> Result<HashSet<String>, String> {
    let (mut names, mut line) = (HashSet::new(), 0);
    loop {
        let page = store.kept_blobs(incarnation, line, None, BLOBS).await;
        let page = page.map_err(|error| error.to_string())?;
        let Some(last) = page.last() else {
            return Ok(names);
        };
        line = last.first_line + last.lines;
        names.extend(page.into_iter().map(|blob| blob.name));
    }
}

fn is_old(written: SystemTime, now: SystemTime) -> bool {
    now.duration_since(written).is_ok_and(|age| age >= ORPHAN)
}

#[cfg(test)]
mod tests {
    use contract::rest::OutputStatus;
    use contract::{JobId, PartitionId};
    use store::{Creation, Incarnation, JobRequest, NewBlob, NewOutputs, StoreOptions};

    use super::*;

    async fn job(store: &Store, id: &str) -> Incarnation {
        let (partition, job) = (PartitionId::parse("p").unwrap(), JobId::parse(id).unwrap());
        let request = JobRequest {
            output_pipe: Some("out".to_owned()),
            ..JobRequest::new(partition, job)
        };
        let created = store.create_job(&request, |_| ("in".to_owned(), Vec::new()));
        match created.await.unwrap() {
            Creation::Created(incarnation) => incarnation,
            other => panic!("{other:?}"),
        }
    }

    async fn write(blobs: &Blobs, group: i64, name: &str) {
        let name = BlobName {
            owner: "temporary".to_owned(),
            group,
            name: name.to_owned(),
        };
        blobs.write(&name, "{}\n".into()).await.unwrap();
    }

    #[tokio::test]
    async fn blobs_of_a_deleted_job_go_and_an_orphan_goes_only_when_it_is_old() {
        let (store, folder) = (
            Store::temporary(StoreOptions::default()),
            tempfile::tempdir().unwrap(),
        );
        let blobs = Blobs::folder(folder.path());
        let job = job(&store, "j").await;
        for name in ["named", "young", "old"] {
            write(&blobs, job.number, name).await;
        }
        let file = |name: &str| {
            let folder = folder.path().join("temporary").join(job.number.to_string());
            folder.join(name)
        };
        for name in ["named", "old"] {
            let file = std::fs::File::options()
                .write(true)
                .open(file(name))
                .unwrap();
            file.set_modified(UNIX_EPOCH).unwrap();
        }
        let new = NewOutputs {
            job: job.clone(),
            blobs: vec![NewBlob {
                name: "named".to_owned(),
                bytes: 3,
                crc32: 0,
                status: OutputStatus::Done,
                tasks: vec![vec![1]],
            }],
            left_out: Vec::new(),
            reason: None,
        };
        store.keep_outputs(&[new]).await.unwrap();
        sweep(&store, &blobs, None).await.unwrap();
        delete_orphans(&store, &blobs).await.unwrap();
        assert!(file("named").exists() && file("young").exists() && !file("old").exists());
        store.delete_job(&job.partition, &job.job).await.unwrap();
        sweep(&store, &blobs, None).await.unwrap();
        assert!(blobs.groups("temporary").await.unwrap().is_empty());
        assert!(store.doomed_outputs(None).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn outputs_that_cannot_be_deleted_keep_none_of_another_job() {
        let (store, folder) = (
            Store::temporary(StoreOptions::default()),
            tempfile::tempdir().unwrap(),
        );
        let blobs = Blobs::folder(folder.path());
        let jobs = [job(&store, "a").await, job(&store, "b").await];
        let group =
            |job: &Incarnation| folder.path().join("temporary").join(job.number.to_string());
        for job in &jobs {
            write(&blobs, job.number, "blob").await;
            let new = NewOutputs {
                job: job.clone(),
                blobs: Vec::new(),
                left_out: vec![(vec![1], OutputStatus::Done)],
                reason: None,
            };
            store.keep_outputs(&[new]).await.unwrap();
            store.delete_job(&job.partition, &job.job).await.unwrap();
        }
        // A file where the folder of the first job was.
        std::fs::remove_dir_all(group(&jobs[0])).unwrap();
        std::fs::write(group(&jobs[0]), "").unwrap();
        sweep(&store, &blobs, None).await.unwrap_err();
        assert!(!group(&jobs[1]).exists());
        assert_eq!(store.doomed_outputs(None).await.unwrap(), [jobs[0].number]);
    }
}
