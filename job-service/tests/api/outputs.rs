//! The outputs that the service keeps: how a job asks for them, and how they are read.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use blobs::{BlobName, Blobs, BucketOptions, ExportStore, Fingerprint, Location};
use bytes::Bytes;
use contract::rest::OutputStatus;
use contract::{JobId, PartitionId, TaskMessage};
use framework::broker::Broker as _;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use store::{Keeping, NewBlob, NewOutputs, OutputsOf};
use tokio::io::AsyncReadExt as _;

use crate::service::{Answer, Service};

/// Starts a service that keeps outputs in memory, and exports them to the folder under the name
/// `archive`.
async fn start_exporting(folder: &Path) -> (Service, Blobs) {
    let (blobs, location) = (Blobs::memory(), Location::Folder(folder.to_owned()));
    let archive = ExportStore::at(&location, 0, &BucketOptions::default()).unwrap();
    let kept = blobs.clone();
    let service = Service::start_configured(|options| {
        options.outputs.blobs = Some(kept);
        options.outputs.export_stores = [("archive".to_owned(), archive)].into();
    });
    (service.await, blobs)
}

/// Starts a service that keeps outputs in this place.
async fn start(blobs: &Blobs) -> Service {
    let blobs = blobs.clone();
    Service::start_configured(|options| options.outputs.blobs = Some(blobs)).await
}

pub fn keeping() -> Value {
    json!({"outputs": "keep", "task": {
        "taskClassifier": "C", "taskApiVersion": 1, "taskData": "data", "taskPipe": "in"
    }})
}

/// Keeps these outputs of the job `j`, as the output worker does. Returns the blob.
pub async fn keep(
    service: &Service,
    blobs: &Blobs,
    status: OutputStatus,
    lines: &[(u32, &str)],
) -> BlobName {
    let partition = PartitionId::parse(&service.partition).unwrap();
    let job = JobId::parse("j").unwrap();
    let of = service.store.outputs_of(&partition, &job, None);
    let OutputsOf::Kept(job, _) = of.await.unwrap() else {
        panic!("the job does not keep its outputs")
    };
    let name = BlobName {
        owner: service.store.blob_owner().await.unwrap(),
        group: job.number,
        name: harness::unique("blob"),
    };
    let texts: Vec<&str> = lines.iter().map(|(_, line)| *line).collect();
    let content = texts.join("\n") + "\n";
    let Fingerprint { bytes, crc32 } = Fingerprint::of(content.as_bytes());
    blobs.write(&name, content.into()).await.unwrap();
    let new = NewOutputs {
        job: *job,
        blobs: vec![NewBlob {
            name: name.name.clone(),
            bytes,
            crc32,
            status,
            tasks: lines.iter().map(|(task, _)| vec![*task]).collect(),
        }],
        left_out: Vec::new(),
        reason: None,
    };
    let kept = service.store.keep_outputs(&[new]).await.unwrap();
    assert_eq!(kept, [Keeping::Kept]);
    name
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    let lines = answer.body.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn job_that_keeps_its_outputs_sends_them_to_the_service_and_says_so() {
    let service = start(&Blobs::memory()).await;
    assert_eq!(service.put("j", &keeping()).await.status, 201);
    assert_eq!(service.put("j", &keeping()).await.status, 204);
    let mut started = service.broker.consume("in", 1).await.unwrap();
    let delivery = harness::in_time("the start message", started.next()).await;
    let message = TaskMessage::decode(&delivery.unwrap().body()).unwrap();
    let track_to = message.tracking.unwrap().track_to;
    assert_eq!(track_to.as_deref(), Some("worker-output-in.kept"));
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["outputs"], json!({"done": 0, "failed": 0, "bytes": 0}));
    let note = job["notes"][0].as_str().unwrap();
    assert!(note.contains("the pipe 'worker-output-in'"), "{note}");
    assert!(lines(&service.get("/jobs/j/outputs").await).is_empty());
}

