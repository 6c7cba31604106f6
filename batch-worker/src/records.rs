//! The plugin `records`: the records of files, as JSON: lines, CSV, TSV, JSON lines, and the elements of a JSON array.
//!
//! ```json
//! {"files": ["customers.csv"], "recordsPerItem": 10}
//! ```
//!
//! The first split pins each file's size and time of last change, and makes a part of each file, if there are several. A part is read
//! once from its beginning to its end, in bounded memory, to find where its records begin; then it becomes parts of about the same number
//! of records, or items.
//! So a quoted line break is never taken for the end of a record, each record has its number, and the total is known after one pass.
//!
//! Anybody can write a part. It must fit its file, and have as many records as it says.

mod format;
mod reader;

use std::collections::BTreeMap;
use std::path::Path;

use contract::{RecordItem, TaskData};
use framework::Payload;
use serde::{Deserialize, Serialize};

use self::format::Format;
use self::reader::{Place, Records};
use crate::files::{Files, Pin};
use crate::plugin::label_of;
use crate::source::Root;
use crate::{Batch, BatchPlugin, Part, Source, SplitError};

/// A split of at most this many bytes makes items.
const LEAF_BYTES: u64 = 8 * 1024 * 1024;
/// The most bytes of an item, and of the items of a split, as JSON.
const LARGEST_ITEM: usize = 8 * 1024 * 1024;
const LARGEST_SPLIT: usize = 64 * 1024 * 1024;
/// The most records of an item.
const MOST_RECORDS: u64 = 100_000;

/// Splits files below a root folder by records.
#[derive(Debug, Clone)]
pub struct RecordFiles {
    files: Files,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Definition {
    /// The files that a user names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<String>,
    /// What they contain; by default what their names end with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    format: Option<Format>,
    /// Whether the first record of CSV and TSV names the fields.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    header: bool,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    records_per_item: u64,
    /// The part of a file that a split has pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<Pinned>,
}

/// The records of a file that begin in `from..to`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pinned {
    path: String,
    /// The size of the file in bytes.
    size: u64,
    /// The time of the last change of the file, in nanoseconds since 1970.
    modified: i64,
    from: u64,
    to: u64,
    /// The number of the first record, from 1.
    first: u64,
    /// How many there are; unknown for a whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    records: Option<u64>,
}

const fn yes() -> bool {
    true
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_yes(value: &bool) -> bool {
    *value
}

const fn one() -> u64 {
    1
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_one(value: &u64) -> bool {
    *value == 1
}

impl RecordFiles {
    /// Returns a plugin for files below `root`. Definitions cannot name others.
    pub fn new(root: impl Into<Root>) -> Self {
        Self {
            files: Files::below(root),
        }
    }
}

/// What a part becomes.
enum Found {
    Parts(Vec<Pinned>),
    Items(Vec<RecordItem>),
}

impl BatchPlugin for RecordFiles {
    const NAME: &'static str = "records";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        let definition = Definition::parse(batch.definition)?;
        let (files, max_parts, max_items) = (self.files.clone(), batch.max_parts, batch.max_items);
        // Reading files blocks.
        let split = tokio::task::spawn_blocking(move || {
            let found = definition.split(&files, max_parts)?;
            Ok::<_, SplitError>((definition, found))
        });
        let (definition, found) = split.await??;
        if let Found::Parts(parts) = &found {
            let records = parts.iter().filter_map(|part| part.records).sum::<u64>();
            let items = records.div_ceil(definition.records_per_item);
            if items > max_items {
                batch.check_items("file", items)?;
            }
        }
        match found {
            Found::Items(items) => items
                .into_iter()
                .map(|item| {
                    let item = RecordItem {
                        params: batch.params.clone(),
                        ..item
                    };
                    batch.item(RecordItem::CLASSIFIER, &item)
                })
                .collect(),
            Found::Parts(parts) => parts
                .into_iter()
                .map(|part| {
                    let definition = Definition {
                        files: Vec::new(),
                        part: Some(part),
                        ..definition.clone()
                    };
                    Ok(Part::Batch(serde_json::to_string(&definition)?))
                })
                .collect(),
        }
    }

    /// Looks at the files, and does not read them.
    async fn check(&self, batch: Batch<'_>) -> Result<(), SplitError> {
        let definition = Definition::parse(batch.definition)?;
        let (files, max_parts) = (self.files.clone(), batch.max_parts);
        let look = move || match definition.part {
            Some(_) => Ok(()),
            None => definition.pin(&files, max_parts).map(drop),
        };
        tokio::task::spawn_blocking(look).await?
    }

    fn label(&self, item: &Payload) -> Option<String> {
        label_of::<RecordItem>(item)
    }

    /// Returns the parts: a part of a file has its size and time, and an item its records.
    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
        let definition = Definition::parse(batch.definition).ok()?;
        let file = definition.part.map(|part| part.path);
        let file = file.or_else(|| definition.files.first().cloned())?;
        Some(batch.parts_as_source(format_args!("the records of {file:?}"), parts))
    }

    fn count_items(&self, definition: &str) -> Option<u64> {
        let definition = Definition::parse(definition).ok()?;
        let records = definition.part?.records?;
        Some(records.div_ceil(definition.records_per_item))
    }
}

