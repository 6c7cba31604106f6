//! Exports the kept outputs of a job: parts of bounded size, and a manifest that names them.
//!
//! What must stay true:
//! - The manifest is written when all parts are safe. Until then, a file beside it says how far the
//!   export has come, so that the same request continues it, in this process or in another one.
//! - An export never writes into the export of another job. No two requests of this process write
//!   to one path; those of several processes write the same bytes into each part, because the
//!   request that begins an export decides how large its parts are.
//! - No byte of a blob that is not as it was written is in a part, and no manifest names a part
//!   after it.
//! - The memory is bounded by a piece of the outputs, not by a part.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use blobs::{BlobError, ExportFile, ExportPath, ExportStore};
use contract::rest::{ExportManifest, ExportPart, ExportProgress};
use parking_lot::{Mutex, MutexGuard};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio_util::task::TaskTracker;
use tracing::warn;

use crate::outputs::kept_outputs::{Lines, ReadError};

/// The file that names the parts of a complete export.
pub const MANIFEST: &str = "manifest.json";
/// The file that names the parts of an export that is not complete.
const PROGRESS: &str = "manifest.incomplete.json";
const FILES: [&str; 2] = [MANIFEST, PROGRESS];
/// The version of the form of both.
const VERSION: u32 = 1;
/// The largest number of parts. Those of a larger job are larger, because each one costs a
/// manifest.
const MOST_PARTS: u64 = 1000;
/// The bytes of a part that are written in one step, so that a client hears of the export.
const STEP_BYTES: u64 = 8 << 20;

/// Why an export does not begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Place(#[from] BlobError),
    /// The path is in use.
    #[error("{0}")]
    Taken(String),
    /// It is too long, or has the name of a file of an export.
    #[error("the path cannot be that of an export: {0}")]
    Path(String),
    /// The place of the export or that of the outputs hangs.
    #[error("nothing was read or written within {0:?}")]
    Slow(Duration),
}

/// The place of an export.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The name of the place.
    pub name: String,
    pub store: ExportStore,
    pub folder: ExportPath,
}

/// The places to which requests of this process write now.
#[derive(Debug, Clone, Default)]
pub struct UsedPlaces {
    places: Arc<Mutex<HashSet<(String, ExportPath)>>>,
    /// Remove what exports that broke off have written of a part.
    tasks: TaskTracker,
}

/// A place to which one request writes, until it is dropped.
#[derive(Debug)]
pub struct UsedPlace {
    all: UsedPlaces,
    place: (String, ExportPath),
}

impl UsedPlaces {
    /// Takes a place. Returns `None` while another request writes to it.
    pub fn take(&self, to: &Destination) -> Option<UsedPlace> {
        let place = (to.name.clone(), to.folder.clone());
        let is_free = self.lock().insert(place.clone());
        is_free.then(|| UsedPlace {
            all: self.clone(),
            place,
        })
    }

    /// Waits until nothing is left of the parts of exports that broke off.
    pub async fn stop(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<(String, ExportPath)>> {
        self.places.lock()
    }
}

impl Drop for UsedPlace {
    fn drop(&mut self) {
        self.all.lock().remove(&self.place);
    }
}

/// An export of one job.
pub struct Export {
    to: Destination,
    lines: Lines,
    part_bytes: u64,
    manifest: ExportManifest,
    /// How many parts the response has named.
    named: usize,
    /// The part that is being written.
    part: Option<NewPart>,
    /// What is read and belongs to the next part.
    rest: Bytes,
    used: Option<UsedPlace>,
}

/// The next thing that an export has done.
#[derive(Debug)]
pub enum Step {
    Progress(ExportProgress),
    Part(ExportPart),
    /// Everything is exported.
    Complete(Box<ExportManifest>),
}

impl Destination {
    /// Returns how far the export of this job has come here. `wanted` is how it begins; then the
    /// path belongs to the job from now on. `part_bytes` is the size of its parts, if the request
    /// demands one.
    pub async fn manifest(
        &self,
        wanted: ExportManifest,
        part_bytes: Option<u64>,
    ) -> Result<ExportManifest, ExportError> {
        let wanted = ExportManifest {
            version: VERSION,
            ..wanted
        };
        if let Some(found) = self.found(&wanted, part_bytes).await? {
            return Ok(found);
        }
        self.check_way().await?;
        let is_begun = self.begin(&wanted).await?;
        // Another process may have begun it at the same time, or even have completed it.
        let found = self.found(&wanted, part_bytes).await?;
        let found = found.ok_or_else(|| self.taken("Another export that is being written"))?;
        if found.complete && is_begun {
            self.store.delete(&self.file(PROGRESS)?).await?;
        }
        Ok(found)
    }