#[tokio::test]
async fn impossible_wishes_about_outputs_are_refused_with_the_remedy() {
    let service = start(&Blobs::memory()).await;
    let mut targeted = keeping();
    targeted["task"]["targetPipe"] = "out".into();
    let mut misspelt = keeping();
    misspelt["outputs"] = "keeep".into();
    let mut reserved = keeping();
    reserved["task"]["taskPipe"] = "worker-output-in".into();
    let mut kept = keeping();
    kept["outputs"] = Value::Null;
    kept["task"]["targetPipe"] = "any.kept".into();
    for (job, code, text) in [
        (
            targeted,
            "INVALID_TASK",
            "The task has the targetPipe 'out'",
        ),
        (
            misspelt,
            "INVALID_JSON",
            "unknown variant `keeep`, expected `keep`",
        ),
        (reserved, "RESERVED_PIPE", "which is for the results"),
        (
            kept,
            "RESERVED_PIPE",
            "where the tracking of kept outputs ends",
        ),
    ] {
        let answer = service.put("j", &job).await;
        assert_eq!(answer.status, 400, "{answer:?}");
        assert_eq!(answer.headers["x-batchwright-error"], code);
        assert!(answer.body.contains(text), "{answer:?}");
    }
    let without_place = Service::start().await;
    let answer = without_place.put("j", &keeping()).await;
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("--outputs-folder"), "{answer:?}");
}

