//! How the parts of a batch are dispatched: as far as there is room for them, and it is the turn of
//! their job. Items go to their pipe, sub-batches to the worker's own input.
//!
//! Parts that do not fit stay where they are: the batch comes back later and goes on behind those
//! that are dispatched. While a pipe is new to this process, or is found empty, nobody knows its
//! room. Then a split waits in place for a moment, and dispatches more whenever the workers have
//! taken everything.
//!
//! What must stay true:
//! - While the room of a pipe is learnt, only one split at a time dispatches to it that has more
//!   than fits, and looks at it only when everything it has dispatched is there.
//! - A batch whose parts may be others when it comes back dispatches all of them at once.
//! - A split that waits keeps its place in the process for a tenth of a second at most, besides a
//!   few for each pipe whose room is learnt: one of them dispatches next, so that its workers do
//!   not wait until a batch comes back.

use std::collections::HashMap;
use std::time::Duration;

use contract::{Announced, BatchTask, JobTaskId};
use framework::{Context, Room, Source, TaskError};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use crate::turns::Claim;
use crate::{BatchWorker, Part};

/// How long a split waits in place for room in a pipe whose room is learnt.
const LEARNING: Duration = Duration::from_millis(100);
/// How many splits wait longer for such a pipe, as long as its room is learnt.
const NEXT: usize = 4;
/// How long it waits between two looks at the pipe.
const LOOKS_EVERY: Duration = Duration::from_millis(2);
/// The smallest number of sub-batches that are made at a time.
const AHEAD: usize = 128;

/// A batch that becomes parts.
pub struct Split<'a> {
    pub task: &'a BatchTask,
    pub claim: Claim<'a>,
    /// That of the pipe of the items, if the broker tells it.
    pub room: Option<Room>,
    pub announced: Announced,
    /// From what the parts are made, if that is not the task itself.
    pub source: Option<Source>,
    /// How many parts there are.
    pub size: usize,
    /// Whether it has the same parts when it comes back.
    pub is_pinned: bool,
}

/// The pipes whose room is learnt by a split.
#[derive(Debug, Default)]
pub struct Learners(Mutex<HashMap<String, Queue>>);

/// The splits that learn the room of a pipe.
#[derive(Debug, Default)]
struct Queue {
    /// One of them dispatches to it.
    is_begun: bool,
    /// How many splits wait to be the next.
    next: usize,
}

/// What a split does about a pipe whose room is learnt, until this is dropped.
#[derive(Debug)]
struct Learner<'a> {
    pipe: &'a str,
    of: &'a Learners,
    /// It waits to be the next one that dispatches.
    is_next: bool,
}

impl Learners {
    /// Begins to learn the room of a pipe, unless another split does. Then the split may be one of
    /// the next, unless it is already or others are.
    fn begin<'a>(&'a self, pipe: &'a str, known: &mut Option<Learner<'a>>) {
        let mut pipes = self.0.lock();
        let queue = pipes.entry(pipe.to_owned()).or_default();
        let is_next = queue.is_begun;
        match known {
            Some(learner) if learner.is_next && !is_next => {
                learner.is_next = false;
                queue.next -= 1;
                queue.is_begun = true;
            }
            None if !is_next || queue.next < NEXT => {
                queue.next += usize::from(is_next);
                queue.is_begun = true;
                let of = self;
                *known = Some(Learner { pipe, of, is_next });
            }
            _ => {}
        }
    }
}

impl Drop for Learner<'_> {
    fn drop(&mut self) {
        let mut pipes = self.of.0.lock();
        let Some(queue) = pipes.get_mut(self.pipe) else {
            return;
        };
        if self.is_next {
            queue.next -= 1;
        } else {
            queue.is_begun = false;
        }
        if !queue.is_begun && queue.next == 0 {
            pipes.remove(self.pipe);
        }
    }
}

