use std::pin::pin;
use std::sync::mpsc;

use contract::BatchTask;
use harness::wait_for;
use serde_json::json;
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::{Batch, BatchPlugin, BatchWorker, Part, Root};

fn task(batch_type: &str, definition: &str) -> BatchTask {
    BatchTask {
        batch_type: Some(batch_type.to_owned()),
        batch_definition: Some(definition.to_owned()),
        target_pipe: Some("items".to_owned()),
        ..BatchTask::default()
    }
}

/// A plugin that does not say what it reads.
struct Unknown;

impl BatchPlugin for Unknown {
    const NAME: &'static str = "unknown";

    async fn split(&self, _: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        Ok(Vec::new())
    }
}

#[test]
fn batch_reads_unless_its_definition_is_all_that_its_split_needs() {
    let worker = BatchWorker::new(10)
        .with_built_in(Root::new("."))
        .with(Unknown);
    let file = json!({"path": "a", "modified": 0, "size": 1});
    let folder = json!({"path": "b", "modified": 0});
    let part = json!({"path": "a", "size": 9, "from": 0, "to": 9, "first": 1});
    for (batch_type, definition, reads) in [
        ("range", json!("1-9"), false),
        ("list", json!([1, 2]), false),
        ("unknown", json!(""), true),
        ("lines", json!({"files": ["a"]}), true),
        ("glob", json!({"folder": "a"}), true),
        ("glob", json!({"base": ".", "entries": [folder]}), true),
        ("glob", json!({"base": ".", "entries": [file]}), false),
        (
            "glob",
            json!({"base": ".", "entries": [file, folder]}),
            false,
        ),
        ("records", json!({"files": ["a.csv", "b.csv"]}), true),
        ("records", json!({"folder": "a"}), true),
        ("records", json!({"part": part}), true),
        ("records", json!({"parts": [part, part]}), false),
    ] {
        let task = task(batch_type, &definition.to_string());
        let known = worker.splitter.known(&task, None).unwrap();
        assert_eq!(known.reads(), reads, "{batch_type} {definition}");
    }
}

#[tokio::test]
async fn slot_is_free_once_the_thread_that_reads_in_it_has_ended() {
    let worker = BatchWorker::new(10)
        .with_built_in(Root::new("."))
        .readers(1, SourceLimits::default());
    let (lines, range) = (task("lines", "{}"), task("range", "1-9"));
    let known = |task| worker.splitter.known(task, None).unwrap();
    let readers = &worker.splitter.readers;
    let reading = known(&lines).begin(readers).unwrap();
    let (begun, mut begins) = unbounded_channel();
    let (goes_on, waits) = mpsc::channel();
    let (ended, ends) = mpsc::channel();
    {
        let mut run = pin!(reading.run(move |reading| {
            begun.send(())?;
            waits.recv()?;
            ended.send(reading.check())?;
            Ok(())
        }));
        tokio::select! {
            done = &mut run => panic!("{done:?}"),
            Some(()) = begins.recv() => {}
        }
    }
    drop(reading);
    assert!(known(&lines).begin(readers).is_none());
    assert!(known(&range).begin(readers).is_some());
    goes_on.send(()).unwrap();
    wait_for("the slot", async || {
        let reading = known(&lines).begin(readers);
        reading.map(drop).ok_or_else(|| "it is taken".to_owned())
    })
    .await;
    let checked = ends.recv().unwrap();
    assert!(matches!(checked, Err(SplitError::Temporary(_))));
}
