//! Reads the records of a part, one after another.
//!
//! What must stay true: memory does not depend on the size of the file, also if a quote or a string
//! in it never ends. What is wrong with a record is said with its number and its position.

mod array;
mod line;
mod table;

use std::io;

use serde_json::value::RawValue;

use self::array::Array;
use self::line::Lines;
use self::table::Table;
use super::Pinned;
use super::format::Format;
use crate::SplitError;
use crate::files::{Files, Packing, Pin, Span, shown};
use crate::reading::error_of;

/// The longest record, in bytes.
const LONGEST_RECORD: u64 = 1024 * 1024;
/// What an editor may write before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Where a record begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub offset: u64,
    pub number: u64,
}

/// The records of a part.
pub struct Records {
    files: Files,
    path: String,
    pin: Pin,
    packing: Packing,
    /// Where the part ends.
    end: u64,
    /// The number of the next record.
    next: u64,
    of: Of,
}

enum Of {
    Lines(Lines),
    Table(Box<Table>),
    Array(Box<Array>),
}

/// What is wrong with a record.
#[derive(Debug)]
enum Wrong {
    /// What it is or has.
    Record(String),
    /// The file cannot be read.
    File(io::Error),
}

impl From<io::Error> for Wrong {
    fn from(error: io::Error) -> Self {
        Self::File(error)
    }
}

impl Wrong {
    /// Says that a record does not end.
    fn too_long(hint: &str) -> Self {
        Self::Record(format!("has more than {LONGEST_RECORD} bytes{hint}"))
    }
}

impl Records {
    /// Opens a part of a file that is as it was pinned.
    pub fn open(
        files: &Files,
        part: &Pinned,
        packing: Packing,
        format: Format,
        has_header: bool,
    ) -> Result<Self, SplitError> {
        part.check_fit()?;
        let pin = part.pin();
        let open = |from: u64, to: u64| -> Result<Span, SplitError> {
            files.open(&part.path, &pin, packing, from, to)
        };
        let (from, at) = (open(part.from, part.to)?, part.from);
        let of = match format {
            Format::Lines => Of::Lines(Lines::new(from, at, false)),
            Format::Jsonl => Of::Lines(Lines::new(from, at, true)),
            Format::Json => Of::Array(Box::new(Array::new(from, at, part.to == pin.length()))),
            Format::Csv | Format::Tsv => {
                let delimiter = if format == Format::Csv { b',' } else { b'\t' };
                let mut table = Table::new(from, at, delimiter);
                if has_header && at == 0 {
                    table
                        .take_header()
                        .map_err(|wrong| part.wrong_header(wrong))?;
                } else if let Some(fields) = part.fields.as_ref().filter(|_| has_header) {
                    table.use_header(fields.clone());
                } else if has_header {
                    let mut whole = Table::new(open(0, pin.length())?, 0, delimiter);
                    whole
                        .take_header()
                        .map_err(|wrong| part.wrong_header(wrong))?;
                    table.use_header_of(whole);
                }
                Of::Table(Box::new(table))
            }
        };
        Ok(Self {
            files: files.clone(),
            path: part.path.clone(),
            pin,
            packing,
            end: part.to,
            next: part.first,
            of,
        })
    }

    /// Returns the header of a table, if it has at most this many bytes.
    pub fn short_header(&self, most: usize) -> Option<Vec<String>> {
        let Of::Table(table) = &self.of else {
            return None;
        };
        let header = table.header()?;
        let bytes: usize = header.iter().map(|name| name.len() + 3).sum();
        (bytes <= most).then(|| header.to_vec())
    }

    /// Moves past the next record. Returns where it begins; `None` behind the last one.
    pub fn skip(&mut self) -> Result<Option<Place>, SplitError> {
        let found = match &mut self.of {
            Of::Lines(lines) => lines.next(),
            Of::Table(table) => table.next(),
            Of::Array(array) => array.next(),
        };
        let found = found.map_err(|(offset, wrong)| self.wrong(offset, wrong))?;
        if let Some(offset) = found {
            self.check_last(offset)?;
        }
        let number = self.next;
        self.next += u64::from(found.is_some());
        Ok(found.map(|offset| Place { offset, number }))
    }

    /// Reads the next record.
    pub fn read(&mut self) -> Result<Option<Box<RawValue>>, SplitError> {
        let Some(Place { offset, number }) = self.skip()? else {
            return Ok(None);
        };
        let json = match &self.of {
            Of::Lines(lines) => lines.json(),
            Of::Table(table) => table.json(),
            Of::Array(array) => array.json(),
        };
        self.next = number;
        let json = json.map_err(|wrong| self.wrong(offset, wrong))?;
        self.next = number + 1;
        Ok(Some(json))
    }

    /// Reads the last record of a table once more, to see whether it is whole.
    fn check_last(&self, offset: u64) -> Result<(), SplitError> {
        let Of::Table(table) = &self.of else {
            return Ok(());
        };
        let size = self.pin.length();
        if self.end < size || table.position() < size {
            return Ok(());
        }
        let record = self
            .files
            .open(&self.path, &self.pin, self.packing, offset, size)?;
        let checked = table.check_closed(record);
        checked.map_err(|wrong| self.wrong(offset, wrong))
    }

    fn wrong(&self, offset: u64, wrong: Wrong) -> SplitError {
        let (number, path) = (self.next, shown(&self.path));
        match wrong {
            Wrong::Record(what) => SplitError::Definition(format!(
                "record {number} of {path:?}, which begins at byte {offset}, {what}"
            )),
            Wrong::File(error) => error_of(error),
        }
    }
}

impl Pinned {
    fn wrong_header(&self, wrong: Wrong) -> SplitError {
        let path = shown(&self.path);
        match wrong {
            Wrong::Record(what) => {
                SplitError::Definition(format!("the header of {path:?}, its first line, {what}"))
            }
            Wrong::File(error) => error_of(error),
        }
    }
}

/// Returns a record that is JSON.
fn json(record: &[u8]) -> Result<Box<RawValue>, Wrong> {
    serde_json::from_slice(record).map_err(|error| Wrong::Record(format!("is not JSON: {error}")))
}
