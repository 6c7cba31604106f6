//! Reads the outputs that are kept of a job, line by line, however many there are.
//!
//! What must stay true: the memory is bounded by the longest line and by [`PIECE`], not by the number of lines; a line has the
//! same number in every reading.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Bytes;
use blobs::{BlobError, BlobName, BlobReader, Blobs};
use contract::rest::OutputStatus;
use serde::Deserialize;
use store::{KeptBlob, Store, StoreError};
use tokio::io::AsyncBufReadExt as _;

/// The bytes from which on a piece of the response is sent.
const PIECE: usize = 64 * 1024;
/// The number of blobs that are looked up at a time.
const BLOBS: u32 = 100;

/// Why outputs cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Blob(#[from] BlobError),
    #[error("the blob {0} cannot be read: {1}")]
    Broken(String, String),
}

/// Which lines are read.
#[derive(Debug, Clone, Copy, Default)]
pub struct Selection {
    /// The number of the first line.
    pub offset: u64,
    /// How many lines, at the most.
    pub limit: Option<u64>,
    pub status: Option<OutputStatus>,
    /// Whether every task of the job is done. No failure counts then.
    pub is_all_done: bool,
}

/// Reads the lines of one job.
pub struct Lines {
    store: Store,
    blobs: Blobs,
    owner: Arc<str>,
    incarnation: i64,
    selection: Selection,
    /// Those that follow the open one.
    next: VecDeque<KeptBlob>,
    open: Option<OpenBlob>,
}

struct OpenBlob {
    blob: KeptBlob,
    reader: BlobReader,
    /// The number of the line that is read next.
    line: u64,
}

/// The number of a line, and the line as it is stored.
type Line = (u64, Vec<u8>);

/// What is read of a stored line to find its task.
#[derive(Deserialize)]
struct Task {
    task: String,
}

impl Lines {
    pub fn new(
        store: Store,
        blobs: Blobs,
        owner: Arc<str>,
        incarnation: i64,
        selection: Selection,
    ) -> Self {
        Self {
            store,
            blobs,
            owner,
            incarnation,
            selection,
            next: VecDeque::new(),
            open: None,
        }
    }

    /// Returns the number of the line that is read next.
    pub const fn offset(&self) -> u64 {
        self.selection.offset
    }

    /// Returns the next lines; `None` after the last one.
    pub async fn next_piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if self.selection.limit == Some(0) {
                return Ok(None);
            }
            let Some(mut open) = self.next_open().await? else {
                return Ok(None);
            };
            let lines = open.read_lines(self.selection).await?;
            self.selection.offset = open.line;
            let lines = match open.blob.status {
                OutputStatus::Done => lines,
                OutputStatus::Failed if self.selection.is_all_done => Vec::new(),
                OutputStatus::Failed => {
                    without_superseded(&self.store, self.incarnation, lines).await?
                }
            };
            if open.line < open.blob.first_line + open.blob.lines {
                self.open = Some(open);
            }
            if !lines.is_empty() {
                return Ok(Some(self.shown(lines)));
            }
        }
    }

    /// Returns the blob with the next line; `None` if there is none.
    async fn next_open(&mut self) -> Result<Option<OpenBlob>, ReadError> {
        if let Some(open) = self.open.take() {
            return Ok(Some(open));
        }
        let Selection { offset, status, .. } = self.selection;
        let mut missing = None;
        loop {
            if self.next.is_empty() {
                let blobs = self
                    .store
                    .kept_blobs(self.incarnation, offset, status, BLOBS);
                self.next = blobs.await?.into();
            }
            let Some(blob) = self.next.pop_front() else {
                return Ok(None);
            };
            let name = BlobName {
                owner: self.owner.to_string(),
                group: self.incarnation,
                name: blob.name.clone(),
            };
            match self.blobs.open(&name).await {
                // Another blob has its lines by now, unless it is looked for in vain again.
                Err(error) if error.is_missing() && missing.as_ref() != Some(&blob) => {
                    self.next.clear();
                    missing = Some(blob);
                }
                reader => {
                    let (reader, line) = (reader?, blob.first_line);
                    return Ok(Some(OpenBlob { blob, reader, line }));
                }
            }
        }
    }

    /// Returns lines as a client gets them, each with its number.
    fn shown(&mut self, lines: Vec<Line>) -> Bytes {
        if let Some(limit) = &mut self.selection.limit {
            *limit = limit.saturating_sub(lines.len() as u64);
        }
        let mut piece = Vec::with_capacity(PIECE * 2);
        for (number, line) in lines {
            piece.extend_from_slice(format!("{{\"offset\":{number},").as_bytes());
            piece.extend_from_slice(line.get(1..).unwrap_or_default());
            piece.push(b'\n');
        }
        piece.into()
    }
}