    /// Returns how far the export of this job has come here, if it has begun.
    async fn found(
        &self,
        wanted: &ExportManifest,
        part_bytes: Option<u64>,
    ) -> Result<Option<ExportManifest>, ExportError> {
        for name in FILES {
            let Some(content) = self.store.read(&self.file(name)?).await? else {
                continue;
            };
            let found: ExportManifest =
                serde_json::from_slice(&content).map_err(|_| self.taken("Something else"))?;
            self.check(&found, wanted, part_bytes)?;
            return Ok(Some(found));
        }
        Ok(None)
    }

    /// Refuses a path inside another export, or one that has the name of a file of an export.
    async fn check_way(&self) -> Result<(), ExportError> {
        if let Some(name) = self.folder.parts().find(|name| FILES.contains(name)) {
            return Err(ExportError::Path(format!("an export has a file {name}")));
        }
        for parent in self.folder.parents() {
            for name in FILES {
                let file = parent.join(name).map_err(ExportError::Path)?;
                if self.store.read(&file).await?.is_some() {
                    let folder = parent;
                    return Err(Self {
                        folder,
                        ..self.clone()
                    }
                    .taken("An export"));
                }
            }
        }
        Ok(())
    }

    /// Refuses an export of another job, of other outputs or with parts of another size.
    fn check(
        &self,
        found: &ExportManifest,
        wanted: &ExportManifest,
        part_bytes: Option<u64>,
    ) -> Result<(), ExportError> {
        let key = |it: &ExportManifest| {
            (
                it.version,
                it.partition.clone(),
                it.job.clone(),
                it.incarnation,
            )
        };
        if key(found) != key(wanted) {
            return Err(self.taken(&format!("The export of the job '{}'", found.job)));
        }
        if found.kept != wanted.kept {
            return Err(self.taken(&format!(
                "An export of {} outputs of this job, which has {} now,",
                found.kept, wanted.kept
            )));
        }
        if found.superseded != wanted.superseded {
            return Err(self.taken("An export with failures of tasks that are done since"));
        }
        let begun = found.part_bytes;
        match part_bytes {
            Some(asked) if begun != asked && !found.complete => Err(self.taken(&format!(
                "An export of this job with parts of {begun} bytes, not {asked},"
            ))),
            _ => Ok(()),
        }
    }

    fn taken(&self, what: &str) -> ExportError {
        ExportError::Taken(format!(
            "{what} is at '{}' already. Choose another path, or delete it.",
            self.folder
        ))
    }

    /// Takes the path for an export, unless one has begun. Returns whether it did.
    async fn begin(&self, wanted: &ExportManifest) -> Result<bool, ExportError> {
        let progress = self.file(PROGRESS)?;
        Ok(self.store.write_new(&progress, text_of(wanted)).await?)
    }

    /// Returns the text of an error for the client, who need not know where the service has its
    /// files.
    pub fn error_text(&self, error: &ExportError) -> String {
        match error {
            ExportError::Read(error) => error.damage().unwrap_or_else(|| {
                "The outputs cannot be read now. The log of the service has the reason.".to_owned()
            }),
            ExportError::Place(error) => {
                error.with_place(&format!("The place '{}' for exports", self.name))
            }
            error => error.to_string(),
        }
    }

    fn file(&self, name: &str) -> Result<ExportPath, ExportError> {
        self.folder.join(name).map_err(ExportError::Path)
    }

