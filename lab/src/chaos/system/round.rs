//! A job that ends before it is done, and is taken up again.

use std::time::Duration;

use contract::JobStatus;
use contract::rest::Job;
use tokio::time::sleep;

use super::{JOB, System};
use crate::chaos::plan::Early;

impl System {
    /// Makes the job end, and takes it up again after a while. Returns when its next round has
    /// begun, or when it is Completed.
    pub(super) async fn round(&self, early: Early, away: Duration) -> anyhow::Result<()> {
        let before = self.rounds();
        match early {
            Early::Cancelled => {
                self.asked("cancel the job", async || self.client.cancel(JOB).await)
                    .await?;
            }
            Early::Failed => self.effects.refuse(true).await?,
        }
        self.ended().await?;
        sleep(away).await;
        if early == Early::Failed {
            self.effects.refuse(false).await?;
        }
        self.asked("retry the job", async || {
            self.client.retry(JOB, false).await.map(drop)
        })
        .await?;
        let begun = |job: &Job| rounds_of(job) > before || job.status == JobStatus::Completed;
        self.wait(begun).await.map(drop)
    }

    /// Returns how many times the job has been taken up again.
    pub fn rounds(&self) -> u32 {
        self.seen.borrow().as_ref().map_or(0, rounds_of)
    }
}

fn rounds_of(job: &Job) -> u32 {
    job.round.map_or(0, |round| round - 1)
}
