//! Files of records, wherever they are: what a definition names becomes bytes here, and nowhere else.
//!
//! Hides where a file is. A name says it: a path below the root folder has no scheme. All calls block their thread.
//!
//! What must stay true: what is read is what was pinned. A file that is not as it was is refused, by its name, also if it changes
//! between two reads; it is never read in part from one state and in part from another.

use std::io::{self, Read, Seek as _, SeekFrom};

use crate::SplitError;
use crate::source::{Kind, Root, Stamp};

/// The files that definitions may name.
#[derive(Debug, Clone)]
pub struct Files {
    root: Root,
}

/// What a file looked like when a batch was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    /// The size in bytes.
    pub size: u64,
    /// The time of the last change, in nanoseconds since 1970, of a file below the root folder.
    pub modified: i64,
}

/// The bytes of a range of a file, all of them or an error.
pub struct Span {
    name: String,
    bytes: Box<dyn Read + Send>,
    left: u64,
}

/// An error in a reader that is no trouble of the moment: reading again would find the same.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Refused(String);

impl Files {
    /// Returns the files below this root.
    pub fn below(root: impl Into<Root>) -> Self {
        Self { root: root.into() }
    }

    /// Returns what a file looks like now.
    pub fn look(&self, name: &str) -> Result<Pin, SplitError> {
        let Stamp {
            kind,
            size,
            modified,
        } = self.root.stamp(name)?;
        if kind != Kind::File {
            return Err(SplitError::Definition(format!("{name:?} is not a file")));
        }
        Ok(Pin { size, modified })
    }

    /// Opens the bytes `from..to` of a file that is as it was pinned.
    pub fn open(&self, name: &str, pin: &Pin, from: u64, to: u64) -> Result<Span, SplitError> {
        let (mut file, Stamp { size, modified, .. }) = self.root.open(name)?;
        pin.check(name, &Pin { size, modified })?;
        if from > to || to > pin.size {
            return Err(SplitError::Definition(format!(
                "the part {from}..{to} does not fit the file {name:?}, which has {size} bytes"
            )));
        }
        file.seek(SeekFrom::Start(from))?;
        Ok(Span {
            name: name.to_owned(),
            bytes: Box::new(file),
            left: to - from,
        })
    }

    /// Refuses what was read of a file that has changed meanwhile.
    pub fn check_unchanged(&self, name: &str, pin: &Pin) -> Result<(), SplitError> {
        pin.check(name, &self.look(name)?)
    }
}

impl Pin {
    /// Refuses a file that is not as it was pinned.
    fn check(&self, name: &str, now: &Self) -> Result<(), SplitError> {
        if self == now {
            return Ok(());
        }
        Err(SplitError::Definition(format!(
            "the file {name:?} has changed since the batch was made (it had {} bytes, now it has {})",
            self.size, now.size
        )))
    }
}

impl Read for Span {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX);
        let most = buffer.len().min(most);
        let read = self.bytes.read(&mut buffer[..most])?;
        if read == 0 && most > 0 {
            let (name, left) = (&self.name, self.left);
            return Err(io::Error::other(Refused(format!(
                "the file {name:?} has become shorter while it was read: {left} bytes are missing"
            ))));
        }
        self.left -= read as u64;
        Ok(read)
    }
}

/// Returns what an error of reading a [`Span`] means for the split.
pub fn error_of(error: io::Error) -> SplitError {
    match error.get_ref().and_then(|it| it.downcast_ref::<Refused>()) {
        Some(refused) => SplitError::Definition(refused.0.clone()),
        None => SplitError::Temporary(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_a_file_is_all_its_bytes_or_an_error_with_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("a");
        std::fs::write(&at, "0123456789").unwrap();
        let files = Files::below(folder.path());
        let pin = files.look("a").unwrap();
        let text = |from, to| {
            let mut text = String::new();
            let read = files.open("a", &pin, from, to)?.read_to_string(&mut text);
            read.map_err(error_of).map(|_| text)
        };
        assert_eq!(text(0, 10).unwrap(), "0123456789");
        assert_eq!(text(3, 5).unwrap(), "34");
        assert_eq!(text(5, 5).unwrap(), "");
        for (from, to) in [(5, 3), (3, 11), (u64::MAX, u64::MAX)] {
            let error = text(from, to).unwrap_err();
            assert!(
                matches!(&error, SplitError::Definition(text) if text.contains("does not fit the file \"a\"")),
                "{error:?}"
            );
        }
        // It becomes shorter while it is read.
        let mut span = files.open("a", &pin, 0, 10).unwrap();
        std::fs::File::options()
            .write(true)
            .open(&at)
            .unwrap()
            .set_len(4)
            .unwrap();
        let error = span.read_to_end(&mut Vec::new()).map_err(error_of);
        assert!(
            matches!(&error, Err(SplitError::Definition(text)) if text.contains("\"a\" has become shorter")),
            "{error:?}"
        );
        let changed = files.check_unchanged("a", &pin).unwrap_err();
        assert!(
            matches!(&changed, SplitError::Definition(text) if text.contains("it had 10 bytes, now it has 4")),
            "{changed:?}"
        );
    }
}
