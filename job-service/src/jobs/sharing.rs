//! With whom a job shares the pipe of its items, and how much of it is left to the job.

use std::collections::{BTreeMap, BTreeSet};

use contract::JobStatus;
use contract::rest::Job;
use store::JobOfPipe;

use crate::state::AppState;

/// The largest number of jobs that are looked at.
const MOST: u32 = 1000;

impl AppState {
    /// Adds a note to a job that is under way if others send items to the same pipe.
    pub async fn note_sharing(&self, job: &mut Job) {
        if job.status != JobStatus::Active {
            return;
        }
        // Whatever cannot be read now is not worth an error.
        let Ok(Some(pipe)) = self.store.items_pipe(job.incarnation).await else {
            return;
        };
        let Ok(jobs) = self.store.jobs_of_pipe(&pipe, MOST).await else {
            return;
        };
        let others = jobs.iter().filter(|it| it.incarnation != job.incarnation);
        if let Some(others) = counted(others.count())
            && let Some(percent) = percent(&jobs, job.incarnation)
        {
            job.notes.push(format!(
                "The job shares the pipe '{pipe}' with {others}: {percent} % of it are for this one while all have items for it."
            ));
        }
    }

    /// Says which jobs use a pipe of items, if any do.
    pub async fn users_of(&self, pipe: &str) -> Option<String> {
        let jobs = self.store.jobs_of_pipe(pipe, MOST).await.ok()?;
        let users = counted(jobs.len())?;
        let partitions: BTreeSet<&str> = jobs.iter().map(|job| job.partition.as_str()).collect();
        let of = match partitions.len() {
            1 => "1 partition".to_owned(),
            more => format!("{more} partitions"),
        };
        Some(format!(
            "The job will share the pipe '{pipe}' with {users} of {of}."
        ))
    }
}

/// Returns how many jobs these are, for people; `None` for none.
fn counted(jobs: usize) -> Option<String> {
    match jobs {
        0 => None,
        1 => Some("1 other job".to_owned()),
        jobs if jobs >= MOST as usize => Some(format!("{MOST} or more other jobs")),
        jobs => Some(format!("{jobs} other jobs")),
    }
}

/// Returns how much of a pipe is for one of its jobs: partitions share it equally, and the jobs of
/// one by their shares. `None` if the job is not among them.
fn percent(jobs: &[JobOfPipe], incarnation: i64) -> Option<u64> {
    let mut weights: BTreeMap<&str, u64> = BTreeMap::new();
    for job in jobs {
        *weights.entry(job.partition.as_str()).or_default() += u64::from(job.share.weight());
    }
    let own = jobs.iter().find(|job| job.incarnation == incarnation)?;
    let all = weights[own.partition.as_str()] * weights.len() as u64;
    Some((u64::from(own.share.weight()) * 100).div_ceil(all))
}

#[cfg(test)]
mod tests {
    use contract::{JobShare, PartitionId};

    use super::*;

    #[test]
    fn partitions_share_a_pipe_equally_and_their_jobs_by_weight() {
        let job = |(partition, share, incarnation): (&str, u32, i64)| JobOfPipe {
            partition: PartitionId::parse(partition).unwrap(),
            incarnation,
            share: JobShare::of(share).unwrap(),
        };
        let jobs = [
            ("a", 100, 1),
            ("a", 300, 2),
            ("b", 1, 3),
            ("c", 1000, 4),
            ("d", 7, 5),
        ]
        .map(job);
        let percents: Vec<_> = (1..=6).map(|job| percent(&jobs, job)).collect();
        assert_eq!(
            percents,
            [Some(7), Some(19), Some(25), Some(25), Some(25), None]
        );
    }
}
