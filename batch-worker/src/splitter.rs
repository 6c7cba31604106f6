//! Splits a batch by means of its plugin, within the limits of the worker. The same checks stand
//! before a batch is split, and before it is explained.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{BatchTask, MAX_PIPE_BYTES, without_secrets};
use framework::{OrFail as _, Source, TaskError};

use crate::plugin::AnyPlugin;
use crate::reading::{Readers, Reading};
use crate::{Batch, BatchWorker, MAX_DEFINITION, Part, SplitError};

/// The most bytes that the parts of one split repeat in all, whatever the batch wants every part to
/// carry.
const REPEATED_BYTES: usize = 64 * 1024 * 1024;

static NO_PARAMS: BTreeMap<String, String> = BTreeMap::new();

/// The plugins and their limits.
#[derive(Debug, Clone)]
pub struct Splitter {
    pub plugins: BTreeMap<&'static str, Arc<dyn AnyPlugin>>,
    pub max_parts: usize,
    pub max_items: u64,
    pub readers: Readers,
}

/// A batch whose plugin is known.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    pub plugin: &'a dyn AnyPlugin,
    pub batch: Batch<'a>,
}

impl<'a> Known<'a> {
    /// Returns whether the batch reads something outside of its definition.
    pub fn reads(self) -> bool {
        self.plugin.reads(self.batch)
    }

    /// Returns a reading for the batch, in a slot if it reads; `None` if it does, and all slots are
    /// taken.
    pub fn begin(self, readers: &Readers) -> Option<Reading> {
        if self.reads() {
            readers.begin()
        } else {
            Some(readers.without_slot())
        }
    }

    /// Does the same for a question, which waits for a slot, but not for long.
    pub async fn begin_soon(self, readers: &Readers) -> Result<Reading, SplitError> {
        if self.reads() {
            readers.begin_soon().await
        } else {
            Ok(readers.without_slot())
        }
    }

    /// Returns the same batch, for which this reads.
    pub fn read_for(self, reading: &'a Reading) -> Self {
        let batch = Batch {
            reading: Some(reading),
            ..self.batch
        };
        Self { batch, ..self }
    }
}

/// Returns the pipe of the items.
///
/// # Errors
/// Says why there is none.
pub fn target_of(task: &BatchTask) -> Result<&str, String> {
    let target = task.target_pipe.as_deref().filter(|pipe| !pipe.is_empty());
    let target = target.ok_or("the batch has no targetPipe for its items")?;
    if target.len() > MAX_PIPE_BYTES {
        let size = target.len();
        return Err(format!(
            "the targetPipe has {size} bytes; the limit is {MAX_PIPE_BYTES}"
        ));
    }
    Ok(target)
}

/// Returns why a definition of this size is refused, if it is.
pub fn too_large(bytes: usize) -> Option<String> {
    (bytes > MAX_DEFINITION)
        .then(|| format!("the batch definition has {bytes} bytes; the limit is {MAX_DEFINITION}"))
}

impl Splitter {
    /// Splits a batch. Returns its parts, and from what they were made; `None` if it reads, and all
    /// slots for that are taken.
    pub async fn split(
        &self,
        known: Known<'_>,
    ) -> Result<Option<(Vec<Part>, Option<Source>)>, TaskError> {
        let Some(reading) = known.begin(&self.readers) else {
            return Ok(None);
        };
        let Known { plugin, batch } = known.read_for(&reading);
        let parts = plugin
            .split(batch)
            .await
            .map_err(|error| error_of(plugin, error))?;
        let source = plugin.source(batch, &parts);
        Ok(Some((parts, source)))
    }

    /// Finds the plugin of a batch of a job of this partition.
    pub fn known<'a>(
        &'a self,
        task: &'a BatchTask,
        partition: Option<&'a str>,
    ) -> Result<Known<'a>, TaskError> {
        let batch_type = task.batch_type.as_deref().unwrap_or_default();
        let plugin = self.plugins.get(batch_type).ok_or_else(|| {
            let known = self.plugins.keys().copied().collect::<Vec<_>>().join(", ");
            TaskError::failed(format!(
                "Invalid batch type  {batch_type:?}; this batch worker knows {known}"
            ))
        })?;
        let definition = task
            .batch_definition
            .as_deref()
            .ok_or_else(|| TaskError::failed("the batch has no batchDefinition"))?;
        if let Some(refusal) = too_large(definition.len()) {
            return Err(TaskError::failed(refusal));
        }
        let batch = Batch {
            definition,
            item_type: task.task_message_type.as_deref(),
            params: task.task_message_params.as_ref().unwrap_or(&NO_PARAMS),
            partition,
            max_parts: self.parts_of(task)?,
            max_items: self.max_items,
            reading: None,
        };
        let plugin = &**plugin;
        Ok(Known { plugin, batch })
    }

    /// Returns how many parts a split of this batch may have. The more each of them repeats, the
    /// fewer there are.
    fn parts_of(&self, task: &BatchTask) -> Result<usize, TaskError> {
        let affordable = REPEATED_BYTES / bytes_without_definition(task)?.max(1);
        Ok(self.max_parts.min(affordable.max(BatchWorker::MIN_PARTS)))
    }
}

/// Returns the bytes of the task data that every sub-batch repeats: all but the definition, which
/// is `null`.
pub fn bytes_without_definition(task: &BatchTask) -> Result<usize, TaskError> {
    let everything_else = BatchTask {
        batch_definition: None,
        ..task.clone()
    };
    Ok(serde_json::to_vec(&everything_else).or_fail()?.len())
}

/// Returns what the error of a plugin means for a task.
fn error_of(plugin: &dyn AnyPlugin, error: SplitError) -> TaskError {
    match error {
        SplitError::Definition(problem) | SplitError::Missing(problem) => {
            TaskError::failed(problem_of(plugin, &problem))
        }
        SplitError::Temporary(error) => TaskError::retry(error),
    }
}

/// Says what is wrong with a definition, without the secrets of URLs in it.
pub fn problem_of(plugin: &dyn AnyPlugin, problem: &str) -> String {
    let problem = without_secrets(problem);
    format!("batch definition of {}: {problem}", plugin.name())
}
