//! The definition of a job: the request and the start message that it was created with, packed. A
//! job that is taken up again is started by them.
//!
//! They are in a table of their own, which no list reads. What must stay true: they live exactly as
//! long as their job.

use std::io::{self, Read as _, Write as _};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use crate::model::{Definition, Headers, JobRequest, Prerequisite};

/// The most bytes that are unpacked. No request and no message is larger.
const LONGEST: u64 = 256 * 1024 * 1024;

/// A definition as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PackedDefinition {
    /// Deflated.
    pub request: Vec<u8>,
    pub pipe: String,
    /// Deflated.
    pub start: Vec<u8>,
    pub headers: Headers,
    pub prerequisites: Vec<Prerequisite>,
    pub suspended: bool,
}

impl PackedDefinition {
    /// Packs what a job is created from.
    pub fn of(request: &JobRequest, pipe: String, start: &[u8]) -> io::Result<Self> {
        Ok(Self {
            request: pack(&request.definition)?,
            pipe,
            start: pack(start)?,
            headers: request.headers.clone(),
            prerequisites: request.start.prerequisites.clone(),
            suspended: request.start.suspended,
        })
    }

    pub fn unpack(self) -> io::Result<Definition> {
        Ok(Definition {
            request: unpack(&self.request)?,
            pipe: self.pipe,
            start: unpack(&self.start)?,
            headers: self.headers,
            prerequisites: self.prerequisites,
            suspended: self.suspended,
        })
    }
}

fn pack(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}

fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    DeflateDecoder::new(packed)
        .take(LONGEST)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_unchanged_and_usually_shorter() {
        let long = br#"{"task": "reindex"}"#.repeat(10_000);
        for bytes in [&b""[..], b"x", &long] {
            let packed = pack(bytes).unwrap();
            assert_eq!(unpack(&packed).unwrap(), bytes);
            assert!(packed.len() < bytes.len() / 50 + 10, "{}", packed.len());
        }
        assert!(unpack(b"no deflate").is_err());
    }
}
