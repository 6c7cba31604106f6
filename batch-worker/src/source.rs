//! Files below a root folder, as they were when a batch was made.

use std::path::{Component, Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::SplitError;

/// What a file or folder looked like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub is_folder: bool,
    /// Bytes; means nothing for a folder.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: i64,
}

/// How the path below the root looks now.
pub fn stamp(root: &Path, path: &str) -> Result<Stamp, SplitError> {
    let metadata = std::fs::metadata(within(root, path)?).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            SplitError::Definition(format!("there is no file {path:?}"))
        }
        _ => SplitError::from(error),
    })?;
    stamp_of(&metadata)
}

pub fn stamp_of(metadata: &std::fs::Metadata) -> Result<Stamp, SplitError> {
    let modified = metadata
        .modified()?
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    Ok(Stamp {
        is_folder: metadata.is_dir(),
        size: metadata.len(),
        modified: i64::try_from(modified).unwrap_or(i64::MAX),
    })
}

/// The path below the root; one that would leave it is refused.
pub fn within(root: &Path, path: &str) -> Result<PathBuf, SplitError> {
    let stays = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if stays && !path.is_empty() {
        Ok(root.join(path))
    } else {
        Err(SplitError::Definition(format!(
            "{path:?} is no path below the root folder"
        )))
    }
}
