//! What the item of a task is: a value, a file, or lines of a file.
//!
//! What must stay true: no task makes a command read a file outside of the root folder, or a hidden
//! one below it, by its path.

use std::io::SeekFrom;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use framework::{OrFail, TaskError};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _};

use crate::definition::LONGEST_INPUT;
use crate::task::CommandTask;

/// The files that items may name.
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
    hidden: Vec<PathBuf>,
}

impl Files {
    /// Returns the files below this folder.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            hidden: Vec::new(),
        }
    }

    /// Hides these files and folders, with everything below them.
    #[must_use]
    pub fn hide(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.hidden.extend(paths);
        self
    }

    /// Returns the item of a task as a text. A file is its absolute path; lines of a file are their
    /// text.
    pub(crate) async fn item(&self, task: &CommandTask) -> Result<String, TaskError> {
        if let Some(value) = task.value_text() {
            return Ok(value);
        }
        let Some(path) = &task.path else {
            return Err(TaskError::invalid(
                "the task has no item: neither `item`, nor `value`, `number` or `path`",
            ));
        };
        let found = self.locate(path).await?;
        let now = tokio::fs::metadata(&found).await?;
        let modified = now.modified()?.duration_since(UNIX_EPOCH)?.as_nanos();
        let is_changed = task.size.is_some_and(|size| size != now.len())
            || task
                .modified
                .is_some_and(|then| u128::try_from(then) != Ok(modified));
        if is_changed {
            return Err(TaskError::failed(format!(
                "{path} has changed since the batch was made"
            )));
        }
        match (task.offset, task.length) {
            (Some(offset), Some(length)) => lines(&found, path, offset, length).await,
            _ => found
                .into_os_string()
                .into_string()
                .map_err(|_| TaskError::failed(format!("the path of {path} is not UTF-8"))),
        }
    }

    /// Returns the path of a file with all links resolved.
    async fn locate(&self, path: &str) -> Result<PathBuf, TaskError> {
        let root = tokio::fs::canonicalize(&self.root).await?;
        let found = tokio::fs::canonicalize(root.join(path)).await?;
        let mut is_hidden = false;
        for hidden in &self.hidden {
            // What is not there hides nothing.
            let hidden = tokio::fs::canonicalize(hidden).await;
            is_hidden |= hidden.is_ok_and(|hidden| found.starts_with(hidden));
        }
        if is_hidden || !found.starts_with(&root) || !tokio::fs::metadata(&found).await?.is_file() {
            return Err(TaskError::failed(format!(
                "{path} is not a file below the root folder of the worker"
            )));
        }
        Ok(found)
    }
}

/// Returns lines of a file, without the last line break.
async fn lines(file: &Path, path: &str, offset: u64, length: u64) -> Result<String, TaskError> {
    if length > LONGEST_INPUT {
        return Err(TaskError::failed(format!(
            "the lines of {path} have {length} bytes; an item has at most {LONGEST_INPUT}. Make a batch with fewer `linesPerItem`"
        )));
    }
    let mut file = tokio::fs::File::open(file).await?;
    file.seek(SeekFrom::Start(offset)).await?;
    let mut text = Vec::new();
    file.take(length).read_to_end(&mut text).await?;
    let mut text = String::from_utf8(text).or_fail()?;
    if text.ends_with('\n') {
        text.pop();
    }
    if text.ends_with('\r') {
        text.pop();
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn hidden_files_are_found_by_no_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(path("data/queue")).unwrap();
        for name in ["jobs.db", "jobs.txt", "data/queue/1", "database.txt"] {
            std::fs::write(path(name), name).unwrap();
        }
        std::os::unix::fs::symlink("jobs.db", path("link.txt")).unwrap();
        std::os::unix::fs::symlink("data", path("folder")).unwrap();
        let hidden = ["jobs.db", "missing", "folder", "data2"].map(path);
        let files = Files::below(folder.path()).hide(hidden);
        let item = async |name: &str| {
            let path = Some(name.to_owned());
            let task = CommandTask {
                path,
                ..CommandTask::default()
            };
            files.item(&task).await
        };
        let absolute = path("jobs.db").to_str().unwrap().to_owned();
        let by_link = ["link.txt", "folder/queue/1", "folder/../data/queue/1"];
        for hidden in ["jobs.db", "data/queue/1", &absolute]
            .iter()
            .chain(&by_link)
        {
            let error = item(hidden).await.unwrap_err().to_string();
            let expected = format!("{hidden} is not a file below the root folder of the worker");
            assert!(error.contains(&expected), "{error}");
        }
        for shown in ["jobs.txt", "database.txt"] {
            assert!(item(shown).await.unwrap().ends_with(shown));
        }
    }
}
