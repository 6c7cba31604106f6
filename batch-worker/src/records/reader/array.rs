//! Records that are the elements of a JSON array.

use std::io::{self, BufRead as _, BufReader};

use serde_json::value::RawValue;

use super::{BYTE_ORDER_MARK, LONGEST_RECORD, Wrong, json};
use crate::files::Span;

pub struct Array {
    from: BufReader<Span>,
    at: u64,
    /// The array must end here.
    is_end: bool,
    next: Next,
    element: Vec<u8>,
}

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Bracket,
    /// The first element, or the end.
    First,
    Element,
    Comma,
    Nothing,
}

impl Array {
    /// Returns the elements from this position on, where one begins, or the array.
    pub fn new(from: Span, at: u64, is_end: bool) -> Self {
        let from = BufReader::with_capacity(64 * 1024, from);
        let next = if at == 0 {
            Next::Bracket
        } else {
            Next::Element
        };
        Self {
            from,
            at,
            is_end,
            next,
            element: Vec::new(),
        }
    }

    /// Moves to the next element. Returns where it begins.
    pub fn next(&mut self) -> Result<Option<u64>, (u64, Wrong)> {
        self.find().map_err(|wrong| (self.at, wrong))
    }

    /// Returns the element.
    pub fn json(&self) -> Result<Box<RawValue>, Wrong> {
        json(&self.element)
    }

    fn find(&mut self) -> Result<Option<u64>, Wrong> {
        loop {
            let byte = self.next_byte()?;
            match (self.next, byte) {
                (Next::Bracket, Some(b'[')) => self.pass(Next::First),
                (Next::Bracket, _) => {
                    return Err(Wrong::Record(
                        "is not there: the file is not a JSON array".to_owned(),
                    ));
                }
                (Next::First | Next::Comma, Some(b']')) => self.pass(Next::Nothing),
                (Next::Comma, Some(b',')) => self.pass(Next::Element),
                (Next::Nothing, None) => return Ok(None),
                // The rest of the array is in other parts.
                (Next::Element | Next::Comma, None) if !self.is_end => return Ok(None),
                (Next::First | Next::Element, Some(_)) => return self.read().map(Some),
                (Next::Nothing, Some(_)) => {
                    return Err(Wrong::Record(
                        "is not there: something stands behind the JSON array".to_owned(),
                    ));
                }
                (Next::Comma, Some(_)) => {
                    return Err(Wrong::Record("has no comma before it".to_owned()));
                }
                (Next::First | Next::Element | Next::Comma, None) => {
                    return Err(Wrong::Record(
                        "is not there: the JSON array does not end".to_owned(),
                    ));
                }
            }
        }
    }

    /// Reads an element, up to the comma or bracket behind it.
    fn read(&mut self) -> Result<u64, Wrong> {
        let begin = self.at;
        let (mut depth, mut in_string, mut is_escaped) = (0_u32, false, false);
        self.element.clear();
        while let Some(byte) = self.peek()? {
            if depth == 0 && !in_string && matches!(byte, b',' | b']') {
                break;
            }
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if in_string => is_escaped = true,
                b'"' => in_string = !in_string,
                b'{' | b'[' if !in_string => depth = depth.saturating_add(1),
                b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.element.push(byte);
            self.pass(Next::Comma);
            if self.element.len() as u64 > LONGEST_RECORD {
                self.at = begin;
                return Err(Wrong::too_long(
                    "; perhaps a text or an object in it does not end",
                ));
            }
        }
        let end = self.element.trim_ascii_end().len();
        self.element.truncate(end);
        if end == 0 {
            return Err(Wrong::Record(
                "is empty: there are two commas, or one before the end".to_owned(),
            ));
        }
        Ok(begin)
    }

    /// Returns the next byte that is not white space.
    fn next_byte(&mut self) -> io::Result<Option<u8>> {
        if self.next == Next::Bracket && self.from.fill_buf()?.starts_with(BYTE_ORDER_MARK) {
            self.from.consume(BYTE_ORDER_MARK.len());
            self.at += BYTE_ORDER_MARK.len() as u64;
        }
        loop {
            match self.peek()? {
                Some(byte) if byte.is_ascii_whitespace() => self.pass(self.next),
                other => return Ok(other),
            }
        }
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        Ok(self.from.fill_buf()?.first().copied())
    }

    /// Takes one byte.
    fn pass(&mut self, next: Next) {
        self.from.consume(1);
        self.at += 1;
        self.next = next;
    }
}
