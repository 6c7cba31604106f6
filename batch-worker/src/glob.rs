//! The plugin `glob`: an item per file of a directory tree that matches a pattern.
//!
//! ```json
//! {"folder": "scans/2016", "pattern": "**/*.tif"}
//! ```
//!
//! Each split lists one folder. Its files become items and its folders become sub-batches, so that
//! a tree of any size is walked in parallel. The definition of a sub-batch pins the time of the
//! folder's last change. If the folder has changed since, the split fails, because repeating it
//! would find other names.
//!
//! Anybody can write pinned entries. They must be below their base, in order and each once, as a
//! listing has them. What they say about a file is checked by the worker that takes the item.

use std::path::Path;

use contract::{FileItem, TaskData};
use framework::Payload;
use serde::{Deserialize, Serialize};

pub(crate) use self::pattern::PathPattern;
use crate::plugin::label_of;
use crate::reading::Reading;
use crate::source::{Kind, Root, check_path};
use crate::{Batch, BatchPlugin, Part, Source, SplitError, even_size};

mod pattern;

/// The largest number of entries in a definition, unless a folder has more than `max_parts` times
/// as many.
const LONGEST_LIST: usize = 10_000;

/// Splits directory trees below a root folder.
#[derive(Debug, Clone)]
pub struct Glob {
    root: Root,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Definition {
    /// The folder that a user names, below the root. `.` is the root itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    folder: Option<String>,
    /// The pattern of the path below that folder. `**` matches `/`; `*` does not.
    #[serde(default = "everything")]
    pattern: String,
    /// The entries that a split has pinned: files that match, and folders.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    entries: Vec<Entry>,
    /// The folder below which the pattern counts, if entries are pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// The path below the root.
    path: String,
    modified: i64,
    /// The size of a file in bytes; `None` for a folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
}

fn everything() -> String {
    "**".to_owned()
}

impl Glob {
    /// Returns a plugin for folders below `root`. Definitions cannot name others.
    pub fn new(root: impl Into<Root>) -> Self {
        Self { root: root.into() }
    }
}

impl BatchPlugin for Glob {
    const NAME: &'static str = "glob";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        let definition: Definition = serde_json::from_str(batch.definition)
            .map_err(|error| SplitError::Definition(error.to_string()))?;
        let pattern = PathPattern::new(&definition.pattern)?;
        let root = self.root.clone();
        let find = move |reading: &Reading| {
            let Definition {
                folder,
                pattern: text,
                entries,
                base,
            } = definition;
            match (folder, base, entries.as_slice()) {
                // The first split only pins the folder.
                (Some(folder), None, []) => Ok((vec![pin(&root, &folder)?], folder, text)),
                (None, Some(base), [only]) if only.size.is_none() => {
                    check_fit(&base, &entries)?;
                    Ok((list(&root, &base, &pattern, only, reading)?, base, text))
                }
                (None, Some(base), [_, ..]) => {
                    check_fit(&base, &entries)?;
                    Ok((entries, base, text))
                }
                _ => Err(no_folder()),
            }
        };
        let (entries, base, pattern_text) = batch.read(find).await?;
        let even = usize::try_from(even_size(entries.len() as u64, batch.max_parts as u64))?;
        // Rather an uneven tree than a definition that is too large for a message.
        let size = if even > LONGEST_LIST {
            entries.len().div_ceil(batch.max_parts)
        } else {
            even
        };
        entries
            .chunks(size)
            .map(|entries| match entries {
                [
                    Entry {
                        path,
                        modified,
                        size: Some(size),
                    },
                ] => {
                    let (path, params) = (path.clone(), batch.params.clone());
                    batch.item(
                        FileItem::CLASSIFIER,
                        &FileItem {
                            path,
                            size: *size,
                            modified: *modified,
                            params,
                        },
                    )
                }
                entries => {
                    let (pattern, base) = (pattern_text.clone(), Some(base.clone()));
                    let definition = Definition {
                        folder: None,
                        pattern,
                        entries: entries.to_vec(),
                        base,
                    };
                    Ok(Part::Batch(serde_json::to_string(&definition)?))
                }
            })
            .collect()
    }

