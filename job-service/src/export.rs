//! Exports the kept outputs of a job: parts of bounded size, and a manifest that names them.
//!
//! What must stay true:
//! - The manifest is written when all parts are safe. Until then, a file beside it says how far the export has come, so that the
//!   same request continues it, in this process or in another one.
//! - An export never writes into the export of another job, and no two requests of this process write to one path.
//! - The memory is bounded by a piece of the outputs, not by a part.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;
use blobs::{BlobError, ExportFile, ExportPath, ExportStore};
use contract::rest::{ExportManifest, ExportPart, ExportProgress};
use sha2::{Digest as _, Sha256};

use crate::kept_outputs::{Lines, ReadError};

/// The file that names the parts of a complete export.
pub const MANIFEST: &str = "manifest.json";
/// The file that names the parts of an export that is not complete.
const PROGRESS: &str = "manifest.incomplete.json";
/// The version of the form of both.
const VERSION: u32 = 1;
/// The largest number of parts. Those of a larger job are larger, because each one costs a manifest.
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
    #[error("the path is too long: {0}")]
    Path(String),
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
pub struct UsedPlaces(Arc<Mutex<HashSet<(String, ExportPath)>>>);

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

    fn lock(&self) -> MutexGuard<'_, HashSet<(String, ExportPath)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    /// Returns how far the export of this job has come here. `wanted` is how it begins; then the path belongs to the job from now on.
    pub async fn manifest(&self, wanted: ExportManifest) -> Result<ExportManifest, ExportError> {
        let wanted = ExportManifest {
            version: VERSION,
            ..wanted
        };
        for name in [MANIFEST, PROGRESS] {
            let Some(content) = self.store.read(&self.file(name)?).await? else {
                continue;
            };
            let taken = |what: &str| {
                let text = format!(
                    "{what} is at '{}' already. Choose another path, or delete it.",
                    self.folder
                );
                ExportError::Taken(text)
            };
            let found: ExportManifest =
                serde_json::from_slice(&content).map_err(|_| taken("Something else"))?;
            let key = |it: &ExportManifest| {
                (
                    it.version,
                    it.partition.clone(),
                    it.job.clone(),
                    it.incarnation,
                )
            };
            if key(&found) != key(&wanted) {
                return Err(taken(&format!("The export of the job '{}'", found.job)));
            }
            if found.kept != wanted.kept {
                let text = format!(
                    "An export of {} outputs of this job, which has {} now,",
                    found.kept, wanted.kept
                );
                return Err(taken(&text));
            }
            return Ok(found);
        }
        self.save(PROGRESS, &wanted).await?;
        Ok(wanted)
    }

    /// Returns the text of an error for the client, who need not know where the service has its files.
    pub fn error_text(&self, error: &ExportError) -> String {
        match error {
            ExportError::Read(_) => {
                "The outputs cannot be read now. The log of the service has the reason.".to_owned()
            }
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
        let mut content = serde_json::to_vec_pretty(manifest).unwrap_or_default();
        content.push(b'\n');
        Ok(self.store.write(&self.file(name)?, content.into()).await?)
    }
}

impl Export {
    /// Returns an export that continues where `manifest` ends, with parts of about this size. `lines` begins there, too.
    pub fn new(
        to: Destination,
        lines: Lines,
        manifest: ExportManifest,
        bytes: u64,
        part_bytes: u64,
    ) -> Self {
        Self {
            to,
            lines,
            part_bytes: part_bytes.max(bytes / (MOST_PARTS - 1)),
            manifest,
            named: 0,
            part: None,
        }
    }

    /// Returns the text of an error for the client.
    pub fn error_text(&self, error: &ExportError) -> String {
        self.to.error_text(error)
    }

    /// Writes some of the next part, or names one that is there; after the last one, writes the manifest.
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
        let mut part = if let Some(part) = self.part.take() {
            part
        } else {
            let Some(first) = self.lines.next_piece().await? else {
                return Ok(None);
            };
            let name = format!("part-{:05}.ndjson", self.manifest.parts.len() + 1);
            let file = self.to.store.begin(&self.to.file(&name)?).await?;
            let mut part = NewPart::new(name, file);
            part.write(first).await?;
            part
        };
        let until = part.bytes + STEP_BYTES;
        while part.bytes < self.part_bytes {
            if part.bytes >= until {
                let progress = ExportProgress {
                    lines: part.lines,
                    bytes: part.bytes,
                };
                self.part = Some(part);
                return Ok(Some(Step::Progress(progress)));
            }
            let Some(piece) = self.lines.next_piece().await? else {
                break;
            };
            part.write(piece).await?;
        }
        self.finish(part).await.map(Some)
    }

    /// Finishes a part, and writes how far the export has come.
    async fn finish(&mut self, part: NewPart) -> Result<Step, ExportError> {
        part.file.finish().await?;
        let part = ExportPart {
            name: part.name,
            lines: part.lines,
            bytes: part.bytes,
            sha256: format!("{:x}", part.digest.finalize()),
        };
        let manifest = &mut self.manifest;
        manifest.lines += part.lines;
        manifest.bytes += part.bytes;
        manifest.next_offset = self.lines.offset();
        manifest.parts.push(part.clone());
        self.to.save(PROGRESS, &self.manifest).await?;
        self.named += 1;
        Ok(Step::Part(part))
    }
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
    use blobs::{Location, S3Options};

    use super::*;

    fn words(folder: &std::path::Path) -> Destination {
        let location = Location::Folder(folder.to_owned());
        Destination {
            name: "archive".to_owned(),
            store: ExportStore::at(&location, 0, &S3Options::default()).unwrap(),
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
        let first = to.manifest(of("a")).await.unwrap();
        let refused = to.manifest(of("b")).await.unwrap_err().to_string();
        assert!(
            refused.starts_with("The export of the job 'a' is at"),
            "{refused}"
        );
        assert_eq!(to.manifest(of("a")).await.unwrap().job, first.job);
    }
}
