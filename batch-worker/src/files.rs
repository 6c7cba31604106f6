//! Files of records, wherever they are: what a definition names becomes bytes here, and nowhere
//! else.
//!
//! Hides where a file is, and whether it can be read from any place. A name says where: a path
//! below the root folder has no scheme, `https://…` is a URL, `store://name/path` a file in a store
//! of the operator, and `upload://ID` an upload. What is packed, or has a server that gives no
//! parts of it, is copied once to a file without a name, and read there. All calls block their
//! thread.
//!
//! What must stay true: what is read is what was pinned. A file that is not as it was is refused,
//! by its name, also if it changes between two reads; it is never read in part from one state and
//! in part from another.

mod listing;
mod many;
mod packed;
#[cfg(feature = "sources")]
mod places;
#[cfg(not(feature = "sources"))]
#[path = "files/no_places.rs"]
mod places;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Seek as _, SeekFrom};

use contract::shown_url;

pub use self::packed::Packing;
use self::places::Places;
#[cfg(feature = "sources")]
pub use self::places::{Sources, Store};
use crate::reading::{Reading, error_for_reader};
use crate::source::{Kind, Root, Stamp};
use crate::uploads::Uploads;
use crate::{Batch, SplitError};

/// The longest URL, in bytes.
const LONGEST_NAME: usize = 4096;

/// The files that definitions may name.
#[derive(Debug, Clone)]
pub struct Files {
    root: Root,
    places: Places,
    uploads: Option<Uploads>,
    /// The partition of the job, whose uploads alone it may name.
    partition: Option<String>,
    reading: Reading,
}

/// Where a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place<'a> {
    BelowRoot,
    /// At a URL.
    Web,
    /// In a store of this name, at this path.
    Store(&'a str, &'a str),
    /// An upload with this id.
    Upload(&'a str),
}

/// What a file looked like when a batch was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pin {
    /// The size in bytes; 0 if a server does not say it.
    pub size: u64,
    /// The time of the last change, in nanoseconds since 1970, of a file below the root folder.
    pub modified: i64,
    /// What the server says of this state of the file: its `ETag`, or else when it was last
    /// modified.
    pub tag: Option<String>,
    /// Whether its server gives it only as a whole.
    pub whole: bool,
    /// What was found in it when it was read as a whole.
    pub copy: Option<CopyPin>,
}

/// What is in a file that can only be read as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyPin {
    /// The size in bytes, unpacked.
    pub size: u64,
    /// The SHA-256.
    pub digest: String,
}

/// The bytes of a range of a file, all of them or an error.
pub struct Span {
    name: String,
    bytes: Box<dyn Read + Send>,
    left: u64,
    reading: Reading,
}

impl Files {
    /// Returns the files below this root.
    pub fn below(root: impl Into<Root>) -> Self {
        Self {
            root: root.into(),
            places: Places::default(),
            uploads: None,
            partition: None,
            reading: Reading::default(),
        }
    }

    /// Adds the files that are elsewhere.
    #[cfg(feature = "sources")]
    pub fn and(self, sources: Sources) -> Self {
        let places = sources.into();
        Self { places, ..self }
    }

    /// Adds uploads, which are read by this.
    pub fn with_uploads(self, uploads: Uploads) -> Self {
        let uploads = Some(uploads);
        Self { uploads, ..self }
    }

    /// Returns the same files for a batch, which may name the uploads of its partition.
    pub fn of_batch(&self, batch: &Batch<'_>) -> Self {
        Self {
            partition: batch.partition.map(str::to_owned),
            ..self.clone()
        }
    }

    /// Returns the same files, read for this.
    pub fn read_for(self, reading: &Reading) -> Self {
        let reading = reading.clone();
        Self { reading, ..self }
    }

    /// Returns what a file looks like now.
    pub fn look(&self, name: &str) -> Result<Pin, SplitError> {
        match Place::of(name)? {
            Place::BelowRoot => {}
            Place::Upload(id) => {
                let partition = self.partition.as_deref();
                let found = self.uploads()?.look(id, partition, &self.reading);
                return found.map(Pin::of_upload);
            }
            place => return self.places.look(name, place, &self.reading),
        }
        let Stamp {
            kind,
            size,
            modified,
        } = self.root.stamp(name)?;
        if kind != Kind::File {
            return Err(SplitError::Definition(format!("{name:?} is not a file")));
        }
        Ok(Pin::of_local(size, modified))
    }

    /// Reads a file that can only be read as a whole, unless it is copied already. Returns the pin
    /// of what is in it.
    pub fn settle(&self, name: &str, pin: Pin, packing: Packing) -> Result<Pin, SplitError> {
        if !pin.is_copied(packing) || pin.copy.is_some() {
            return Ok(pin);
        }
        let copy = Some(self.places.copied(self, name, &pin, packing)?.pin());
        Ok(Pin { copy, ..pin })
    }

