//! How a split goes only as far as there is room: it looks how much fits, dispatches that, and goes
//! on later where it stopped.

use contract::JobShare;

use super::{Context, DispatchError, RepeatError, Split};
use crate::TaskError;
use crate::broker::gauges::Room;
use crate::steps::resumption::Resumption;

impl Context {
    /// Returns how much waits in a pipe, and how much fits, as read up to 50 ms ago, plus what this
    /// process has dispatched there since.
    ///
    /// The room is what the workers of the pipe take in about a second. A worker that dispatches
    /// more makes what comes later wait, also that of other jobs. [`Self::dispatch`] never waits
    /// for room. A task can dispatch what fits and go on later, with [`TaskError::go_on`] and
    /// [`Self::resume`]:
    ///
    /// ```
    /// # use batchwright_framework as batchwright;
    /// # use batchwright::contract::RangeItem;
    /// # use batchwright::{Context, NoOutput, Reply, TaskError, Worker};
    /// use std::time::Duration;
    ///
    /// struct Pages;
    /// impl Worker for Pages {
    ///     type Input = RangeItem;
    ///     type Output = NoOutput;
    ///     async fn run(&self, document: RangeItem, ctx: Context) -> Result<Reply<NoOutput>, TaskError> {
    ///         let pages: Vec<u64> = (1..=document.number).collect();
    ///         ctx.expect_subtasks(pages.len() as u32);
    ///         let done = ctx.resume().await?;
    ///         let mut free = ctx.room("pages").await?.free();
    ///         for number in &pages[done as usize..] {
    ///             if free == 0 {
    ///                 return Err(TaskError::go_on(Duration::from_secs(1)));
    ///             }
    ///             let page = RangeItem { number: *number, ..document.clone() };
    ///             ctx.dispatch("pages", &page).await?;
    ///             free -= 1;
    ///         }
    ///         Ok(Reply::none())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # use batchwright::testing::{self, Outcome};
    /// # let item = |number| serde_json::from_str::<RangeItem>(&format!(r#"{{"number": {number}}}"#)).unwrap();
    /// // Nothing takes them in this test, so 16 fit.
    /// let run = testing::run(&Pages, item(20)).await;
    /// assert_eq!((run.dispatched_count(), run.outcome()), (16, Outcome::GoesOn(Duration::from_secs(1))));
    /// let rest = testing::task(item(20)).dispatched_before(16).run(&Pages).await;
    /// assert_eq!((rest.dispatched_count(), rest.outcome()), (4, Outcome::Done));
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns an error if the broker cannot be asked.
    pub async fn room(&self, pipe: &str) -> Result<Room, TaskError> {
        let shared = &self.0.shared;
        let broker = &*shared.broker;
        let bundles = async || shared.bundling.waiting(pipe, broker).await;
        Ok(shared.gauges.room(pipe, broker, bundles).await?)
    }

    /// Notes that this task has more for a pipe than fits, so that the room of a pipe grows whose
    /// workers have nothing to do.
    pub fn wants_room(&self, pipe: &str) {
        self.0.shared.gauges.want(pipe);
    }

    /// Returns the share of the job beside the other jobs of its partition, `None` as long as the
    /// job service has not said it. Waits for nobody: the first call asks in the background. So
    /// only a task that is held back should ask.
    pub async fn share(&self) -> Option<JobShare> {
        let job_service = &self.0.shared.job_service;
        job_service.share(self.0.input.tracking.as_ref()).await
    }

    /// Returns how many subtasks an earlier delivery of this task has dispatched, after which the
    /// task went on later ([`TaskError::go_on`]); 0 if it begins.
    pub fn dispatched_before(&self) -> u32 {
        self.0.resumption.map_or(0, |resumption| resumption.count)
    }

    /// Goes on behind the subtasks that an earlier delivery has dispatched: the next one that is
    /// dispatched is the one behind them. Returns their number
    /// ([`dispatched_before`](Self::dispatched_before)).
    ///
    /// Call it after [`Self::repeatable`], if at all, and after the number of subtasks is told.
    ///
    /// # Errors
    /// The task fails if it makes its subtasks from something else than it did before
    /// ([`Self::repeatable`]), or has dispatched one already.
    pub async fn resume(&self) -> Result<u32, TaskError> {
        let Some(Resumption { count, digest }) = self.0.resumption else {
            return Ok(0);
        };
        let mut split = self.0.split.lock().await;
        if split.count > 0 {
            return Err(self.refuse(RepeatError::Order.into()));
        }
        if digest != split.digest() {
            let error = self.changed_meanwhile(&split);
            return Err(self.refuse(error));
        }
        split.count = count;
        Ok(count)
    }

    /// Waits until the broker has confirmed all subtasks that are dispatched so far. If no other
    /// task of this process dispatches to the pipe, [`Self::room`] counts all of them then.
    ///
    /// # Errors
    /// As [`Self::dispatch`].
    pub async fn confirmed_in(&self, pipe: &str) -> Result<(), TaskError> {
        let mut split = self.0.split.lock().await;
        split.send_gathered(&self.0.shared);
        self.confirm_while(&mut split, |split| !split.pending.is_empty())
            .await?;
        self.0.shared.gauges.settle(pipe);
        Ok(())
    }

    fn changed_meanwhile(&self, split: &Split) -> DispatchError {
        let name = split.repeat.as_ref().map(|repeat| repeat.source.name());
        RepeatError::Contradictory {
            task: self.task_path().unwrap_or_default(),
            round: self.round(),
            name: name.unwrap_or_default().to_owned(),
        }
        .into()
    }
}
