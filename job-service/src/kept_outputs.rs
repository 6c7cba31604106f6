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
        let reader = self.blobs.open(&name).await?;
        let line = blob.first_line;
        Ok(Some(OpenBlob { blob, reader, line }))
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