impl OpenBlob {
    /// Reads lines until they fill a piece or the blob is over.
    async fn read_lines(&mut self, selection: Selection) -> Result<Vec<Line>, ReadError> {
        let Self { blob, reader, line } = self;
        let end = blob.first_line + blob.lines;
        let broken = |reason: String| ReadError::Broken(blob.name.clone(), reason);
        let (mut lines, mut bytes) = (Vec::new(), 0);
        let limit = selection.limit.unwrap_or(u64::MAX);
        while *line < end && bytes < PIECE && (lines.len() as u64) < limit {
            let mut text = Vec::new();
            let read = reader.read_until(b'\n', &mut text).await;
            read.map_err(|error| broken(error.to_string()))?;
            if text.pop() != Some(b'\n') {
                return Err(broken(format!("it ends before its line {line}")));
            }
            if *line >= selection.offset {
                bytes += text.len();
                lines.push((*line, text));
            }
            *line += 1;
        }
        Ok(lines)
    }
}

/// Removes the failures of tasks that are done meanwhile.
async fn without_superseded(
    store: &Store,
    incarnation: i64,
    mut lines: Vec<Line>,
) -> Result<Vec<Line>, ReadError> {
    let tasks: Vec<Vec<u32>> = lines.iter().map(|(_, line)| task_of(line)).collect();
    let mut done = store.have_results(incarnation, &tasks).await?.into_iter();
    lines.retain(|_| !done.next().unwrap_or_default());
    Ok(lines)
}

/// Returns the path of the task of a stored line.
fn task_of(line: &[u8]) -> Vec<u32> {
    let task = serde_json::from_slice::<Task>(line).map_or_else(|_| String::new(), |it| it.task);
    // `0` is the job's own task, whose path is empty.
    let numbers = task.split('.').filter_map(|number| number.parse().ok());
    numbers.filter(|number| *number > 0).collect()
}

#[cfg(test)]
mod tests {
    use contract::{JobId, PartitionId};
    use store::{Creation, JobRequest, NewBlob, NewOutputs};

    use super::*;

    #[tokio::test]
    async fn lines_of_a_blob_that_was_merged_meanwhile_are_read_from_the_merged_one() {
        let (store, blobs) = (Store::open("memory:").await.unwrap(), Blobs::memory());
        let (partition, job) = (PartitionId::parse("p").unwrap(), JobId::parse("j").unwrap());
        let request = JobRequest {
            output_pipe: Some("out".to_owned()),
            ..JobRequest::new(partition, job)
        };
        let created = store.create_job(&request, |_| ("in".to_owned(), Vec::new()));
        let Creation::Created(job) = created.await.unwrap() else {
            panic!("the job is not created")
        };
        let name = |name: &str| BlobName {
            owner: "memory".to_owned(),
            group: job.number,
            name: name.to_owned(),
        };
        let line = |number: u32| format!("{{\"task\":\"{number}\"}}\n");
        let mut new = Vec::new();
        for number in [1, 2, 3] {
            let blob = NewBlob {
                name: number.to_string(),
                bytes: line(number).len() as u64,
                status: OutputStatus::Done,
                tasks: vec![vec![number]],
            };
            let content = line(number).into();
            blobs.write(&name(&blob.name), content).await.unwrap();
            new.push(blob);
        }
        let new = NewOutputs {
            job: job.clone(),
            blobs: new,
            left_out: Vec::new(),
            reason: None,
        };
        store.keep_outputs(&[new]).await.unwrap();
        let selection = Selection::default();
        let mut lines = Lines::new(
            store.clone(),
            blobs.clone(),
            "memory".into(),
            job.number,
            selection,
        );
        let mut read = lines.next_piece().await.unwrap().unwrap().to_vec();

        let all = store.last_kept_blobs(job.number, 10).await.unwrap();
        let content = [1, 2, 3].map(line).concat().into();
        blobs.write(&name("merged"), content).await.unwrap();
        assert!(store.merge_kept_blobs(&job, &all, "merged").await.unwrap());
        for blob in &all {
            blobs.delete(&name(&blob.name)).await.unwrap();
        }

        while let Some(piece) = lines.next_piece().await.unwrap() {
            read.extend(piece);
        }
        let read = String::from_utf8(read).unwrap();
        let expected = "{\"offset\":0,\"task\":\"1\"}\n{\"offset\":1,\"task\":\"2\"}\n{\"offset\":2,\"task\":\"3\"}\n";
        assert_eq!(read, expected);

        // One that is really missing is an error, and not looked for without an end.
        blobs.delete(&name("merged")).await.unwrap();
        let mut lines = Lines::new(store, blobs, "memory".into(), job.number, selection);
        let missing = lines.next_piece().await.unwrap_err().to_string();
        assert!(missing.contains("cannot be read"), "{missing}");
    }
}
