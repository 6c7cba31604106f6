//! The plugin `lines`: text files, split by ranges of whole lines.
//!
//! ```json
//! {"files": ["logs/a.txt", "logs/b.txt"], "linesPerItem": 100}
//! ```
//!
//! The first split pins each file's size and time of last change. From there on the definitions
//! name *segments*, which are byte ranges of pinned files. Anybody can write segments, so each
//! split checks that they fit their files and do not overlap. A line belongs to the segment in
//! which it begins, so a file can be cut anywhere without reading it. Only a split that is small
//! enough to make items reads its segments. It looks for line breaks and does not keep what it
//! reads.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use contract::{LineRange, TaskData};
use framework::Payload;
use serde::{Deserialize, Serialize};

use crate::plugin::label_of;
use crate::reading::{Reading, error_for_reader};
use crate::source::{Kind, Root, Stamp, check_path};
use crate::{Batch, BatchPlugin, Part, Source, SplitError};

/// A split of at most this many bytes reads its segments and makes items.
const LEAF_BYTES: u64 = 1024 * 1024;
/// How many files a message to people names.
const SHOWN: usize = 3;

/// Splits text files below a root folder by lines.
#[derive(Debug, Clone)]
pub struct Lines {
    root: Root,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Definition {
    /// The files that a user names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    files: Vec<String>,
    /// The segments that a split has pinned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    segments: Vec<Segment>,
    #[serde(default = "default_lines_per_item")]
    lines_per_item: u64,
}

/// The lines of a file that begin in `from..to`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Segment {
    path: String,
    /// The size of the file in bytes.
    size: u64,
    /// The time of the last change of the file, in nanoseconds since 1970.
    modified: i64,
    from: u64,
    to: u64,
}

const fn default_lines_per_item() -> u64 {
    1000
}

impl Lines {
    /// Returns a plugin for files below `root`. Definitions cannot name others.
    pub fn new(root: impl Into<Root>) -> Self {
        Self { root: root.into() }
    }
}

impl BatchPlugin for Lines {
    const NAME: &'static str = "lines";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        let definition = Definition::parse(batch)?;
        let (root, max_parts) = (self.root.clone(), batch.max_parts);
        let read = move |reading: &Reading| {
            let lines_per_item = definition.lines_per_item;
            let segments = pin(&root, definition, reading)?;
            check_fit(&root, &segments, reading)?;
            let is_leaf = total(&segments)? <= LEAF_BYTES && segments.len() <= max_parts;
            let ranges = if is_leaf {
                find_lines(&root, &segments, (lines_per_item, max_parts), reading)?
            } else {
                None
            };
            Ok(((segments, lines_per_item), ranges))
        };
        let (segments, ranges) = batch.read(read).await?;
        match ranges {
            Some(ranges) => ranges
                .into_iter()
                .map(|range| {
                    batch.item(
                        LineRange::CLASSIFIER,
                        &LineRange {
                            params: batch.params.clone(),
                            ..range
                        },
                    )
                })
                .collect(),
            None => partition(segments.0, max_parts)?
                .into_iter()
                .map(|segments_of_part| {
                    let definition = Definition {
                        files: Vec::new(),
                        segments: segments_of_part,
                        lines_per_item: segments.1,
                    };
                    Ok(Part::Batch(serde_json::to_string(&definition)?))
                })
                .collect(),
        }
    }

    /// Looks at the files, and does not read them.
    async fn check(&self, batch: Batch<'_>) -> Result<(), SplitError> {
        let (definition, root) = (Definition::parse(batch)?, self.root.clone());
        let look = move |reading: &Reading| {
            let segments = pin(&root, definition, reading)?;
            check_fit(&root, &segments, reading)
        };
        batch.read(look).await
    }

    fn is_pinned(&self, batch: Batch<'_>) -> bool {
        let definition = serde_json::from_str::<Definition>(batch.definition);
        definition.is_ok_and(|definition| definition.files.is_empty())
    }

    fn label(&self, item: &Payload) -> Option<String> {
        label_of::<LineRange>(item)
    }

    /// Returns the parts. They have the size and the time of each file, because where a line begins
    /// depends on the whole content.
    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
        let definition: Definition = serde_json::from_str(batch.definition).ok()?;
        Some(batch.parts_as_source(definition.name(), parts))
    }
}

impl Definition {
    fn parse(batch: Batch<'_>) -> Result<Self, SplitError> {
        let definition: Self = serde_json::from_str(batch.definition)
            .map_err(|error| SplitError::Definition(error.to_string()))?;
        if definition.lines_per_item == 0 {
            return Err(SplitError::Definition(
                "linesPerItem must be at least 1".to_owned(),
            ));
        }
        Ok(definition)
    }

