//! Text for a person: lines and tables that fit a terminal, ages, durations and times. Pure.
//!
//! What must stay true: no text from outside moves the cursor of a terminal or hides a part of
//! itself.

use std::borrow::Cow;
use std::iter;

use chrono::DateTime;
use framework::log::is_hidden;
use unicode_width::UnicodeWidthChar as _;

/// What stands for a value that is missing.
pub const MISSING: &str = "-";
/// The spaces between two columns of a table.
const GAP: usize = 2;

/// A column of a table: its title and its form.
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Column {
    title: &'static str,
    is_number: bool,
    /// The width to which it is cut if the table is too wide; `None` if it is never cut.
    least: Option<usize>,
    /// Whether it stands only in wide tables, or only in others; `None` for both.
    only_wide: Option<bool>,
}

/// A column, and what it says of a row at a time to which ages are told. An empty text is shown as
/// [`MISSING`].
pub type Field<T> = (Column, fn(&T, i64) -> String);

impl Column {
    /// Returns a column of short texts.
    pub const fn text(title: &'static str) -> Self {
        Self {
            title,
            is_number: false,
            least: None,
            only_wide: None,
        }
    }

    /// Returns a column of numbers, which are aligned to the right.
    pub const fn number(title: &'static str) -> Self {
        Self {
            is_number: true,
            ..Self::text(title)
        }
    }

    /// Returns the same column, which may be cut to this width.
    pub const fn cut_to(mut self, least: usize) -> Self {
        self.least = Some(least);
        self
    }

    /// Returns the same column, which stands only in wide tables.
    pub const fn wide(mut self) -> Self {
        self.only_wide = Some(true);
        self
    }

    /// Returns the same column, which does not stand in wide tables.
    pub const fn narrow(mut self) -> Self {
        self.only_wide = Some(false);
        self
    }
}

/// Makes a list of fields of a row and a time, in the order of their columns:
/// `columns!(|it, now| { number("AGE").wide() => age(now - it.time); })`.
#[macro_export]
macro_rules! columns {
    (|$row:ident, $now:ident| {
        $($kind:ident($title:literal)$(.$form:ident($($width:literal)?))* => $text:expr;)+
    }) => {
        &[$((
            $crate::Column::$kind($title)$(.$form($($width)?))*,
            |$row, $now| {
                let _ = $now;
                $text
            },
        )),+]
    };
}

/// Returns a first line, then a line for each field.
pub fn with_fields(first: String, of: &[(&str, String)]) -> Vec<String> {
    let fields = fields(of).into_iter().map(|line| format!("  {line}"));
    iter::once(first).chain(fields).collect()
}

