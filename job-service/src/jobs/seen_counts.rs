//! The numbers of jobs by status that lists on the web page show.
//!
//! To count them reads an entry of an index for every job, and a list reads itself whenever
//! something happens, for each of its viewers. So the numbers of many jobs are kept for some
//! seconds, and one request counts them anew while others show those before.
//!
//! What must stay true: who gets numbers that may be old is told so, and asks again later, so the
//! last numbers shown are right.

use std::collections::HashMap;
use std::time::Duration;

use contract::JobStatus;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

/// For how long numbers are shown.
const KEPT_FOR: Duration = Duration::from_secs(3);
/// For how long numbers are shown at the most while they are counted anew.
const LONGEST: Duration = Duration::from_secs(15);
/// Up to how many jobs are counted each time.
const FEW: u64 = 10_000;
/// The most queries whose numbers are kept.
const MOST: usize = 100;

/// The numbers of jobs by status, by the text of the query that selects the jobs.
#[derive(Debug, Default)]
pub struct SeenCounts(Mutex<HashMap<String, Seen>>);

type Counts = Vec<(JobStatus, u64)>;

#[derive(Debug)]
struct Seen {
    counted: Instant,
    counts: Counts,
    /// Somebody counts anew.
    is_busy: bool,
}

impl SeenCounts {
    /// Returns numbers that may be old, unless the caller has to count the jobs.
    pub fn find(&self, query: &str) -> Option<Counts> {
        let mut seen = self.lock();
        let found = seen.get_mut(query)?;
        let is_new = found.counted.elapsed() < KEPT_FOR;
        let is_busy = found.is_busy && found.counted.elapsed() < LONGEST;
        if !is_new && !is_busy {
            found.is_busy = true;
            return None;
        }
        Some(found.counts.clone())
    }

    /// Keeps the numbers that were counted now.
    pub fn keep(&self, query: String, counts: &Counts) {
        let mut seen = self.lock();
        if counts.iter().map(|(_, count)| count).sum::<u64>() <= FEW {
            seen.remove(&query);
            return;
        }
        seen.retain(|_, seen| seen.counted.elapsed() < LONGEST);
        if seen.len() < MOST || seen.contains_key(&query) {
            let counts = counts.clone();
            let counted = Instant::now();
            seen.insert(
                query,
                Seen {
                    counted,
                    counts,
                    is_busy: false,
                },
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Seen>> {
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(completed: u64) -> Counts {
        vec![(JobStatus::Active, 1), (JobStatus::Completed, completed)]
    }

    #[tokio::test(start_paused = true)]
    async fn many_jobs_are_counted_by_one_request_at_a_time_and_few_by_each() {
        let seen = SeenCounts::default();
        assert_eq!(seen.find("q"), None);
        seen.keep("q".to_owned(), &counts(FEW - 1));
        assert_eq!(seen.find("q"), None);
        seen.keep("q".to_owned(), &counts(FEW));
        assert_eq!(seen.find("q"), Some(counts(FEW)));
        assert_eq!(seen.find("other"), None);
        tokio::time::advance(KEPT_FOR).await;
        // The first one counts anew, and the others do not wait for it.
        assert_eq!(seen.find("q"), None);
        assert_eq!(seen.find("q"), Some(counts(FEW)));
        seen.keep("q".to_owned(), &counts(2 * FEW));
        assert_eq!(seen.find("q"), Some(counts(2 * FEW)));
        // Who was to count anew has gone.
        tokio::time::advance(KEPT_FOR).await;
        assert_eq!(seen.find("q"), None);
        tokio::time::advance(LONGEST).await;
        assert_eq!(seen.find("q"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn numbers_of_a_bounded_number_of_queries_are_kept() {
        let seen = SeenCounts::default();
        for query in 0..=MOST {
            seen.keep(query.to_string(), &counts(FEW));
        }
        assert_eq!(seen.lock().len(), MOST);
        tokio::time::advance(LONGEST).await;
        seen.keep("new".to_owned(), &counts(FEW));
        assert_eq!(seen.lock().len(), 1);
    }
}
