//! Splits batches: one message that stands for many items becomes sub-batches and items,
//! recursively.
//!
//! [`BatchWorker`] is an ordinary worker. Its batch plugins ([`BatchPlugin`]) define what a batch
//! definition means; a plugin is one file and one trait. A batch that is too large for one split
//! goes back to the batch worker's own input as sub-batches. So millions of items are split in a
//! tree, in parallel, and in bounded memory.
//!
//! What must stay true:
//! - A split is a function of the definition. Repeating it gives the same parts in the same order.
//! - A plugin pins what it reads outside (files, listings) in the definitions of its parts. A part
//!   whose source has changed since then fails.
//! - A batch waits as one message, not as its items: it dispatches no more of them than there is
//!   room for in its target pipe, and goes on later ([`dispatching`]). It is not split into
//!   sub-batches while the worker's own input is full.
//! - A split has at most `max_parts` parts, and reports their number before it dispatches the first
//!   one.
//! - A split that reads outside of its definition has one of the slots for that, and ends when its
//!   job ends or is paused.
#![warn(missing_docs)]

mod answers;
#[cfg(test)]
mod arbitrary;
mod dispatching;
mod explain;
mod files;
mod glob;
mod lines;
mod list;
mod pace;
mod plugin;
mod range;
mod reading;
mod records;
mod returns;
mod source;
#[cfg(test)]
mod sources;
mod splitter;
pub mod testing;
mod turns;
mod uploads;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use contract::{Announced, BatchResult, BatchTask, JobTaskId};
pub use framework::Source;
use framework::queries::Answerer;
use framework::{Context, Reply, TaskError, Worker};

#[cfg(feature = "sources")]
pub use blobs::{BucketOptions, Location};
#[cfg(feature = "sources")]
pub use files::{Sources, Store};
pub use glob::Glob;
pub use lines::Lines;
pub use list::List;
pub use plugin::{Batch, BatchPlugin, Part, SplitError, Totals};
pub use range::Range;
pub use reading::{Reading, SourceLimits};
pub use records::RecordFiles;
pub use source::Root;
pub use uploads::Uploads;

use answers::Answers;
use dispatching::{Learners, Split};
use pace::Pace;
use plugin::AnyPlugin;
use reading::Readers;
use returns::Returns;
use splitter::Splitter;
use turns::{Claim, Turns};

/// The largest size of a batch definition, in bytes.
pub const MAX_DEFINITION: usize = BatchTask::MAX_DEFINITION;

impl std::str::FromStr for Results {
    type Err = String;

    /// Parses our names and CAF's.
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" | "RETURN_NONE" => Ok(Self::None),
            "only-of-empty-batches" | "RETURN_ONLY_IF_ZERO_SUBTASKS" => {
                Ok(Self::OnlyOfEmptyBatches)
            }
            "all" | "RETURN_ALL" => Ok(Self::All),
            other => Err(format!(
                "{other:?} is not a kind of results; write none, only-of-empty-batches or all"
            )),
        }
    }
}

/// The worker that splits batches by means of its plugins.
#[derive(Debug)]
pub struct BatchWorker {
    splitter: Splitter,
    max_depth: u64,
    target_wait: Duration,
    pace: Pace,
    turns: Turns,
    returns: Returns,
    learners: Learners,
    results: Results,
    splits: Arc<AtomicU64>,
}

/// Which splits send a result to the output pipe; CAF's `returnValueBehaviour`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Results {
    /// None do (`RETURN_NONE`).
    #[default]
    None,
    /// Those without parts do (`RETURN_ONLY_IF_ZERO_SUBTASKS`).
    OnlyOfEmptyBatches,
    /// All do (`RETURN_ALL`).
    All,
}

impl BatchWorker {
    /// The smallest limit of the parts of a split. With a smaller one the tree would hardly branch.
    pub const MIN_PARTS: usize = 10;
    /// The default limit of the parts of a split.
    pub const DEFAULT_PARTS: usize = 1000;
    /// The default of [`Self::max_depth`].
    pub const DEFAULT_DEPTH: u64 = 100_000;
    /// How long a batch waits before it comes back: one of these times.
    pub const DELAYS: [Duration; 4] = returns::DELAYS;
    /// The default of [`Self::target_wait`].
    pub const DEFAULT_WAIT: Duration = Duration::from_secs(1);
    /// The default of [`Self::max_items`].
    pub const DEFAULT_ITEMS: u64 = 10_000_000_000;
    /// The default number of [`Self::readers`].
    pub const DEFAULT_READERS: usize = 4;

