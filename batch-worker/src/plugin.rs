//! The trait of a batch plugin.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::pin::Pin;

use framework::{Payload, Source, TaskData};

use crate::reading::Reading;

/// Splits one kind of batch definition.
///
/// ```
/// # mod batchwright { pub use batchwright_batch_worker as batch; }
/// use batchwright::batch::{Batch, BatchPlugin, Part, SplitError};
///
/// /// Splits `a,b,c` into an item per word.
/// struct Words;
///
/// impl BatchPlugin for Words {
///     const NAME: &'static str = "words";
///     async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
///         let words: Vec<&str> = batch.definition.split(',').collect();
///         if words.len() <= batch.max_parts {
///             return words.iter().map(|word| batch.item("Word", word)).collect();
///         }
///         // Too many for one split: make sub-batches, each with a definition of its own.
///         let size = words.len().div_ceil(batch.max_parts);
///         Ok(words.chunks(size).map(|words| Part::Batch(words.join(","))).collect())
///     }
/// }
/// ```
pub trait BatchPlugin: Send + Sync + 'static {
    /// The batch type of this plugin, by which a batch names it.
    const NAME: &'static str;

    /// Splits a batch once: into items, into sub-batches that are split in turn, or into both.
    ///
    /// The same definition must always give the same parts in the same order, and at most
    /// `max_parts` of them.
    fn split(&self, batch: Batch<'_>)
    -> impl Future<Output = Result<Vec<Part>, SplitError>> + Send;

    /// Returns from what the batch was split into these parts, so that a job that is taken up again
    /// makes only those parts that are not done. By default it makes all of them again.
    /// [`Batch::parts_as_source`] is right for a plugin whose parts are the same, byte for byte, as
    /// long as its source is.
    ///
    /// ```
    /// # mod batchwright { pub use batchwright_batch_worker as batch; }
    /// use batchwright::batch::{Batch, BatchPlugin, Part, Source, SplitError};
    ///
    /// struct Letters;
    ///
    /// impl BatchPlugin for Letters {
    ///     const NAME: &'static str = "letters";
    ///     async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
    ///         batch.definition.chars().map(|letter| batch.item("Letter", &letter)).collect()
    ///     }
    ///     fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
    ///         Some(batch.parts_as_source("the letters", parts))
    ///     }
    /// }
    /// ```
    fn source(&self, _batch: Batch<'_>, _parts: &[Part]) -> Option<Source> {
        None
    }

    /// Returns how many items the batch becomes in the end, its sub-batches included, if the
    /// definition alone shows it. The progress of the job then knows its total from the start.
    fn count_items(&self, _definition: &str) -> Option<u64> {
        None
    }

    /// Checks a batch before there is a job, so that a client learns at once that its definition is
    /// invalid or that a source is missing. By default it splits the batch once. A plugin whose
    /// splits take long overrides it with what is fast, and refuses nothing that the first split
    /// accepts: an explanation only splits.
    fn check(&self, batch: Batch<'_>) -> impl Future<Output = Result<(), SplitError>> + Send {
        async move { self.split(batch).await.map(drop) }
    }

    /// Returns whether a split or check of this batch reads something outside of its definition,
    /// such as a file or a server, that may be slow. What reads has [slots of its
    /// own](crate::BatchWorker::readers); all other batches never wait for it. By default, every
    /// batch of a plugin reads.
    fn reads(&self, _batch: Batch<'_>) -> bool {
        true
    }

    /// Returns whether a batch that is split again later has the same parts, or fails: what it
    /// reads is pinned in its definition. Of such a batch, those items are dispatched that fit in
    /// their pipe, and the batch comes back for the others; of any other one, all are. By default,
    /// what [reads](Self::reads) is not pinned.
    fn is_pinned(&self, batch: Batch<'_>) -> bool {
        !self.reads(batch)
    }

    /// Returns what the batch becomes in the end, its sub-batches included, if that can be
    /// calculated. Otherwise a batch is explained by splitting it down to the items, for as long as
    /// somebody waits.
    fn totals(&self, _batch: Batch<'_>) -> Option<Totals> {
        None
    }

    /// Says in a few words what an item of this plugin is, e.g. `number 7`, when a batch is
    /// explained. By default people see its [label](Batch::labelled_item), or else the beginning of
    /// its data.
    fn label(&self, _item: &Payload) -> Option<String> {
        None
    }
}