/// Returns a value as text, which is empty if there is none.
pub fn or_empty(value: Option<impl ToString>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

/// Returns the columns of a table, or of a wide one.
fn shown<T>(columns: &[Field<T>], is_wide: bool) -> impl Iterator<Item = &Field<T>> {
    let is_shown = move |(column, _): &&Field<T>| column.only_wide.is_none_or(|it| it == is_wide);
    columns.iter().filter(is_shown)
}

/// Returns what a column says of a row.
fn cell<T>((_, tell): &Field<T>, row: &T, now: i64) -> String {
    let text = tell(row, now);
    if text.is_empty() {
        return MISSING.to_owned();
    }
    escaped(&text).into_owned()
}

/// Returns a number of things, for people: `1 consumer`, `2 consumers`.
pub fn numbered(count: u64, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

/// Returns the lines of a table: the titles, then the rows. With a width, no line is wider: the
/// last columns are cut first. Without one, the table is a wide one.
pub fn table<T>(columns: &[Field<T>], rows: &[T], width: Option<usize>, now: i64) -> Vec<String> {
    let columns: Vec<_> = shown(columns, width.is_none()).collect();
    let titles = columns.iter().map(|(it, _)| it.title.to_owned()).collect();
    let cells = |row| columns.iter().map(|it| cell(it, row, now)).collect();
    let lines: Vec<Vec<String>> = iter::once(titles).chain(rows.iter().map(cells)).collect();
    let widths = widths(&columns, &lines, width);
    let line = |cells: &Vec<String>| {
        let cells = iter::zip(&columns, cells).zip(&widths);
        let line = cells.map(|(((column, _), cell), width)| {
            let cell = cut(cell, *width);
            let space = " ".repeat(width.saturating_sub(width_of(&cell)));
            if column.is_number {
                format!("{space}{cell}")
            } else {
                format!("{cell}{space}")
            }
        });
        let line = line.collect::<Vec<_>>().join(&" ".repeat(GAP));
        cut(line.trim_end(), width.unwrap_or(usize::MAX))
    };
    lines.iter().map(line).collect()
}

/// Returns the widths of the columns of a table.
fn widths<T>(columns: &[&Field<T>], lines: &[Vec<String>], width: Option<usize>) -> Vec<usize> {
    let widest = |at: usize| lines.iter().map(|line| width_of(&line[at])).max();
    let widths = (0..columns.len()).filter_map(widest);
    let mut widths: Vec<usize> = widths.collect();
    let gaps = GAP * columns.len().saturating_sub(1);
    let whole = widths.iter().sum::<usize>() + gaps;
    let mut excess = width.map_or(0, |width| whole.saturating_sub(width));
    for ((column, _), width) in iter::zip(columns, &mut widths).rev() {
        let spare = column.least.map_or(0, |least| width.saturating_sub(least));
        *width -= spare.min(excess);
        excess -= spare.min(excess);
    }
    widths
}

/// Returns what the columns of a wide table say of one row: the title of each, and the text.
pub fn fields_of<T>(columns: &[Field<T>], row: &T, now: i64) -> Vec<(&'static str, String)> {
    let columns = shown(columns, true);
    columns.map(|it| (it.0.title, cell(it, row, now))).collect()
}

/// Returns a line for each field: its name, and what is known, in a column of its own.
pub fn fields(fields: &[(&str, String)]) -> Vec<String> {
    let widest = fields.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let line = |(name, value): &(&str, String)| format!("{name:widest$}  {value}");
    fields.iter().map(line).collect()
}

/// Returns a number of bytes: `12 B`, `3.4 MiB`.
pub fn binary_size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = (bytes.ilog2() / 10) as usize;
    let tenths = (u128::from(bytes) * 10) >> (10 * unit);
    format!("{}.{} {}", tenths / 10, tenths % 10, units[unit - 1])
}

/// Returns the text, with a visible form of each character that would move the cursor, hide itself
/// or turn the direction of what follows.
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let escape = |c: char| match c {
        '\n' | '\r' | '\t' => c.escape_default().to_string(),
        c if is_hidden(c) => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    Cow::Owned(text.chars().map(escape).collect())
}

/// Returns the number of columns that a text takes on a terminal.
pub fn width_of(text: &str) -> usize {
    text.chars().map(|c| c.width().unwrap_or(0)).sum()
}

/// Returns the text if it fits the width, or its beginning and `…`.
pub fn cut(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut taken = 0;
    let fits = |c: &char| {
        taken += c.width().unwrap_or(0);
        taken < width
    };
    let mut cut: String = text.chars().take_while(fits).collect();
    if width > 0 {
        cut.push('…');
    }
    cut
}

/// Returns a text as one word of a shell's command line.
pub fn quoted(text: &str) -> Cow<'_, str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("'{}'", text.replace('\'', r"'\''")))
}

/// Returns how long ago something was, in its largest unit: `45s`, `3m`, `2h`, `12d`.
pub fn age(millis: i64) -> String {
    let seconds = millis.max(0) / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m"),
        (0, _, _) => format!("{hours}h"),
        _ => format!("{days}d"),
    }
}

