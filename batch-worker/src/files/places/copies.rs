//! Copies of what can only be read from its beginning: packed files, and files of servers that give
//! no parts of them.
//!
//! A copy is a file without a name: nothing is left of it when the process ends, however that is.
//! What must stay true: all copies together have a bounded size; no packed file becomes much larger
//! than such files do, or is read for long without content; and each is copied once at a time.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::read::MultiGzDecoder;
use parking_lot::Mutex;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{DEFAULT_MAX_WINDOW_SIZE, StreamingDecoder};
use sha2::{Digest as _, Sha256};

use super::{Packing, Sources};
use crate::SplitError;
use crate::files::{CopyPin, shown};
use crate::reading::{Reading, error_of};

/// The most copies at a time. Each is an open file.
const MOST: usize = 200;
/// How much larger than the file its unpacked content may be, from [`UNPACKED_FREELY`] on.
const MOST_RATIO: u64 = 500;
const UNPACKED_FREELY: u64 = 8 << 20;
/// The most bytes of a packed file in a row that have no content, such as empty members.
const MOST_EMPTY: u64 = 256 * 1024;
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
    place: CopyPlace,
}

/// Where a copy is once it is made. Locked by the thread that makes it.
type CopyPlace = Arc<tokio::sync::Mutex<Option<Copied>>>;

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

    /// Returns the copy of this key. Waits for one that is being made, as long as somebody waits
    /// for the reading.
    pub fn get(
        &self,
        key: String,
        name: &str,
        packing: Packing,
        reading: &Reading,
        open: impl FnOnce() -> Result<Box<dyn Read + Send>, SplitError>,
    ) -> Result<Copied, SplitError> {
        let place = self.place(key);
        let mut place = reading.wait(place.lock())?;
        if let Some(copy) = &*place {
            return Ok(copy.clone());
        }
        let copy = self.make(name, packing, reading, open()?)?;
        *place = Some(copy.clone());
        Ok(copy)
    }

    fn place(&self, key: String) -> CopyPlace {
        let mut all = self.all.lock();
        let found = all.iter().position(|named| named.key == key);
        let named = match found {
            Some(at) => all.remove(at),
            None => Named {
                key,
                place: CopyPlace::default(),
            },
        };
        let place = Arc::clone(&named.place);
        all.push(named);
        if all.len() > MOST {
            all.remove(0);
        }
        place
    }

    /// Forgets the copy that was used the longest time ago. Returns whether there was one. Who
    /// reads it still does.
    fn forget_oldest(&self) -> bool {
        let mut all = self.all.lock();
        // One that is being made is locked.
        let is_made = |named: &Named| matches!(named.place.try_lock().as_deref(), Ok(Some(_)));
        let oldest = all.iter().position(is_made);
        oldest.map(|at| drop(all.remove(at))).is_some()
    }

    fn make(
        &self,
        name: &str,
        packing: Packing,
        reading: &Reading,
        file_elsewhere: Box<dyn Read + Send>,
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
        let progress = Rc::<Progress>::default();
        let input = Input {
            from: file_elsewhere,
            name: shown(name),
            most_empty: MOST_EMPTY,
            reading: reading.clone(),
            progress: Rc::clone(&progress),
        };
        let mut content = unpacked(packing, input);
        let (mut piece, mut digest, mut size) = (vec![0; PIECE], Sha256::new(), 0_u64);
        loop {
            let length = match content.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let failure = progress.failure.take();
                    return Err(failure.unwrap_or_else(|| broken(name, packing, size, error)));
                }
            };
            size += length as u64;
            let taken = progress.has_content();
            if packing != Packing::None && size > UNPACKED_FREELY && size / MOST_RATIO > taken {
                return Err(SplitError::Definition(format!(
                    "{:?} unpacks to more than {MOST_RATIO} times its size: {size} bytes of the first {taken}. It is not read: unpack it, \
                     and check what is in it",
                    shown(name)
                )));
            }
            if taken > self.most_bytes {
                return Err(self.too_large(name));
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
                return Err(if room.taken > self.most_bytes {
                    self.too_large(name)
                } else {
                    SplitError::Temporary("other files take the room for copies".into())
                });
            }
            all = self.bytes.load(Ordering::Relaxed);
        }
        Ok(())
    }

    fn too_large(&self, name: &str) -> SplitError {
        let (name, most) = (shown(name), self.most_bytes >> 20);
        SplitError::Definition(format!(
            "{name:?} can only be read as a whole, and has more than {most} MiB, which are the most for copies (--source-copies-size)"
        ))
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

/// A file as it is where it is.
struct Input {
    from: Box<dyn Read + Send>,
    /// The name of the file, for people.
    name: String,
    /// How many bytes in a row may have no content.
    most_empty: u64,
    reading: Reading,
    progress: Rc<Progress>,
}

/// How far a file is read.
#[derive(Default)]
struct Progress {
    /// The bytes that are read.
    read: Cell<u64>,
    /// How many they were when the last content was found in them.
    content_at: Cell<u64>,
    /// Why the file itself cannot be read. What unpacks it returns errors of its own.
    failure: RefCell<Option<SplitError>>,
}

impl Progress {
    /// Notes that what is read has content. Returns how much is read.
    fn has_content(&self) -> u64 {
        self.content_at.set(self.read.get());
        self.read.get()
    }

    /// Returns how many bytes without content are read since the last ones with some.
    fn empty(&self) -> u64 {
        self.read.get() - self.content_at.get()
    }
}

impl Input {
    fn read_on(&mut self, buffer: &mut [u8]) -> Result<usize, SplitError> {
        self.reading.check()?;
        let empty = self.progress.empty();
        if empty > self.most_empty {
            return Err(self.no_content(empty));
        }
        loop {
            match self.from.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read.map_err(error_of),
            }
        }
    }

    fn no_content(&self, bytes: u64) -> SplitError {
        SplitError::Definition(format!(
            "{:?} has {bytes} bytes in a row without content. It is not read: unpack it, and check what is in it",
            self.name
        ))
    }

    /// Keeps why the file cannot be read.
    fn fail(&self, failure: SplitError) -> io::Error {
        *self.progress.failure.borrow_mut() = Some(failure);
        io::Error::other("the file cannot be read")
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_on(buffer).map_err(|failure| self.fail(failure))?;
        let all = &self.progress.read;
        all.set(all.get() + read as u64);
        Ok(read)
    }
}

