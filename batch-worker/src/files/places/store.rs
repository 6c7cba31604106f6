//! Files in stores that the operator has named: folders and buckets.

use std::io::{self, Cursor, Read, Seek as _, SeekFrom};
use std::path::PathBuf;

use blobs::{BlobError, Bucket, BucketOptions, Location, LocationError};
use bytes::Bytes;

use crate::SplitError;
use crate::files::{Pin, changed, listing};
use crate::reading::{Reading, error_for_reader};
use crate::source::{Kind, Root};

/// The bytes of a bucket that are read at a time.
const PIECE: u64 = 4 << 20;

/// A place that definitions may read: a folder, or a bucket with a prefix.
#[derive(Debug, Clone)]
pub struct Store(Of);

#[derive(Debug, Clone)]
enum Of {
    Folder(Root),
    Bucket(Bucket),
}

impl Store {
    /// Returns the store at this location.
    ///
    /// # Errors
    /// If this build, or these options, can never reach it.
    pub fn at(location: &Location, options: &BucketOptions) -> Result<Self, LocationError> {
        Ok(Self(match location {
            Location::Folder(folder) => Of::Folder(Root::new(folder.clone())),
            Location::Bucket { .. } => Of::Bucket(Bucket::at(location, options)?),
        }))
    }

    /// Hides these files and folders, with everything below them.
    pub(super) fn hide(&mut self, paths: &[PathBuf]) {
        if let Of::Folder(root) = &mut self.0 {
            *root = root.clone().hide(paths.iter().cloned());
        }
    }

    /// Returns what a file looks like now.
    pub fn look(&self, name: &str, path: &str, reading: &Reading) -> Result<Pin, SplitError> {
        match &self.0 {
            Of::Folder(root) => {
                let stamp = root.stamp(path).map_err(|error| of_store(name, error))?;
                if stamp.kind != Kind::File {
                    return Err(SplitError::Definition(format!("{name:?} is not a file")));
                }
                Ok(Pin::of_local(stamp.size, stamp.modified))
            }
            Of::Bucket(bucket) => {
                check_object(name, path)?;
                let found = reading.wait(bucket.look(path))?;
                let found = found.map_err(|error| of_bucket(name, &error))?;
                Ok(Pin {
                    size: found.size,
                    tag: found.tag,
                    ..Pin::default()
                })
            }
        }
    }

    /// Opens a range of a file.
    pub fn open(
        &self,
        name: &str,
        path: &str,
        pin: &Pin,
        (from, to): (u64, u64),
        reading: &Reading,
    ) -> Result<Box<dyn Read + Send>, SplitError> {
        match &self.0 {
            Of::Folder(root) => {
                let opened = root.open(path).map_err(|error| of_store(name, error));
                let (mut file, stamp) = opened?;
                pin.check(name, &Pin::of_local(stamp.size, stamp.modified))?;
                file.seek(SeekFrom::Start(from))?;
                Ok(Box::new(file))
            }
            Of::Bucket(bucket) => {
                check_object(name, path)?;
                Ok(Box::new(Pieces {
                    bucket: bucket.clone(),
                    name: name.to_owned(),
                    path: path.to_owned(),
                    tag: pin.tag.clone(),
                    at: from,
                    to,
                    piece: Cursor::default(),
                    reading: reading.clone(),
                }))
            }
        }
    }
}

impl Store {
    /// Refuses what is no folder. In a bucket there is any folder; one without files is missing.
    pub fn check_folder(
        &self,
        name: &str,
        path: &str,
        reading: &Reading,
    ) -> Result<(), SplitError> {
        let path = path.trim_matches('/');
        match &self.0 {
            Of::Folder(root) => {
                let path = if path.is_empty() { "." } else { path };
                let stamp = root.stamp(path).map_err(|error| of_store(name, error))?;
                if stamp.kind != Kind::Folder {
                    return Err(SplitError::Definition(format!("{name:?} is not a folder")));
                }
            }
            Of::Bucket(bucket) => {
                let found = reading.wait(bucket.list(path, 1))?;
                let found = found.map_err(|error| of_listing(name, &error))?;
                if found.files.is_empty() {
                    return Err(no_file_below(name));
                }
            }
        }
        Ok(())
    }

    /// Returns the files below a path, at most so many.
    pub fn list(
        &self,
        name: &str,
        path: &str,
        most: usize,
        reading: &Reading,
    ) -> Result<Vec<(String, Pin)>, SplitError> {
        let path = path.trim_matches('/');
        match &self.0 {
            Of::Folder(root) => {
                let path = if path.is_empty() { "." } else { path };
                let found = listing::below(root, path, most, reading);
                found.map_err(|error| of_store(name, error))
            }
            Of::Bucket(bucket) => {
                let found = reading.wait(bucket.list(path, most))?;
                let found = found.map_err(|error| of_listing(name, &error))?;
                if found.has_more {
                    return Err(listing::too_many(name, most));
                }
                if found.files.is_empty() {
                    return Err(no_file_below(name));
                }
                let pinned = found.files.into_iter().map(|(path, object)| {
                    let pin = Pin {
                        size: object.size,
                        tag: object.tag,
                        ..Pin::default()
                    };
                    (path, pin)
                });
                Ok(pinned.collect())
            }
        }
    }
}

fn no_file_below(folder: &str) -> SplitError {
    SplitError::Missing(format!("there is no file below {folder:?}"))
}

/// Reads a range of an object, piece by piece: a reader may be slow, and a request may not.
struct Pieces {
    bucket: Bucket,
    name: String,
    path: String,
    tag: Option<String>,
    at: u64,
    to: u64,
    piece: Cursor<Bytes>,
    reading: Reading,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.piece.read(buffer)?;
        if read > 0 || self.at >= self.to || buffer.is_empty() {
            return Ok(read);
        }
        let to = self.to.min(self.at + PIECE);
        let range = self.at..to;
        let found = self.bucket.read(&self.path, self.tag.as_deref(), range);
        let found = self.reading.wait(found).map_err(error_for_reader)?;
        let piece = found.map_err(|error| error_for_reader(of_bucket(&self.name, &error)))?;
        self.at += piece.len() as u64;
        self.piece = Cursor::new(piece);
        self.piece.read(buffer)
    }
}

/// Refuses a path that no object has.
fn check_object(name: &str, path: &str) -> Result<(), SplitError> {
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) || path.contains('\0') {
        return Err(SplitError::Definition(format!(
            "{name:?} names no file of a store: its path has an empty part, `.` or `..`"
        )));
    }
    Ok(())
}

/// Returns the error of a folder with the name by which definitions know it.
fn of_store(name: &str, error: SplitError) -> SplitError {
    let named = |text: String| format!("{name:?} in a store: {text}");
    match error {
        SplitError::Definition(text) => SplitError::Definition(named(text)),
        SplitError::Missing(text) => SplitError::Missing(named(text)),
        temporary @ SplitError::Temporary(_) => temporary,
    }
}

/// Returns the error of a list. What is missing there is the bucket.
fn of_listing(name: &str, error: &BlobError) -> SplitError {
    if error.is_missing() {
        return SplitError::Missing(error.with_place(&format!("{name:?}")));
    }
    of_bucket(name, error)
}

fn of_bucket(name: &str, error: &BlobError) -> SplitError {
    if error.is_missing() {
        return SplitError::Missing(format!("there is no file {name:?} in its store"));
    }
    if error.is_changed() {
        return changed(name, "its store says so");
    }
    let text = error.with_place(&format!("{name:?}"));
    if error.is_denied() {
        return SplitError::Definition(text);
    }
    SplitError::Temporary(text.into())
}
