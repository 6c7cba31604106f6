//! The worker of the simulated jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use contract::RangeItem;
use framework::{Context, Reply, TaskError, Worker};
use store::Store;
use tokio::time::{Instant, sleep};

use crate::blocks::Seen;
use crate::rounds::round_of;
use crate::scenario::Scenario;
use crate::simulation::lock;

/// Completes an item, or fails it as the scenario says.
pub struct ItemWorker {
    pub scenario: Scenario,
    pub store: Store,
    /// How often each item was executed, by incarnation and number.
    pub executed: Arc<Mutex<BTreeMap<(String, u64), u32>>>,
    /// Which items were done, in any round.
    pub succeeded: Arc<Mutex<BTreeSet<(String, u64)>>>,
    /// What the items have seen of the condition that they wait for.
    pub seen: Arc<Mutex<Seen>>,
    /// When the simulation has begun.
    pub start: Instant,
}

impl Worker for ItemWorker {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, ctx: Context) -> Result<Reply<RangeItem>, TaskError> {
        self.look_for_copy(item.number, &ctx).await;
        sleep(self.scenario.work).await;
        let incarnation = item.params.get("incarnation").cloned().unwrap_or_default();
        *lock(&self.executed)
            .entry((incarnation.clone(), item.number))
            .or_default() += 1;
        self.wait((&incarnation, item.number), &ctx)?;
        let round = round_of(ctx.job_task_id());
        if self.scenario.fails_at_once(item.number, round) {
            return Err(TaskError::failed(format!("item {} is bad", item.number)));
        }
        if self.scenario.fails(item.number, round) {
            return Err(TaskError::retry(format!(
                "item {} is hopeless",
                item.number
            )));
        }
        if ctx.attempt() < 3
            && self
                .scenario
                .retrying
                .is_some_and(|n| item.number.is_multiple_of(n))
        {
            return Err(TaskError::retry(format!(
                "item {} is not ready",
                item.number
            )));
        }
        lock(&self.succeeded).insert((incarnation, item.number));
        Ok(if self.scenario.output || self.scenario.kept {
            Reply::send(item)
        } else {
            Reply::none()
        })
    }
}
