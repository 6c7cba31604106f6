//! Items that are given up become dead letters, which are replayed.

use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::time::Duration;

use contract::JobStatus;
use contract::rest::Job;
use tokio::time::sleep;

use super::{JOB, System};

/// The pause between two replays at the end: some letters are still on their way to the service.
const PAUSE: Duration = Duration::from_millis(500);

impl System {
    /// Mends the worker, so that it gives no item up any more, and replays the dead letters.
    pub async fn mend(&self) -> anyhow::Result<()> {
        if self.options.work.given_up == 0 {
            return Ok(());
        }
        self.effects.mend().await?;
        self.replay().await
    }

    /// Waits until the job has ended. If items of it were given up, replays their dead letters
    /// until it is Completed.
    pub async fn ended_with_letters(&self) -> anyhow::Result<Job> {
        self.mend().await?;
        loop {
            let job = self.ended().await?;
            if self.options.work.given_up == 0 || job.status == JobStatus::Completed {
                return Ok(job);
            }
            self.replay().await?;
            sleep(PAUSE).await;
        }
    }

    async fn replay(&self) -> anyhow::Result<()> {
        let more = Cell::new(true);
        while more.take() {
            self.asked("replay the dead letters", async || {
                let answer = self
                    .client
                    .replay_letters(&[("job", JOB.to_owned())])
                    .await?;
                self.replayed.fetch_add(answer.replayed, Ordering::Relaxed);
                more.set(answer.more && answer.replayed > 0);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }
}