impl Definition {
    fn parse(text: &str) -> Result<Self, SplitError> {
        let definition: Self = serde_json::from_str(text)
            .map_err(|error| SplitError::Definition(error.to_string()))?;
        let per_item = definition.records_per_item;
        if !(1..=MOST_RECORDS).contains(&per_item) {
            return Err(SplitError::Definition(format!(
                "recordsPerItem is {per_item}; it is from 1 to {MOST_RECORDS}"
            )));
        }
        if definition.files.is_empty() == definition.part.is_none() {
            return Err(SplitError::Definition(
                "name files, e.g. {\"files\": [\"customers.csv\"]}".to_owned(),
            ));
        }
        Ok(definition)
    }

    fn split(&self, files: &Files, max_parts: usize) -> Result<Found, SplitError> {
        let part = match &self.part {
            Some(part) => part.clone(),
            None => match self.pin(files, max_parts)? {
                mut whole if whole.len() == 1 => whole.remove(0),
                whole => return Ok(Found::Parts(whole)),
            },
        };
        let part = &part;
        let format = self.format_of(&part.path)?;
        let open = || Records::open(files, part, format, self.header);
        let places = Places::find(open()?, self.records_per_item, max_parts)?;
        files.check_unchanged(&part.path, &part.pin())?;
        if part
            .records
            .is_some_and(|records| records != places.records)
        {
            let (path, said, found) =
                (&part.path, part.records.unwrap_or_default(), places.records);
            return Err(SplitError::Definition(format!(
                "the part of {path:?} from byte {} has {found} records and not {said}; name the file itself",
                part.from
            )));
        }
        let bytes = part.to.saturating_sub(part.from);
        // An item is never split, however large it is.
        if places.stride == self.records_per_item
            && (bytes <= LEAF_BYTES || places.begins.len() <= 1)
        {
            return items(open()?, part, self.records_per_item).map(Found::Items);
        }
        Ok(Found::Parts(places.parts(
            part,
            self.records_per_item,
            max_parts,
        )))
    }

    /// Makes a part of each file, as it is now.
    fn pin(&self, files: &Files, max_parts: usize) -> Result<Vec<Pinned>, SplitError> {
        let count = self.files.len();
        if count > max_parts {
            return Err(SplitError::Definition(format!(
                "there are {count} files; at most {max_parts} are possible (--max-parts). Make several jobs of them"
            )));
        }
        let mut parts = Vec::new();
        let mut seen = std::collections::BTreeSet::new();
        for path in &self.files {
            let Pin { size, modified } = files.look(path)?;
            if !seen.insert(Path::new(path)) {
                return Err(SplitError::Definition(format!(
                    "the file {path:?} is named twice"
                )));
            }
            self.format_of(path)?;
            let path = path.clone();
            parts.push(Pinned {
                path,
                size,
                modified,
                from: 0,
                to: size,
                first: 1,
                records: None,
            });
        }
        Ok(parts)
    }

