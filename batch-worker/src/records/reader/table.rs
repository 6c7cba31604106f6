//! Records of CSV and TSV: objects, if a header names the fields, and arrays of texts otherwise.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::rc::Rc;

use csv::{ByteRecord, ErrorKind, Reader, ReaderBuilder};
use serde_json::value::RawValue;

use super::{LONGEST_RECORD, Wrong};
use crate::files::Span;

/// How much the reader reads ahead.
const AHEAD: usize = 64 * 1024;
/// What to look at if a record does not end.
const HINT: &str = "; perhaps a quote in it is not closed";

pub struct Table {
    reader: Reader<Bounded>,
    /// How many bytes may be read for this record.
    left: Rc<Cell<u64>>,
    begin: u64,
    delimiter: u8,
    record: ByteRecord,
    header: Option<Vec<String>>,
}

/// A file of which no more is read than is left.
struct Bounded {
    from: Span,
    left: Rc<Cell<u64>>,
}

#[derive(Debug, thiserror::Error)]
#[error("the record is too long")]
struct TooLong;

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::Error::other(TooLong));
        }
        let most = buffer
            .len()
            .min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.from.read(&mut buffer[..most])?;
        self.left.set(left - read as u64);
        Ok(read)
    }
}

impl Table {
    /// Returns the records of a file from this position on, where one begins.
    pub fn new(from: Span, begin: u64, delimiter: u8) -> Self {
        let left = Rc::new(Cell::new(0));
        let bounded = Bounded {
            from,
            left: Rc::clone(&left),
        };
        let reader = ReaderBuilder::new()
            .delimiter(delimiter)
            .has_headers(false)
            .flexible(true)
            .buffer_capacity(AHEAD)
            .from_reader(bounded);
        Self {
            reader,
            left,
            begin,
            delimiter,
            record: ByteRecord::new(),
            header: None,
        }
    }

    /// Reads the header.
    pub fn take_header(&mut self) -> Result<(), Wrong> {
        self.next().map_err(|(_, wrong)| wrong)?;
        let mut names = Vec::new();
        for field in &self.record {
            let name = std::str::from_utf8(field)
                .map_err(|error| Wrong::Record(format!("is not UTF-8: {error}")))?;
            names.push(name.to_owned());
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) = names.iter().find(|name| !seen.insert(*name)) {
            return Err(Wrong::Record(format!(
                "names the field {twice:?} twice; `header: false` reads it as a record"
            )));
        }
        self.header = Some(names);
        Ok(())
    }

    /// Takes the header of another part of the same file.
    pub fn use_header_of(&mut self, other: Self) {
        self.header = other.header;
    }

    /// Takes this header.
    pub fn use_header(&mut self, names: Vec<String>) {
        self.header = Some(names);
    }

    /// Returns the header.
    pub fn header(&self) -> Option<&[String]> {
        self.header.as_deref()
    }

    /// Moves to the next record. Returns where it begins.
    pub fn next(&mut self) -> Result<Option<u64>, (u64, Wrong)> {
        self.left.set(LONGEST_RECORD + AHEAD as u64);
        let at = self.begin + self.reader.position().byte();
        match self.reader.read_byte_record(&mut self.record) {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            Err(error) => return Err((at, wrong(error))),
        }
        let after = self.begin + self.reader.position().byte();
        if after - at > LONGEST_RECORD {
            return Err((at, Wrong::too_long(HINT)));
        }
        let (count, names) = (self.record.len(), self.header.as_ref().map_or(0, Vec::len));
        if names > 0 && count != names {
            let what = format!(
                "has {count} fields, and the header has {names}; perhaps a quote is missing or too many"
            );
            return Err((at, Wrong::Record(what)));
        }
        Ok(Some(at))
    }

    /// Returns where the reader is: behind the record that it has read.
    pub fn position(&self) -> u64 {
        self.begin + self.reader.position().byte()
    }

    /// Refuses a record, the last of the file, that ends within quotes: the reader takes the end of
    /// the file for the end of a field.
    pub fn check_closed(&self, record: impl Read) -> Result<(), Wrong> {
        let (mut is_open, mut is_field_start) = (false, true);
        let mut bytes = io::BufReader::new(record).bytes().peekable();
        while let Some(byte) = bytes.next().transpose()? {
            if is_open {
                // Two quotes stand for one.
                let is_doubled = |next: &io::Result<u8>| matches!(next, Ok(b'"'));
                is_open = byte != b'"' || bytes.next_if(is_doubled).is_some();
                continue;
            }
            is_open = is_field_start && byte == b'"';
            is_field_start = byte == self.delimiter || byte == b'\n' || byte == b'\r';
        }
        if is_open {
            let what = "has a quote that is not closed before the end of the file";
            return Err(Wrong::Record(what.to_owned()));
        }
        Ok(())
    }

    /// Returns the record as JSON.
    pub fn json(&self) -> Result<Box<RawValue>, Wrong> {
        let mut text = String::new();
        text.push(if self.header.is_some() { '{' } else { '[' });
        for (at, field) in self.record.iter().enumerate() {
            let field = std::str::from_utf8(field).map_err(|error| {
                Wrong::Record(format!("is not UTF-8 in its field {}: {error}", at + 1))
            })?;
            if at > 0 {
                text.push(',');
            }
            if let Some(name) = self.header.as_ref().and_then(|names| names.get(at)) {
                text.push_str(&quoted(name)?);
                text.push(':');
            }
            text.push_str(&quoted(field)?);
        }
        text.push(if self.header.is_some() { '}' } else { ']' });
        RawValue::from_string(text).map_err(|error| Wrong::Record(error.to_string()))
    }
}

fn quoted(text: &str) -> Result<String, Wrong> {
    serde_json::to_string(text).map_err(|error| Wrong::Record(error.to_string()))
}

fn wrong(error: csv::Error) -> Wrong {
    match error.into_kind() {
        ErrorKind::Io(error) if matches!(error.get_ref(), Some(it) if it.is::<TooLong>()) => {
            Wrong::too_long(HINT)
        }
        ErrorKind::Io(error) => Wrong::File(error),
        other => Wrong::Record(format!("cannot be read: {other:?}")),
    }
}