#[tokio::test]
async fn outputs_are_read_by_offset_limit_and_status() {
    let blobs = Blobs::memory();
    let service = start(&blobs).await;
    assert_eq!(service.put("j", &keeping()).await.status, 201);
    let failed = [
        (1, r#"{"task":"1","status":"failed","failure":{}}"#),
        (2, r#"{"task":"2","status":"failed","failure":{}}"#),
    ];
    keep(&service, &blobs, OutputStatus::Failed, &failed).await;
    let done = [
        (2, r#"{"task":"2","status":"done","output":2}"#),
        (
            3,
            r#"{"task":"3","label":"three","status":"done","output":3}"#,
        ),
    ];
    keep(&service, &blobs, OutputStatus::Done, &done).await;
    let first = json!({"offset": 0, "task": "1", "status": "failed", "failure": {}});
    let second = json!({"offset": 2, "task": "2", "status": "done", "output": 2});
    let third = json!({"offset": 3, "task": "3", "label": "three", "status": "done", "output": 3});
    for (query, expected) in [
        // The failure of task 2 is left out, because the task is done.
        ("", vec![&first, &second, &third]),
        ("?status=failed", vec![&first]),
        ("?status=done&limit=1", vec![&second]),
        ("?offset=1", vec![&second, &third]),
        ("?offset=3&limit=7", vec![&third]),
        ("?offset=4", vec![]),
        ("?limit=0", vec![]),
    ] {
        let found = service.get(&format!("/jobs/j/outputs{query}")).await;
        let found = lines(&found);
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{query}");
    }
    for query in ["?status=open", "?offset=-1", "?limit=many"] {
        let answer = service.get(&format!("/jobs/j/outputs{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
    }
}

#[tokio::test]
async fn outputs_that_are_not_there_are_told_apart() {
    let blobs = Blobs::memory();
    let service = start(&blobs).await;
    let refused = async |job: &str, status: u16, code: &str| {
        let answer = service.get(&format!("/jobs/{job}/outputs")).await;
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.headers["x-batchwright-error"], code);
    };
    refused("none", 404, "JOB_NOT_FOUND").await;
    let mut plain = keeping();
    plain["outputs"] = Value::Null;
    assert_eq!(service.put("plain", &plain).await.status, 201);
    refused("plain", 409, "OUTPUTS_NOT_KEPT").await;
    assert_eq!(service.put("j", &keeping()).await.status, 201);
    let line = [(1, r#"{"task":"1","status":"done","output":1}"#)];
    keep(&service, &blobs, OutputStatus::Done, &line).await;
    let partition = PartitionId::parse(&service.partition).unwrap();
    let job = service.get("/jobs/j").await.json()["incarnation"]
        .as_i64()
        .unwrap();
    let owner = service.store.blob_owner().await.unwrap();
    blobs.delete_group(&owner, job).await.unwrap();
    refused("j", 503, "OUTPUTS_UNREADABLE").await;
    service
        .store
        .cancel_job(&partition, &JobId::parse("j").unwrap())
        .await
        .unwrap();
    let doomed = service
        .store
        .doomed_outputs(Some(std::time::Duration::ZERO));
    assert_eq!(doomed.await.unwrap(), [job]);
    refused("j", 410, "OUTPUTS_REMOVED").await;
}

/// Keeps `lines` results of the job `j`, each with this many bytes of text, and lets the job end.
pub async fn keep_long(service: &Service, blobs: &Blobs, lines: u32, bytes: usize) -> BlobName {
    assert_eq!(service.put("j", &keeping()).await.status, 201);
    let text = "x".repeat(bytes);
    let line = |task: u32| format!(r#"{{"task":"{task}","status":"done","output":"{text}"}}"#);
    let lines: Vec<(u32, String)> = (1..=lines).map(|task| (task, line(task))).collect();
    let lines: Vec<(u32, &str)> = lines
        .iter()
        .map(|(task, line)| (*task, line.as_str()))
        .collect();
    keep(service, blobs, OutputStatus::Done, &lines).await
}

/// Changes a byte of this blob, as a broken disk may. Returns what was there.
async fn damage(blobs: &Blobs, name: &BlobName) -> Bytes {
    let mut content = Vec::new();
    let mut reader = blobs.open(name).await.unwrap();
    reader.read_to_end(&mut content).await.unwrap();
    let written = Bytes::from(content.clone());
    let middle = content.len() / 2;
    content[middle] = b'y';
    blobs.write(name, content.into()).await.unwrap();
    written
}

#[tokio::test]
async fn outputs_break_off_before_the_end_of_a_blob_that_has_changed_and_the_job_says_so() {
    let blobs = Blobs::memory();
    let service = start(&blobs).await;
    let blob = keep_long(&service, &blobs, 50, 5000).await;
    let written = damage(&blobs, &blob).await;
    let whole = service.request(Method::GET, &service.path("/jobs/j/outputs"));
    let mut response = whole.send().await.unwrap();
    assert_eq!(response.status(), 200);
    let mut received = Vec::new();
    let broken = loop {
        match response.chunk().await {
            Ok(Some(chunk)) => received.extend_from_slice(&chunk),
            end => break end.is_err(),
        }
    };
    assert!(broken && received.len() > 64 * 1024);
    let received = String::from_utf8(received).unwrap();
    assert!(
        !received.contains("\"offset\":49"),
        "the last line is there"
    );
    // Later pieces of it alone are refused.
    let rest = service.get("/jobs/j/outputs?offset=49").await;
    let said = format!("their blob {} is not as it was written", blob.name);
    assert!(rest.status == 409 && rest.body.contains(&said), "{rest:?}");
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["outputs"]["damaged"], blob.name);
    assert!(job["notes"].to_string().contains(&said), "{job}");
    // A page that ends before is not compared.
    let page = service.get("/jobs/j/outputs?limit=1").await;
    assert_eq!(lines(&page).len(), 1);
    // Without an end of its last line, and much shorter.
    let cut = written.slice(..written.len() - 1);
    for changed in [cut, Bytes::from_static(b"{")] {
        blobs.write(&blob, changed).await.unwrap();
        let found = Answer::or_none(service.request(Method::GET, &service.path("/jobs/j/outputs")));
        assert!(!found.await.is_ok_and(|answer| answer.status == 200));
    }
    blobs.write(&blob, written).await.unwrap();
    assert_eq!(lines(&service.get("/jobs/j/outputs").await).len(), 50);
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["outputs"].get("damaged"), None, "{job}");
}

#[tokio::test]
async fn export_has_no_part_with_a_blob_that_has_changed_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (service, blobs) = start_exporting(folder.path()).await;
    let blob = keep_long(&service, &blobs, 50, 5000).await;
    assert_eq!(service.cancel("j").await.status, 204);
    let written = damage(&blobs, &blob).await;
    let query = "?store=archive&path=a&partBytes=65536";
    let refused = export(&service, query).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    let said = format!("their blob {} is not as it was written", blob.name);
    assert!(refused.body.contains(&said), "{refused:?}");
    let names = || {
        let files = files(&folder.path().join("a"));
        files.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["manifest.incomplete.json"]);
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["outputs"]["damaged"], blob.name);
    blobs.write(&blob, written).await.unwrap();
    let exported = lines(&export(&service, query).await);
    assert_eq!(exported.last().unwrap()["manifest"]["lines"], 50);
    let job = service.get("/jobs/j").await.json();
    assert_eq!(job["outputs"].get("damaged"), None, "{job}");
}

async fn export(service: &Service, query: &str) -> Answer {
    let path = service.path(&format!("/jobs/j/outputs:export{query}"));
    service.call(Method::POST, &path, None).await
}

/// Returns the names and contents of all files in a folder.
fn files(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<(String, String)> = entries
        .map(|entry| {
            let entry = entry.unwrap();
            let content = std::fs::read_to_string(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), content)
        })
        .collect();
    files.sort();
    files
}

#[tokio::test]
async fn export_has_all_lines_in_parts_that_the_manifest_names_and_continues_after_a_break() {
    let folder = tempfile::tempdir().unwrap();
    let (service, blobs) = start_exporting(folder.path()).await;
    keep_long(&service, &blobs, 50, 5000).await;
    let query = "?store=archive&path=2026/words&partBytes=100000";
    let running = export(&service, query).await;
    assert_eq!(running.status, 409, "{running:?}");
    assert!(running.body.contains("when it has ended"), "{running:?}");
    assert_eq!(service.cancel("j").await.status, 204);

    let answer = export(&service, query).await;
    let told = lines(&answer);
    let [parts @ .., last] = &told[..] else {
        panic!("{answer:?}")
    };
    let manifest = &last["manifest"];
    assert_eq!((parts.len(), &manifest["lines"]), (3, &json!(50)));
    let place = folder.path().join("2026/words");
    let written = files(&place);
    let names: Vec<&str> = written.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "manifest.json",
            "part-00001.ndjson",
            "part-00002.ndjson",
            "part-00003.ndjson"
        ]
    );
    let stored: Value = serde_json::from_str(&written[0].1).unwrap();
    assert_eq!(&stored, manifest);
    for ((name, content), part) in written[1..].iter().zip(parts) {
        let digest = format!("{:x}", Sha256::digest(content));
        let expected = json!({"part": {
            "name": name, "lines": content.lines().count(), "bytes": content.len(), "sha256": digest
        }});
        assert_eq!(part, &expected);
    }
    let all = service.get("/jobs/j/outputs").await.body;
    let exported: String = written[1..].iter().map(|(_, text)| text.as_str()).collect();
    assert!(exported == all, "the lines differ");

    // Again: nothing is written, not even what somebody has changed.
    std::fs::write(place.join("part-00002.ndjson"), "changed").unwrap();
    assert_eq!(lines(&export(&service, query).await), told);
    assert_eq!(files(&place)[2].1, "changed");

    // As after a break within the second part.
    let mut incomplete = stored.clone();
    incomplete["complete"] = false.into();
    let first = incomplete["parts"].as_array_mut().unwrap();
    first.truncate(1);
    let (count, bytes) = (first[0]["lines"].clone(), first[0]["bytes"].clone());
    incomplete["nextOffset"] = count.clone();
    (incomplete["lines"], incomplete["bytes"]) = (count, bytes);
    let progress = place.join("manifest.incomplete.json");
    std::fs::write(progress, incomplete.to_string()).unwrap();
    std::fs::remove_file(place.join("manifest.json")).unwrap();
    assert_eq!(lines(&export(&service, query).await), told);
    assert_eq!(files(&place), written);
}

