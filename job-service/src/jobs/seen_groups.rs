//! The groups of failures that pages of jobs show.
//!
//! Grouping reads every kept failure of a job, and a page that follows a job reads itself every
//! second, for each of its viewers. So the groups of many failures are kept for some seconds, and
//! read once for all who wait for them. Those of few failures are always those of now.

use std::time::Duration;

use contract::rest::Failures;
use moka::future::Cache;
use store::StoreError;

/// For how long groups are shown.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// Up to how many failures are grouped each time.
const FEW: i64 = 500;
/// The most pages whose groups are kept.
const MOST: u64 = 100;

/// The groups of failures of jobs, by the incarnation of each and the most groups that a page
/// shows.
#[derive(Debug)]
pub struct SeenGroups(Cache<(i64, u32), Option<Failures>>);

impl Default for SeenGroups {
    fn default() -> Self {
        let cache = Cache::builder().max_capacity(MOST);
        Self(cache.time_to_live(KEPT_FOR).build())
    }
}

impl SeenGroups {
    /// Returns the groups of a job with so many failures. Reads them if they are few, or not kept.
    pub async fn get(
        &self,
        of: (i64, u32),
        failed: i64,
        read: impl Future<Output = Result<Option<Failures>, StoreError>>,
    ) -> Result<Option<Failures>, StoreError> {
        if failed <= FEW {
            return read.await;
        }
        let groups = self.0.try_get_with(of, read).await;
        groups.map_err(|error| (*error).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn groups_of_many_failures_are_read_once_for_all_and_of_few_by_each() {
        let groups = SeenGroups::default();
        let show = async |failed, number| {
            let read = Failures {
                failed_tasks: number,
                ..Failures::default()
            };
            let shown = groups.get((1, 5), failed, async { Ok(Some(read)) }).await;
            shown.unwrap().unwrap().failed_tasks
        };
        assert_eq!((show(FEW, 1).await, show(FEW, 2).await), (1, 2));
        assert_eq!((show(FEW + 1, 3).await, show(FEW + 9, 4).await), (3, 3));
        // The job was taken up again.
        assert_eq!(show(1, 5).await, 5);
    }
}
