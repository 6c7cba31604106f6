//! Numbers, times and durations as a page shows them.

use std::fmt::Display;

use chrono::DateTime;

/// Returns a whole number with separators: `1,234,567`.
pub fn number(number: impl Display) -> String {
    let written = number.to_string();
    let digits = written.trim_start_matches('-').len();
    let mut text = String::with_capacity(written.len() + digits / 3);
    for (at, digit) in written.chars().enumerate() {
        let left = written.len() - at;
        if left < digits && left.is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Returns a number of things: `1 task`, `1,200 tasks`.
pub fn counted(count: impl Display, what: &str) -> String {
    let number = number(count);
    let plural = if number == "1" { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// Returns a rate: with separators from 10 on, below with a decimal.
pub fn rate(rate: f64) -> String {
    if rate >= 9.95 {
        #[expect(clippy::cast_possible_truncation, reason = "no rate is that large")]
        number(rate.round() as i64)
    } else {
        format!("{rate:.1}")
    }
}

/// Returns a percentage with at most one decimal, which is 100 only if it is exactly that.
pub fn percent(percent: f64) -> String {
    let cut = (percent * 10.0).floor() / 10.0;
    if cut.fract().abs() < 0.05 {
        format!("{cut:.0}")
    } else {
        format!("{cut:.1}")
    }
}

/// Returns a number of bytes: `12 B`, `3.4 MiB`.
pub fn bytes(bytes: i64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    #[expect(clippy::cast_precision_loss, reason = "it is shown with one decimal")]
    let mut size = bytes as f64 / 1024.0;
    let mut unit = 0;
    while size >= 1023.95 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    format!("{size:.1} {}", UNITS[unit])
}

/// Returns a duration in its two largest units: `850 ms`, `12 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4
/// h`.
pub fn duration(millis: i64) -> String {
    const SECOND: i64 = 1000;
    const MINUTE: i64 = 60 * SECOND;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    let two = |(large, large_name): (i64, &str), (small, small_name): (i64, &str)| {
        let (whole, rest) = (millis / large, millis % large / small);
        if rest == 0 {
            format!("{whole} {large_name}")
        } else {
            format!("{whole} {large_name} {rest} {small_name}")
        }
    };
    match millis {
        ..0 => "0 s".to_owned(),
        0..SECOND => format!("{millis} ms"),
        SECOND..MINUTE => format!("{} s", millis / SECOND),
        MINUTE..HOUR => two((MINUTE, "min"), (SECOND, "s")),
        HOUR..DAY => two((HOUR, "h"), (MINUTE, "min")),
        _ => two((DAY, "d"), (HOUR, "h")),
    }
}

/// Returns a time, in milliseconds since 1970, for `<time datetime>`: `2026-11-22T20:20:45.123Z`.
pub fn machine(millis: i64) -> String {
    time(millis, "%Y-%m-%dT%H:%M:%S%.3fZ")
}

/// Returns a time, in milliseconds since 1970, for a reader without a script:
/// `2026-11-22 20:20:45 UTC`.
pub fn human(millis: i64) -> String {
    time(millis, "%Y-%m-%d %H:%M:%S UTC")
}

fn time(millis: i64, format: &str) -> String {
    let time = DateTime::from_timestamp_millis(millis);
    time.map_or_else(
        || millis.to_string(),
        |time| time.format(format).to_string(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_separators() {
        for (value, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (-1_234_567, "-1,234,567"),
            (i64::MIN, "-9,223,372,036,854,775,808"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(
            (rate(0.25), rate(9.94), rate(12_345.6)),
            ("0.2".into(), "9.9".into(), "12,346".into())
        );
        assert_eq!(
            (percent(99.99), percent(100.0), percent(46.67)),
            ("99.9".into(), "100".into(), "46.6".into())
        );
        assert_eq!(
            (bytes(7), bytes(1536), bytes(1_048_575)),
            ("7 B".into(), "1.5 KiB".into(), "1.0 MiB".into())
        );
    }

    #[test]
    fn durations_have_two_units() {
        for (millis, text) in [
            (-5, "0 s"),
            (850, "850 ms"),
            (12_900, "12 s"),
            (60_000, "1 min"),
            (200_000, "3 min 20 s"),
            (7_500_000, "2 h 5 min"),
            (273_600_000, "3 d 4 h"),
        ] {
            assert_eq!(duration(millis), text);
        }
    }

    #[test]
    fn times_are_utc() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_795_378_845_123, "2026-11-22T20:20:45.123Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(machine(millis), text);
        }
        assert_eq!(human(0), "1970-01-01 00:00:00 UTC");
    }
}