#[tokio::test]
async fn export_to_a_place_that_hangs_ends_and_keeps_no_stream_from_others() {
    let folder = tempfile::tempdir().unwrap();
    let (blobs, location) = (Blobs::memory(), Location::Folder(folder.path().to_owned()));
    let archive = ExportStore::at(&location, 0, &BucketOptions::default()).unwrap();
    let kept = blobs.clone();
    let service = Service::start_configured(|options| {
        options.outputs.blobs = Some(kept);
        options.outputs.export_stores = [("archive".to_owned(), archive)].into();
        options.limits.export_step = Duration::from_millis(500);
        // A quarter of them may be streams of outputs.
        options.limits.connections = 4;
    });
    let service = service.await;
    keep_long(&service, &blobs, 1, 10).await;
    assert_eq!(service.cancel("j").await.status, 204);
    // Reading it waits for what its writer never writes.
    let hanging = folder.path().join("a/manifest.json");
    std::fs::create_dir(folder.path().join("a")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&hanging).status();
    assert!(made.unwrap().success());
    let _writer = File::options().read(true).write(true).open(hanging);
    let ended = harness::in_time("the export", export(&service, "?store=archive&path=a")).await;
    assert_eq!(ended.status, 503, "{ended:?}");
    assert!(ended.body.contains("within 500ms"), "{ended:?}");
    let other = export(&service, "?store=archive&path=b").await;
    assert_eq!(other.status, 200, "{other:?}");
}

