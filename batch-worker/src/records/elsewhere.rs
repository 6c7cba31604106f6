//! Tests of records that are not in plain files below the root folder.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use contract::BatchTask;
use flate2::Compression;
use flate2::write::GzEncoder;
use framework::http::confined::AllowedOrigins;
use framework::tls::Tls;
use parking_lot::Mutex;
use proptest::prelude::*;
use serde_json::{Value, json};
use wiremock::matchers::any as any_request;
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use super::tests::items_of;
use super::*;
use crate::{BatchWorker, BucketOptions, Glob, Lines, Location, Store};

/// A web server's files, which may change.
#[derive(Clone, Default)]
struct Shelf(Arc<Mutex<Served>>);

#[derive(Default)]
struct Served {
    content: Vec<u8>,
    tag: String,
    gives_parts: bool,
    /// Whether it gives what there is now, whatever state is asked for.
    ignores_conditions: bool,
    /// How far behind the byte that is asked for its parts begin.
    shift: usize,
    to: Option<String>,
    status: u16,
}

impl Respond for Shelf {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let served = self.0.lock();
        let header = |name: &str| Some(request.headers.get(name)?.to_str().unwrap().to_owned());
        if let Some(to) = &served.to {
            return ResponseTemplate::new(302).insert_header("location", to.as_str());
        }
        if served.status != 200 {
            return ResponseTemplate::new(served.status);
        }
        let is_other = header("if-match").is_some_and(|tag| tag != served.tag);
        if is_other && !served.ignores_conditions {
            return ResponseTemplate::new(412);
        }
        let tagged =
            |response: ResponseTemplate| response.insert_header("etag", served.tag.as_str());
        let content = &served.content;
        let range = header("range").filter(|_| served.gives_parts);
        let Some(range) = range else {
            return tagged(ResponseTemplate::new(200).set_body_bytes(content.clone()));
        };
        let (from, to) = range
            .strip_prefix("bytes=")
            .unwrap()
            .split_once('-')
            .unwrap();
        let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
        let size = content.len();
        if from >= size {
            return ResponseTemplate::new(416);
        }
        let from = (from + served.shift).min(size - 1);
        let to = to.clamp(from, size - 1);
        let part = ResponseTemplate::new(206)
            .insert_header("content-range", format!("bytes {from}-{to}/{size}"))
            .set_body_bytes(&content[from..=to]);
        tagged(part)
    }
}

impl Shelf {
    async fn serve(content: &[u8], gives_parts: bool) -> (MockServer, Self) {
        let shelf = Self::default();
        shelf.set(|served| {
            served.content = content.to_vec();
            "\"one\"".clone_into(&mut served.tag);
            served.gives_parts = gives_parts;
            served.status = 200;
        });
        let server = MockServer::start().await;
        let answer = Mock::given(any_request()).respond_with(shelf.clone());
        answer.mount(&server).await;
        (server, shelf)
    }

    fn set(&self, change: impl FnOnce(&mut Served)) {
        change(&mut self.0.lock());
    }
}

/// Returns the plugin with these origins at any address, and those at public addresses.
pub(super) fn plugin(root: &Path, private: &[&str], public: &[&str]) -> RecordFiles {
    let origins = |list: &[&str]| list.iter().map(|text| text.parse().unwrap()).collect();
    let allowed = AllowedOrigins {
        public: origins(public),
        private: origins(private),
        who: "a batch",
        setting: "--source-origin",
        private_setting: "--source-private-origin",
    };
    let sources = Sources::default().copies(std::env::temp_dir(), 512 << 20);
    RecordFiles::new(root).and(sources.urls(allowed, &Tls::default()))
}

async fn split(
    plugin: &RecordFiles,
    definition: &Value,
    max_parts: usize,
) -> Result<Vec<Part>, SplitError> {
    let definition = definition.to_string();
    plugin.split(Batch::of(&definition, max_parts)).await
}

pub(super) fn table(rows: u32) -> String {
    let rows = (1..=rows).map(|n| format!("{n},\"x\ny\"\n"));
    std::iter::once("id,text\n".to_owned())
        .chain(rows)
        .collect()
}