    /// Looks at the folder, and does not list it.
    async fn check(&self, batch: Batch<'_>) -> Result<(), SplitError> {
        let definition: Definition = serde_json::from_str(batch.definition)
            .map_err(|error| SplitError::Definition(error.to_string()))?;
        let Some(folder) = definition.folder.clone() else {
            return self.split(batch).await.map(drop);
        };
        PathPattern::new(&definition.pattern)?;
        if definition.base.is_some() || !definition.entries.is_empty() {
            return Err(no_folder());
        }
        let root = self.root.clone();
        batch.read(move |_| pin(&root, &folder).map(drop)).await
    }

    /// Several entries that are pinned are divided by the definition alone, and a file that is
    /// pinned is an item.
    fn reads(&self, batch: Batch<'_>) -> bool {
        let definition = serde_json::from_str::<Definition>(batch.definition);
        definition.is_ok_and(|definition| match definition.entries.as_slice() {
            [] => true,
            [only] => only.size.is_none(),
            _ => false,
        })
    }

    fn label(&self, item: &Payload) -> Option<String> {
        label_of::<FileItem>(item)
    }

    /// Returns the names, in order: a file that has been mended or replaced between two rounds is
    /// the same item.
    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
        let definition: Definition = serde_json::from_str(batch.definition).ok()?;
        let pattern = &definition.pattern;
        let mut source = match (definition.folder, definition.entries.as_slice()) {
            (None, [only]) => {
                let base = definition.base.unwrap_or_default();
                batch.new_source(format!(
                    "the folder {:?} (pattern {pattern:?} below {base:?})",
                    only.path
                ))
            }
            (folder, _) => {
                let base = folder.or(definition.base).unwrap_or_default();
                batch.new_source(format!("the folder {base:?} (pattern {pattern:?})"))
            }
        };
        for part in parts {
            match part {
                Part::Item(item) => {
                    let file: NameOfFile = serde_json::from_slice(&item.data).ok()?;
                    source.add("file");
                    source.add(&file.path);
                }
                Part::Batch(definition) => {
                    let names: Definition = serde_json::from_str(definition).ok()?;
                    source.add((names.entries.len() as u64).to_le_bytes());
                    for entry in names.entries {
                        source.add(if entry.size.is_some() {
                            "file"
                        } else {
                            "folder"
                        });
                        source.add(&entry.path);
                    }
                }
            }
        }
        Some(source)
    }
}

/// What of a [`FileItem`] makes a source.
#[derive(Deserialize)]
struct NameOfFile {
    path: String,
}

fn no_folder() -> SplitError {
    SplitError::Definition(
        "name a folder, e.g. {\"folder\": \"scans\", \"pattern\": \"**/*.tif\"}".to_owned(),
    )
}

fn pin(root: &Root, folder: &str) -> Result<Entry, SplitError> {
    let stamp = root.stamp(folder)?;
    if stamp.kind != Kind::Folder {
        return Err(SplitError::Definition(format!(
            "{folder:?} is not a folder"
        )));
    }
    Ok(Entry {
        path: folder.to_owned(),
        modified: stamp.modified,
        size: None,
    })
}

/// Refuses entries that no listing below the base contains.
fn check_fit(base: &str, entries: &[Entry]) -> Result<(), SplitError> {
    check_path(base)?;
    for entry in entries {
        check_path(&entry.path)?;
        if base != "." && !Path::new(&entry.path).starts_with(base) {
            return Err(SplitError::Definition(format!(
                "the entry {:?} is not below the base {base:?}",
                entry.path
            )));
        }
    }
    let is_out_of_order = |pair: &&[Entry]| pair[0].path >= pair[1].path;
    if let Some([before, after]) = entries.windows(2).find(is_out_of_order) {
        return Err(SplitError::Definition(format!(
            "the entry {:?} follows {:?}; entries must be in order, each once",
            after.path, before.path
        )));
    }
    Ok(())
}