impl BatchWorker {
    /// Dispatches the parts of a batch that fit. If it has to wait with some of them, returns the
    /// error by which it comes back and goes on.
    pub(crate) async fn dispatch(
        &self,
        split: &Split<'_>,
        parts: Vec<Part>,
        ctx: &Context,
    ) -> Result<(), TaskError> {
        let has_batches = split.announced.batches > 0;
        let claim = if has_batches {
            let (job, level) = place_of(ctx);
            let is_busy = |room: Room| room.free() <= room.size() / 2;
            if split.room.is_none_or(is_busy) && self.pace.is_deeper_waiting(job, level) {
                let wait = self.wait(split.claim, None, split.size, ctx).await;
                return Err(TaskError::snooze(wait));
            }
            let pipe = ctx.input_pipe();
            Claim {
                pipe,
                ..split.claim
            }
        } else {
            split.claim
        };
        let before = ctx.dispatched_before() as usize;
        if before > split.size {
            let reason = format!(
                "it had more than {before} parts, and has {} now",
                split.size
            );
            return Err(TaskError::failed(reason));
        }
        let mut parts = parts.into_iter().skip(before);
        let (mut is_begun, mut learner) = (false, None::<Learner<'_>>);
        if ctx.is_of_later_round() {
            // What is done needs no room, however much that is.
            is_begun = true;
            self.begin(split, ctx).await?;
        }
        let until = Instant::now() + LEARNING;
        loop {
            while is_begun && parts.len() > 0 && ctx.pass_over_next().await? {
                parts.next();
            }
            let room = self.room(ctx, claim.pipe).await;
            let may_wait = learner.is_some() || Instant::now() < until;
            let waits = |room: Room| room.is_learning() && room.free() < parts.len() as u64;
            let is_learning = room.is_some_and(waits) && may_wait;
            if is_learning {
                self.learners.begin(claim.pipe, &mut learner);
                if learner.as_ref().is_none_or(|learner| learner.is_next) {
                    ctx.wants_room(claim.pipe);
                    sleep(LOOKS_EVERY).await;
                    ctx.check_cancelled()?;
                    continue;
                }
            }
            let left = parts.len();
            let granted = room.map_or(left, |room| {
                let asked = if has_batches {
                    left.min(self.ahead(split))
                } else {
                    left
                };
                let granted = self.turns.grant(claim, asked as u64, room);
                match usize::try_from(granted).unwrap_or(left) {
                    0 if has_batches && self.pace.goes_slowly(left) => left,
                    0 => 0,
                    // It may have others when it comes back.
                    _ if !split.is_pinned => left,
                    granted => granted,
                }
            });
            if !is_begun && (granted > 0 || left == 0) {
                is_begun = true;
                if !has_batches {
                    self.pace.items();
                }
                self.begin(split, ctx).await?;
            }
            for part in parts.by_ref().take(granted) {
                dispatch_part(split, part, ctx).await?;
            }
            let Some(room) = room.filter(|_| parts.len() > 0) else {
                break;
            };
            ctx.wants_room(claim.pipe);
            if !is_learning {
                let wait = self.wait(claim, Some(room), parts.len(), ctx).await;
                return Err(if is_begun {
                    TaskError::go_on(wait)
                } else {
                    TaskError::snooze(wait)
                });
            }
            ctx.confirmed_in(claim.pipe).await?;
            sleep(LOOKS_EVERY).await;
            ctx.check_cancelled()?;
        }
        if learner.is_some() {
            ctx.confirmed_in(claim.pipe).await?;
        }
        Ok(())
    }

    /// Returns the room of a pipe, `None` if the broker does not tell. That does not stop a split.
    pub(crate) async fn room(&self, ctx: &Context, pipe: &str) -> Option<Room> {
        let room = ctx.room(pipe).await.ok()?;
        Some(if pipe == ctx.input_pipe() {
            // A new job waits there before its items wait in their pipe.
            let known = room.within(self.target_wait / 2, u64::MAX);
            if room.speed().is_none() {
                // Sub-batches take little time, and without them the workers of items have nothing.
                known.at_least(AHEAD as u64)
            } else {
                known
            }
        } else {
            room.within(self.target_wait, self.max_depth)
        })
    }

    /// Returns how many sub-batches are made at a time: for four times the items that may wait in
    /// their pipe, but not all, because those that do not fit would wait one by one.
    fn ahead(&self, split: &Split<'_>) -> usize {
        let items = split.room.map_or(u64::MAX, Room::size);
        let sub_batches = items.saturating_mul(4) / self.splitter.max_parts as u64;
        usize::try_from(sub_batches)
            .unwrap_or(usize::MAX)
            .max(AHEAD)
    }

    /// Returns how long a batch with this number of parts waits that do not fit in this room. Asks
    /// for the share of its job meanwhile.
    pub(crate) async fn wait(
        &self,
        claim: Claim<'_>,
        room: Option<Room>,
        parts: usize,
        ctx: &Context,
    ) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "a number of items")]
        let batches_a_second = room
            .filter(|room| !room.is_learning())
            .and_then(Room::speed)
            .map(|items| items as f64 / parts.max(1) as f64);
        let (job, level) = place_of(ctx);
        let place = (job, level);
        let wait = self.returns.wait(claim.partition, place, batches_a_second);
        self.pace.waits(job, level, wait);
        if let Some(share) = ctx.share().await {
            self.turns.weigh(claim, share);
        }
        wait
    }

    /// Announces how many parts there are, and goes on behind those that are dispatched.
    async fn begin(&self, split: &Split<'_>, ctx: &Context) -> Result<(), TaskError> {
        if let Some(source) = &split.source {
            ctx.repeatable(source).await?;
        }
        let size = u32::try_from(split.size).map_err(TaskError::failed)?;
        ctx.expect_parts(size, split.announced);
        if ctx.resume().await? == 0 {
            self.count_split();
        }
        Ok(())
    }
}

/// Returns the job of a batch, and how many splits are above it.
fn place_of(ctx: &Context) -> (&str, usize) {
    let id = ctx.job_task_id().unwrap_or(ctx.task_id());
    let level = JobTaskId::parse(id).map_or(0, |id| id.steps.len());
    (id.split('.').next().unwrap_or_default(), level)
}

async fn dispatch_part(split: &Split<'_>, part: Part, ctx: &Context) -> Result<(), TaskError> {
    ctx.check_cancelled()?;
    match part {
        Part::Batch(definition) => {
            let sub_batch = BatchTask {
                batch_definition: Some(definition),
                ..split.task.clone()
            };
            ctx.dispatch(ctx.input_pipe(), &sub_batch).await
        }
        Part::Item(item) => ctx.dispatch_payload(split.claim.pipe, item).await,
    }
}