    /// Names the first files, for people.
    fn name(&self) -> String {
        let segments = self.segments.iter().map(|segment| &segment.path);
        let mut files: Vec<&String> = self.files.iter().chain(segments).collect();
        files.dedup();
        let first = files.iter().take(SHOWN).map(|path| format!("{path:?}"));
        let first = first.collect::<Vec<_>>().join(", ");
        match files.len() {
            0 => "no file".to_owned(),
            1 => format!("the file {first}"),
            2..=SHOWN => format!("the files {first}"),
            more => format!("the files {first} and {} more", more - SHOWN),
        }
    }
}

/// Returns the segments of a definition: those that it names, and each file that it names as one
/// segment, pinned as it is now.
fn pin(root: &Root, definition: Definition, reading: &Reading) -> Result<Vec<Segment>, SplitError> {
    let mut segments = definition.segments;
    for path in definition.files {
        reading.check()?;
        let Stamp {
            kind,
            size,
            modified,
        } = root.stamp(&path)?;
        if kind != Kind::File {
            return Err(SplitError::Definition(format!("{path:?} is not a file")));
        }
        if size > 0 {
            segments.push(Segment {
                path,
                size,
                modified,
                from: 0,
                to: size,
            });
        }
    }
    Ok(segments)
}

/// Refuses segments that do not fit their files as they are now, or that overlap.
fn check_fit(root: &Root, segments: &[Segment], reading: &Reading) -> Result<(), SplitError> {
    let mut sorted = Vec::with_capacity(segments.len());
    for segment in segments {
        check_path(&segment.path)?;
        let path = Path::new(&segment.path);
        sorted.push((path.strip_prefix(".").unwrap_or(path), segment));
    }
    sorted.sort_unstable_by(|a, b| (a.0, a.1.from).cmp(&(b.0, b.1.from)));
    let mut before: Option<&(&Path, &Segment)> = None;
    for entry @ (file, segment) in &sorted {
        reading.check()?;
        let Segment { path, from, to, .. } = segment;
        let of_same_file = before.filter(|(other, _)| other == file);
        if of_same_file.is_none_or(|(_, other)| !other.has_stamp_of(segment)) {
            segment.check_unchanged(root.stamp(path)?)?;
        }
        if from >= to || *to > segment.size {
            let size = segment.size;
            return Err(SplitError::Definition(format!(
                "the segment {from}..{to} does not fit the file {path:?}, which has {size} bytes"
            )));
        }
        if of_same_file.is_some_and(|(_, other)| *from < other.to) {
            return Err(SplitError::Definition(format!(
                "the file {path:?} is named twice from byte {from} on; name each part of a file once"
            )));
        }
        before = Some(entry);
    }
    Ok(())
}

impl Segment {
    fn has_stamp_of(&self, other: &Self) -> bool {
        (self.size, self.modified) == (other.size, other.modified)
    }

    /// Refuses a file that is not as it was pinned.
    fn check_unchanged(&self, now: Stamp) -> Result<(), SplitError> {
        let Self { path, size, .. } = self;
        if now.kind != Kind::File {
            return Err(SplitError::Definition(format!("{path:?} is not a file")));
        }
        if (now.size, now.modified) != (self.size, self.modified) {
            return Err(SplitError::Definition(format!(
                "the file {path:?} has changed since the batch was made (it had {size} bytes, now it has {})",
                now.size
            )));
        }
        Ok(())
    }
}

/// Returns the number of bytes in these segments.
fn total(segments: &[Segment]) -> Result<u64, SplitError> {
    let lengths = segments
        .iter()
        .map(|segment| segment.to.checked_sub(segment.from));
    lengths
        .into_iter()
        .try_fold(0_u64, |sum, length| sum.checked_add(length?))
        .ok_or_else(|| SplitError::Definition("the segments have too many bytes".to_owned()))
}

/// Finds the items of these segments. Returns `None` if there are more than `max_parts`.
fn find_lines(
    root: &Root,
    segments: &[Segment],
    (lines_per_item, max_parts): (u64, usize),
    reading: &Reading,
) -> Result<Option<Vec<LineRange>>, SplitError> {
    let mut ranges = Vec::new();
    for segment in segments {
        let (file, now) = root.open(&segment.path)?;
        segment.check_unchanged(now)?;
        let file = Watched { file, reading };
        let mut reader = BufReader::with_capacity(64 * 1024, file);
        let mut at = first_line_start(&mut reader, segment)?;
        while at < segment.to {
            if ranges.len() == max_parts {
                return Ok(None);
            }
            let (offset, mut lines) = (at, 0);
            while at < segment.to && lines < lines_per_item {
                // Not beyond the pinned size, should the file grow meanwhile.
                at += skip_line(&mut reader, segment.size - at)?;
                lines += 1;
            }
            let Segment {
                path,
                size,
                modified,
                ..
            } = segment.clone();
            ranges.push(LineRange {
                path,
                offset,
                length: at - offset,
                lines,
                size,
                modified,
                params: std::collections::BTreeMap::new(),
            });
        }
    }
    Ok(Some(ranges))
}