/// What a batch becomes in the end ([`BatchPlugin::totals`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of items.
    pub items: u64,
    /// The number of splits, that of the batch itself included.
    pub splits: u64,
    /// How many splits lead to an item, at the most.
    pub levels: u32,
    /// The bytes of the data of all items.
    pub item_bytes: u64,
    /// The bytes of the definitions of all sub-batches.
    pub definition_bytes: u64,
}

/// A batch to split.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    /// The definition, which only the plugin understands.
    pub definition: &'a str,
    /// The classifier that the batch requests for its items.
    pub item_type: Option<&'a str>,
    /// The parameters that every item carries.
    pub params: &'a BTreeMap<String, String>,
    /// The partition of the job; `None` if the batch belongs to no job.
    pub partition: Option<&'a str>,
    /// The largest number of parts; at least 10.
    pub max_parts: usize,
    /// The largest number of items. A plugin that knows that there are more refuses the batch.
    pub max_items: u64,
    /// What reads for it; `None` if nothing else does.
    pub(crate) reading: Option<&'a Reading>,
}

#[cfg(test)]
impl<'a> Batch<'a> {
    /// Returns a batch without parameters or a limit of items.
    pub(crate) fn of(definition: &'a str, max_parts: usize) -> Self {
        static NO_PARAMS: BTreeMap<String, String> = BTreeMap::new();
        Self {
            definition,
            item_type: None,
            params: &NO_PARAMS,
            partition: None,
            max_parts,
            max_items: u64::MAX,
            reading: None,
        }
    }
}

impl Batch<'_> {
    /// Runs work that reads and blocks, on a thread of its own. If the split is cancelled
    /// meanwhile, [`Reading::check`] fails, and the work should end. The slot of the split is not
    /// free before it has.
    ///
    /// # Errors
    /// Returns the error of the work.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Reading) -> Result<T, SplitError> + Send + 'static,
    ) -> Result<T, SplitError> {
        match self.reading {
            Some(reading) => reading.run(work).await,
            None => Reading::default().run(work).await,
        }
    }

    /// Refuses a definition, which is a `what`, e.g. `range`, of more items than a job may have.
    pub fn check_items(&self, what: &str, items: u64) -> Result<(), SplitError> {
        let limit = self.max_items;
        if items > limit {
            return Err(SplitError::Definition(format!(
                "the {what} has {items} items; a job has at most {limit} (--max-items)"
            )));
        }
        Ok(())
    }

    /// Returns a source that is these parts. The name tells people where they come from.
    pub fn parts_as_source(&self, name: impl fmt::Display, parts: &[Part]) -> Source {
        let mut source = self.new_source(name);
        for part in parts {
            match part {
                Part::Batch(definition) => {
                    source.add("batch");
                    source.add(definition);
                }
                Part::Item(item) => {
                    source.add(&item.classifier);
                    source.add(&item.data);
                }
            }
        }
        source
    }

    /// Returns a source with nothing in it yet, for a plugin that is split again as long as
    /// something else than its parts is the same. The name tells people what it is; the limit of
    /// parts is added, because another one makes other parts.
    pub fn new_source(&self, name: impl fmt::Display) -> Source {
        let limit = self.max_parts;
        Source::new(format!("{name}, split into at most {limit} parts"))
    }

    /// Makes an item with this data. Its classifier is the item type of the batch, or else
    /// `default_type`.
    pub fn item<T: serde::Serialize + ?Sized>(
        &self,
        default_type: &str,
        data: &T,
    ) -> Result<Part, SplitError> {
        self.payload(default_type, data).map(Part::Item)
    }

    /// Makes an item as [`Self::item`] does, and says in a few words what it is. Failures and
    /// outputs of the item show this label, if its worker has no other ([`TaskData::label`]). It is
    /// cut to 256 bytes.
    pub fn labelled_item<T: serde::Serialize + ?Sized>(
        &self,
        default_type: &str,
        data: &T,
        label: impl Into<String>,
    ) -> Result<Part, SplitError> {
        let payload = self.payload(default_type, data)?;
        Ok(Part::Item(payload.labelled(label)))
    }

    fn payload<T: serde::Serialize + ?Sized>(
        &self,
        default_type: &str,
        data: &T,
    ) -> Result<Payload, SplitError> {
        let data =
            serde_json::to_vec(data).map_err(|error| SplitError::Definition(error.to_string()))?;
        Ok(Payload {
            classifier: self.item_type.unwrap_or(default_type).to_owned(),
            api_version: 1,
            data,
            label: None,
        })
    }
}