    async fn save(&self, name: &str, manifest: &ExportManifest) -> Result<(), ExportError> {
        let content = text_of(manifest);
        Ok(self.store.write(&self.file(name)?, content).await?)
    }
}

fn text_of(manifest: &ExportManifest) -> Bytes {
    let mut content = serde_json::to_vec_pretty(manifest).unwrap_or_default();
    content.push(b'\n');
    content.into()
}

/// Returns the bytes from which on a part of an export ends: those that the request names, or more
/// if the job has many bytes.
pub fn part_bytes(asked: u64, bytes: u64) -> u64 {
    asked.max(bytes / (MOST_PARTS - 1))
}

impl Export {
    /// Returns an export that continues where `manifest` ends. `lines` begins there, too.
    pub fn new(used: UsedPlace, to: Destination, lines: Lines, manifest: ExportManifest) -> Self {
        Self {
            to,
            lines,
            part_bytes: manifest.part_bytes,
            manifest,
            named: 0,
            part: None,
            rest: Bytes::new(),
            used: Some(used),
        }
    }

    /// Returns the text of an error for the client.
    pub fn error_text(&self, error: &ExportError) -> String {
        self.to.error_text(error)
    }

    /// Writes some of the next part, or names one that is there; after the last one, writes the
    /// manifest.
    pub async fn step(&mut self) -> Result<Step, ExportError> {
        if let Some(part) = self.manifest.parts.get(self.named) {
            self.named += 1;
            return Ok(Step::Part(part.clone()));
        }
        if !self.manifest.complete {
            if let Some(step) = self.write_some().await? {
                return Ok(step);
            }
            self.manifest.complete = true;
            self.to.save(MANIFEST, &self.manifest).await?;
            self.to.store.delete(&self.to.file(PROGRESS)?).await?;
        }
        Ok(Step::Complete(Box::new(self.manifest.clone())))
    }

    /// Writes some of a part. Returns `None` if no lines are left.
    async fn write_some(&mut self) -> Result<Option<Step>, ExportError> {
        let mut written = 0;
        while let Some(piece) = self.next_piece().await? {
            // Whatever happens, the part stays where it is until it is finished: dropping the
            // export removes it.
            let part = match &mut self.part {
                Some(part) => part,
                none => {
                    let name = format!("part-{:05}.ndjson", self.manifest.parts.len() + 1);
                    let file = self.to.store.begin(&self.to.file(&name)?).await?;
                    none.insert(NewPart::new(name, file))
                }
            };
            let room = self.part_bytes.saturating_sub(part.bytes);
            let (piece, rest) = split(piece, room);
            self.rest = rest;
            written += piece.len() as u64;
            part.write(piece).await?;
            if part.bytes >= self.part_bytes {
                return self.finish().await;
            }
            if written >= STEP_BYTES {
                let (lines, bytes) = (part.lines, part.bytes);
                return Ok(Some(Step::Progress(ExportProgress { lines, bytes })));
            }
        }
        self.finish().await
    }

    async fn next_piece(&mut self) -> Result<Option<Bytes>, ReadError> {
        if self.rest.is_empty() {
            self.lines.next_piece().await
        } else {
            Ok(Some(std::mem::take(&mut self.rest)))
        }
    }

