//! Files and folders below a root, and what they looked like when a batch was made.

use std::path::{Component, Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::SplitError;

/// What a file or folder looks like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Whether it is a folder.
    pub is_folder: bool,
    /// The size in bytes. It has no meaning for a folder.
    pub size: u64,
    /// The time of the last change, in nanoseconds since 1970.
    pub modified: i64,
}

/// Returns what the path below the root looks like now.
pub fn stamp(root: &Path, path: &str) -> Result<Stamp, SplitError> {
    let metadata = std::fs::metadata(within(root, path)?).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            SplitError::Definition(format!("there is no file {path:?}"))
        }
        _ => SplitError::from(error),
    })?;
    stamp_of(&metadata)
}

/// Returns what a file or folder with these metadata looks like.
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

/// Returns the path below the root. Refuses a path that would leave it.
pub fn within(root: &Path, path: &str) -> Result<PathBuf, SplitError> {
    let stays = Path::new(path)
        .components()
        .all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    if stays && !path.is_empty() {
        Ok(root.join(path))
    } else {
        Err(SplitError::Definition(format!(
            "{path:?} is not a path below the root folder"
        )))
    }
}
