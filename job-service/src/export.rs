//! Exports the kept outputs of a job: parts of bounded size, and a manifest that names them.
//!
//! What must stay true:
//! - The manifest is written when all parts are safe. Until then, a file beside it says how far the export has come, so that the
//!   same request continues it, in this process or in another one.
//! - An export never writes into the export of another job.
//! - The memory is bounded by a piece of the outputs, not by a part.

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
    /// Returns how far the export of this job has come here. `wanted` is how it begins.
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
