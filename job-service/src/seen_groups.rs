//! The groups of failures that pages of jobs show.
//!
//! Grouping reads every kept failure of a job, and a page that follows a job reads itself every
//! second, for each of its viewers. So the groups of many failures are kept for some seconds. Those
//! of few failures are always those of now.

use std::collections::HashMap;
use std::time::Duration;

use contract::rest::Failures;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// For how long groups are shown.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// Up to how many failures are grouped each time.
const FEW: i64 = 500;
/// The incarnation of a job, and the most groups that a page shows.
type Shown = (i64, u32);

/// The most pages whose groups are kept.
const MOST: usize = 100;

/// The groups of failures of jobs, by the incarnation of each and the most groups that a page
/// shows.
#[derive(Debug, Default)]
pub struct SeenGroups(Mutex<HashMap<Shown, (Instant, Failures)>>);

impl SeenGroups {
    /// Returns the groups of a job with so many failures, unless they have to be read.
    pub fn find(&self, of: Shown, failed: i64) -> Option<Failures> {
        let groups = self.lock();
        let (read, found) = groups.get(&of)?;
        (failed > FEW && read.elapsed() < KEPT_FOR).then(|| found.clone())
    }

    /// Keeps the groups that were read now.
    pub fn keep(&self, of: Shown, failures: &Failures) {
        if failures.failed_tasks <= FEW {
            return;
        }
        let mut groups = self.lock();
        groups.retain(|_, (read, _)| read.elapsed() < KEPT_FOR);
        if groups.len() < MOST {
            groups.insert(of, (Instant::now(), failures.clone()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Shown, (Instant, Failures)>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(failed_tasks: i64) -> Failures {
        Failures {
            failed_tasks,
            ..Failures::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn groups_of_many_failures_are_kept_for_a_moment_and_of_few_never() {
        let groups = SeenGroups::default();
        groups.keep((1, 5), &failures(FEW));
        groups.keep((2, 5), &failures(FEW + 1));
        assert_eq!(groups.find((1, 5), FEW), None);
        assert_eq!(groups.find((2, 5), FEW + 9), Some(failures(FEW + 1)));
        assert_eq!(groups.find((2, 6), FEW + 9), None);
        // The job was taken up again.
        assert_eq!(groups.find((2, 5), 3), None);
        tokio::time::advance(KEPT_FOR).await;
        assert_eq!(groups.find((2, 5), FEW + 9), None);
    }

    #[tokio::test(start_paused = true)]
    async fn groups_of_a_bounded_number_of_jobs_are_kept() {
        let groups = SeenGroups::default();
        for incarnation in 0..=i64::try_from(MOST).unwrap() {
            groups.keep((incarnation, 5), &failures(FEW + 1));
        }
        assert_eq!(groups.lock().len(), MOST);
        tokio::time::advance(KEPT_FOR).await;
        groups.keep((-1, 5), &failures(FEW + 1));
        assert_eq!(groups.lock().len(), 1);
    }
}
