//! What is known of the content of a blob, by which a change on the disk is noticed.
//!
//! A CRC-32 finds every change of up to 32 bits in a row, and overlooks any other one in four
//! billion. It is no proof against somebody who changes a file on purpose.

use std::fmt;

use crate::{BlobError, Blobs};

/// The length and the checksum of a content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint {
    /// The number of bytes.
    pub bytes: u64,
    /// The CRC-32.
    pub crc32: u32,
}

/// The fingerprint of a content that is read piece by piece.
#[derive(Debug, Clone, Default)]
pub struct Fingerprinter {
    bytes: u64,
    crc32: crc32fast::Hasher,
}

impl Fingerprint {
    /// Returns the fingerprint of a content.
    pub fn of(content: &[u8]) -> Self {
        let mut all = Fingerprinter::default();
        all.add(content);
        all.finish()
    }

    /// Checks that a blob which has this fingerprint now is as it was written.
    ///
    /// # Errors
    ///
    /// Returns an error that names the blob if it is not.
    pub fn check(&self, now: Self, blobs: &Blobs, name: &str) -> Result<(), BlobError> {
        if *self == now {
            return Ok(());
        }
        let reason =
            format!("its blob {name} is not as it was written: {self} were, and {now} are there");
        Err(BlobError::damaged(blobs, name, reason))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, crc32 } = self;
        write!(f, "{bytes} bytes with the CRC-32 {crc32:08x}")
    }
}

impl Fingerprinter {
    /// Adds the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        self.crc32.update(bytes);
    }

    /// Returns the fingerprint of all bytes.
    pub fn finish(self) -> Fingerprint {
        Fingerprint {
            bytes: self.bytes,
            crc32: self.crc32.finalize(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_with_another_bit_or_another_length_is_not_what_was_written() {
        let content = b"{\"task\":\"1\"}\n".repeat(1000);
        let written = Fingerprint::of(&content);
        let check = |written: Fingerprint, now: &[u8]| {
            let mut pieces = Fingerprinter::default();
            for piece in now.chunks(999) {
                pieces.add(piece);
            }
            written.check(pieces.finish(), &Blobs::memory(), "a.ndjson")
        };
        check(written, &content).unwrap();
        let mut flipped = content.clone();
        flipped[5000] ^= 4;
        for changed in [&flipped[..], &content[1..], &[&content[..], b"\n"].concat()] {
            let error = check(written, changed).unwrap_err();
            assert_eq!(error.damaged_blob(), Some("a.ndjson"), "{error}");
        }
    }
}
