//! What a batch plugin is.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::pin::Pin;

use framework::Payload;

/// Understands one kind of batch definition.
///
/// ```
/// use batch_worker::{Batch, BatchPlugin, Part, SplitError};
///
/// /// `a,b,c`: an item for each word.
/// struct Words;
///
/// impl BatchPlugin for Words {
///     const NAME: &'static str = "words";
///     async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
///         let words: Vec<&str> = batch.definition.split(',').collect();
///         if words.len() <= batch.max_parts {
///             return words.iter().map(|word| batch.item("Word", word)).collect();
///         }
///         // Too many for one split: as many sub-batches as may be, each a definition of its own.
///         let size = words.len().div_ceil(batch.max_parts);
///         Ok(words.chunks(size).map(|words| Part::Batch(words.join(","))).collect())
///     }
/// }
/// ```
pub trait BatchPlugin: Send + Sync + 'static {
    /// The batch type that names this plugin.
    const NAME: &'static str;

    /// Splits a batch once: into items, or into sub-batches that are split in turn, or both. The same definition must
    /// always give the same parts in the same order, and no more than `max_parts`.
    fn split(&self, batch: Batch<'_>)
    -> impl Future<Output = Result<Vec<Part>, SplitError>> + Send;
}

/// A batch to split.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'a> {
    pub definition: &'a str,
    /// The classifier that the batch wants its items to have.
    pub item_type: Option<&'a str>,
    /// What every item carries.
    pub params: &'a BTreeMap<String, String>,
    /// The most parts of one split; at least 10.
    pub max_parts: usize,
}

impl Batch<'_> {
    /// An item with this data; its classifier is the batch's item type, or this one.
    pub fn item<T: serde::Serialize + ?Sized>(
        &self,
        default_type: &str,
        data: &T,
    ) -> Result<Part, SplitError> {
        let data =
            serde_json::to_vec(data).map_err(|error| SplitError::Definition(error.to_string()))?;
        Ok(Part::Item(Payload {
            classifier: self.item_type.unwrap_or(default_type).to_owned(),
            api_version: 1,
            data,
        }))
    }
}

/// What a batch is split into.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// A batch of the same type with this definition.
    Batch(String),
    /// An item for the target pipe.
    Item(Payload),
}

/// Why a batch cannot be split.
#[derive(Debug)]
pub enum SplitError {
    /// The definition is wrong, or what it names is; names the place. The task fails.
    Definition(String),
    /// Something else went wrong, and may not do so again. The split is tried again.
    Trouble(Box<dyn Error + Send + Sync>),
}

impl<E: Error + Send + Sync + 'static> From<E> for SplitError {
    fn from(error: E) -> Self {
        Self::Trouble(Box::new(error))
    }
}

/// A plugin behind a pointer.
pub(crate) trait AnyPlugin: Send + Sync {
    fn name(&self) -> &'static str;
    fn split<'a>(
        &'a self,
        batch: Batch<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Part>, SplitError>> + Send + 'a>>;
}

impl<P: BatchPlugin> AnyPlugin for P {
    fn name(&self) -> &'static str {
        P::NAME
    }

    fn split<'a>(
        &'a self,
        batch: Batch<'a>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Part>, SplitError>> + Send + 'a>> {
        Box::pin(BatchPlugin::split(self, batch))
    }
}

impl fmt::Debug for dyn AnyPlugin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
