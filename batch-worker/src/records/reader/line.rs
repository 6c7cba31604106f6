//! Records that are lines: texts, or JSON. Lines with nothing in them are none.

use std::io::{BufRead as _, BufReader, Read as _};

use serde_json::value::{RawValue, to_raw_value};

use super::{BYTE_ORDER_MARK, LONGEST_RECORD, Wrong, json};
use crate::files::Span;

pub struct Lines {
    from: BufReader<Span>,
    at: u64,
    are_json: bool,
    line: Vec<u8>,
}

impl Lines {
    /// Returns the lines of a file from this position on, where one begins.
    pub fn new(from: Span, at: u64, are_json: bool) -> Self {
        let from = BufReader::with_capacity(64 * 1024, from);
        Self {
            from,
            at,
            are_json,
            line: Vec::new(),
        }
    }

    /// Moves to the next line that is not empty. Returns where it begins.
    pub fn next(&mut self) -> Result<Option<u64>, (u64, Wrong)> {
        loop {
            let at = self.at;
            self.line.clear();
            // With the line break.
            let mut limited = (&mut self.from).take(LONGEST_RECORD + 2);
            let read = limited.read_until(b'\n', &mut self.line);
            let read = read.map_err(|error| (at, error.into()))?;
            if read == 0 {
                return Ok(None);
            }
            self.at += read as u64;
            let end = self.line.trim_ascii_end().len();
            let is_blank = end == 0;
            if self.line.ends_with(b"\n") {
                self.line.pop();
                self.line.pop_if(|byte| *byte == b'\r');
            }
            if self.line.len() as u64 > LONGEST_RECORD {
                return Err((at, Wrong::too_long("")));
            }
            if at == 0 && self.line.starts_with(BYTE_ORDER_MARK) {
                self.line.drain(..BYTE_ORDER_MARK.len());
            }
            if !(self.line.is_empty() || is_blank && self.are_json) {
                return Ok(Some(at));
            }
        }
    }

    /// Returns the line as JSON.
    pub fn json(&self) -> Result<Box<RawValue>, Wrong> {
        if self.are_json {
            return json(&self.line);
        }
        let text = std::str::from_utf8(&self.line)
            .map_err(|error| Wrong::Record(format!("is not UTF-8: {error}")))?;
        to_raw_value(text).map_err(|error| Wrong::Record(error.to_string()))
    }
}