/// Returns how long something takes, in its two largest units: `340ms`, `12s`, `1m30s`, `2h05m`,
/// `3d04h`.
pub fn duration(millis: i64) -> String {
    let millis = millis.max(0);
    let seconds = millis / 1000;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match (days, hours, minutes, seconds) {
        (0, 0, 0, 0) => format!("{millis}ms"),
        (0, 0, 0, _) => format!("{seconds}s"),
        (0, 0, _, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, _, _, _) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

/// Returns a time in milliseconds since 1970 as a date, to the second.
pub fn date(millis: i64) -> String {
    DateTime::from_timestamp_millis(millis).map_or_else(
        || format!("{millis} ms since 1970"),
        |time| time.format("%F %T UTC").to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Row = [String; 4];

    const COLUMNS: [Field<Row>; 4] = [
        (Column::text("ID").cut_to(8), |row, _| row[0].clone()),
        (Column::text("STATUS"), |row, _| row[1].clone()),
        (Column::number("AGE"), |row, _| row[2].clone()),
        (Column::text("LABELS").cut_to(6), |row, _| row[3].clone()),
    ];

    #[test]
    fn table_is_aligned_and_its_last_columns_are_cut_first() {
        let rows = [
            ["words", "Completed", "3m", "team=search"],
            ["a-long-name-of-a-job", "Active", "12d", ""],
        ];
        let rows = rows.map(|row| row.map(str::to_owned));
        let lines = |width| table(&COLUMNS, &rows, width, 0);
        assert_eq!(
            lines(None),
            [
                "ID                    STATUS     AGE  LABELS",
                "words                 Completed   3m  team=search",
                "a-long-name-of-a-job  Active     12d  -",
            ]
        );
        assert_eq!(
            lines(Some(44)),
            [
                "ID                    STATUS     AGE  LABELS",
                "words                 Completed   3m  team=…",
                "a-long-name-of-a-job  Active     12d  -",
            ]
        );
        assert_eq!(
            lines(Some(35)),
            [
                "ID           STATUS     AGE  LABELS",
                "words        Completed   3m  team=…",
                "a-long-nam…  Active     12d  -",
            ]
        );
        assert_eq!(lines(Some(10))[1], "words    …");
    }

    #[test]
    fn what_would_move_the_cursor_or_turn_the_direction_is_shown() {
        for (text, expected) in [
            ("zażółć 数 e\u{301} 'x' \\", "zażółć 数 e\u{301} 'x' \\"),
            ("a\nb\tc\r", "a\\nb\\tc\\r"),
            ("\u{1b}[2J\u{7f}\u{9b}", "\\u{1b}[2J\\u{7f}\\u{9b}"),
            (
                "a\u{202e}b\u{200b}\u{feff}",
                "a\\u{202e}b\\u{200b}\\u{feff}",
            ),
        ] {
            assert_eq!(escaped(text), expected);
        }
    }

    #[test]
    fn number_of_bytes_has_one_decimal() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (38_888_896, "37.0 MiB"),
            (10 << 30, "10.0 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(binary_size(bytes), text);
        }
    }

    #[test]
    fn ages_and_durations_are_short_and_dates_are_utc() {
        const SECOND: i64 = 1000;
        const HOUR: i64 = 3600 * SECOND;
        for (millis, short, long) in [
            (-5, "0s", "0ms"),
            (340, "0s", "340ms"),
            (45 * SECOND, "45s", "45s"),
            (90 * SECOND, "1m", "1m30s"),
            (2 * HOUR + 5 * 60 * SECOND, "2h", "2h05m"),
            (76 * HOUR, "3d", "3d04h"),
        ] {
            assert_eq!((age(millis), duration(millis)), (short.into(), long.into()));
        }
        assert_eq!(date(1_795_368_003_000), "2026-11-22 17:20:03 UTC");
        assert_eq!(date(i64::MAX), "9223372036854775807 ms since 1970");
    }

    #[test]
    fn quoted_text_is_one_word_of_a_shell() {
        for (text, expected) in [
            ("words-2", "words-2"),
            ("two words", "'two words'"),
            ("", "''"),
            ("it's $HOME", r"'it'\''s $HOME'"),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_it_may_be(
            rows in prop::collection::vec(prop::array::uniform4(".{0,30}"), 0..5), width in 0usize..100,
        ) {
            for line in table(&COLUMNS, &rows, Some(width), 0) {
                prop_assert!(width_of(&line) <= width, "{line:?}");
                prop_assert!(!line.contains(is_hidden), "{line:?}");
            }
        }
    }
}