    fn format_of(&self, path: &str) -> Result<Format, SplitError> {
        self.format.or_else(|| Format::of(path)).ok_or_else(|| {
            SplitError::Definition(format!(
                "the name of {path:?} does not say what it contains; add `format`: lines, csv, tsv, jsonl or json"
            ))
        })
    }
}

impl Pinned {
    /// Returns what its file was.
    const fn pin(&self) -> Pin {
        Pin {
            size: self.size,
            modified: self.modified,
        }
    }

    /// Refuses a part that does not fit its file.
    fn check_fit(&self) -> Result<(), SplitError> {
        let Self {
            path,
            size,
            from,
            to,
            ..
        } = self;
        // Each record before this part has a byte at least.
        if from > to || to > size || self.first == 0 || self.first - 1 > *from {
            return Err(SplitError::Definition(format!(
                "the part {from}..{to} does not fit the file {path:?}, which has {size} bytes"
            )));
        }
        Ok(())
    }
}

/// Where groups of records begin.
struct Places {
    /// The offset and the number of the first record of each group.
    begins: Vec<Place>,
    /// The records of a group.
    stride: u64,
    records: u64,
}

impl Places {
    /// Reads all records. The groups become larger while there are more than `most`.
    fn find(mut records: Records, per_item: u64, most: usize) -> Result<Self, SplitError> {
        let mut places = Self {
            begins: Vec::new(),
            stride: per_item,
            records: 0,
        };
        while let Some(place) = records.skip()? {
            if places.records.is_multiple_of(places.stride) {
                if places.begins.len() == most {
                    let mut at = 0_usize;
                    places.begins.retain(|_| {
                        at += 1;
                        at % 2 == 1
                    });
                    places.stride *= 2;
                }
                if places.records.is_multiple_of(places.stride) {
                    places.begins.push(place);
                }
            }
            places.records += 1;
        }
        Ok(places)
    }

    /// Returns the groups as parts. Small neighbours become one, if one split can make items of it.
    fn parts(&self, whole: &Pinned, per_item: u64, most: usize) -> Vec<Pinned> {
        let mut parts: Vec<Pinned> = Vec::new();
        for (at, begin) in self.begins.iter().enumerate() {
            let next = self.begins.get(at + 1);
            let to = next.map_or(whole.to, |next| next.offset);
            let end = next.map_or(whole.first + self.records, |next| next.number);
            if let Some(last) = parts.last_mut()
                && to - last.from <= LEAF_BYTES
                && (end - last.first).div_ceil(per_item) <= most as u64
            {
                last.to = to;
                last.records = Some(end - last.first);
                continue;
            }
            parts.push(Pinned {
                from: begin.offset,
                to,
                first: begin.number,
                records: Some(end - begin.number),
                ..whole.clone()
            });
        }
        parts
    }
}

/// Reads the items of a part.
fn items(
    mut records: Records,
    part: &Pinned,
    per_item: u64,
) -> Result<Vec<RecordItem>, SplitError> {
    let mut items: Vec<RecordItem> = Vec::new();
    let (mut bytes, mut all_bytes) = (0, 0);
    let mut next = part.first;
    while let Some(record) = records.read()? {
        if (next - part.first).is_multiple_of(per_item) {
            bytes = 0;
            items.push(RecordItem {
                path: part.path.clone(),
                number: next,
                record: None,
                records: Vec::new(),
                params: BTreeMap::new(),
            });
        }
        next += 1;
        bytes += record.get().len();
        all_bytes += record.get().len();
        if bytes > LARGEST_ITEM || all_bytes > LARGEST_SPLIT {
            let path = &part.path;
            return Err(SplitError::Definition(format!(
                "up to record {} of {path:?}, an item becomes {bytes} bytes of JSON, and its split {all_bytes}; at most {LARGEST_ITEM} and \
                 {LARGEST_SPLIT} are possible. Lower recordsPerItem",
                next - 1
            )));
        }
        if let Some(item) = items.last_mut() {
            if per_item == 1 {
                item.record = Some(record);
            } else {
                item.records.push(record);
            }
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests;
