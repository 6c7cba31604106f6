//! Uploaded sources: how clients send them, and how batch workers read them.

use std::time::Duration;

use blobs::{BlobName, Blobs};
use contract::UPLOADS_PIPE;
use framework::broker::Broker as _;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use store::UploadLimits;

use crate::page::{OWN, page, submit};
use crate::service::{Answer, Service, new_job};

/// The room that a source, and each of its pieces, takes beside its bytes.
const ENTRY: u64 = 5 * 1024;

/// Starts a service that keeps uploads here.
async fn start(blobs: &Blobs) -> Service {
    let blobs = blobs.clone();
    Service::start_configured(|options| {
        options.outputs.blobs = Some(blobs);
        options.uploads.limits = UploadLimits {
            number_of_partition: 3,
            number_of_all: 4,
            ..UploadLimits::of_bytes(10 << 20, 20 << 20)
        };
    })
    .await
}

fn hex(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Creates a source, and returns its id.
pub async fn create(service: &Service) -> String {
    let path = service.path("/sources");
    let created = service.call(Method::POST, &path, None).await.is(201);
    let id = created.json()["id"].as_str().unwrap().to_owned();
    let location = created.header("location").to_owned();
    assert!(location.ends_with(&format!("/sources/{id}")), "{location}");
    id
}

/// Sends bytes of a source.
pub async fn append(service: &Service, id: &str, offset: &str, bytes: &[u8]) -> Answer {
    let path = service.path(&format!("/sources/{id}"));
    let request = service.request(Method::PATCH, &path);
    let request = request.header("Upload-Offset", offset).body(bytes.to_vec());
    Answer::of(request).await
}

async fn commit(service: &Service, id: &str, body: Value) -> Answer {
    let path = service.path(&format!("/sources/{id}/commit"));
    let body = Some(body.to_string());
    service.call(Method::POST, &path, body).await
}

async fn delete(service: &Service, id: &str) -> Answer {
    let path = service.path(&format!("/sources/{id}"));
    service.call(Method::DELETE, &path, None).await
}

/// Asks as a batch worker does, for a job of this partition.
async fn ask(service: &Service, partition: &str, id: &str) -> Value {
    let question = json!({"upload": id, "partition": partition}).to_string();
    let answer = harness::wait_for("an answer", async || {
        let asked = service.broker.ask(
            UPLOADS_PIPE,
            question.clone().into(),
            Duration::from_secs(10),
        );
        asked.await.map_err(|error| error.to_string())
    });
    serde_json::from_slice(&answer.await).unwrap()
}

/// Returns a batch job of this source.
fn reading(id: &str) -> Value {
    let mut job = new_job();
    let definition = json!({"files": [format!("upload://{id}")], "format": "lines"});
    job["task"]["taskData"] =
        json!({"batchType": "records", "batchDefinition": definition, "targetPipe": "i"});
    job
}

#[tokio::test]
async fn a_source_is_sent_in_parts_committed_and_read_with_its_key_alone() {
    let blobs = Blobs::memory();
    let service = start(&blobs).await;
    let partition = service.partition.clone();
    let id = create(&service).await;
    // More than one piece.
    let bytes: Vec<u8> = (0..9_000_000_u32).map(|n| (n % 251) as u8).collect();
    let (first, rest) = bytes.split_at(5_000_000);
    append(&service, &id, "0", first).await.is(200);
    append(&service, &id, "0", first).await.refuses(
        409,
        &format!(
            "The source '{id}' has 5000000 bytes: go on with Upload-Offset 5000000, and not 0."
        ),
    );
    let found = service.get(&format!("/sources/{id}")).await.is(200).json();
    assert_eq!(
        (&found["bytes"], &found["committed"]),
        (&json!(5_000_000), &json!(false))
    );
    let unread = ask(&service, &partition, &id).await;
    assert_eq!(unread["refusal"]["missing"], true, "{unread}");
    service.put("early", &reading(&id)).await.refuses(
        400,
        &format!("The batch names the source 'upload://{id}', which is not committed. Send the rest of it, and commit it."),
    );
    append(&service, &id, "5000000", rest).await.is(200);
    let said = json!({"bytes": 9_000_000, "sha256": hex(&bytes)});
    commit(
        &service,
        &id,
        json!({"bytes": 9_000_001, "sha256": hex(&bytes)}),
    )
    .await
    .refuses(
        409,
        &format!("The source '{id}' has 9000000 bytes, and not 9000001. Send the rest of them."),
    );
    let other = hex(b"other");
    commit(&service, &id, json!({"bytes": 9_000_000, "sha256": other}))
        .await
        .refuses(409, &format!("The bytes of the source '{id}' have the SHA-256 {}, and not {other}. Delete it, and send it again.", hex(&bytes)));
    let committed = commit(&service, &id, said.clone()).await.is(200).json();
    assert_eq!(commit(&service, &id, said).await.is(200).json(), committed);
    append(&service, &id, "9000000", b"x").await.refuses(
        409,
        &format!(
            "The source '{id}' is committed, and nothing can be added to it. Create another one."
        ),
    );

    let answer = ask(&service, &partition, &id).await;
    assert_eq!(
        (&answer["bytes"], &answer["sha256"]),
        (&json!(9_000_000), &json!(hex(&bytes)))
    );
    let refused = ask(&service, "another", &id).await;
    assert!(
        !refused
            .to_string()
            .contains(answer["key"].as_str().unwrap()),
        "{refused}"
    );
    let (url, key) = (
        answer["url"].as_str().unwrap(),
        answer["key"].as_str().unwrap(),
    );
    let read = async |range: Option<&str>, key: &str| {
        let path = url.strip_prefix(&service.root).unwrap();
        let mut request = service.request(Method::GET, path);
        request = request.header("X-Batchwright-Source-Key", key);
        if let Some(range) = range {
            request = request.header("Range", range);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.bytes().await.unwrap())
    };
    let (status, content) = read(None, key).await;
    assert!(status == 200 && content == bytes);
    for (from, to) in [
        (0, 0),
        (4_194_303, 4_194_304),
        (8_999_999, 8_999_999),
        (100, 8_500_000),
    ] {
        let (status, content) = read(Some(&format!("bytes={from}-{to}")), key).await;
        assert!(status == 206 && content == bytes[from..=to], "{from}-{to}");
    }
    for range in ["bytes=0-9000000", "bytes=5-4", "bytes=-5", "lines=1-2"] {
        assert_eq!(read(Some(range), key).await.0, 400, "{range}");
    }
    let (status, body) = read(None, "wrong").await;
    assert_eq!(status, 404);
    assert!(!String::from_utf8_lossy(&body).contains(key));

    // The job names it, and shows it nowhere with its key.
    service.put("j", &reading(&id)).await.is(201);
    let definition = service.get("/jobs/j/definition").await.is(200);
    let listed = service.get("/sources").await.is(200);
    assert!(!definition.body.contains(key) && !listed.body.contains(key));
    assert_eq!(listed.json()["sources"][0]["jobs"], json!(["j"]));
    delete(&service, &id).await.refuses(
        409,
        &format!("The job 'j' names the source '{id}'. Delete the job: the source is deleted with the last one that names it."),
    );
    service.delete("j").await.is(204);
    harness::wait_for("the source to go with its job", async || {
        let groups = blobs.groups("temporaryuploads").await.unwrap();
        groups
            .is_empty()
            .then_some(())
            .ok_or_else(|| format!("{groups:?}"))
    })
    .await;
    service.get(&format!("/sources/{id}")).await.is(404);
}

#[tokio::test]
async fn a_piece_that_has_changed_is_not_sent_to_its_end() {
    let blobs = Blobs::memory();
    let service = start(&blobs).await;
    let id = create(&service).await;
    let bytes: Vec<u8> = (0..9_000_000_u32).map(|n| (n % 251) as u8).collect();
    append(&service, &id, "0", &bytes).await.is(200);
    let said = json!({"bytes": 9_000_000, "sha256": hex(&bytes)});
    commit(&service, &id, said.clone()).await.is(200);
    let answer = ask(&service, &service.partition, &id).await;
    let path = answer["url"].as_str().unwrap();
    let path = path.strip_prefix(&service.root).unwrap();
    let read = async |from: usize, to: usize| {
        let request = service.request(Method::GET, path);
        let request = request
            .header("X-Batchwright-Source-Key", answer["key"].as_str().unwrap())
            .header("Range", format!("bytes={from}-{to}"));
        let mut response = request.send().await.unwrap();
        let (status, mut content) = (response.status().as_u16(), Vec::new());
        let whole = loop {
            match response.chunk().await {
                Ok(Some(chunk)) => content.extend_from_slice(&chunk),
                end => break end.is_ok(),
            }
        };
        (status, content, whole)
    };
    let group = blobs.groups("temporaryuploads").await.unwrap()[0];
    let mut pieces = blobs.list("temporaryuploads", group).await.unwrap();
    pieces.sort_by(|a, b| a.name.cmp(&b.name));
    let second = BlobName {
        owner: "temporaryuploads".to_owned(),
        group,
        name: pieces[1].name.clone(),
    };
    // One byte more or less, too.
    let (begin, end) = (4 << 20, 8 << 20);
    let mut flipped = bytes[begin..end].to_vec();
    flipped[100] ^= 1;
    let longer = [&bytes[begin..end], b"x"].concat();
    let shorter = bytes[begin..end - 1].to_vec();
    for changed in [flipped, longer, shorter] {
        blobs.write(&second, changed.into()).await.unwrap();
        let (status, content, whole) = read(0, 8_999_999).await;
        assert!(status == 206 && !whole && content.len() < end);
        // Also where a range ends in the middle of the piece, or begins there.
        for (from, to) in [(begin, begin + 1000), (end - 1000, 8_999_999)] {
            let (status, content, _) = read(from, to).await;
            assert_eq!(status, 409, "{from}-{to}");
            let said = format!("its piece {} is not as it was written", second.name);
            assert!(String::from_utf8(content).unwrap().contains(&said));
        }
        let (status, content, whole) = read(0, begin - 1).await;
        assert!(status == 206 && whole && content == bytes[..begin]);
    }
}

#[tokio::test]
async fn a_repeated_request_may_name_another_upload_of_the_same_bytes() {
    let service = start(&Blobs::memory()).await;
    let uploaded = async |bytes: &[u8]| {
        let id = create(&service).await;
        append(&service, &id, "0", bytes).await.is(200);
        let said = json!({"bytes": bytes.len(), "sha256": hex(bytes)});
        commit(&service, &id, said).await.is(200);
        id
    };
    let (first, again, other) = (
        uploaded(b"a\nb\n").await,
        uploaded(b"a\nb\n").await,
        uploaded(b"a\nc\n").await,
    );
    let post = async |id: &str| {
        let path = service.path("/jobs");
        let request = service.request(Method::POST, &path);
        let request = request.header("Idempotency-Key", "nightly");
        Answer::of(request.body(reading(id).to_string())).await
    };
    let created = post(&first).await.is(201).json();
    assert_eq!(post(&again).await.is(200).json(), created);
    post(&other).await.is(422);
    service.put("j", &reading(&first)).await.is(201);
    service.put("j", &reading(&again)).await.is(204);
    service.put("j", &reading(&other)).await.is(403);
    // Nothing holds what was uploaded in vain.
    delete(&service, &again).await.is(204);
    delete(&service, &first).await.is(409);
    people_see_and_delete_sources(&service, &first, &other).await;
}

/// Looks at the page, where a job names the first source and none names the other.
async fn people_see_and_delete_sources(service: &Service, named: &str, other: &str) {
    let path = format!("/partitions/{}/sources", service.partition);
    let jobs = page(service, &format!("/partitions/{}/jobs", service.partition)).await;
    jobs.contains(&format!("href=\"{path}\""));
    let list = page(service, &path).await.is(200);
    list.contains("20.0 KiB of at most 10.0 MiB in this partition");
    list.contains(&format!("{path}/{other}/confirm"));
    assert!(
        !list.body.contains(&format!("{path}/{named}/confirm")),
        "{}",
        list.body
    );
    let confirm = page(service, &format!("{path}/{other}/confirm"))
        .await
        .is(200);
    confirm.contains(&format!("Delete the source {other}?"));
    let delete = async |id: &str| submit(service, &format!("{path}/{id}/delete"), "", OWN).await;
    delete(named).await.is(409).contains("names the source");
    let deleted = delete(other).await.is(303);
    let list = page(service, deleted.header("location")).await.is(200);
    list.contains("The source is deleted.");
    assert!(!list.body.contains(other), "{}", list.body);
}

#[tokio::test]
async fn what_there_is_no_room_for_is_refused_with_the_quota_and_the_remedy() {
    let service = start(&Blobs::memory()).await;
    let partition = &service.partition;
    let id = create(&service).await;
    let full = |before: u64| {
        format!(
            "The sources of the partition '{partition}' take {before} bytes of room, and with this one they would take more than 10485760. Delete \
             sources, or jobs that name some, or let the operator raise --uploads-size-per-partition."
        )
    };
    append(&service, &id, "0", &vec![0; 10_485_761])
        .await
        .refuses(507, &full(ENTRY));
    append(&service, &id, "0", &vec![0; 8 << 20]).await.is(200);
    append(&service, &id, "8388608", &vec![0; 3 << 20])
        .await
        .refuses(507, &full((8 << 20) + 3 * ENTRY));
    let found = service.get(&format!("/sources/{id}")).await.json();
    assert_eq!(found["bytes"], 8 << 20);
    append(&service, &id, "8388608", &vec![0; 1 << 20])
        .await
        .is(200);
    delete(&service, &id).await.is(204);
    let listed = service.get("/sources").await.is(200).json();
    assert_eq!(
        listed,
        json!({"sources": [], "bytes": 0, "maxBytes": 10 << 20})
    );
}

#[tokio::test]
async fn more_sources_than_there_may_be_are_refused_however_few_bytes_they_have() {
    let service = start(&Blobs::memory()).await;
    let partition = &service.partition;
    let ids = [
        create(&service).await,
        create(&service).await,
        create(&service).await,
    ];
    let post = async |partition: &str| {
        let path = service
            .path("/sources")
            .replace(&service.partition, partition);
        service.call(Method::POST, &path, None).await
    };
    post(partition).await.refuses(
        507,
        &format!("The partition '{partition}' has 3 sources, as many as it may have. Delete sources, or jobs that name some."),
    );
    post("another").await.is(201);
    post("third").await.refuses(
        507,
        "The service has 4 sources, as many as it may have. Delete sources, or jobs that name some.",
    );
    delete(&service, &ids[0]).await.is(204);
    post("third").await.is(201);
}

#[tokio::test]
async fn impossible_requests_about_sources_are_refused_by_name() {
    let service = start(&Blobs::memory()).await;
    let partition = &service.partition;
    let id = create(&service).await;
    for offset in ["", "-1", "x"] {
        append(&service, &id, offset, b"a").await.refuses(
            400,
            "The header 'Upload-Offset' must be there once, with the position of the first byte of the body.",
        );
    }
    for unknown in ["none", "a%00", "0197b3c1d3a87e0f8e5f1c9b7a2d4e6f"] {
        append(&service, unknown, "0", b"a").await.is(404);
        commit(&service, unknown, json!({"bytes": 0, "sha256": hex(b"")}))
            .await
            .is(404);
        delete(&service, unknown).await.is(404);
    }
    service.get("/sources/none").await.refuses(
        404,
        &format!("The partition '{partition}' has no source 'none'."),
    );
    for digest in ["", "x", &"g".repeat(64)] {
        commit(&service, &id, json!({"bytes": 0, "sha256": digest}))
            .await
            .refuses(400, "The field 'sha256' must have 64 hexadecimal digits.");
    }
    service.get("/sources?limit=x").await.is(400);
    service.get("/sources?lmit=1&strict=true").await.is(400);
    service.put("j", &reading("none")).await.refuses(
        400,
        "The batch names the source 'upload://none', which this partition does not have. Upload it, or correct its id.",
    );
    let without = Service::start().await;
    let path = without.path("/sources");
    without.call(Method::POST, &path, None).await.refuses(
        400,
        "This service takes no sources, because it has no place for them: its operator sets it with --outputs-folder.",
    );
}
