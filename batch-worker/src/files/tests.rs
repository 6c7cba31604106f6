use std::io::Read as _;

use super::*;
use crate::reading::error_of;

#[test]
fn range_of_a_file_is_all_its_bytes_or_an_error_with_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("a");
    std::fs::write(&at, "0123456789").unwrap();
    let files = Files::below(folder.path());
    let pin = files.look("a").unwrap();
    let open = |from, to| files.open("a", &pin, Packing::None, from, to);
    let text = |from, to| {
        let mut text = String::new();
        let read = open(from, to)?.read_to_string(&mut text);
        read.map_err(error_of).map(|_| text)
    };
    assert_eq!(text(0, 10).unwrap(), "0123456789");
    assert_eq!(text(3, 5).unwrap(), "34");
    assert_eq!(text(5, 5).unwrap(), "");
    for (from, to) in [(5, 3), (3, 11), (u64::MAX, u64::MAX)] {
        let error = text(from, to).unwrap_err();
        assert!(
            matches!(&error, SplitError::Definition(text) if text.contains("does not fit the file \"a\"")),
            "{error:?}"
        );
    }
    // It becomes shorter while it is read.
    let mut span = open(0, 10).unwrap();
    let file = std::fs::File::options().write(true).open(&at).unwrap();
    file.set_len(4).unwrap();
    let error = span.read_to_end(&mut Vec::new()).map_err(error_of);
    assert!(
        matches!(&error, Err(SplitError::Definition(text)) if text.contains("\"a\" has become shorter")),
        "{error:?}"
    );
    let changed = files.check_unchanged("a", &pin).unwrap_err();
    assert!(
        matches!(&changed, SplitError::Definition(text) if text.contains("it had 10 bytes, now it has 4")),
        "{changed:?}"
    );
}