    /// Finishes the part, if there is one, and writes how far the export has come.
    async fn finish(&mut self) -> Result<Option<Step>, ExportError> {
        let Some(part) = &mut self.part else {
            return Ok(None);
        };
        part.file.finish().await?;
        let Some(part) = self.part.take() else {
            return Ok(None);
        };
        let part = ExportPart {
            name: part.name,
            lines: part.lines,
            bytes: part.bytes,
            sha256: format!("{:x}", part.digest.finalize()),
        };
        let manifest = &mut self.manifest;
        manifest.lines += part.lines;
        manifest.bytes += part.bytes;
        manifest.next_offset = offset_of(&self.rest).unwrap_or_else(|| self.lines.offset());
        manifest.parts.push(part.clone());
        self.to.save(PROGRESS, &self.manifest).await?;
        self.named += 1;
        Ok(Some(Step::Part(part)))
    }
}

/// Removes what is written of a part: the place may keep it for ever otherwise.
impl Drop for Export {
    fn drop(&mut self) {
        if let (Some(part), Some(used)) = (self.part.take(), self.used.take()) {
            let tasks = used.all.tasks.clone();
            tasks.spawn(async move {
                if let Err(error) = part.file.give_up().await {
                    warn!(%error, part = part.name, "what an export has written of a part is not removed");
                }
                // The next request may write now.
                drop(used);
            });
        }
    }
}

/// Divides lines behind the one that fills this room, so that the first half has at least one line.
/// So where a part ends depends on its lines alone, and not on the pieces in which they are read.
fn split(lines: Bytes, room: u64) -> (Bytes, Bytes) {
    let room = usize::try_from(room).unwrap_or(usize::MAX).max(1);
    let end = lines.get(room - 1..).and_then(|behind| {
        let end = behind.iter().position(|byte| *byte == b'\n')?;
        Some(room + end)
    });
    let mut first = lines;
    let rest = first.split_off(end.unwrap_or(first.len()).min(first.len()));
    (first, rest)
}

/// Returns the number of the first of these lines.
fn offset_of(lines: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    struct Line {
        offset: u64,
    }
    let line = lines.split(|byte| *byte == b'\n').next()?;
    let line: Line = serde_json::from_slice(line).ok()?;
    Some(line.offset)
}

/// A part that is being written.
struct NewPart {
    name: String,
    file: ExportFile,
    digest: Sha256,
    lines: u64,
    bytes: u64,
}

impl NewPart {
    fn new(name: String, file: ExportFile) -> Self {
        Self {
            name,
            file,
            digest: Sha256::new(),
            lines: 0,
            bytes: 0,
        }
    }

    async fn write(&mut self, piece: Bytes) -> Result<(), BlobError> {
        self.digest.update(&piece);
        self.lines += (piece.split(|byte| *byte == b'\n').count() - 1) as u64;
        self.bytes += piece.len() as u64;
        self.file.write(piece).await
    }
}

#[cfg(test)]
mod tests {
    use blobs::{BlobName, Blobs, BucketOptions, Fingerprint, Location};
    use contract::rest::OutputStatus;
    use contract::{JobId, PartitionId};
    use store::{Creation, JobRequest, NewBlob, NewOutputs, Store, StoreOptions};

    use super::*;
    use crate::outputs::kept_outputs::Selection;

    fn words(folder: &std::path::Path) -> Destination {
        let location = Location::Folder(folder.to_owned());
        Destination {
            name: "archive".to_owned(),
            store: ExportStore::at(&location, 0, &BucketOptions::default()).unwrap(),
            folder: "2026/words".parse().unwrap(),
        }
    }

    #[test]
    fn one_request_at_a_time_writes_to_a_place() {
        let folder = tempfile::tempdir().unwrap();
        let (used, to) = (UsedPlaces::default(), words(folder.path()));
        let first = used.take(&to).unwrap();
        assert!(used.take(&to).is_none());
        let elsewhere = Destination {
            folder: "2026/other".parse().unwrap(),
            ..to.clone()
        };
        assert!(used.take(&elsewhere).is_some());
        drop(first);
        assert!(used.take(&to).is_some());
    }

    #[tokio::test]
    async fn path_belongs_to_the_job_whose_export_begins_first() {
        let folder = tempfile::tempdir().unwrap();
        let to = words(folder.path());
        let of = |job: &str| ExportManifest {
            job: job.to_owned(),
            ..ExportManifest::default()
        };
        // Neither has written a part.
        let first = to.manifest(of("a"), None).await.unwrap();
        let refused = to.manifest(of("b"), None).await.unwrap_err().to_string();
        assert!(
            refused.starts_with("The export of the job 'a' is at"),
            "{refused}"
        );
        assert_eq!(to.manifest(of("a"), None).await.unwrap().job, first.job);
    }