    /// Returns a batch worker without plugins, whose splits have at most `max_parts` parts. Values
    /// below [`Self::MIN_PARTS`] are raised to it.
    pub fn new(max_parts: usize) -> Self {
        let max_parts = max_parts.max(Self::MIN_PARTS);
        Self {
            splitter: Splitter {
                plugins: BTreeMap::new(),
                max_parts,
                max_items: Self::DEFAULT_ITEMS,
                readers: Readers::new(Self::DEFAULT_READERS, SourceLimits::default()),
            },
            max_depth: Self::DEFAULT_DEPTH,
            target_wait: Self::DEFAULT_WAIT,
            turns: Turns::default(),
            returns: Returns::default(),
            learners: Learners::default(),
            pace: Pace::default(),
            results: Results::None,
            splits: Arc::default(),
        }
    }

    /// Sets how many items wait in a target pipe at the most, however fast its workers are.
    #[must_use]
    pub const fn max_depth(mut self, items: u64) -> Self {
        self.max_depth = items;
        self
    }

    /// Fails a batch that has more items than this, if its plugin knows their number.
    #[must_use]
    pub const fn max_items(mut self, items: u64) -> Self {
        self.splitter.max_items = items;
        self
    }

    /// Sets how many splits may read files, folders and servers at the same time, and what is asked
    /// of the servers. While so many read, other splits that read are put off. The worker needs
    /// more [slots](framework::Settings::concurrency) than that, for those that do not.
    #[must_use]
    pub fn readers(mut self, splits: usize, limits: SourceLimits) -> Self {
        self.splitter.readers = Readers::new(splits, limits);
        self
    }

    /// Sets how much work should wait in a target pipe at the most: what its workers take in this
    /// time.
    #[must_use]
    pub const fn target_wait(mut self, wait: Duration) -> Self {
        self.target_wait = wait;
        self
    }

    /// Sets which splits send a result. They need an output pipe, and complete with their result.
    #[must_use]
    pub const fn results(mut self, results: Results) -> Self {
        self.results = results;
        self
    }

    /// Adds a plugin. It replaces one of the same name, also one of Batchwright's.
    #[must_use]
    pub fn with(mut self, plugin: impl BatchPlugin) -> Self {
        let plugin: Arc<dyn AnyPlugin> = Arc::new(plugin);
        self.splitter.plugins.insert(plugin.name(), plugin);
        self
    }

    /// Adds all plugins of Batchwright. Those that read files read only below the root.
    #[must_use]
    pub fn with_built_in(self, root: Root) -> Self {
        self.with(Range)
            .with(List)
            .with(Lines::new(root.clone()))
            .with(RecordFiles::new(root.clone()))
            .with(Glob::new(root))
    }

    /// Returns the counter of the splits that this worker has done, repeated ones included.
    pub fn splits(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.splits)
    }

    fn count_split(&self) {
        self.splits.fetch_add(1, Ordering::Relaxed);
    }

    /// States what the split becomes: how many of its parts are sub-batches, and how many items
    /// there are in the end.
    fn announced(&self, task: &BatchTask, parts: &[Part]) -> Announced {
        let batches = parts.iter().filter(|part| matches!(part, Part::Batch(_)));
        let batches = u32::try_from(batches.count()).unwrap_or(u32::MAX);
        let items = || {
            let plugin = self.splitter.plugins.get(task.batch_type.as_deref()?)?;
            plugin.count_items(task.batch_definition.as_deref()?)
        };
        Announced {
            batches,
            // Without sub-batches, the parts are the items.
            items: if batches > 0 { items() } else { None },
        }
    }
}

impl Worker for BatchWorker {
    type Input = BatchTask;
    type Output = BatchResult;
    const IS_LIMITED_BY_JOB: bool = false;
    // A sub-batch is no small task.
    const TAKES_BUNDLES: bool = false;