    /// Opens the bytes `from..to` of what is in a file that is as it was pinned.
    pub fn open(
        &self,
        name: &str,
        pin: &Pin,
        packing: Packing,
        from: u64,
        to: u64,
    ) -> Result<Span, SplitError> {
        let length = pin.length();
        if from > to || to > length {
            return Err(SplitError::Definition(format!(
                "the part {from}..{to} does not fit the file {:?}, which has {length} bytes",
                shown(name)
            )));
        }
        let bytes = if pin.is_copied(packing) {
            let copy = self.places.copied(self, name, pin, packing)?;
            if pin
                .copy
                .as_ref()
                .is_some_and(|pinned| *pinned != copy.pin())
            {
                return Err(changed(name, "it contains something else"));
            }
            copy.read_from(from)
        } else {
            self.open_raw(name, pin, from, to)?
        };
        Ok(Span {
            name: shown(name),
            bytes,
            left: to - from,
            reading: self.reading.clone(),
        })
    }

    /// Opens the bytes of a file as they are where it is: from any place, unless it can only be
    /// read as a whole.
    fn open_raw(
        &self,
        name: &str,
        pin: &Pin,
        from: u64,
        to: u64,
    ) -> Result<Box<dyn Read + Send>, SplitError> {
        match Place::of(name)? {
            Place::BelowRoot => {}
            Place::Upload(id) => {
                let partition = self.partition.as_deref();
                let uploads = self.uploads()?;
                let (found, bytes) = uploads.open(id, partition, (from, to), &self.reading)?;
                pin.check(name, &Pin::of_upload(found))?;
                return Ok(bytes);
            }
            place => {
                let range = (from, to);
                return self.places.open(name, place, pin, range, &self.reading);
            }
        }
        let (mut file, Stamp { size, modified, .. }) = self.root.open(name)?;
        pin.check(name, &Pin::of_local(size, modified))?;
        file.seek(SeekFrom::Start(from))?;
        Ok(Box::new(file))
    }

    /// Refuses what was read of a file that has changed meanwhile. Of a file elsewhere, each
    /// response was checked.
    pub fn check_unchanged(&self, name: &str, pin: &Pin) -> Result<(), SplitError> {
        match Place::of(name)? {
            Place::BelowRoot => pin.check(name, &self.look(name)?),
            Place::Web | Place::Store(..) | Place::Upload(_) => Ok(()),
        }
    }

    fn uploads(&self) -> Result<&Uploads, SplitError> {
        self.uploads
            .as_ref()
            .ok_or_else(|| SplitError::Definition("this batch worker reads no uploads".to_owned()))
    }
}

impl<'a> Place<'a> {
    fn of(name: &'a str) -> Result<Self, SplitError> {
        let Some((scheme, rest)) = name.split_once("://") else {
            return Ok(Self::BelowRoot);
        };
        if name.len() > LONGEST_NAME {
            let (bytes, name) = (name.len(), shown_url(name));
            let name = &name[..name.floor_char_boundary(40)];
            return Err(SplitError::Definition(format!(
                "the name {name:?}… has {bytes} bytes; the limit is {LONGEST_NAME}"
            )));
        }
        match (scheme, rest.split_once('/')) {
            ("http" | "https", _) => Ok(Self::Web),
            ("upload", None) if !rest.is_empty() => Ok(Self::Upload(rest)),
            ("store", Some((store, path))) if !store.is_empty() => Ok(Self::Store(store, path)),
            // A store itself is a folder.
            ("store", None) if !rest.is_empty() => Ok(Self::Store(rest, "")),
            ("store", _) => Err(SplitError::Definition(format!(
                "{name:?} names no file of a store; write store://NAME/PATH"
            ))),
            _ => Err(SplitError::Definition(format!(
                "{:?} is not known; name a path below the root folder, a URL (https://…), or a file in a store of the operator \
                 (store://NAME/PATH)",
                format!("{scheme}://")
            ))),
        }
    }
}

impl Pin {
    fn of_upload((size, digest): (u64, String)) -> Self {
        Self {
            size,
            tag: Some(digest),
            ..Self::default()
        }
    }

    fn of_local(size: u64, modified: i64) -> Self {
        Self {
            size,
            modified,
            ..Self::default()
        }
    }

    /// Returns whether it can only be read from its beginning.
    fn is_copied(&self, packing: Packing) -> bool {
        self.whole || packing != Packing::None
    }

    /// Returns the number of bytes that can be read.
    pub fn length(&self) -> u64 {
        self.copy.as_ref().map_or(self.size, |copy| copy.size)
    }

    /// Refuses a file that is not as it was pinned.
    fn check(&self, name: &str, now: &Self) -> Result<(), SplitError> {
        if (self.size, self.modified, &self.tag) == (now.size, now.modified, &now.tag) {
            return Ok(());
        }
        Err(changed(
            name,
            &format!("it had {} bytes, now it has {}", self.size, now.size),
        ))
    }
}

fn changed(name: &str, how: &str) -> SplitError {
    SplitError::Definition(format!(
        "the file {:?} has changed since the batch was made ({how})",
        shown(name)
    ))
}

/// Returns the name of a file for people: of a URL without what may be secret in it.
pub fn shown(name: &str) -> String {
    match Place::of(name) {
        Ok(Place::Web) => framework::http::confined::shown(name),
        _ => name.to_owned(),
    }
}

impl Read for Span {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reading.check().map_err(error_for_reader)?;
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = buffer.len().min(most);
        let read = self.bytes.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            let (name, left) = (&self.name, self.left);
            let problem = format!(
                "the file {name:?} has become shorter while it was read: {left} bytes are missing"
            );
            return Err(error_for_reader(SplitError::Definition(problem)));
        }
        self.left -= read as u64;
        Ok(read)
    }
}