#[tokio::test]
async fn export_that_cannot_be_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let (service, blobs) = start_exporting(folder.path()).await;
    keep_long(&service, &blobs, 1, 10).await;
    assert_eq!(service.cancel("j").await.status, 204);
    let refused = async |query: &str, status: u16, code: &str, text: &str| {
        let answer = export(&service, query).await;
        assert_eq!(answer.status, status, "{query}: {answer:?}");
        assert_eq!(answer.headers["x-batchwright-error"], code, "{query}");
        assert!(answer.body.contains(text), "{query}: {answer:?}");
        answer
    };
    let invalid = "INVALID_PARAMETER";
    for (query, text) in [
        ("", "'store' is missing"),
        ("?store=archive", "'path' is missing"),
        ("?store=archiv&path=a", "There are: archive."),
        ("?store=archive&path=../a", "must be relative"),
        ("?store=archive&path=/etc", "must be relative"),
        ("?store=archive&path=a&partBytes=1", "from 65536 to"),
    ] {
        refused(query, 400, invalid, text).await;
    }
    std::fs::create_dir(folder.path().join("other")).unwrap();
    std::fs::write(folder.path().join("other/manifest.json"), "{}").unwrap();
    let other = "?store=archive&path=other";
    refused(other, 409, "EXPORT_EXISTS", "Choose another path").await;
    let inside = "?store=archive&path=other/a/b";
    let taken = "An export is at 'other' already";
    refused(inside, 409, "EXPORT_EXISTS", taken).await;
    for name in ["a/manifest.json", "manifest.incomplete.json/a"] {
        let query = format!("?store=archive&path={name}");
        refused(&query, 400, invalid, "an export has a file manifest").await;
    }
    std::fs::write(folder.path().join("file"), "").unwrap();
    let file = "?store=archive&path=file/a";
    let failed = refused(
        file,
        503,
        "EXPORT_FAILED",
        "The place 'archive' for exports",
    )
    .await;
    let folder = folder.path().to_str().unwrap();
    assert!(!failed.body.contains(folder), "{failed:?}");

    let without = Service::start().await;
    let answer = export(&without, "?store=archive&path=a").await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains("--export-store"), "{answer:?}");
}
