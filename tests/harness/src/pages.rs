//! Tables in the documentation that are made from the program.

use std::path::Path;

/// Compares what a page of the documentation has between `<!-- NAME -->` and `<!-- end of NAME -->`
/// with what it should have. If the variable `UPDATE_PAGES` is set, writes that to the page
/// instead.
///
/// # Panics
/// If both differ, or the page does not have the two marks.
#[track_caller]
#[expect(clippy::panic, reason = "this is how a test fails")]
pub fn check_page(path: &str, name: &str, wanted: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    let page = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{path}: {error}"));
    let (begin, end) = (
        format!("<!-- {name} -->\n"),
        format!("<!-- end of {name} -->"),
    );
    let parts = page.split_once(&begin).and_then(|(before, rest)| {
        let (shown, after) = rest.split_once(&end)?;
        Some((before, shown, after))
    });
    let (before, shown, after) =
        parts.unwrap_or_else(|| panic!("{path} has no {} and {end}", begin.trim_end()));
    if shown == wanted {
        return;
    }
    if std::env::var_os("UPDATE_PAGES").is_some() {
        let updated = format!("{before}{begin}{wanted}{end}{after}");
        return std::fs::write(&file, updated).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    let differs = |(a, b): &(&str, &str)| a != b;
    let first = wanted.lines().zip(shown.lines()).find(differs);
    panic!(
        "{path} does not have what the program says ({name}). Run this test with UPDATE_PAGES=1, and read what it has written. \
         The first difference: {first:?}"
    );
}
