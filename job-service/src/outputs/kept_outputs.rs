//! Reads the outputs that are kept of a job, line by line, however many there are.
//!
//! What must stay true:
//! - The memory is bounded by the longest line and by [`PIECE`], not by the number of lines.
//! - A line has the same number in every reading.
//! - A blob that is read to its end is compared with what was written before its last lines are
//!   returned; with [`Lines::verified`], before its first ones are.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Bytes;
use blobs::{BlobError, BlobName, BlobReader, Blobs, Fingerprint, Fingerprinter};
use contract::rest::OutputStatus;
use serde::Deserialize;
use store::{KeptBlob, Store, StoreError};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, Take};

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

impl ReadError {
    /// Returns the text for a client if a blob is not as it was written.
    pub fn damage(&self) -> Option<String> {
        let Self::Blob(error) = self else {
            return None;
        };
        let blob = error.damaged_blob()?;
        Some(format!(
            "The outputs are damaged: their blob {blob} is not as it was written. The operator can restore it from a backup."
        ))
    }
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
    /// Whether blobs are compared before they are read.
    is_verified: bool,
    /// The blob that was found to be damaged.
    damaged: Option<String>,
    /// Those that follow the open one.
    next: VecDeque<KeptBlob>,
    open: Option<OpenBlob>,
}

struct OpenBlob {
    blob: KeptBlob,
    reader: Take<BlobReader>,
    /// The number of the line that is read next.
    line: u64,
    /// Whether it has ended before its last line.
    is_short: bool,
    /// What was read of it.
    read: Fingerprinter,
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
            is_verified: false,
            damaged: None,
            next: VecDeque::new(),
            open: None,
        }
    }

    /// Returns the same lines, of blobs that are compared before they are read.
    #[must_use]
    pub fn verified(self) -> Self {
        Self {
            is_verified: true,
            ..self
        }
    }

    /// Returns the same lines, of a job of which this blob was found to be damaged.
    #[must_use]
    pub fn damaged(self, blob: Option<String>) -> Self {
        Self {
            damaged: blob,
            ..self
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
            if open.is_over() || open.is_short {
                let (blob, now) = (&open.blob, std::mem::take(&mut open.read).finish());
                let compared = written(blob).check(now, &self.blobs, &blob.name);
                self.note(&blob.name, compared.as_ref().err()).await;
                compared?;
            }
            if open.is_short {
                let reason = format!("it ends before its line {}", open.line);
                return Err(ReadError::Broken(open.blob.name, reason));
            }
            self.selection.offset = open.line;
            let lines = match open.blob.status {
                OutputStatus::Done => lines,
                OutputStatus::Failed if self.selection.is_all_done => Vec::new(),
                OutputStatus::Failed => {
                    without_superseded(&self.store, self.incarnation, lines).await?
                }
            };
            if !open.is_over() {
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
            match self.open(&blob).await {
                // Another blob has its lines by now, unless it is looked for in vain again.
                Err(error) if error.is_missing() && missing.as_ref() != Some(&blob) => {
                    self.next.clear();
                    missing = Some(blob);
                }
                reader => {
                    let (reader, line) = (reader?, blob.first_line);
                    return Ok(Some(OpenBlob {
                        // One that has become longer is not read to its end.
                        reader: reader.take(blob.bytes + 1),
                        blob,
                        line,
                        is_short: false,
                        read: Fingerprinter::default(),
                    }));
                }
            }
        }
    }

    async fn open(&mut self, blob: &KeptBlob) -> Result<BlobReader, BlobError> {
        let name = BlobName {
            owner: self.owner.to_string(),
            group: self.incarnation,
            name: blob.name.clone(),
        };
        if self.is_verified {
            let verified = self.blobs.verify(&name, &written(blob)).await;
            self.note(&blob.name, verified.as_ref().err()).await;
            verified?;
        }
        self.blobs.open(&name).await
    }

    /// Notes in the job that this blob is damaged, or that it is as it was written again.
    async fn note(&mut self, blob: &str, error: Option<&BlobError>) {
        let is_noted = self.damaged.as_deref() == Some(blob);
        let is_damaged = error.is_some_and(|error| error.damaged_blob().is_some());
        let damaged = match (is_noted, is_damaged) {
            (false, true) => {
                tracing::warn!(
                    error = error.map(tracing::field::display),
                    "outputs are damaged"
                );
                Some(blob)
            }
            (true, false) if error.is_none() => None,
            _ => return,
        };
        let noted = self.store.note_damaged_outputs(self.incarnation, damaged);
        // Only the note is wrong if this fails.
        if noted.await.is_ok() {
            self.damaged = damaged.map(str::to_owned);
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

/// Returns what was written to a blob.
const fn written(blob: &KeptBlob) -> Fingerprint {
    Fingerprint {
        bytes: blob.bytes,
        crc32: blob.crc32,
    }
}

impl OpenBlob {
    const fn is_over(&self) -> bool {
        self.line == self.blob.first_line + self.blob.lines
    }

    /// Reads lines until they fill a piece or the blob is over.
    async fn read_lines(&mut self, selection: Selection) -> Result<Vec<Line>, ReadError> {
        let Self {
            blob,
            reader,
            line,
            is_short,
            read: all_read,
        } = self;
        let end = blob.first_line + blob.lines;
        let broken = |reason: String| ReadError::Broken(blob.name.clone(), reason);
        let (mut lines, mut bytes) = (Vec::new(), 0);
        let limit = selection.limit.unwrap_or(u64::MAX);
        while *line < end && bytes < PIECE && (lines.len() as u64) < limit {
            let mut text = Vec::new();
            let read = reader.read_until(b'\n', &mut text).await;
            read.map_err(|error| broken(error.to_string()))?;
            all_read.add(&text);
            *is_short = text.pop() != Some(b'\n');
            if *is_short {
                break;
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
    use store::{Creation, JobRequest, NewBlob, NewOutputs, StoreOptions};

    use super::*;

    #[tokio::test]
    async fn lines_of_a_blob_that_was_merged_meanwhile_are_read_from_the_merged_one() {
        let (store, blobs) = (Store::temporary(StoreOptions::default()), Blobs::memory());
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
            owner: "temporary".to_owned(),
            group: job.number,
            name: name.to_owned(),
        };
        let line = |number: u32| format!("{{\"task\":\"{number}\"}}\n");
        let mut new = Vec::new();
        for number in [1, 2, 3] {
            let Fingerprint { bytes, crc32 } = Fingerprint::of(line(number).as_bytes());
            let blob = NewBlob {
                name: number.to_string(),
                bytes,
                crc32,
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
            "temporary".into(),
            job.number,
            selection,
        );
        let mut read = lines.next_piece().await.unwrap().unwrap().to_vec();

        let all = store.last_kept_blobs(job.number, 10).await.unwrap();
        let content = [1, 2, 3].map(line).concat();
        let merged = ("merged", Fingerprint::of(content.as_bytes()).crc32);
        blobs.write(&name("merged"), content.into()).await.unwrap();
        assert!(store.merge_kept_blobs(&job, &all, merged).await.unwrap());
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
        let mut lines = Lines::new(store, blobs, "temporary".into(), job.number, selection);
        let missing = lines.next_piece().await.unwrap_err().to_string();
        assert!(missing.contains("cannot be read"), "{missing}");
    }
}
