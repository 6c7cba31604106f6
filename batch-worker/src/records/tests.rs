use std::io::Write as _;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing;

/// Splits a definition down to its items, at most so many at a time.
async fn items(root: &Path, definition: &Value, most: usize) -> Result<Vec<Value>, String> {
    items_of(&RecordFiles::new(root), definition, most).await
}

pub(super) async fn items_of(
    plugin: &RecordFiles,
    definition: &Value,
    most: usize,
) -> Result<Vec<Value>, String> {
    let batch = testing::batch(definition.to_string()).max_parts(most);
    let items = batch.items(plugin).await;
    let items = items.map_err(|error| match error {
        SplitError::Definition(problem) | SplitError::Missing(problem) => problem,
        SplitError::Temporary(error) => panic!("{error}"),
    })?;
    let data = items
        .iter()
        .map(|item| serde_json::from_slice(&item.data).unwrap());
    Ok(data.collect())
}

/// Returns the records of a file with this content.
async fn records(name: &str, content: &[u8], more: Value) -> Result<Vec<Value>, String> {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), content).unwrap();
    let mut definition = json!({ "files": [name] });
    let more = more.as_object().unwrap().clone();
    definition.as_object_mut().unwrap().extend(more);
    let items = items(folder.path(), &definition, 10).await?;
    for (number, item) in (1..).zip(&items) {
        assert_eq!(item["number"], json!(number));
    }
    Ok(items
        .into_iter()
        .map(|mut item| item["record"].take())
        .collect())
}

#[tokio::test]
async fn records_of_every_format_are_json() {
    for (name, content, expected) in [
        (
            "a.csv",
            "id,name\n1,Ada\n2,\"B, \"\"en\"\"\nC\"\n",
            json!([{"id": "1", "name": "Ada"}, {"id": "2", "name": "B, \"en\"\nC"}]),
        ),
        (
            "a.csv",
            "\u{feff}id\r\n1\r\n\r\n2",
            json!([{"id": "1"}, {"id": "2"}]),
        ),
        ("a.csv", "id\n", json!([])),
        ("a.csv", "", json!([])),
        ("a.tsv", "a\tb\n1\t\n", json!([{"a": "1", "b": ""}])),
        (
            "a.jsonl",
            "{\"a\": 1}\n \n\n[2]\r\n\"x\"",
            json!([{"a": 1}, [2], "x"]),
        ),
        (
            "a.json",
            " [1, {\"a\": \"],\\\"[\"} ,[[2]],\"\\\\\"\n]\n",
            json!([1, {"a": "],\"["}, [[2]], "\\"]),
        ),
        ("a.json", "[]", json!([])),
        (
            "a.txt",
            "one\n\n two \r\nthree",
            json!(["one", " two ", "three"]),
        ),
    ] {
        let found = records(name, content.as_bytes(), json!({})).await.unwrap();
        assert_eq!(Value::from(found), expected, "{content}");
    }
    let rows = records("a.csv", b"1,2\n3\n", json!({"header": false}))
        .await
        .unwrap();
    assert_eq!(rows, [json!(["1", "2"]), json!(["3"])]);
    let named = records("a", b"x\n", json!({"format": "lines"}))
        .await
        .unwrap();
    assert_eq!(named, [json!("x")]);
}