pub(super) fn ids(items: &[Value]) -> Vec<String> {
    let id = |item: &Value| item["record"]["id"].as_str().unwrap().to_owned();
    items.iter().map(id).collect()
}

pub(super) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(content).unwrap();
    packed.finish().unwrap()
}

pub(super) fn zstd(content: &[u8]) -> Vec<u8> {
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    compress_to_vec(content, CompressionLevel::Fastest)
}

#[tokio::test]
async fn records_at_a_url_are_read_by_parts_or_as_a_whole_and_never_from_two_states() {
    let folder = tempfile::tempdir().unwrap();
    let text = table(300);
    let expected: Vec<String> = (1..=300).map(|n| n.to_string()).collect();
    for (gives_parts, content, name) in [
        (true, text.clone().into_bytes(), "a.csv?key=secret"),
        (false, text.clone().into_bytes(), "a.csv"),
        (true, gzip(text.as_bytes()), "a.csv.gz"),
    ] {
        let (server, shelf) = Shelf::serve(&content, gives_parts).await;
        let plugin = plugin(folder.path(), &[&server.uri()], &[]);
        let definition = json!({"files": [format!("{}/{name}", server.uri())]});
        let items = items_of(&plugin, &definition, 10).await.unwrap();
        assert_eq!(ids(&items), expected, "{name}");
        assert!(!items[0].to_string().contains("secret"), "{}", items[0]);
        // It changes between two splits: as long as it was.
        let parts = split(&plugin, &definition, 10).await.unwrap();
        let Part::Batch(part) = &parts[5] else {
            panic!("{parts:?}")
        };
        shelf.set(|served| {
            served.content.reverse();
            "\"two\"".clone_into(&mut served.tag);
        });
        // Another process has no copy.
        let other = self::plugin(folder.path(), &[&server.uri()], &[]);
        let later = items_of(&other, &serde_json::from_str(part).unwrap(), 10).await;
        let error = later.unwrap_err();
        assert!(
            error.contains("has changed since the batch was made"),
            "{error}"
        );
        assert!(!error.contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn part_of_another_state_or_from_another_place_than_was_asked_for_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let text = table(300);
    for gives_parts in [true, false] {
        let (server, shelf) = Shelf::serve(text.as_bytes(), gives_parts).await;
        let definition = json!({"files": [format!("{}/a.csv", server.uri())]});
        let pinned = plugin(folder.path(), &[&server.uri()], &[]);
        let parts = split(&pinned, &definition, 10).await.unwrap();
        let Part::Batch(part) = &parts[5] else {
            panic!("{parts:?}")
        };
        let part: Value = serde_json::from_str(part).unwrap();
        let read = async || {
            // Another process has no copy.
            let other = plugin(folder.path(), &[&server.uri()], &[]);
            items_of(&other, &part, 10).await
        };
        read().await.unwrap();
        // As long as it was.
        shelf.set(|served| {
            "\"two\"".clone_into(&mut served.tag);
            served.ignores_conditions = true;
        });
        let error = read().await.unwrap_err();
        let said = "has changed since the batch was made";
        assert!(error.contains(said), "{error}");
        shelf.set(|served| {
            "\"one\"".clone_into(&mut served.tag);
            served.shift = 1;
        });
        let read = read().await;
        if gives_parts {
            let error = read.unwrap_err();
            let said = "responds with another part of it than the one that was asked for";
            assert!(error.contains(said), "{error}");
        } else {
            read.unwrap();
        }
    }
}

#[tokio::test]
async fn url_is_read_only_where_the_operator_allows_it_and_what_its_server_says_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (server, shelf) = Shelf::serve(b"id\n1\n", true).await;
    let (other, _) = Shelf::serve(b"id\n1\n", true).await;
    let url = format!("{}/a.csv", server.uri());
    let base = server.uri();
    for (private, public, problem) in [
        (
            &[][..],
            &[][..],
            "the operator of the worker allows none (--source-origin)",
        ),
        (
            &[],
            &[base.as_str()],
            "127.0.0.1 is not an address of the public internet (--source-private-origin",
        ),
    ] {
        let plugin = plugin(folder.path(), private, public);
        let error = items_of(&plugin, &json!({"files": [&url]}), 10).await;
        let error = error.unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
    let plugin = plugin(folder.path(), &[&base], &[&other.uri()]);
    for (status, to, problem) in [
        (404, None, "is not there: its server responds with 404"),
        (403, None, "may not be read: its server responds with 403"),
        (
            200,
            Some(format!("{}/a.csv", other.uri())),
            "127.0.0.1 is not an address of the public internet",
        ),
        (
            200,
            Some("http://169.254.169.254/key".to_owned()),
            "may not call http://169.254.169.254",
        ),
        (
            200,
            Some("/round".to_owned()),
            "redirects more than 5 times",
        ),
        (
            200,
            Some("file:///etc/passwd".to_owned()),
            "may not call null",
        ),
    ] {
        shelf.set(|served| (served.status, served.to) = (status, to));
        let error = items_of(&plugin, &json!({"files": [&url]}), 10).await;
        let error = error.unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
    assert_eq!(other.received_requests().await.unwrap().len(), 0);
    // What a busy server says may be different soon.
    shelf.set(|served| (served.status, served.to) = (503, None));
    let busy = split(&plugin, &json!({"files": [&url]}), 10).await;
    assert!(matches!(busy, Err(SplitError::Temporary(_))), "{busy:?}");
}

#[tokio::test]
async fn packed_files_have_the_same_records_and_no_bomb_is_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let write =
        |name: &str, content: &[u8]| std::fs::write(folder.path().join(name), content).unwrap();
    let (text, more) = (table(200), "201,z\n202,z\n");
    let plugin = plugin(folder.path(), &[], &[]);
    let expected: Vec<String> = (1..=202).map(|n| n.to_string()).collect();
    // Files may consist of several parts, each packed by itself.
    write(
        "a.csv.gz",
        &[gzip(text.as_bytes()), gzip(more.as_bytes())].concat(),
    );
    write(
        "a.csv.zst",
        &[zstd(text.as_bytes()), zstd(more.as_bytes())].concat(),
    );
    write("b.csv", &gzip(format!("{text}{more}").as_bytes()));
    for (name, compression) in [
        ("a.csv.gz", None),
        ("a.csv.zst", None),
        ("b.csv", Some("gzip")),
    ] {
        let mut definition = json!({"files": [name]});
        if let Some(compression) = compression {
            definition["compression"] = compression.into();
        }
        let items = items_of(&plugin, &definition, 10).await.unwrap();
        assert_eq!(ids(&items), expected, "{name}");
    }
    let half = |packed: Vec<u8>| packed[..packed.len() / 2].to_vec();
    write("half.csv.gz", &half(gzip(text.as_bytes())));
    write("half.csv.zst", &half(zstd(text.as_bytes())));
    write("no.csv.gz", text.as_bytes());
    write("no.csv.zst", text.as_bytes());
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    bomb.write_all(&vec![b'x'; 9 << 20]).unwrap();
    write("bomb.txt.gz", &bomb.finish().unwrap());
    for (name, problem) in [
        ("half.csv.gz", "\"half.csv.gz\" is not whole, or not gzip"),
        ("half.csv.zst", "\"half.csv.zst\" is not whole, or not zstd"),
        ("no.csv.gz", "is not whole, or not gzip"),
        ("no.csv.zst", "is not whole, or not zstd"),
        (
            "bomb.txt.gz",
            "\"bomb.txt.gz\" unpacks to more than 500 times its size",
        ),
    ] {
        let error = items_of(&plugin, &json!({"files": [name]}), 10).await;
        let error = error.unwrap_err();
        assert!(error.contains(problem), "{name}: {error}");
    }
    // No more is copied than the operator allows.
    let small = Sources::default().copies(std::env::temp_dir(), 1000);
    let small = RecordFiles::new(folder.path()).and(small);
    let error = items_of(&small, &json!({"files": ["a.csv.gz"]}), 10).await;
    assert!(error.unwrap_err().contains("(--source-copies-size)"));
}

#[cfg(feature = "buckets")]
#[tokio::test]
async fn bucket_that_may_not_be_read_or_listed_is_refused_before_there_is_a_job() {
    let folder = tempfile::tempdir().unwrap();
    let server = MockServer::start().await;
    let bucket: Location = "s3://b".parse().unwrap();
    let key = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let options = BucketOptions {
        s3_endpoint: Some(server.uri()),
        variables: key.map(|name| (name.to_owned(), "x".to_owned())).into(),
        ..BucketOptions::default()
    };
    let store = Store::at(&bucket, &options).unwrap();
    let plugin = RecordFiles::new(folder.path()).and(Sources::default().store("lake", store));
    let page = |code: &str| format!("<Error><Code>{code}</Code><Message>No.</Message></Error>");
    let (file, all) = (
        json!({"files": ["store://lake/a.csv"]}),
        json!({"folder": "store://lake/in"}),
    );
    let denied = "\"store://lake/in\" cannot be listed: access is denied";
    for (definition, status, body, problem) in [
        (
            &file,
            403,
            String::new(),
            "\"store://lake/a.csv\" cannot be read: access is denied",
        ),
        (
            &file,
            404,
            String::new(),
            "there is no file \"store://lake/a.csv\"",
        ),
        (
            &all,
            403,
            page("AccessDenied"),
            &format!("{denied} (AccessDenied: No.)"),
        ),
        (
            &all,
            403,
            String::new(),
            &format!("{denied} (403 Forbidden)"),
        ),
        (
            &all,
            401,
            String::new(),
            &format!("{denied} (401 Unauthorized)"),
        ),
        (
            &all,
            404,
            page("NoSuchBucket"),
            "\"store://lake/in\" cannot be listed: NoSuchBucket: No.",
        ),
        (
            &all,
            200,
            "<ListBucketResult></ListBucketResult>".to_owned(),
            "there is no file below \"store://lake/in\"",
        ),
    ] {
        server.reset().await;
        let answer = ResponseTemplate::new(status).set_body_string(body);
        Mock::given(any_request())
            .respond_with(answer)
            .mount(&server)
            .await;
        let definition = definition.to_string();
        let batch = Batch::of(&definition, 10);
        // The first split finds what a check finds: an explanation only splits.
        let split = plugin.split(batch).await.map(drop).unwrap_err();
        let refused = plugin.check(batch).await.unwrap_err();
        assert_eq!(format!("{split:?}"), format!("{refused:?}"));
        let (SplitError::Definition(text) | SplitError::Missing(text)) = &refused else {
            panic!("{refused:?}")
        };
        assert!(text.contains(problem), "{text}");
    }
}

#[tokio::test]
async fn folders_and_stores_give_the_files_that_match() {
    let (folder, lake) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for root in [folder.path(), lake.path()] {
        std::fs::create_dir_all(root.join("in/2026")).unwrap();
        for n in 1..=25 {
            std::fs::write(
                root.join(format!("in/2026/{n:02}.csv")),
                format!("id\n{n}\n"),
            )
            .unwrap();
        }
        std::fs::write(root.join("in/readme.md"), "x").unwrap();
    }
    std::fs::write(lake.path().join("secret.csv"), "id\n0\n").unwrap();
    let place = Location::Folder(lake.path().to_owned());
    let store = Store::at(&place, &BucketOptions::default()).unwrap();
    let sources = Sources::default()
        .store("lake", store)
        .hide(&[lake.path().join("secret.csv")]);
    let plugin = RecordFiles::new(folder.path()).and(sources);
    let expected: Vec<String> = (1..=25).map(|n| n.to_string()).collect();
    for (folder, pattern) in [
        ("in", "**/*.csv"),
        (".", "in/2026/*.csv"),
        ("store://lake/in", "**/*.csv"),
        ("store://lake", "in/**/*.csv"),
    ] {
        let definition = json!({"folder": folder, "pattern": pattern});
        let items = items_of(&plugin, &definition, 10).await.unwrap();
        assert_eq!(ids(&items), expected, "{folder}");
    }
    let one = json!({"files": ["store://lake/in/2026/07.csv"]});
    let items = items_of(&plugin, &one, 10).await.unwrap();
    assert_eq!(items[0]["path"], "store://lake/in/2026/07.csv");
    for (definition, problem) in [
        (
            json!({"files": ["store://pond/a.csv"]}),
            "there is no store \"pond\"; there are lake (--source-store",
        ),
        (
            json!({"files": ["store://lake/../a.csv"]}),
            "is not a path below",
        ),
        (
            json!({"files": ["store://lake/none.csv"]}),
            "there is no file",
        ),
        (
            json!({"files": ["store://lake/secret.csv"]}),
            "the system's own data",
        ),
        (
            json!({"files": ["store:///a.csv"]}),
            "write store://NAME/PATH",
        ),
        (
            json!({"files": ["ftp://a/b.csv"]}),
            "\"ftp://\" is not known; name a path",
        ),
        (
            json!({"folder": "in"}),
            "the name of \"in/readme.md\" does not say what it contains",
        ),
        (json!({"folder": "nowhere"}), "there is no file \"nowhere\""),
        (
            json!({"folder": "https://a.example/in"}),
            "cannot be listed",
        ),
        (
            json!({"folder": "in", "files": ["a"]}),
            "name files or a folder",
        ),
    ] {
        let error = items_of(&plugin, &definition, 10).await.unwrap_err();
        assert!(error.contains(problem), "{error}");
    }
}

proptest! {
    #[test]
    fn name_of_a_file_in_a_store_never_leads_out_of_it(path in "(\\.\\./|[a./ %\\\\]|//|secret){0,8}") {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("lake")).unwrap();
        std::fs::write(folder.path().join("secret"), "hush").unwrap();
        let place = Location::Folder(folder.path().join("lake"));
        let store = Store::at(&place, &BucketOptions::default()).unwrap();
        let plugin = RecordFiles::new(folder.path().join("lake")).and(Sources::default().store("l", store));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for name in [format!("store://l/{path}"), path] {
            let definition = json!({"files": [name], "format": "lines"});
            prop_assert!(runtime.block_on(items_of(&plugin, &definition, 10)).is_err());
        }
    }
}

proptest! {
    #[test]
    fn no_secret_of_a_url_is_in_an_error(
        user in "[^/?#]{0,3}",
        host in proptest::sample::select(&["a.example", "127.0.0.1:9", "a.example:99999", ""][..]),
        path in proptest::sample::select(&["a.csv", "", "b/c d"][..]),
        query in ".{0,5}",
        is_long in any::<bool>(),
    ) {
        let secret = "s3cr3t";
        let padding = if is_long { "a".repeat(5000) } else { String::new() };
        let url = format!("http://{user}:{secret}@{host}/{path}{padding}?{query}{secret}{query}");
        let folder = tempfile::tempdir().unwrap();
        let worker = BatchWorker::new(10)
            .with(plugin(folder.path(), &["http://127.0.0.1:9"], &[]))
            .with(Lines::new(folder.path()))
            .with(Glob::new(folder.path()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for (plugin, definition) in [
            ("records", json!({"files": [url], "format": "csv"})),
            ("records", json!({"files": [url]})),
            ("records", json!({"files": [url, url]})),
            ("records", json!({"files": url})),
            ("records", json!({"folder": url})),
            ("records", json!({"files": ["a.csv"], "format": url})),
            ("records", json!({url.as_str(): 1})),
            ("lines", json!({"files": [url]})),
            ("glob", json!({"folder": url})),
        ] {
            let task = BatchTask {
                batch_type: Some(plugin.to_owned()),
                batch_definition: Some(definition.to_string()),
                target_pipe: Some("items".to_owned()),
                ..BatchTask::default()
            };
            let error = runtime
                .block_on(async { worker.splitter.split(worker.splitter.known(&task, None)?).await })
                .unwrap_err();
            let error = error.chain();
            prop_assert!(!error.contains(secret), "{definition}: {error}");
        }
    }
}
