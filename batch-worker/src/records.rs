//! The plugin `records`: the records of files, as JSON: lines, CSV, TSV, JSON lines, and the
//! elements of a JSON array.
//!
//! ```json
//! {"files": ["customers.csv"], "recordsPerItem": 10}
//! ```
//!
//! The first split pins what each file looks like, and makes a part of each file, if there are
//! several. A part is read once from its beginning to its end, in bounded memory, to find where its
//! records begin; then it becomes parts of about the same number of records, or items. So a quoted
//! line break is never taken for the end of a record, each record has its number, and the total is
//! known after one pass. Where a file is, and how it is packed, is hidden by [`Files`].
//!
//! Anybody can write a part. It must fit its file, and have as many records as it says.

mod format;
mod places;
mod reader;

use std::mem;

use contract::{ListItem, RecordItem, TaskData};
use framework::Payload;
use serde::{Deserialize, Serialize};

use self::format::Format;
use self::places::{LEAF_BYTES, Places, items};
use self::reader::Records;
#[cfg(feature = "sources")]
use crate::files::Sources;
use crate::files::{CopyPin, Files, Packing, Pin, shown};
use crate::glob::PathPattern;
use crate::plugin::label_of;
use crate::reading::Reading;
use crate::source::Root;
use crate::uploads::Uploads;
use crate::{Batch, BatchPlugin, Part, Source, SplitError, even_size};

/// The most records of an item.
const MOST_RECORDS: u64 = 100_000;
/// The most files of a definition, unless there are more than `max_parts` times as many.
const LONGEST_LIST: usize = 10_000;
/// The longest header that each part repeats. A longer one is read again.
const LONGEST_HEADER: usize = 4096;

/// Splits files by records: below a root folder, and where else the operator allows.
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
    /// The folder whose files a user means, and the pattern of their paths below it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pattern: Option<String>,
    /// What they contain; by default what their names end with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    format: Option<Format>,
    /// How they are packed; by default what their names end with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compression: Option<Packing>,
    /// Whether the first record of CSV and TSV names the fields.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    header: bool,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    records_per_item: u64,
    /// Whether the items are those of the plugin `list`: the record alone.
    #[serde(default, skip_serializing_if = "is_not")]
    values: bool,
    /// The part of a file that a split has pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    part: Option<Pinned>,
    /// Several files that a split has pinned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    parts: Vec<Pinned>,
}

/// The records of a file that begin in `from..to`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Pinned {
    path: String,
    /// The size of the file in bytes, as it is where it is.
    size: u64,
    /// The time of the last change of a local file, in nanoseconds since 1970.
    #[serde(default, skip_serializing_if = "is_nothing")]
    modified: i64,
    /// What its server says of its state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    /// Whether its server gives it only as a whole.
    #[serde(default, skip_serializing_if = "is_not")]
    whole: bool,
    /// The size and the digest of what is in it, if it can only be read as a whole and has been.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<(u64, String)>,
    from: u64,
    to: u64,
    /// The number of the first record, from 1.
    first: u64,
    /// How many there are; unknown for a whole file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    records: Option<u64>,
    /// The header of the file, if it is a short one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fields: Option<Vec<String>>,
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

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_nothing(value: &i64) -> bool {
    *value == 0
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
const fn is_not(value: &bool) -> bool {
    !*value
}

impl RecordFiles {
    /// Returns a plugin for files below `root`. Definitions cannot name others.
    pub fn new(root: impl Into<Root>) -> Self {
        Self {
            files: Files::below(root),
        }
    }

    /// Adds uploads, which definitions name as `upload://ID`.
    #[must_use]
    pub fn with_uploads(self, uploads: Uploads) -> Self {
        let files = self.files.with_uploads(uploads);
        Self { files }
    }
}

#[cfg(feature = "sources")]
impl RecordFiles {
    /// Adds the files that are elsewhere.
    #[must_use]
    pub fn and(self, sources: Sources) -> Self {
        Self {
            files: self.files.and(sources),
        }
    }
}

/// What a definition becomes.
enum Found {
    Parts(Definitions),
    Items(Vec<RecordItem>),
}

/// The definitions of parts.
#[derive(Default)]
struct Definitions {
    texts: Vec<String>,
    /// The records of those parts of which it is known.
    records: u64,
}

impl BatchPlugin for RecordFiles {
    const NAME: &'static str = "records";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        let definition = Definition::parse(batch.definition)?;
        let (max_parts, files) = (batch.max_parts, self.files.of_batch(&batch));
        let (per_item, values) = (definition.records_per_item, definition.values);
        let split = move |reading: &Reading| definition.split(&files.read_for(reading), max_parts);
        match batch.read(split).await? {
            Found::Items(items) => items
                .into_iter()
                .map(|item| {
                    let params = batch.params.clone();
                    match item.record {
                        Some(value) if values => {
                            batch.item(ListItem::CLASSIFIER, &ListItem { value, params })
                        }
                        _ => batch.item(RecordItem::CLASSIFIER, &RecordItem { params, ..item }),
                    }
                })
                .collect(),
            Found::Parts(Definitions { texts, records }) => {
                batch.check_items("file", records.div_ceil(per_item))?;
                Ok(texts.into_iter().map(Part::Batch).collect())
            }
        }
    }

    /// Looks at the files, and does not read them.
    async fn check(&self, batch: Batch<'_>) -> Result<(), SplitError> {
        let mut definition = Definition::parse(batch.definition)?;
        let (max_parts, files) = (batch.max_parts, self.files.of_batch(&batch));
        let look = move |reading: &Reading| {
            let files = files.read_for(reading);
            match &definition.folder {
                Some(folder) => files.check_folder(folder),
                None => definition.pin(&files, max_parts).map(drop),
            }
        };
        batch.read(look).await
    }

    /// Several files that are pinned are divided by the definition alone.
    fn reads(&self, batch: Batch<'_>) -> bool {
        Definition::parse(batch.definition).is_ok_and(|definition| definition.parts.len() < 2)
    }

    fn is_pinned(&self, batch: Batch<'_>) -> bool {
        let definition = Definition::parse(batch.definition);
        definition.is_ok_and(|it| it.files.is_empty() && it.folder.is_none())
    }

    fn label(&self, item: &Payload) -> Option<String> {
        label_of::<RecordItem>(item).or_else(|| label_of::<ListItem>(item))
    }

    /// Returns the parts: a part of a file has what the file was, and an item its records.
    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
        let definition = Definition::parse(batch.definition).ok()?;
        let pinned = definition.part.or(definition.parts.into_iter().next());
        let file = pinned.map(|part| part.path).or(definition.folder);
        let file = file.or_else(|| definition.files.first().cloned())?;
        let file = shown(&file);
        Some(batch.parts_as_source(format_args!("the records of {file:?}"), parts))
    }

    fn count_items(&self, definition: &str) -> Option<u64> {
        let definition = Definition::parse(definition).ok()?;
        let records = definition.part?.records?;
        Some(records.div_ceil(definition.records_per_item))
    }
}

