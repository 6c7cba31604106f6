//! Tests which changes of a definition or of its files make it another source, for each plugin.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::plugin::AnyPlugin;
use crate::{Batch, Glob, Lines, List, Part, Range, Source};

/// When files were last changed, in seconds since 1970.
const MODIFIED: u64 = 1_767_225_600;

/// Splits a batch, and returns from what it was made.
async fn source(plugin: &dyn AnyPlugin, definition: &str, max_parts: usize) -> Source {
    split(plugin, definition, max_parts).await.1
}

async fn split(plugin: &dyn AnyPlugin, definition: &str, max_parts: usize) -> (Vec<Part>, Source) {
    let batch = Batch::of(definition, max_parts);
    let parts = plugin.split(batch).await.unwrap();
    let source = plugin.source(batch, &parts).unwrap();
    (parts, source)
}

/// Splits the first sub-batch of a batch.
async fn below(plugin: &dyn AnyPlugin, definition: &str) -> Source {
    below_of(plugin, definition, 10).await
}

async fn below_of(plugin: &dyn AnyPlugin, definition: &str, max_parts: usize) -> Source {
    let (parts, _) = split(plugin, definition, max_parts).await;
    let [Part::Batch(first), ..] = parts.as_slice() else {
        panic!("{parts:?}")
    };
    source(plugin, first, max_parts).await
}

fn write(root: &Path, name: &str, text: &str, age: u64) {
    std::fs::write(root.join(name), text).unwrap();
    let file = std::fs::File::options().write(true).open(root.join(name));
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED - age);
    file.unwrap().set_modified(time).unwrap();
}

#[tokio::test]
async fn ranges_and_lists_are_their_parts() {
    for (plugin, definition, other) in [
        (&Range as &dyn AnyPlugin, "1-100", "2-101"),
        (&List, "[1,2,3]", "[1,3,2]"),
    ] {
        let first = source(plugin, definition, 10).await;
        assert_eq!(first, source(plugin, definition, 10).await);
        assert_ne!(first, source(plugin, other, 10).await);
    }
    // With another limit there are other parts.
    assert_ne!(
        source(&Range, "1-100", 10).await,
        source(&Range, "1-100", 100).await
    );
    assert_eq!(
        source(&Range, "1-9", 10).await,
        source(&Range, "1-9", 100).await
    );
}

#[tokio::test]
async fn files_of_a_glob_are_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let (root, plugin) = (folder.path(), Glob::new(folder.path()));
    for name in ["a.txt", "b.txt", "c.md"] {
        write(root, name, name, 100);
    }
    let definition = r#"{"folder":".","pattern":"*.txt"}"#;
    let (top, names) = (
        source(&plugin, definition, 10).await,
        below(&plugin, definition).await,
    );
    assert_eq!(
        format!("{names:?}").split(", digest").next(),
        Some(
            "Source { name: \"the folder \\\".\\\" (pattern \\\"*.txt\\\" below \\\".\\\"), split into at most 10 parts\""
        )
    );
    // A file is mended, another one is touched, and one that does not match comes and goes.
    write(root, "a.txt", "mended", 50);
    write(root, "b.txt", "b.txt", 10);
    std::fs::rename(root.join("c.md"), root.join("d.md")).unwrap();
    assert_eq!(below(&plugin, definition).await, names);
    // As many files, with another name.
    std::fs::rename(root.join("a.txt"), root.join("e.txt")).unwrap();
    assert_ne!(below(&plugin, definition).await, names);
    assert_eq!(source(&plugin, definition, 10).await, top);
    // A folder of the name of a file.
    std::fs::rename(root.join("e.txt"), root.join("a.txt")).unwrap();
    assert_eq!(below(&plugin, definition).await, names);
    std::fs::remove_file(root.join("a.txt")).unwrap();
    std::fs::create_dir(root.join("a.txt")).unwrap();
    assert_ne!(below(&plugin, definition).await, names);
}

#[tokio::test]
async fn lists_of_files_in_a_glob_are_their_names() {
    let folder = tempfile::tempdir().unwrap();
    let (root, plugin) = (folder.path(), Glob::new(folder.path()));
    for name in ["a.txt", "b.txt", "c.txt", "d.txt"] {
        write(root, name, name, 100);
    }
    let definition = r#"{"folder":".","pattern":"*.txt"}"#;
    // Two lists of two names.
    let lists = below_of(&plugin, definition, 2).await;
    write(root, "c.txt", "mended", 50);
    assert_eq!(below_of(&plugin, definition, 2).await, lists);
    std::fs::rename(root.join("c.txt"), root.join("cc.txt")).unwrap();
    assert_ne!(below_of(&plugin, definition, 2).await, lists);
}

#[tokio::test]
async fn lines_are_those_of_a_file_that_has_not_been_touched() {
    let folder = tempfile::tempdir().unwrap();
    let (root, plugin) = (folder.path(), Lines::new(folder.path()));
    let definition = r#"{"files":["a"],"linesPerItem":1}"#;
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(MODIFIED);
    let set = |text: &str, time: SystemTime| {
        std::fs::write(root.join("a"), text).unwrap();
        let file = std::fs::File::options().write(true).open(root.join("a"));
        file.unwrap().set_modified(time).unwrap();
    };
    set("one\ntwo\n", time);
    let first = source(&plugin, definition, 10).await;
    assert_eq!(source(&plugin, definition, 10).await, first);
    set("one\ntwo\n", time + Duration::from_secs(1));
    assert_ne!(source(&plugin, definition, 10).await, first);
    set("one\ntwo\n", time);
    assert_eq!(source(&plugin, definition, 10).await, first);
}