/// Lists a folder: the files that match, and the folders. Does not follow links, which may form a
/// cycle.
fn list(
    root: &Root,
    base: &str,
    pattern: &PathPattern,
    folder: &Entry,
    reading: &Reading,
) -> Result<Vec<Entry>, SplitError> {
    let (now, found) = root.list(&folder.path, reading)?;
    if now.modified != folder.modified {
        return Err(SplitError::Definition(format!(
            "the folder {:?} has changed since the batch was made",
            folder.path
        )));
    }
    let mut entries = Vec::new();
    for (name, stamp) in found {
        let path = if folder.path == "." {
            name
        } else {
            format!("{}/{name}", folder.path)
        };
        let below = if base == "." {
            path.as_str()
        } else {
            path.strip_prefix(base)
                .unwrap_or(&path)
                .trim_start_matches('/')
        };
        let size = match stamp.kind {
            Kind::Folder => None,
            Kind::File if pattern.matches(below) => Some(stamp.size),
            Kind::File | Kind::Other => continue,
        };
        entries.push(Entry {
            path,
            modified: stamp.modified,
            size,
        });
    }
    // The file system returns entries in any order, and a split must always give the same.
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    async fn split(
        root: &Path,
        definition: &str,
        max_parts: usize,
    ) -> Result<Vec<Part>, SplitError> {
        Glob::new(root)
            .split(Batch::of(definition, max_parts))
            .await
    }

    async fn files(root: &Path, definition: &str) -> BTreeSet<String> {
        let (mut files, mut open) = (BTreeSet::new(), vec![definition.to_owned()]);
        while let Some(definition) = open.pop() {
            let parts = split(root, &definition, 10).await.unwrap();
            assert!(parts.len() <= 10);
            for part in parts {
                match part {
                    Part::Batch(definition) => open.push(definition),
                    Part::Item(item) => {
                        let item: FileItem = serde_json::from_slice(&item.data).unwrap();
                        assert!(files.insert(item.path.clone()), "{} twice", item.path);
                    }
                }
            }
        }
        files
    }

    fn tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        for n in 0..35 {
            std::fs::write(root.path().join(format!("a/b/{n}.txt")), "x").unwrap();
        }
        for name in ["a/one.txt", "a/one.md", "top.txt", "a/b/.hidden.txt"] {
            std::fs::write(root.path().join(name), "y").unwrap();
        }
        root
    }

    #[tokio::test]
    async fn every_matching_file_becomes_one_item() {
        let root = tree();
        assert_eq!(files(root.path(), r#"{"folder":"."}"#).await.len(), 39);
        assert_eq!(
            files(root.path(), r#"{"folder":".","pattern":"**/*.txt"}"#)
                .await
                .len(),
            38
        );
        assert_eq!(
            files(root.path(), r#"{"folder":"a","pattern":"*.md"}"#).await,
            BTreeSet::from(["a/one.md".to_owned()])
        );
        assert_eq!(
            files(root.path(), r#"{"folder":"a","pattern":"b/1?.txt"}"#)
                .await
                .len(),
            10
        );
    }

    #[tokio::test]
    async fn folder_that_changes_before_it_is_listed_fails_by_name() {
        let root = tree();
        let parts = split(root.path(), r#"{"folder":"a"}"#, 10).await.unwrap();
        let [Part::Batch(pinned)] = parts.as_slice() else {
            panic!("{parts:?}")
        };
        std::fs::write(root.path().join("a/new.txt"), "z").unwrap();
        let error = split(root.path(), pinned, 10).await.unwrap_err();
        assert!(
            matches!(&error, SplitError::Definition(text) if text.contains("\"a\" has changed")),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn bad_definition_is_refused_with_the_reason() {
        let root = tree();
        for (definition, text) in [
            (r#"{"folder":"top.txt"}"#, "is not a folder"),
            (r#"{"folder":"nowhere"}"#, "there is no file \"nowhere\""),
            (r#"{"folder":".."}"#, "not a path below the root folder"),
            (r#"{"folder":".","pattern":"a**"}"#, "pattern: "),
            (
                r#"{"base":".","entries":[{"path":"../x","modified":0,"size":1}]}"#,
                "not a path below the root folder",
            ),
            (
                r#"{"base":"a","entries":[{"path":"top.txt","modified":0,"size":1}]}"#,
                "\"top.txt\" is not below the base \"a\"",
            ),
            (
                r#"{"base":".","entries":[{"path":"x","modified":0,"size":1},{"path":"x","modified":0,"size":1}]}"#,
                "entries must be in order, each once",
            ),
            (
                &serde_json::json!({"folder": ".", "pattern": "a".repeat(5000)}).to_string(),
                "the pattern has 5000 bytes; the limit is 4096",
            ),
            (r"{}", "name a folder"),
        ] {
            let error = split(root.path(), definition, 10).await.unwrap_err();
            assert!(
                matches!(&error, SplitError::Definition(found) | SplitError::Missing(found) if found.contains(text)),
                "{definition}: {error:?}"
            );
        }
    }
}
