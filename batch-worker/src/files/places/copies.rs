//! Copies of what can only be read from its beginning: packed files, and files of servers that give no parts of them.
//!
//! A copy is a file without a name: nothing is left of it when the process ends, however that is. What must stay true: all copies together
//! have a bounded size; no packed file becomes much larger than such files do; and each is copied once at a time.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flate2::read::MultiGzDecoder;
use ruzstd::decoding::StreamingDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use sha2::{Digest as _, Sha256};

use super::{Packing, Sources, check_wanted};
use crate::SplitError;
use crate::files::{CopyPin, error_of, shown};
use crate::source::Wanted;

/// The most copies at a time. Each is an open file.
const MOST: usize = 200;
/// How much larger than the file its unpacked content may be, from [`UNPACKED_FREELY`] on.
const MOST_RATIO: u64 = 500;
const UNPACKED_FREELY: u64 = 8 << 20;
/// The bytes that are copied at a time.
const PIECE: usize = 256 * 1024;

/// The copies of a process.
#[derive(Debug)]
pub struct Copies {
    folder: PathBuf,
    most_bytes: u64,
    /// Those last used come last.
    all: Mutex<Vec<Named>>,
    /// The bytes of all of them, those that are being made included.
    bytes: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Named {
    key: String,
    cell: Arc<Mutex<Option<Copied>>>,
}

/// A copy that is complete. Clones share it.
#[derive(Debug, Clone)]
pub struct Copied(Arc<Copy>);

#[derive(Debug)]
struct Copy {
    file: File,
    size: u64,
    digest: String,
    _room: Room,
}

/// The bytes of a copy, given back when it is dropped.
#[derive(Debug)]
struct Room {
    all: Arc<AtomicU64>,
    taken: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.all.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

impl Default for Copies {
    fn default() -> Self {
        Self::new(std::env::temp_dir(), Sources::DEFAULT_COPIES)
    }
}

impl Copies {
    pub fn new(folder: PathBuf, most_bytes: u64) -> Self {
        Self {
            folder,
            most_bytes,
            all: Mutex::default(),
            bytes: Arc::default(),
        }
    }

    /// Returns the copy of this key. Who asks for one that is being made waits.
    pub fn get(
        &self,
        key: String,
        name: &str,
        packing: Packing,
        wanted: Option<&Wanted>,
        open: impl FnOnce() -> Result<Box<dyn Read + Send>, SplitError>,
    ) -> Result<Copied, SplitError> {
        let cell = self.cell(key);
        let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(copy) = &*cell {
            return Ok(copy.clone());
        }
        check_wanted(wanted)?;
        let copy = self.make(name, packing, wanted, open()?)?;
        *cell = Some(copy.clone());
        Ok(copy)
    }

    fn cell(&self, key: String) -> Arc<Mutex<Option<Copied>>> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.iter().position(|named| named.key == key);
        let named = match found {
            Some(at) => all.remove(at),
            None => Named {
                key,
                cell: Arc::default(),
            },
        };
        let cell = Arc::clone(&named.cell);
        all.push(named);
        if all.len() > MOST {
            all.remove(0);
        }
        cell
    }

    /// Forgets the copy that was used the longest time ago. Returns whether there was one. Who reads it still does.
    fn forget_oldest(&self) -> bool {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is being made is locked.
        let is_made = |named: &Named| matches!(named.cell.try_lock().as_deref(), Ok(Some(_)));
        let oldest = all.iter().position(is_made);
        oldest.map(|at| drop(all.remove(at))).is_some()
    }