impl Definitions {
    fn add(&mut self, part: &Definition) -> Result<(), SplitError> {
        let records = part.part.as_ref().and_then(|part| part.records);
        self.records = self.records.saturating_add(records.unwrap_or_default());
        self.texts.push(serde_json::to_string(part)?);
        Ok(())
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
        if definition.values && per_item > 1 {
            return Err(SplitError::Definition(format!(
                "with values each record is an item, but recordsPerItem is {per_item}; leave one of both out"
            )));
        }
        let Self {
            files,
            folder,
            part,
            parts,
            ..
        } = &definition;
        let ways = [
            !files.is_empty(),
            folder.is_some(),
            part.is_some(),
            !parts.is_empty(),
        ];
        let count = ways.into_iter().filter(|is_used| *is_used).count();
        if count != 1 || definition.pattern.is_some() && folder.is_none() {
            return Err(SplitError::Definition(
                "name files or a folder, e.g. {\"files\": [\"customers.csv\"]} or {\"folder\": \"in\", \"pattern\": \"**/*.csv\"}"
                    .to_owned(),
            ));
        }
        Ok(definition)
    }

    fn split(mut self, files: &Files, max_parts: usize) -> Result<Found, SplitError> {
        let mut pinned = self.pin(files, max_parts)?;
        if pinned.len() == 1 {
            return self.split_file(files, pinned.remove(0), max_parts);
        }
        self.groups(pinned, max_parts).map(Found::Parts)
    }

    /// Divides several files into groups.
    fn groups(&self, pinned: Vec<Pinned>, max_parts: usize) -> Result<Definitions, SplitError> {
        let even = usize::try_from(even_size(pinned.len() as u64, max_parts as u64))?;
        // Rather an uneven tree than a definition that is too large for a message.
        let size = if even > LONGEST_LIST {
            pinned.len().div_ceil(max_parts)
        } else {
            even
        };
        let mut pinned = pinned.into_iter();
        let mut groups = Definitions::default();
        loop {
            let mut group: Vec<Pinned> = pinned.by_ref().take(size).collect();
            match group.len() {
                0 => return Ok(groups),
                1 => groups.add(&self.of(group.pop(), Vec::new()))?,
                _ => groups.add(&self.of(None, group))?,
            }
        }
    }

    /// Returns the same for what a split has pinned. What was pinned before is taken out of it
    /// already.
    fn of(&self, part: Option<Pinned>, parts: Vec<Pinned>) -> Self {
        Self {
            part,
            parts,
            ..self.clone()
        }
    }