    async fn run(&self, task: BatchTask, ctx: Context) -> Result<Reply<BatchResult>, TaskError> {
        let target = splitter::target_of(&task).map_err(TaskError::failed)?;
        ctx.check_pipe(target)?;
        let id = ctx.job_task_id().and_then(|id| JobTaskId::parse(id).ok());
        let partition = id.as_ref().map(|id| id.partition.as_str());
        let claim = Claim {
            pipe: target,
            partition: partition.unwrap_or_default(),
            // All batches of an untracked one begin with its task id.
            job: id.as_ref().map_or_else(
                || ctx.task_id().split('.').next().unwrap_or_default(),
                |id| id.job.as_str(),
            ),
        };
        let known = self.splitter.known(&task, partition)?;
        let room = self.room(&ctx, target).await;
        if let Some(room) = room
            && (room.waiting() > self.max_depth
                || !room.is_learning() && !self.turns.has_turn(claim, room))
        {
            ctx.wants_room(target);
            let wait = self.wait(claim, Some(room), self.splitter.max_parts, &ctx);
            let wait = wait.await;
            return Err(TaskError::snooze(wait));
        }
        let split = tokio::select! {
            // In this order, a split that does not wait asks nobody.
            biased;
            split = self.splitter.split(known) => split?,
            error = ctx.cancelled() => return Err(error),
            // It begins anew when the job is resumed.
            () = ctx.paused() => None,
        };
        let Some((parts, source)) = split else {
            return Err(TaskError::snooze(self.wait(claim, None, 1, &ctx).await));
        };
        let sends_result = match self.results {
            Results::None => false,
            Results::OnlyOfEmptyBatches => parts.is_empty(),
            Results::All => true,
        };
        let split = Split {
            task: &task,
            claim,
            room,
            announced: self.announced(&task, &parts),
            source,
            size: parts.len(),
            is_pinned: known.plugin.is_pinned(known.batch),
        };
        self.dispatch(&split, parts, &ctx).await?;
        if !sends_result {
            return Ok(Reply::none());
        }
        // The job, or the target pipe of an untracked batch.
        let job = ctx
            .job_task_id()
            .and_then(|id| id.split('.').next())
            .filter(|job| !job.is_empty());
        Ok(Reply::send(BatchResult {
            batch_task: job.unwrap_or(target).to_owned(),
        })
        .and_complete())
    }

    fn answerer(&self) -> Option<Arc<dyn Answerer>> {
        Some(Arc::new(Answers::of(self.splitter.clone())))
    }
}

