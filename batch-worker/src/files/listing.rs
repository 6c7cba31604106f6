//! The files below a folder, with what they look like.

use super::{Files, Pin, Place};
use crate::SplitError;
use crate::glob::PathPattern;
use crate::reading::Reading;
use crate::source::{Kind, Root};

/// The most files that a folder of records has, those included that do not match.
const MOST_FILES: usize = 1_000_000;

impl Files {
    /// Returns the names and pins of the files below a folder whose paths match, in order.
    pub fn list(
        &self,
        folder: &str,
        pattern: &PathPattern,
    ) -> Result<Vec<(String, Pin)>, SplitError> {
        let (place, reading) = (Place::of(folder)?, &self.reading);
        let (found, base, scheme) = match place {
            Place::BelowRoot => (
                below(&self.root, folder, MOST_FILES, reading)?,
                folder,
                String::new(),
            ),
            Place::Upload(_) => return Err(no_folder(folder)),
            Place::Web => (
                self.places.list(folder, place, 0, reading)?,
                "",
                String::new(),
            ),
            Place::Store(store, path) => (
                self.places.list(folder, place, MOST_FILES, reading)?,
                path,
                format!("store://{store}/"),
            ),
        };
        let base = base.trim_matches('/');
        let relative = |path: &'_ str| -> Option<usize> {
            if base.is_empty() || base == "." {
                return Some(0);
            }
            let rest = path.strip_prefix(base)?.strip_prefix('/')?;
            Some(path.len() - rest.len())
        };
        let matches = |path: &str| relative(path).is_some_and(|at| pattern.matches(&path[at..]));
        let mut matching: Vec<(String, Pin)> = found
            .into_iter()
            .filter(|(path, _)| matches(path))
            .map(|(path, pin)| (format!("{scheme}{path}"), pin))
            .collect();
        // A split must always give the same.
        matching.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(matching)
    }

    /// Refuses what is no folder that can be listed.
    pub fn check_folder(&self, folder: &str) -> Result<(), SplitError> {
        let place = Place::of(folder)?;
        if let Place::Upload(_) = place {
            return Err(no_folder(folder));
        }
        if place != Place::BelowRoot {
            // One is enough to see whether it can be listed; that there are more is no trouble.
            let listed = self.places.check_folder(folder, place, &self.reading);
            return listed;
        }
        if self.root.stamp(folder)?.kind != Kind::Folder {
            return Err(SplitError::Definition(format!(
                "{folder:?} is not a folder"
            )));
        }
        Ok(())
    }
}

fn no_folder(upload: &str) -> SplitError {
    SplitError::Definition(format!(
        "{upload:?} is one file and no folder; name it in `files`"
    ))
}

/// Returns the files below a folder of a root, by their paths below the root. Does not follow
/// links.
pub(super) fn below(
    root: &Root,
    folder: &str,
    most: usize,
    reading: &Reading,
) -> Result<Vec<(String, Pin)>, SplitError> {
    let (mut files, mut open) = (Vec::new(), vec![folder.trim_end_matches('/').to_owned()]);
    while let Some(folder) = open.pop() {
        let (_, entries) = root.list(&folder, reading)?;
        for (name, stamp) in entries {
            let path = if folder == "." {
                name
            } else {
                format!("{folder}/{name}")
            };
            match stamp.kind {
                Kind::Folder => open.push(path),
                Kind::File => files.push((path, Pin::of_local(stamp.size, stamp.modified))),
                Kind::Other => {}
            }
            if files.len() + open.len() > most {
                return Err(too_many(&folder, most));
            }
        }
    }
    Ok(files)
}

pub(super) fn too_many(folder: &str, most: usize) -> SplitError {
    SplitError::Definition(format!(
        "the folder {folder:?} has more than {most} files; name a folder below it"
    ))
}