#[tokio::test]
async fn what_is_wrong_with_a_record_is_said_with_its_number_and_place() {
    let rows = "1,2\n".repeat(20_000);
    let long = format!("a,b\n{rows}\"3,4\n{}", "5,6\n".repeat(300_000));
    let short = format!("a,b\n{rows}3,4,5\n");
    let json = format!("[{}", "1,".repeat(50));
    for (name, content, more, problem) in [
        (
            "a.csv",
            long.as_str(),
            json!({}),
            "record 20001 of \"a.csv\", which begins at byte 80004, has more than 1048576 bytes; perhaps a quote",
        ),
        (
            "a.csv",
            &short,
            json!({}),
            "record 20001 of \"a.csv\", which begins at byte 80004, has 3 fields, and the header has 2",
        ),
        (
            "a.csv",
            "a,a\n1,2\n",
            json!({}),
            "the header of \"a.csv\", its first line, names the field \"a\" twice",
        ),
        (
            "a.csv",
            "a,b\n1,2\n3,\"4\n5,6\n",
            json!({}),
            "record 2 of \"a.csv\", which begins at byte 8, has a quote that is not closed before the end of the file",
        ),
        (
            "a.jsonl",
            "1\n{\n",
            json!({}),
            "record 2 of \"a.jsonl\", which begins at byte 2, is not JSON",
        ),
        ("a.json", "{}", json!({}), "the file is not a JSON array"),
        ("a.json", &json, json!({}), "the JSON array does not end"),
        ("a.json", "[1 2]", json!({}), "is not JSON"),
        ("a.json", "[1,,2]", json!({}), "is empty"),
        ("a.json", "[1] 2", json!({}), "something stands behind"),
        (
            "a.txt",
            "\u{fffd}",
            json!({"recordsPerItem": 0}),
            "recordsPerItem is 0; it is from 1 to 100000",
        ),
        (
            "a",
            "x",
            json!({}),
            "add `format`: lines, csv, tsv, jsonl or json",
        ),
        ("a.csv", "a", json!({"tiles": []}), "unknown field `tiles`"),
    ] {
        let found = records(name, content.as_bytes(), more).await.unwrap_err();
        assert!(found.contains(problem), "{found}");
    }
    let found = records("a.csv", b"a\n\xff\n", json!({})).await.unwrap_err();
    assert!(
        found
            .contains("record 1 of \"a.csv\", which begins at byte 2, is not UTF-8 in its field 1"),
        "{found}"
    );
}

#[tokio::test]
async fn large_file_becomes_a_tree_with_each_record_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = std::fs::File::create(folder.path().join("a.csv")).unwrap();
    let rows = (1..=5_000).map(|n| {
        if n % 7 == 0 {
            format!("{n},\"x\ny\"\n")
        } else {
            format!("{n},z\n")
        }
    });
    let text: String = std::iter::once("id,text\n".to_owned())
        .chain(rows)
        .collect();
    file.write_all(text.as_bytes()).unwrap();
    for (per_item, most) in [(1, 10), (3, 10), (1, 1000), (5_000, 10), (6_000, 10)] {
        let definition = json!({"files": ["a.csv"], "recordsPerItem": per_item});
        let items = items(folder.path(), &definition, most).await.unwrap();
        assert_eq!(items.len(), 5_000_usize.div_ceil(per_item));
        let of = |item: &Value| match &item["record"] {
            Value::Null => item["records"].as_array().unwrap().clone(),
            record => vec![record.clone()],
        };
        let ids: Vec<Value> = items
            .iter()
            .flat_map(of)
            .map(|mut record| record["id"].take())
            .collect();
        let expected: Vec<Value> = (1..=5_000).map(|n| json!(n.to_string())).collect();
        assert!(ids == expected, "{per_item} {most}");
    }
    // A part whose file has changed fails, and so does one that says what is not so.
    let mut definition = Definition::parse(r#"{"files": ["a.csv"]}"#).unwrap();
    let part = definition
        .pin(&Files::below(folder.path()), 10)
        .unwrap()
        .remove(0);
    for (wrong, problem) in [
        (
            Pinned {
                modified: part.modified - 1,
                ..part.clone()
            },
            "has changed since the batch was made",
        ),
        (
            Pinned {
                records: Some(4_999),
                ..part.clone()
            },
            "has 5000 records and not 4999",
        ),
        (
            Pinned {
                to: part.size + 1,
                ..part.clone()
            },
            "does not fit the file",
        ),
    ] {
        let definition = Definition {
            files: Vec::new(),
            part: Some(wrong),
            ..definition.clone()
        };
        let definition = serde_json::to_value(&definition).unwrap();
        let found = items(folder.path(), &definition, 10).await.unwrap_err();
        assert!(found.contains(problem), "{found}");
    }
}