    #[tokio::test]
    async fn first_request_of_an_export_decides_how_large_its_parts_are() {
        let folder = tempfile::tempdir().unwrap();
        let to = words(folder.path());
        let with = |bytes: u64| ExportManifest {
            version: VERSION,
            job: "a".to_owned(),
            part_bytes: bytes,
            ..ExportManifest::default()
        };
        // Two processes have both seen that there is none.
        assert!(to.begin(&with(100_000)).await.unwrap());
        assert!(!to.begin(&with(200_000)).await.unwrap());
        let refused = to
            .manifest(with(200_000), Some(200_000))
            .await
            .unwrap_err()
            .to_string();
        assert!(
            refused
                .starts_with("An export of this job with parts of 100000 bytes, not 200000, is at"),
            "{refused}"
        );
        for asked in [None, Some(100_000)] {
            let found = to.manifest(with(200_000), asked).await.unwrap();
            assert_eq!(found.part_bytes, 100_000);
        }
        let mut found = with(100_000);
        // A complete one is as it is.
        found.complete = true;
        to.save(MANIFEST, &found).await.unwrap();
        assert!(
            to.manifest(with(200_000), Some(200_000))
                .await
                .unwrap()
                .complete
        );
    }

    #[tokio::test]
    async fn nothing_is_left_of_the_part_of_an_export_that_breaks_off() {
        let folder = tempfile::tempdir().unwrap();
        let (used, to) = (UsedPlaces::default(), words(folder.path()));
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
        // More than one step writes.
        let line = format!(
            "{{\"task\":\"1\",\"output\":\"{}\"}}\n",
            "x".repeat(1 << 20)
        );
        let content = Bytes::from(line.repeat(10));
        let Fingerprint { bytes, crc32 } = Fingerprint::of(&content);
        let new = NewBlob {
            name: "a".to_owned(),
            bytes,
            crc32,
            status: OutputStatus::Done,
            tasks: (1..=10).map(|task| vec![task]).collect(),
        };
        let name = BlobName {
            owner: "temporary".to_owned(),
            group: job.number,
            name: new.name.clone(),
        };
        blobs.write(&name, content).await.unwrap();
        let outputs = NewOutputs {
            job: job.clone(),
            blobs: vec![new],
            left_out: Vec::new(),
            reason: None,
        };
        store.keep_outputs(&[outputs]).await.unwrap();
        let lines = Lines::new(
            store,
            blobs,
            "temporary".into(),
            job.number,
            Selection::default(),
        );
        let place = used.take(&to).unwrap();
        let manifest = ExportManifest {
            part_bytes: 64 << 20,
            ..ExportManifest::default()
        };
        let mut export = Export::new(place, to.clone(), lines, manifest);
        let step = export.step().await.unwrap();
        assert!(matches!(step, Step::Progress(_)), "{step:?}");
        let part = folder.path().join("2026/words/part-00001.ndjson.part");
        assert!(part.exists());
        drop(export);
        used.stop().await;
        assert!(!part.exists());
        assert!(used.take(&to).is_some());
    }

    #[test]
    fn part_ends_behind_the_line_that_fills_it_however_the_lines_are_read() {
        let all: Vec<u8> = (0..50)
            .flat_map(|n| {
                format!("{{\"offset\":{n},\"output\":\"{}\"}}\n", "x".repeat(n)).into_bytes()
            })
            .collect();
        let part = |pieces: usize| {
            let (mut part, mut rest) = (Vec::new(), Vec::new());
            // A piece is some whole lines.
            let lines: Vec<&[u8]> = all.split_inclusive(|byte| *byte == b'\n').collect();
            for piece in lines.chunks(pieces) {
                let piece = Bytes::from(piece.concat());
                let room = 1000 - part.len().min(1000) as u64;
                let (first, behind) = if room == 0 {
                    (Bytes::new(), piece)
                } else {
                    split(piece, room)
                };
                part.extend_from_slice(&first);
                rest.extend_from_slice(&behind);
            }
            assert_eq!([&part[..], &rest[..]].concat(), all);
            (part, offset_of(&rest))
        };
        let (whole, next) = part(50);
        assert!(whole.len() >= 1000 && whole.ends_with(b"\n"));
        let lines = whole.split_inclusive(|byte| *byte == b'\n').count();
        assert_eq!(next, Some(lines as u64));
        for pieces in 1..50 {
            assert_eq!(part(pieces), (whole.clone(), next), "{pieces}");
        }
        assert_eq!(offset_of(b""), None);
    }
}
