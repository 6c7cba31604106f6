//! A worker to copy: it counts the words in a range of lines of a text file.
//!
//! In a package of your own, `framework` and `contract` are `batchwright` and
//! `batchwright::contract`.
#![warn(missing_docs)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use contract::LineRange;
use framework::{Context, OrFail, Reply, TaskData, TaskError, Worker};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

/// Counts words in files below a root folder.
#[derive(Debug, Clone)]
pub struct WordCounter {
    /// The folder that the paths of tasks are relative to.
    pub root: PathBuf,
}

/// How often each word occurs in a range of lines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WordCount {
    /// The path of the file, as in the task.
    pub path: String,
    /// The position of the first line in the file, in bytes.
    #[serde(default)]
    pub offset: u64,
    /// The number of lines.
    pub lines: u64,
    /// The number of all words.
    #[serde(default)]
    pub total: u64,
    /// The words in lower case, and how often each occurs.
    pub words: BTreeMap<String, u64>,
}

impl TaskData for WordCount {
    const CLASSIFIER: &'static str = "WordCount";
    const API_VERSION: i32 = 1;
}

impl Worker for WordCounter {
    type Input = LineRange;
    type Output = WordCount;

    async fn run(&self, task: LineRange, ctx: Context) -> Result<Reply<WordCount>, TaskError> {
        let root = self.root.clone();
        // One call for all that blocks. An error of the system is passed on by `?`: the task runs
        // again.
        let (task, text) =
            spawn_blocking(move || read(&root, &task).map(|text| (task, text))).await??;
        let mut words = BTreeMap::new();
        for line in text.lines() {
            ctx.check_cancelled()?;
            count_words(line, &mut words);
        }
        Ok(Reply::send(WordCount {
            path: task.path,
            offset: task.offset,
            lines: task.lines,
            total: words.values().sum(),
            words,
        }))
    }
}

/// Reads the lines of a task.
fn read(root: &Path, task: &LineRange) -> Result<String, TaskError> {
    let mut file = File::open(locate(root, &task.path)?)?;
    let now = file.metadata()?;
    let modified = now.modified()?.duration_since(UNIX_EPOCH)?.as_nanos();
    if now.len() != task.size || u128::try_from(task.modified) != Ok(modified) {
        return Err(TaskError::failed(format!(
            "{} has changed since the batch was made",
            task.path
        )));
    }
    file.seek(SeekFrom::Start(task.offset))?;
    let mut text = Vec::new();
    file.take(task.length).read_to_end(&mut text)?;
    String::from_utf8(text).or_fail() // not text: the task fails
}

/// Returns the path of a file with all links resolved. The path comes from the message, so no file
/// outside the root is opened.
fn locate(root: &Path, path: &str) -> Result<PathBuf, TaskError> {
    let root = root.canonicalize()?;
    let found = root.join(path).canonicalize()?;
    if !found.starts_with(&root) || !found.metadata()?.is_file() {
        return Err(TaskError::failed(format!(
            "{path} is not a file below the root folder of the worker"
        )));
    }
    Ok(found)
}

/// Adds the words of a line to the counts. Words are runs of letters and digits, in lower case.
pub fn count_words(line: &str, counts: &mut BTreeMap<String, u64>) {
    for word in line
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
    {
        *counts.entry(word.to_lowercase()).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use framework::testing;

    /// Makes a task for one line of a file as it is now.
    fn lines(folder: &Path, path: &str, offset: u64, length: u64) -> LineRange {
        let now = std::fs::metadata(folder.join(path)).unwrap();
        let modified = now
            .modified()
            .unwrap()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_nanos();
        let modified = i64::try_from(modified).unwrap();
        LineRange {
            path: path.into(),
            offset,
            length,
            lines: 1,
            size: now.len(),
            modified,
            params: BTreeMap::new(),
        }
    }

    #[tokio::test]
    async fn counts_words_in_the_lines_of_the_task_only() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "one\nTwo two, drei!\nthree\n").unwrap();
        let worker = WordCounter {
            root: folder.path().into(),
        };
        let run = testing::run(&worker, lines(folder.path(), "a.txt", 4, 15)).await;
        let sent = run.sent().unwrap();
        assert_eq!(
            sent.words,
            BTreeMap::from([("two".into(), 2), ("drei".into(), 1)])
        );
        assert_eq!((sent.offset, sent.total), (4, 3));
    }

    #[tokio::test]
    async fn only_files_below_the_root_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(folder.path().join("secret.txt"), "one\n").unwrap();
        std::fs::write(root.join("own.txt"), "one\n").unwrap();
        std::os::unix::fs::symlink("../secret.txt", root.join("link.txt")).unwrap();
        std::os::unix::fs::symlink("own.txt", root.join("own-link.txt")).unwrap();
        let absolute = folder.path().join("secret.txt");
        let worker = WordCounter { root: root.clone() };
        for path in ["../secret.txt", "link.txt", absolute.to_str().unwrap(), "."] {
            let failure = testing::run(&worker, lines(&root, path, 0, 4))
                .await
                .failure();
            let expected = format!("{path} is not a file below the root folder of the worker");
            assert_eq!(failure, Some(expected));
        }
        let run = testing::run(&worker, lines(&root, "own-link.txt", 0, 4)).await;
        assert_eq!(run.sent().unwrap().words.len(), 1);
    }

    #[tokio::test]
    async fn missing_file_is_retried_and_binary_data_fails() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("bytes"), b"\xff\xfe").unwrap();
        let worker = WordCounter {
            root: folder.path().into(),
        };
        let bytes = lines(folder.path(), "bytes", 0, 2);
        let nowhere = LineRange {
            path: "nowhere".into(),
            ..bytes.clone()
        };
        assert!(
            testing::run(&worker, nowhere)
                .await
                .retry()
                .unwrap()
                .contains("No such file")
        );
        assert!(
            testing::run(&worker, bytes)
                .await
                .failure()
                .unwrap()
                .contains("invalid utf-8")
        );
    }

    #[tokio::test]
    async fn changed_file_fails_by_name() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.txt"), "one\n").unwrap();
        let worker = WordCounter {
            root: folder.path().into(),
        };
        let now = lines(folder.path(), "a.txt", 0, 4);
        for before in [
            LineRange {
                size: 5,
                ..now.clone()
            },
            LineRange {
                modified: now.modified - 1,
                ..now
            },
        ] {
            let failure = testing::run(&worker, before).await.failure();
            assert_eq!(
                failure.as_deref(),
                Some("a.txt has changed since the batch was made")
            );
        }
    }
}