    fn make(
        &self,
        name: &str,
        packing: Packing,
        wanted: Option<&Wanted>,
        packed: Box<dyn Read + Send>,
    ) -> Result<Copied, SplitError> {
        let folder = &self.folder;
        let disk = |error: io::Error| {
            let name = shown(name);
            SplitError::Temporary(
                format!(
                    "a copy of {name:?} cannot be written in {} (--source-copies): {error}",
                    folder.display()
                )
                .into(),
            )
        };
        let mut file = tempfile::tempfile_in(folder).map_err(disk)?;
        let mut room = Room {
            all: Arc::clone(&self.bytes),
            taken: 0,
        };
        let read = Arc::<AtomicU64>::default();
        let counted = Counted {
            from: packed,
            read: Arc::clone(&read),
        };
        let mut content = unpacked(packing, counted);
        let (mut piece, mut digest, mut size) = (vec![0; PIECE], Sha256::new(), 0_u64);
        loop {
            check_wanted(wanted)?;
            let length = match content.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(unpacking_error(name, packing, size, error)),
            };
            size += length as u64;
            let taken = read.load(Ordering::Relaxed);
            if packing != Packing::None && size > UNPACKED_FREELY && size / MOST_RATIO > taken {
                return Err(SplitError::Definition(format!(
                    "{:?} unpacks to more than {MOST_RATIO} times its size: {size} bytes of the first {taken}. It is not read: unpack it, \
                     and check what is in it",
                    shown(name)
                )));
            }
            self.take_room(&mut room, length as u64, name)?;
            digest.update(&piece[..length]);
            file.write_all(&piece[..length]).map_err(disk)?;
        }
        let digest = format!("{:x}", digest.finalize());
        Ok(Copied(Arc::new(Copy {
            file,
            size,
            digest,
            _room: room,
        })))
    }

    /// Takes room for so many bytes more, from copies that are not used if need be.
    fn take_room(&self, room: &mut Room, bytes: u64, name: &str) -> Result<(), SplitError> {
        room.taken += bytes;
        let mut all = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        while all > self.most_bytes {
            if !self.forget_oldest() {
                let (name, most) = (shown(name), self.most_bytes >> 20);
                let refusal = format!(
                    "{name:?} can only be read as a whole, and what is in it has more than {most} MiB, which are the most for copies \
                     (--source-copies-size)"
                );
                return Err(if room.taken > self.most_bytes {
                    SplitError::Definition(refusal)
                } else {
                    SplitError::Temporary("other files take the room for copies".into())
                });
            }
            all = self.bytes.load(Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Copied {
    pub fn pin(&self) -> CopyPin {
        CopyPin {
            size: self.0.size,
            digest: self.0.digest.clone(),
        }
    }

    /// Returns the bytes from this position on.
    pub fn read_from(self, at: u64) -> Box<dyn Read + Send> {
        Box::new(CopyReader { copy: self, at })
    }
}

struct CopyReader {
    copy: Copied,
    at: u64,
}

impl Read for CopyReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.copy.0.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Counts what is read.
struct Counted {
    from: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

fn unpacked(packing: Packing, from: Counted) -> Box<dyn Read> {
    match packing {
        Packing::None => Box::new(from),
        Packing::Gzip => Box::new(MultiGzDecoder::new(from)),
        Packing::Zstd => Box::new(Frames {
            rest: Rest::Raw(Box::new(from)),
        }),
    }
}

/// The content of a file of zstd, which may have several frames.
struct Frames {
    rest: Rest,
}

enum Rest {
    Raw(Box<Counted>),
    Frame(Box<StreamingDecoder<Counted, ruzstd::decoding::FrameDecoder>>),
    Nothing,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.rest, Rest::Nothing) {
                Rest::Nothing => return Ok(0),
                Rest::Raw(from) => match StreamingDecoder::new(*from) {
                    Ok(frame) => self.rest = Rest::Frame(Box::new(frame)),
                    Err(FrameDecoderError::ReadFrameHeaderError(
                        ReadFrameHeaderError::MagicNumberReadError(error),
                    )) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                },
                Rest::Frame(mut frame) => {
                    let read = frame.read(buffer)?;
                    if read > 0 {
                        self.rest = Rest::Frame(frame);
                        return Ok(read);
                    }
                    self.rest = Rest::Raw(Box::new(frame.into_inner()));
                }
            }
        }
    }
}

/// Returns why the content of a file ends at this byte: it is broken, unless it cannot be read.
fn unpacking_error(name: &str, packing: Packing, at: u64, error: io::Error) -> SplitError {
    let is_broken = matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    );
    let what = match packing {
        Packing::None => return error_of(error),
        Packing::Gzip => "gzip",
        Packing::Zstd => "zstd",
    };
    if !is_broken && error.kind() != io::ErrorKind::Other {
        return error_of(error);
    }
    if error.get_ref().is_some_and(|inner| {
        inner.is::<crate::files::Refused>() || !is_broken && packing == Packing::Gzip
    }) {
        return error_of(error);
    }
    SplitError::Definition(format!(
        "{:?} is not whole, or not {what}: behind {at} bytes of its content it cannot be unpacked ({error})",
        shown(name)
    ))
}
