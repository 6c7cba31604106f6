//! Splits batches without a broker, for the tests of a plugin's author.

use std::collections::BTreeMap;

use framework::Payload;

use crate::{Batch, BatchPlugin, BatchWorker, Part, SplitError};

/// The most levels of sub-batches. A job has no deeper ones.
const LEVELS: usize = 62;

/// Returns a batch for a test. It has no parameters, no item type, and the smallest limit of parts,
/// so that few items make sub-batches.
///
/// ```
/// # mod batchwright { pub use batchwright_batch_worker as batch; }
/// use batchwright::batch::{Batch, BatchPlugin, Part, SplitError, testing};
///
/// /// Splits `1,2,3` into a number per item.
/// struct Numbers;
///
/// impl BatchPlugin for Numbers {
///     const NAME: &'static str = "numbers";
///     async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
///         let numbers: Vec<&str> = batch.definition.split(',').collect();
///         if numbers.len() > batch.max_parts {
///             let size = numbers.len().div_ceil(batch.max_parts);
///             return Ok(numbers.chunks(size).map(|part| Part::Batch(part.join(","))).collect());
///         }
///         let number = |text: &&str| match text.parse::<u64>() {
///             Ok(number) => batch.item("Number", &number),
///             Err(error) => Err(SplitError::Definition(format!("{text:?} is no number: {error}"))),
///         };
///         numbers.iter().map(number).collect()
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let definition: Vec<String> = (1..=2000).map(|number| number.to_string()).collect();
/// let items = testing::batch(definition.join(",")).items(&Numbers).await.unwrap();
/// assert_eq!(items.len(), 2000);
/// assert_eq!(items[1999].data, b"2000");
/// let error = testing::batch("1,two").items(&Numbers).await.unwrap_err();
/// assert!(matches!(error, SplitError::Definition(why) if why.contains("\"two\" is no number")));
/// # }
/// ```
pub fn batch(definition: impl Into<String>) -> TestBatch {
    TestBatch {
        definition: definition.into(),
        item_type: None,
        params: BTreeMap::new(),
        max_parts: BatchWorker::MIN_PARTS,
        max_items: BatchWorker::DEFAULT_ITEMS,
    }
}

/// A batch for a test; see [`batch`].
#[derive(Debug, Clone)]
pub struct TestBatch {
    definition: String,
    item_type: Option<String>,
    params: BTreeMap<String, String>,
    max_parts: usize,
    max_items: u64,
}

impl TestBatch {
    /// Sets the classifier of the items (`taskMessageType`).
    #[must_use]
    pub fn item_type(mut self, classifier: impl Into<String>) -> Self {
        self.item_type = Some(classifier.into());
        self
    }

    /// Adds a parameter of the items (`taskMessageParams`).
    #[must_use]
    pub fn param(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// Sets the largest number of parts of one split; at least 10.
    #[must_use]
    pub const fn max_parts(mut self, parts: usize) -> Self {
        self.max_parts = parts;
        self
    }

    /// Sets the largest number of items.
    #[must_use]
    pub const fn max_items(mut self, items: u64) -> Self {
        self.max_items = items;
        self
    }

    /// Splits the batch and its sub-batches down to the items, and returns these in their order.
    ///
    /// # Errors
    /// Returns the first error of the plugin.
    ///
    /// # Panics
    /// If the plugin breaks a rule: a split that is repeated has other parts, or another source; it
    /// has more parts than allowed; the sub-batches never end; or `count_items` says another
    /// number.
    pub async fn items(&self, plugin: &impl BatchPlugin) -> Result<Vec<Payload>, SplitError> {
        let mut items = Vec::new();
        // What is still to be split, with its level: the last one comes next.
        let mut open = vec![(Part::Batch(self.definition.clone()), 1)];
        while let Some((part, level)) = open.pop() {
            match part {
                Part::Item(item) => items.push(item),
                Part::Batch(definition) => {
                    assert!(
                        level <= LEVELS,
                        "the sub-batches never end: {definition:?} is on level {level}"
                    );
                    let parts = self.split(plugin, &definition).await?;
                    open.extend(parts.into_iter().rev().map(|part| (part, level + 1)));
                }
            }
        }
        if let Some(count) = plugin.count_items(&self.definition) {
            assert_eq!(
                count,
                items.len() as u64,
                "count_items says another number than there are items"
            );
        }
        Ok(items)
    }

    /// Splits one batch twice, and returns its parts.
    async fn split(
        &self,
        plugin: &impl BatchPlugin,
        definition: &str,
    ) -> Result<Vec<Part>, SplitError> {
        let batch = Batch {
            definition,
            item_type: self.item_type.as_deref(),
            params: &self.params,
            partition: None,
            max_parts: self.max_parts.max(BatchWorker::MIN_PARTS),
            max_items: self.max_items,
            reading: None,
        };
        let parts = plugin.split(batch).await?;
        let again = plugin.split(batch).await?;
        assert_eq!(
            parts, again,
            "the same definition has other parts when it is split again: {definition:?}"
        );
        assert_eq!(
            plugin.source(batch, &parts),
            plugin.source(batch, &again),
            "the same parts have another source: {definition:?}"
        );
        let (count, limit) = (parts.len(), batch.max_parts);
        assert!(
            count <= limit,
            "{count} parts, although max_parts is {limit}: {definition:?}"
        );
        Ok(parts)
    }
}
