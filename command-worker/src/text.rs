//! How people read what a command did. Pure.

/// The most bytes of the last words of a command in a message.
const LAST_WORDS: usize = 1000;
/// The most lines of them.
const LAST_LINES: usize = 5;

/// Returns the last lines of what a command wrote, on one line and without characters that a
/// terminal obeys.
pub fn last_lines(written: &[u8]) -> String {
    let text = String::from_utf8_lossy(written);
    let clean = |line: &str| -> String {
        let line: String = line
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        line.trim().to_owned()
    };
    let mut lines: Vec<String> = text
        .lines()
        .rev()
        .map(clean)
        .filter(|line| !line.is_empty())
        .take(LAST_LINES)
        .collect();
    lines.reverse();
    let joined = lines.join(" | ");
    let begin = joined.len().saturating_sub(LAST_WORDS);
    if begin == 0 {
        return joined;
    }
    format!("… {}", &joined[joined.ceil_char_boundary(begin)..])
}

/// Returns the beginning of a text with at most this many bytes.
pub fn beginning(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// Names a signal.
pub fn signal(number: i32) -> String {
    let name = match number {
        4 => "SIGILL",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        _ => return format!("signal {number}"),
    };
    format!("signal {number} ({name})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_lines_fit_into_one_line_of_a_terminal() {
        assert_eq!(last_lines(b""), "");
        assert_eq!(last_lines(b"a\n\n  b\t\n"), "a | b");
        assert_eq!(last_lines(b"1\n2\n3\n4\n5\n6\n"), "2 | 3 | 4 | 5 | 6");
        assert_eq!(
            last_lines(b"\x1b[31mred\x1b[0m \xff"),
            "[31mred [0m \u{fffd}"
        );
        let long = last_lines("ä".repeat(2000).as_bytes());
        assert!(long.starts_with("… ä") && long.len() < 1010, "{long}");
    }
}