proptest! {
    /// In one pass there are as many records, the same ones, or none because of an error that is
    /// found either way.
    #[test]
    fn any_bytes_become_the_same_records_in_one_pass_and_in_many_parts(
        bytes in prop::collection::vec(prop::sample::select(b"a1,\t\"\n\r []{}:\\\xff\xc3\xbc".to_vec()), 0..300),
        format in prop::sample::select(vec!["lines", "csv", "tsv", "jsonl", "json"]),
        header in any::<bool>(),
        opens in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let bytes = if opens { [b"[", &bytes[..], b"]"].concat() } else { bytes };
        std::fs::write(folder.path().join("a"), bytes).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let definition = json!({"files": ["a"], "format": format, "header": header});
        let whole = runtime.block_on(items(folder.path(), &definition, 1000));
        let cut = runtime.block_on(items(folder.path(), &definition, 10));
        match (whole, cut) {
            (Ok(whole), Ok(cut)) => prop_assert_eq!(whole, cut),
            (Err(_), Err(_)) => {}
            (whole, cut) => prop_assert!(false, "{:?} and {:?}", whole, cut),
        }
    }

    #[test]
    fn any_text_becomes_the_same_records_however_it_is_cut(
        fields in prop::collection::vec(prop::collection::vec("[a,\"\n\r ü]{0,4}", 2), 0..60),
        most in 10_usize..20,
    ) {
        let mut writer = csv::Writer::from_writer(Vec::new());
        writer.write_record(["a", "b"]).unwrap();
        for row in &fields {
            writer.write_record(row).unwrap();
        }
        let text = writer.into_inner().unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("a.csv"), text).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let found = runtime.block_on(items(folder.path(), &json!({"files": ["a.csv"]}), most)).unwrap();
        let found: Vec<&Value> = found.iter().map(|item| &item["record"]).collect();
        let expected: Vec<Value> = fields.iter().map(|row| json!({"a": row[0], "b": row[1]})).collect();
        prop_assert_eq!(found, expected.iter().collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn file_of_another_system_or_at_the_limit_is_read_to_its_end() {
    for (name, content, expected) in [
        (
            "a.csv",
            "\u{feff}\"id\",name\r\n1,Ada\r\n",
            json!([{"id": "1", "name": "Ada"}]),
        ),
        (
            "a.csv",
            "id\r\n1\r\n\r\n2",
            json!([{"id": "1"}, {"id": "2"}]),
        ),
        ("a.txt", "\u{feff}one\r\ntwo", json!(["one", "two"])),
        ("a.jsonl", "\u{feff}1\r\n2\r\n", json!([1, 2])),
        ("a.json", "\u{feff}[1]\r\n", json!([1])),
    ] {
        let found = records(name, content.as_bytes(), json!({})).await.unwrap();
        assert_eq!(Value::from(found), expected, "{content:?}");
    }
    // Each has a record of so many bytes in all.
    let longest = 1024 * 1024;
    for (name, before, behind, around) in [
        ("a.txt", "", "\r\n", 0),
        ("a.csv", "id\n", "", 0),
        ("a.jsonl", "\"", "\"\r\n", 2),
        ("a.json", "[\"", "\"]", 2),
    ] {
        let content = |bytes: usize| format!("{before}{}{behind}", "x".repeat(bytes - around));
        let found = records(name, content(longest).as_bytes(), json!({})).await;
        assert_eq!(found.unwrap().len(), 1, "{name}");
        let found = records(name, content(longest + 1).as_bytes(), json!({})).await;
        let problem = found.unwrap_err();
        assert!(problem.contains("has more than 1048576 bytes"), "{problem}");
    }
}
