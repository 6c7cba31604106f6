//! Text from outside, in a form that cannot deceive who reads it on a terminal.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Returns whether a character moves the cursor, hides itself, or turns the direction of what
/// follows.
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns the text with each hidden character as an escape of JSON. Text that is JSON means the
/// same as before. Characters of ASCII stay: in JSON they are escaped already, and others may be
/// line breaks or colours.
///
/// ```
/// use batchwright_framework::log::printable;
///
/// assert_eq!(printable("{\"name\":\"a\u{202e}b\"}"), r#"{"name":"a\u202eb"}"#);
/// assert_eq!(printable("\u{1b}[2m\u{e0001}\n"), "\u{1b}[2m\\udb40\\udc01\n");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    let deceives = |c: char| !c.is_ascii() && is_hidden(c);
    if !text.contains(deceives) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if deceives(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Writing to a text does not fail.
                let _ = write!(escaped, "\\u{unit:04x}");
            }
        } else {
            escaped.push(c);
        }
    }
    Cow::Owned(escaped)
}