    fn split_file(
        &self,
        files: &Files,
        part: Pinned,
        max_parts: usize,
    ) -> Result<Found, SplitError> {
        let (format, packing) = self.format_of(&part.path)?;
        let part = part.settle(files, packing)?;
        let open = || Records::open(files, &part, packing, format, self.header);
        let (per_item, bytes) = (self.records_per_item, part.to.saturating_sub(part.from));
        let is_leaf = |records: u64| {
            let items = records.div_ceil(per_item);
            // An item is never split, however large it is.
            items <= max_parts as u64 && (bytes <= LEAF_BYTES || items <= 1)
        };
        if part.records.is_some_and(is_leaf) {
            let items = items(open()?, &part, per_item)?;
            files.check_unchanged(&part.path, &part.pin())?;
            return Ok(Found::Items(items));
        }
        let mut records = open()?;
        let fields = records.short_header(LONGEST_HEADER);
        let places = Places::find(&mut records, per_item, max_parts)?;
        files.check_unchanged(&part.path, &part.pin())?;
        if part.records.is_some_and(|said| said != places.records) {
            return Err(part.wrong_count(&places.records.to_string()));
        }
        if places.stride == per_item && is_leaf(places.records) {
            return items(open()?, &part, per_item).map(Found::Items);
        }
        let whole = Pinned { fields, ..part };
        let mut parts = Definitions::default();
        for part in places.parts(&whole, per_item, max_parts) {
            parts.add(&self.of(Some(part), Vec::new()))?;
        }
        Ok(Found::Parts(parts))
    }

    /// Takes the parts out of a definition: what a split has pinned, or each file as it is now.
    fn pin(&mut self, files: &Files, max_parts: usize) -> Result<Vec<Pinned>, SplitError> {
        if let Some(part) = self.part.take() {
            return Ok(vec![part]);
        }
        let parts = mem::take(&mut self.parts);
        if !parts.is_empty() {
            return Ok(parts);
        }
        if let Some(folder) = self.folder.take() {
            let pattern = PathPattern::new(self.pattern.take().as_deref().unwrap_or("**"))?;
            let found = files.list(&folder, &pattern)?;
            let pinned = found.into_iter().map(|(path, pin)| {
                self.format_of(&path)?;
                Ok(Pinned::whole(path, pin))
            });
            return pinned.collect();
        }
        let names = mem::take(&mut self.files);
        let count = names.len();
        if count > max_parts {
            return Err(SplitError::Definition(format!(
                "there are {count} files; at most {max_parts} are possible (--max-parts). Make several jobs of them, or name their folder"
            )));
        }
        let mut seen = std::collections::BTreeSet::new();
        for path in &names {
            self.format_of(path)?;
            if !seen.insert(std::path::Path::new(path)) {
                return Err(SplitError::Definition(format!(
                    "the file {:?} is named twice",
                    shown(path)
                )));
            }
        }
        let found = files.look_at_all(names)?.into_iter();
        Ok(found.map(|(path, pin)| Pinned::whole(path, pin)).collect())
    }

    /// Returns what a file contains, and how it is packed.
    fn format_of(&self, path: &str) -> Result<(Format, Packing), SplitError> {
        let (packing, stem) = Packing::of(path);
        let format = self.format.or_else(|| Format::of(stem)).ok_or_else(|| {
            SplitError::Definition(format!(
                "the name of {:?} does not say what it contains; add `format`: lines, csv, tsv, jsonl or json",
                shown(path)
            ))
        })?;
        Ok((format, self.compression.unwrap_or(packing)))
    }
}

impl Pinned {
    /// Returns the part that is a whole file.
    fn whole(path: String, pin: Pin) -> Self {
        let to = pin.length();
        let Pin {
            size,
            modified,
            tag,
            whole,
            copy,
        } = pin;
        Self {
            path,
            size,
            modified,
            tag,
            whole,
            content: copy.map(|CopyPin { size, digest }| (size, digest)),
            to,
            first: 1,
            ..Self::default()
        }
    }

    /// Returns what its file was.
    fn pin(&self) -> Pin {
        let copy = self.content.clone();
        Pin {
            size: self.size,
            modified: self.modified,
            tag: self.tag.clone(),
            whole: self.whole,
            copy: copy.map(|(size, digest)| CopyPin { size, digest }),
        }
    }

    /// Returns the part with what is in its file, if that can only be read as a whole and has not
    /// been yet.
    fn settle(self, files: &Files, packing: Packing) -> Result<Self, SplitError> {
        let before = self.pin();
        let pin = files.settle(&self.path, before.clone(), packing)?;
        if pin == before {
            return Ok(self);
        }
        Ok(Self::whole(self.path, pin))
    }

    /// Refuses a part that does not fit its file.
    fn check_fit(&self) -> Result<(), SplitError> {
        let Self { path, from, to, .. } = self;
        let length = self.pin().length();
        // Each record before this part has a byte at least.
        if from > to || *to > length || self.first == 0 || self.first - 1 > *from {
            return Err(SplitError::Definition(format!(
                "the part {from}..{to} does not fit the file {:?}, which has {length} bytes",
                shown(path)
            )));
        }
        Ok(())
    }

    fn wrong_count(&self, found: &str) -> SplitError {
        let (path, said) = (shown(&self.path), self.records.unwrap_or_default());
        SplitError::Definition(format!(
            "the part of {path:?} from byte {} has {found} records and not {said}; name the file itself",
            self.from
        ))
    }
}

#[cfg(test)]
mod elsewhere;
#[cfg(test)]
mod slow;
#[cfg(test)]
mod tests;