/// A file that is read as long as somebody waits for it.
struct Watched<'a> {
    file: File,
    reading: &'a Reading,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reading.check().map_err(error_for_reader)?;
        self.file.read(buffer)
    }
}

impl Seek for Watched<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// Moves the reader to the first line that begins in the segment, or to the segment's end. Returns
/// its offset.
fn first_line_start<R: BufRead + Seek>(
    reader: &mut R,
    segment: &Segment,
) -> Result<u64, SplitError> {
    let Some(before) = segment.from.checked_sub(1) else {
        return Ok(0);
    };
    // A line begins at the segment if the byte before it is a line break.
    reader.seek(SeekFrom::Start(before))?;
    // No further than the segment: a file without line breaks would be read once for each segment.
    Ok(before + skip_line(reader, segment.to - before)?)
}

/// Reads past the next line break, or `limit` bytes, or to the end. Returns the number of bytes
/// read.
fn skip_line(reader: &mut impl BufRead, limit: u64) -> Result<u64, SplitError> {
    let mut skipped = 0;
    while skipped < limit {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Err(SplitError::Temporary(
                "a file has become shorter while it was read".into(),
            ));
        }
        let room = usize::try_from(limit - skipped).unwrap_or(usize::MAX);
        let buffer = &buffer[..buffer.len().min(room)];
        let (length, found) = match buffer.iter().position(|byte| *byte == b'\n') {
            Some(index) => (index + 1, true),
            None => (buffer.len(), false),
        };
        reader.consume(length);
        skipped += length as u64;
        if found {
            break;
        }
    }
    Ok(skipped)
}