fn unpacked(packing: Packing, from: Input) -> Box<dyn Read> {
    match packing {
        Packing::None => Box::new(from),
        Packing::Gzip => Box::new(MultiGzDecoder::new(from)),
        Packing::Zstd => Box::new(Frames {
            rest: Rest::Raw(Box::new(Input {
                // Content is delivered when it is behind the window.
                most_empty: DEFAULT_MAX_WINDOW_SIZE + MOST_EMPTY,
                ..from
            })),
        }),
    }
}

/// The content of a file of zstd, which may have several frames.
struct Frames {
    rest: Rest,
}

enum Rest {
    Raw(Box<Input>),
    Frame(Box<StreamingDecoder<Input, ruzstd::decoding::FrameDecoder>>),
    Nothing,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(&mut self.rest, Rest::Nothing) {
                Rest::Nothing => return Ok(0),
                Rest::Raw(from) => {
                    let empty = from.progress.empty();
                    if empty > MOST_EMPTY {
                        return Err(from.fail(from.no_content(empty)));
                    }
                    match StreamingDecoder::new(*from) {
                        Ok(frame) => self.rest = Rest::Frame(Box::new(frame)),
                        Err(FrameDecoderError::ReadFrameHeaderError(
                            ReadFrameHeaderError::MagicNumberReadError(error),
                        )) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                        Err(error) => {
                            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                        }
                    }
                }
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

/// Returns why the content of a file ends at this byte: it is broken.
fn broken(name: &str, packing: Packing, at: u64, error: io::Error) -> SplitError {
    let what = match packing {
        Packing::None => return error_of(error),
        Packing::Gzip => "gzip",
        Packing::Zstd => "zstd",
    };
    SplitError::Definition(format!(
        "{:?} is not whole, or not {what}: behind {at} bytes of its content it cannot be unpacked ({error})",
        shown(name)
    ))
}

#[cfg(test)]
mod tests {
    use harness::in_time;
    use tokio::task::spawn_blocking;

    use super::*;

    type Opened = Result<Box<dyn Read + Send>, SplitError>;

    #[tokio::test]
    async fn reading_that_waits_for_a_copy_of_another_ends_when_nobody_waits_for_it() {
        let copies = Arc::new(Copies::default());
        let get = |reading: Reading, open: Box<dyn FnOnce() -> Opened + Send>| {
            let copies = Arc::clone(&copies);
            spawn_blocking(move || copies.get("key".to_owned(), "a", Packing::None, &reading, open))
        };
        let (opens, mut opened) = tokio::sync::mpsc::unbounded_channel();
        let (goes_on, waits) = std::sync::mpsc::channel();
        let file = move || -> Opened {
            opens.send(())?;
            waits.recv()?;
            Ok(Box::new(&b"content"[..]))
        };
        let first = get(Reading::default(), Box::new(file));
        in_time("the first to open the file", opened.recv()).await;
        let reading = Reading::default();
        let second = get(reading.clone(), Box::new(|| panic!("it is copied twice")));
        reading.end();
        let second = in_time("the second", second).await.unwrap();
        assert!(matches!(second, Err(SplitError::Temporary(_))));
        goes_on.send(()).unwrap();
        let first = in_time("the first", first).await.unwrap();
        assert_eq!(first.unwrap().pin().size, 7);
    }
}