/// Says what an item is, by its type.
pub(crate) fn label_of<T: TaskData>(item: &Payload) -> Option<String> {
    serde_json::from_slice::<T>(&item.data).ok()?.label()
}

/// A part of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A sub-batch of the same type with this definition.
    Batch(String),
    /// An item for the target pipe.
    Item(Payload),
}

/// Why a batch cannot be split.
#[derive(Debug)]
pub enum SplitError {
    /// The definition, or a source that it names, is invalid. The text contains the position. The
    /// task fails.
    Definition(String),
    /// A source that the definition names is not there. The task fails; a job that starts later may
    /// be created all the same.
    Missing(String),
    /// Another error, which may be temporary. The split runs again.
    Temporary(Box<dyn Error + Send + Sync>),
}

impl<E: Into<Box<dyn Error + Send + Sync>>> From<E> for SplitError {
    fn from(error: E) -> Self {
        Self::Temporary(error.into())
    }
}

/// A plugin as a trait object.
pub(crate) trait AnyPlugin: Send + Sync {
    fn name(&self) -> &'static str;
    fn count_items(&self, definition: &str) -> Option<u64>;
    fn reads(&self, batch: Batch<'_>) -> bool;
    fn is_pinned(&self, batch: Batch<'_>) -> bool;
    fn totals(&self, batch: Batch<'_>) -> Option<Totals>;
    fn label(&self, item: &Payload) -> Option<String>;
    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source>;
    fn split<'a>(
        &'a self,
        batch: Batch<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Part>, SplitError>> + Send + 'a>>;
    fn check<'a>(
        &'a self,
        batch: Batch<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<(), SplitError>> + Send + 'a>>;
}

impl<P: BatchPlugin> AnyPlugin for P {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn count_items(&self, definition: &str) -> Option<u64> {
        BatchPlugin::count_items(self, definition)
    }

    fn reads(&self, batch: Batch<'_>) -> bool {
        BatchPlugin::reads(self, batch)
    }

    fn is_pinned(&self, batch: Batch<'_>) -> bool {
        BatchPlugin::is_pinned(self, batch)
    }

    fn totals(&self, batch: Batch<'_>) -> Option<Totals> {
        BatchPlugin::totals(self, batch)
    }

    fn label(&self, item: &Payload) -> Option<String> {
        BatchPlugin::label(self, item)
    }

    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
        BatchPlugin::source(self, batch, parts)
    }

    fn split<'a>(
        &'a self,
        batch: Batch<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Part>, SplitError>> + Send + 'a>> {
        Box::pin(BatchPlugin::split(self, batch))
    }

    fn check<'a>(
        &'a self,
        batch: Batch<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<(), SplitError>> + Send + 'a>> {
        Box::pin(BatchPlugin::check(self, batch))
    }
}

impl fmt::Debug for dyn AnyPlugin + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