/// Divides segments into at most `max_parts` groups of about the same number of bytes and of
/// segments.
fn partition(segments: Vec<Segment>, max_parts: usize) -> Result<Vec<Vec<Segment>>, SplitError> {
    let (bytes, count) = (total(&segments)?, segments.len());
    // A group is full by its bytes or by its number of segments. Each limit accounts for at most
    // half of the groups.
    let half = (max_parts - 1) / 2;
    let is_small = bytes <= LEAF_BYTES;
    // Small segments come here only if they have too many lines for one split.
    let (least_bytes, least_count) = if is_small {
        (1, 1)
    } else {
        (LEAF_BYTES, max_parts / 2)
    };
    let group_bytes = bytes.div_ceil(half as u64).max(least_bytes);
    let group_count = count.div_ceil(half).max(least_count);
    let mut groups = vec![Vec::new()];
    let mut room = group_bytes;
    for mut segment in segments {
        while segment.from < segment.to {
            let last = groups.len() - 1;
            if room == 0 || groups[last].len() == group_count {
                groups.push(Vec::new());
                room = group_bytes;
                continue;
            }
            let length = room.min(segment.to - segment.from);
            let cut = segment.from + length;
            room -= length;
            groups[last].push(Segment {
                to: cut,
                ..segment.clone()
            });
            segment.from = cut;
        }
    }
    Ok(groups)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    async fn split(
        root: &Path,
        definition: &str,
        max_parts: usize,
    ) -> Result<Vec<Part>, SplitError> {
        Lines::new(root)
            .split(Batch::of(definition, max_parts))
            .await
    }

    /// Splits a batch to the end and returns its items in order.
    async fn items(root: &Path, definition: String, max_parts: usize) -> Vec<LineRange> {
        let (mut items, mut open) = (Vec::new(), vec![definition]);
        while let Some(definition) = open.pop() {
            let parts = split(root, &definition, max_parts).await.unwrap();
            assert!(parts.len() <= max_parts, "{} parts", parts.len());
            for part in parts {
                match part {
                    Part::Batch(part) => {
                        assert_ne!(part, definition, "a split must make its batch smaller");
                        open.push(part);
                    }
                    Part::Item(item) => items.push(serde_json::from_slice(&item.data).unwrap()),
                }
            }
        }
        items.sort_by(|a: &LineRange, b| (&a.path, a.offset).cmp(&(&b.path, b.offset)));
        items
    }

    fn part_of<'a>(text: &'a str, item: &LineRange) -> &'a str {
        let from = usize::try_from(item.offset).unwrap();
        &text[from..from + usize::try_from(item.length).unwrap()]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn items_of_a_file_are_its_lines_each_once(
            lines in proptest::collection::vec("[a-z]{0,12}", 0..400), ends_with_break in any::<bool>(),
            lines_per_item in 1u64..20, max_parts in 10usize..40,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut text = lines.join("\n");
            if ends_with_break { text.push('\n'); }
            std::fs::write(folder.path().join("a"), &text).unwrap();
            std::fs::write(folder.path().join("b"), "one\ntwo\n").unwrap();
            let definition = format!(r#"{{"files":["a","b"],"linesPerItem":{lines_per_item}}}"#);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let items = runtime.block_on(items(folder.path(), definition, max_parts));
            let of_a: Vec<_> = items.iter().filter(|item| item.path == "a").collect();
            let joined: String = of_a.iter().map(|item| part_of(&text, item)).collect();
            prop_assert_eq!(&joined, &text);
            for item in &of_a {
                let part = part_of(&text, item);
                prop_assert_eq!(part.lines().count() as u64, item.lines);
                prop_assert!(item.lines <= lines_per_item);
            }
        }

        #[test]
        fn partition_keeps_every_byte_and_never_has_too_many_groups(
            sizes in proptest::collection::vec(1u64..50_000_000, 1..3000), max_parts in 10usize..1000,
        ) {
            let segments: Vec<_> = sizes.iter().enumerate()
                .map(|(n, size)| Segment { path: n.to_string(), size: *size, modified: 0, from: 0, to: *size }).collect();
            let groups = partition(segments.clone(), max_parts).unwrap();
            prop_assert!(groups.len() <= max_parts, "{} groups", groups.len());
            prop_assert!(groups.iter().all(|group| !group.is_empty()));
            let all: Vec<Segment> = groups.into_iter().flatten().collect();
            prop_assert_eq!(total(&all).unwrap(), total(&segments).unwrap());
        }
    }

    #[tokio::test]
    async fn file_that_changes_after_the_first_split_fails_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.txt");
        std::fs::write(&file, "x\n".repeat(1_000_000)).unwrap();
        let parts = split(folder.path(), r#"{"files":["a.txt"]}"#, 10)
            .await
            .unwrap();
        let Part::Batch(part) = &parts[0] else {
            panic!("{parts:?}")
        };
        std::fs::write(&file, "y\n").unwrap();
        let error = split(folder.path(), part, 10).await.unwrap_err();
        assert!(
            matches!(&error, SplitError::Definition(text) if text.contains("\"a.txt\" has changed")),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn segments_that_do_not_fit_their_file_or_each_other_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "12345678\n").unwrap();
        let modified = Root::new(folder.path()).stamp("a").unwrap().modified;
        let largest = u64::MAX;
        for (segments, text) in [
            (vec![(9, 0, 9)], None),
            (vec![(9, 5, 9), (9, 0, 5)], None),
            (
                vec![(9, 0, largest)],
                Some("0..18446744073709551615 does not fit the file \"a\", which has 9 bytes"),
            ),
            (
                vec![(largest, 0, largest)],
                Some("has changed since the batch was made"),
            ),
            (vec![(9, 0, 9), (largest, 0, 1)], Some("has changed since")),
            (vec![(9, 7, 3)], Some("7..3 does not fit")),
            (vec![(9, 3, 3)], Some("3..3 does not fit")),
            (
                vec![(9, 5, 9), (9, 0, 6)],
                Some("\"a\" is named twice from byte 5 on"),
            ),
        ] {
            let segments: Vec<_> = segments
                .into_iter()
                .map(|(size, from, to)| Segment {
                    path: "a".into(),
                    size,
                    modified,
                    from,
                    to,
                })
                .collect();
            let definition = serde_json::json!({"segments": segments}).to_string();
            match (split(folder.path(), &definition, 10).await, text) {
                (Ok(_), None) => {}
                (Err(SplitError::Definition(found) | SplitError::Missing(found)), Some(text))
                    if found.contains(text) => {}
                (found, _) => panic!("{definition}: {found:?}"),
            }
        }
    }

    #[tokio::test]
    async fn bad_definition_is_refused_with_the_position() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a"), "1\n").unwrap();
        for (definition, text) in [
            ("{\"files\":[\n1]}", "line 2 column 1"),
            (r#"{"flies":[]}"#, "unknown field `flies`"),
            (r#"{"files":["nowhere"]}"#, "there is no file \"nowhere\""),
            (
                r#"{"files":["../etc/passwd"]}"#,
                "not a path below the root folder",
            ),
            (
                r#"{"files":["/etc/passwd"]}"#,
                "not a path below the root folder",
            ),
            (r#"{"files":["."]}"#, "is not a file"),
            (
                r#"{"files":[],"linesPerItem":0}"#,
                "linesPerItem must be at least 1",
            ),
            (r#"{"files":["a","./a"]}"#, "is named twice from byte 0 on"),
        ] {
            let error = split(folder.path(), definition, 10).await.unwrap_err();
            assert!(
                matches!(&error, SplitError::Definition(found) | SplitError::Missing(found) if found.contains(text)),
                "{definition}: {error:?}"
            );
        }
    }
}