/// Returns the size of the parts when `count` items are split: a power of `max_parts`, so that the
/// tree is even.
///
/// ```
/// # mod batchwright { pub use batchwright_batch_worker as batch; }
/// use batchwright::batch::even_size;
///
/// assert_eq!(even_size(800, 1000), 1); // items
/// assert_eq!(even_size(10_000, 1000), 1000); // ten sub-batches
/// assert_eq!(even_size(2_000_000, 1000), 1_000_000); // two, each of a thousand sub-batches
/// ```
pub fn even_size(count: u64, max_parts: u64) -> u64 {
    let mut size = 1_u64;
    while count.div_ceil(size) > max_parts {
        size = size.saturating_mul(max_parts);
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::{RangeItem, TaskMessage};
    use framework::broker::memory::Memory;
    use framework::broker::{Broker, Outgoing};
    use framework::{Runtime, Settings, testing};
    use std::time::Duration;
    use tokio_util::sync::CancellationToken;

    fn batch(batch_type: &str, definition: &str) -> BatchTask {
        BatchTask {
            batch_type: Some(batch_type.into()),
            batch_definition: Some(definition.into()),
            target_pipe: Some("items".into()),
            ..BatchTask::default()
        }
    }

    #[tokio::test]
    async fn small_batch_becomes_items_on_the_target_pipe() {
        let run = testing::run(&BatchWorker::new(1000).with(Range), batch("range", "3-5")).await;
        let items = run.dispatched::<RangeItem>();
        assert_eq!(
            items
                .iter()
                .map(|(pipe, item)| (pipe.as_str(), item.number))
                .collect::<Vec<_>>(),
            [("items", 3), ("items", 4), ("items", 5)]
        );
    }

    #[tokio::test]
    async fn large_batch_becomes_sub_batches_on_the_own_input() {
        let run = testing::run(&BatchWorker::new(10).with(Range), batch("range", "1-100")).await;
        let parts = run.dispatched::<BatchTask>();
        assert_eq!(parts.len(), 10);
        assert_eq!(parts[0], ("test-in".to_owned(), batch("range", "1-10")));
    }

    /// Splits a text into its letters, and labels the vowels.
    struct Letters;

    impl BatchPlugin for Letters {
        const NAME: &'static str = "letters";
        async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
            let letters = batch.definition.chars();
            let part = |letter| match letter {
                'a' | 'e' => {
                    batch.labelled_item("RangeItem", &letter, format!("the vowel {letter}"))
                }
                _ => batch.item("RangeItem", &letter),
            };
            letters.map(part).collect()
        }
    }

    #[tokio::test]
    async fn label_that_a_plugin_gives_an_item_goes_with_it() {
        let run = testing::run(
            &BatchWorker::new(1000).with(Letters),
            batch("letters", "ab"),
        )
        .await;
        assert_eq!(run.dispatched_labels(), [Some("the vowel a"), None]);
    }

    #[tokio::test]
    async fn worker_with_all_that_is_built_in_and_a_plugin_of_its_own_knows_both() {
        let worker = BatchWorker::new(1000).with_built_in(Root::new("."));
        let run = testing::run(&worker.with(Letters), batch("words", "a")).await;
        let reason = run.failure().unwrap();
        assert!(
            reason.contains("glob, letters, lines, list, range, records"),
            "{reason}"
        );
    }

    #[tokio::test]
    async fn batch_with_much_for_every_item_has_fewer_parts() {
        let params = [("text".to_owned(), "x".repeat(1024 * 1024))].into();
        let task = BatchTask {
            task_message_params: Some(params),
            ..batch("range", "1-1000")
        };
        let run = testing::run(&BatchWorker::new(1000).with(Range), task).await;
        assert_eq!(run.dispatched::<BatchTask>().len(), 16);
    }

    /// Splits ranges while it watches the worker's input.
    struct WatchedRange {
        broker: Memory,
        deepest: Arc<AtomicU64>,
    }

    impl BatchPlugin for WatchedRange {
        const NAME: &'static str = "range";

        async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
            let depth = self.broker.depth("w-in").await?;
            self.deepest.fetch_max(depth, Ordering::Relaxed);
            BatchPlugin::split(&Range, batch).await
        }
    }

    #[test]
    fn waiting_jobs_get_all_their_items_without_a_flood_of_sub_batches() {
        // Under a paused clock all waiting jobs would come back at one moment, so the full size
        // takes real time.
        let (jobs, numbers, is_paused) = harness::sized((40, 1000, true), (100_000, 11, false));
        let limit = Duration::from_secs(harness::sized(60, 3600));
        let deepest = harness::block_on_in_time("all items", limit, move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime
                .enable_all()
                .start_paused(is_paused)
                .build()
                .unwrap();
            runtime.block_on(deepest_input_while_split(jobs, numbers))
        });
        println!("{deepest} messages waited at the same time for {jobs} jobs");
        // Split as they come, the jobs have up to a hundred sub-batches each at one time.
        assert!(
            deepest <= jobs + 1500,
            "{deepest} messages waited at the same time"
        );
    }

    /// Splits this many ranges of `1` to `numbers` to the end. Returns the greatest depth of the
    /// worker's input.
    async fn deepest_input_while_split(jobs: u64, numbers: u64) -> u64 {
        let (broker, stop) = (Memory::new(), CancellationToken::new());
        for job in 0..jobs {
            let task = batch("range", &format!("1-{numbers}"));
            let message = TaskMessage::new(format!("t{job}"), "w-in", &task).unwrap();
            let sent = broker.publish(Outgoing::new("w-in", message.encode()));
            sent.await.unwrap();
        }
        let deepest = Arc::<AtomicU64>::default();
        let range = WatchedRange {
            broker: broker.clone(),
            deepest: Arc::clone(&deepest),
        };
        let settings = Settings {
            concurrency: 2,
            prefetch: Some(8),
            ..Settings::new("w")
        };
        let worker = BatchWorker::new(10).with(range);
        let service = Runtime::new(settings, Arc::new(broker.clone())).worker(worker);
        let mut items = broker.consume("items", 1000).await.unwrap();
        let all_items = async {
            for _ in 0..jobs * numbers {
                items.next().await.unwrap().ack();
            }
            stop.cancel();
        };
        let (ended, ()) = tokio::join!(service.run_until(stop.clone()), all_items);
        ended.unwrap();
        deepest.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn batch_that_cannot_be_split_fails_with_the_reason() {
        let worker = BatchWorker::new(1000).with(Range).with(Lines::new("."));
        let no_target = BatchTask {
            target_pipe: None,
            ..batch("range", "1-2")
        };
        let no_definition = BatchTask {
            batch_definition: None,
            ..batch("range", "1-2")
        };
        let too_large = batch("range", &" ".repeat(MAX_DEFINITION + 1));
        let delay_pipe = BatchTask {
            target_pipe: Some("items.delay.400".into()),
            ..batch("range", "1-2")
        };
        for (task, text) in [
            (
                delay_pipe,
                "no task may be addressed to the pipe 'items.delay.400', which by its name (`.delay.` and a number) holds the delayed \
                 messages of another pipe. Name the input pipe of a worker; if this pipe is one, its operator can allow it by the \
                 setting `allowed-pipe`",
            ),
            (
                batch("rnage", "1-2"),
                "Invalid batch type  \"rnage\"; this batch worker knows lines, range",
            ),
            (
                batch("range", "1-x"),
                "batch definition of range: at character 3: \"x\" is not a number",
            ),
            (no_target, "the batch has no targetPipe for its items"),
            (no_definition, "the batch has no batchDefinition"),
            (
                too_large,
                "the batch definition has 4194305 bytes; the limit is 4194304",
            ),
        ] {
            assert_eq!(
                testing::run(&worker, task).await.failure().as_deref(),
                Some(text)
            );
        }
    }
}
