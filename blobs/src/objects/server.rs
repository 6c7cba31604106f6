//! A server for tests that speaks what is used of the protocols of the three clouds, and gives
//! lists two objects at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use percent_encoding::percent_decode_str;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use crate::location::{BucketOptions, Cloud, Location};

/// What no error, log or URL may show: the key of an account in Azure must be in Base64.
pub const SECRET: &str = "aHVzaC1odXNo";
const BUCKET: &str = "bucket";
const ACCOUNT: &str = "account";
const PAGE: usize = 2;
const CHANGED: &str = "Mon, 23 Nov 2026 20:00:00 GMT";

/// A server with one bucket.
pub struct Server {
    cloud: Cloud,
    http: MockServer,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, (Bytes, String)>,
    uploads: BTreeMap<String, BTreeMap<String, Bytes>>,
    changes: u32,
    denies: bool,
    ignores_conditions: bool,
}

struct Protocol(Cloud, Arc<Mutex<State>>);

impl Server {
    pub async fn start(cloud: Cloud) -> Self {
        let (http, state) = (MockServer::start().await, Arc::<Mutex<State>>::default());
        let protocol = Protocol(cloud, Arc::clone(&state));
        Mock::given(any()).respond_with(protocol).mount(&http).await;
        Self { cloud, http, state }
    }

    /// Returns the location of the objects with this prefix, and how they are reached.
    pub fn at(&self, prefix: &str) -> (Location, BucketOptions) {
        let location = Location::Bucket {
            cloud: self.cloud,
            bucket: BUCKET.to_owned(),
            prefix: prefix.to_owned(),
        };
        (location, options(&self.http.uri()))
    }

    /// Refuses every request from now on.
    pub fn deny(&self) {
        self.state().denies = true;
    }

    /// Gives objects as they are, whatever state is asked for.
    pub fn ignore_conditions(&self, ignores: bool) {
        self.state().ignores_conditions = ignores;
    }

    /// Returns how many uploads are neither finished nor given up.
    pub fn uploads(&self) -> usize {
        self.state().uploads.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

/// Returns how buckets of each cloud are reached at this URL.
pub fn options(url: &str) -> BucketOptions {
    let variables = [
        ("AWS_ACCESS_KEY_ID", SECRET),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("GOOGLE_BEARER_TOKEN", SECRET),
        ("AZURE_STORAGE_ACCOUNT", ACCOUNT),
        ("AZURE_STORAGE_KEY", SECRET),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    BucketOptions {
        s3_endpoint: Some(url.to_owned()),
        gs_endpoint: Some(url.to_owned()),
        az_endpoint: Some(format!("{url}/{ACCOUNT}")),
        variables: variables.into(),
        ..BucketOptions::default()
    }
}

/// Returns the real buckets that tests are asked to use, or what speaks their protocol:
/// `BLOBS_S3_URL` is `s3://BUCKET/PREFIX`, and so on; the variables of each cloud say where, and as
/// whom.
pub fn real_buckets() -> Vec<(Location, BucketOptions)> {
    let urls = ["BLOBS_S3_URL", "BLOBS_GS_URL", "BLOBS_AZ_URL"];
    let urls = urls.into_iter().filter_map(harness::asked);
    let variable = |name: &&str| Some(((*name).to_owned(), harness::asked(name)?));
    let options = BucketOptions {
        variables: BucketOptions::VARIABLES
            .iter()
            .filter_map(variable)
            .collect(),
        ..BucketOptions::default()
    };
    urls.map(|url| (url.parse().unwrap(), options.clone()))
        .collect()
}

impl Respond for Protocol {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let mut state = self.1.lock();
        if state.denies || !self.knows(request) {
            return problem(403, "AccessDenied");
        }
        let path = percent_decode_str(request.url.path()).decode_utf8();
        let path = path.unwrap().trim_start_matches('/').to_owned();
        let path = match self.0 {
            Cloud::Azure => path.strip_prefix("account/").unwrap(),
            Cloud::S3 | Cloud::Google => path.as_str(),
        };
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        if bucket != BUCKET {
            return problem(404, "NoSuchBucket");
        }
        let query = request.url.query_pairs().into_owned().collect();
        match self.0 {
            Cloud::S3 | Cloud::Google => state.of_s3(request, key, &query),
            Cloud::Azure => state.of_azure(request, key, &query),
        }
    }
}

impl Protocol {
    /// Returns whether the request says who asks.
    fn knows(&self, request: &Request) -> bool {
        let begin = match self.0 {
            Cloud::S3 => format!("AWS4-HMAC-SHA256 Credential={SECRET}/"),
            Cloud::Google => format!("Bearer {SECRET}"),
            Cloud::Azure => format!("SharedKey {ACCOUNT}:"),
        };
        header(request, "authorization").is_some_and(|who| who.starts_with(&begin))
    }
}

type Query = BTreeMap<String, String>;

impl State {
    /// Answers as Amazon and Google do.
    fn of_s3(&mut self, request: &Request, key: &str, query: &Query) -> ResponseTemplate {
        let upload = query.get("uploadId");
        match (request.method.as_str(), upload) {
            ("POST", None) if query.contains_key("uploads") => {
                let id = self.begin();
                xml(&format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                ))
            }
            // Amazon deletes several objects with one request.
            ("POST", None) => {
                let deleted = elements(request, "Key").into_iter().map(|key| {
                    self.objects.remove(&key);
                    format!("<Deleted><Key>{key}</Key></Deleted>")
                });
                let deleted: String = deleted.collect();
                xml(&format!("<DeleteResult>{deleted}</DeleteResult>"))
            }
            ("PUT", Some(id)) => {
                let part = format!("{:0>9}", query["partNumber"]);
                self.put_part(id, part, request);
                ResponseTemplate::new(200).insert_header("etag", "\"part\"")
            }
            ("POST", Some(id)) => {
                let tag = self.complete(id, key);
                xml(&format!(
                    "<CompleteMultipartUploadResult><Bucket>{BUCKET}</Bucket><Key>{key}</Key><Location>x</Location><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
                ))
            }
            ("DELETE", Some(id)) => {
                self.uploads.remove(id);
                ResponseTemplate::new(204)
            }
            ("DELETE", None) => match self.objects.remove(key) {
                Some(_) => ResponseTemplate::new(204),
                None => problem(404, "NoSuchKey"),
            },
            ("PUT", None) => {
                let is_new = header(request, "if-none-match").is_some()
                    || header(request, "x-goog-if-generation-match").as_deref() == Some("0");
                if is_new && self.objects.contains_key(key) {
                    return problem(412, "PreconditionFailed");
                }
                let tag = self.put(key, request.body.clone().into());
                ResponseTemplate::new(200).insert_header("etag", tag)
            }
            _ if key.is_empty() => {
                let (found, folders, next) = self.list(query, "continuation-token");
                let found = found.iter().map(|(key, size, tag)| {
                    format!(
                        "<Contents><Key>{key}</Key><Size>{size}</Size><LastModified>2026-11-23T20:00:00Z</LastModified><ETag>{tag}</ETag></Contents>"
                    )
                });
                let folders = folders
                    .iter()
                    .map(|it| format!("<CommonPrefixes><Prefix>{it}</Prefix></CommonPrefixes>"));
                let next =
                    next.map(|key| format!("<NextContinuationToken>{key}</NextContinuationToken>"));
                let content: String = found.chain(folders).chain(next).collect();
                xml(&format!("<ListBucketResult>{content}</ListBucketResult>"))
            }
            _ => self.get(request, key),
        }
    }

    /// Answers as Azure does.
    fn of_azure(&mut self, request: &Request, key: &str, query: &Query) -> ResponseTemplate {
        let created = |tag: &str| {
            let response = ResponseTemplate::new(201).insert_header("etag", tag);
            response.insert_header("last-modified", CHANGED)
        };
        let work = query.get("comp").map(String::as_str);
        match (request.method.as_str(), work) {
            ("PUT", Some("block")) => {
                let blocks = self.uploads.entry(key.to_owned()).or_default();
                blocks.insert(query["blockid"].clone(), request.body.clone().into());
                created("\"block\"")
            }
            ("PUT", Some("blocklist")) => {
                let blocks = self.uploads.remove(key).unwrap();
                let ids = ["Uncommitted", "Latest"].map(|name| elements(request, name));
                let content: Vec<u8> = ids
                    .concat()
                    .iter()
                    .flat_map(|id| blocks[id].to_vec())
                    .collect();
                created(&self.put(key, content.into()))
            }
            ("PUT", _) => {
                if header(request, "if-none-match").is_some() && self.objects.contains_key(key) {
                    return problem(409, "BlobAlreadyExists");
                }
                created(&self.put(key, request.body.clone().into()))
            }
            ("POST", Some("batch")) => self.delete_batch(request),
            ("GET", Some("list")) => {
                let (found, folders, next) = self.list(query, "marker");
                let found = found.iter().map(|(key, size, tag)| {
                    let tag = tag.trim_matches('"');
                    format!(
                        "<Blob><Name>{key}</Name><Properties><Last-Modified>{CHANGED}</Last-Modified><Etag>{tag}</Etag><Content-Length>{size}</Content-Length><Content-Type>x/y</Content-Type></Properties></Blob>"
                    )
                });
                let folders = folders
                    .iter()
                    .map(|it| format!("<BlobPrefix><Name>{it}</Name></BlobPrefix>"));
                let blobs: String = found.chain(folders).collect();
                let next = next.unwrap_or_default();
                xml(&format!(
                    "<EnumerationResults ContainerName=\"{BUCKET}\"><Blobs>{blobs}</Blobs><NextMarker>{next}</NextMarker></EnumerationResults>"
                ))
            }
            _ => self.get(request, key),
        }
    }

    /// Deletes the blobs that are named in a batch of requests.
    fn delete_batch(&mut self, request: &Request) -> ResponseTemplate {
        let body = String::from_utf8(request.body.clone()).unwrap();
        let requests = body.lines().filter_map(|line| {
            let path = line.strip_prefix("DELETE ")?.split_whitespace().next()?;
            Some(percent_decode_str(path).decode_utf8().unwrap().into_owned())
        });
        let answers = requests.enumerate().map(|(id, path)| {
            let key = path.split_once(&format!("{BUCKET}/")).unwrap().1;
            let status = match self.objects.remove(key) {
                Some(_) => "202 Accepted",
                None => "404 The specified blob does not exist.",
            };
            format!(
                "--b\r\nContent-Type: application/http\r\nContent-ID: {id}\r\n\r\nHTTP/1.1 {status}\r\nx-ms-version: 1\r\n\r\n\r\n"
            )
        });
        let answer = answers.collect::<String>() + "--b--\r\n";
        ResponseTemplate::new(202).set_body_raw(answer, "multipart/mixed; boundary=b")
    }

    fn get(&self, request: &Request, key: &str) -> ResponseTemplate {
        let Some((content, tag)) = self.objects.get(key) else {
            return problem(404, "NoSuchKey");
        };
        let is_other = header(request, "if-match").is_some_and(|wanted| wanted != *tag);
        if is_other && !self.ignores_conditions {
            return problem(412, "PreconditionFailed");
        }
        let (status, range, content) = match header(request, "range") {
            None => (200, None, content.clone()),
            Some(range) => {
                let (from, to) = range["bytes=".len()..].split_once('-').unwrap();
                let (from, to): (usize, usize) = (from.parse().unwrap(), to.parse().unwrap());
                let to = to.min(content.len() - 1);
                let range = format!("bytes {from}-{to}/{}", content.len());
                (206, Some(range), content.slice(from..=to))
            }
        };
        let mut response = ResponseTemplate::new(status)
            .insert_header("etag", tag.as_str())
            .insert_header("last-modified", CHANGED);
        if let Some(range) = range {
            response = response.insert_header("content-range", range);
        }
        if request.method.as_str() == "HEAD" {
            return response.insert_header("content-length", content.len().to_string());
        }
        response.set_body_bytes(content)
    }

    /// Returns a page of the objects and folders that begin with a prefix, and where the next one
    /// begins.
    #[expect(clippy::type_complexity, reason = "it is what a list says")]
    fn list(
        &self,
        query: &Query,
        next: &str,
    ) -> (Vec<(String, usize, String)>, Vec<String>, Option<String>) {
        let prefix = query.get("prefix").map_or("", String::as_str);
        let from = query.get(next).map_or("", String::as_str);
        let below = self.objects.range(from.to_owned()..);
        let below: Vec<_> = below.filter(|(key, _)| key.starts_with(prefix)).collect();
        let (mut objects, mut folders) = (Vec::new(), Vec::new());
        for (key, (content, tag)) in below.iter().take(PAGE) {
            let name = &key[prefix.len()..];
            match name
                .split_once('/')
                .filter(|_| query.contains_key("delimiter"))
            {
                Some((folder, _)) => folders.push(format!("{prefix}{folder}/")),
                None => objects.push(((*key).clone(), content.len(), tag.clone())),
            }
        }
        folders.dedup();
        let next = below.get(PAGE).map(|(key, _)| (*key).clone());
        (objects, folders, next)
    }

    fn put(&mut self, key: &str, content: Bytes) -> String {
        self.changes += 1;
        let tag = format!("\"tag{}\"", self.changes);
        self.objects.insert(key.to_owned(), (content, tag.clone()));
        tag
    }

    fn begin(&mut self) -> String {
        self.changes += 1;
        let id = format!("upload{}", self.changes);
        self.uploads.insert(id.clone(), BTreeMap::new());
        id
    }

    fn put_part(&mut self, id: &str, part: String, request: &Request) {
        let parts = self.uploads.get_mut(id).unwrap();
        parts.insert(part, request.body.clone().into());
    }

    fn complete(&mut self, id: &str, key: &str) -> String {
        let parts = self.uploads.remove(id).unwrap().into_values();
        let content: Vec<u8> = parts.flat_map(|part| part.to_vec()).collect();
        self.put(key, content.into())
    }
}

fn header(request: &Request, name: &str) -> Option<String> {
    Some(request.headers.get(name)?.to_str().unwrap().to_owned())
}

/// Returns the texts of the elements of this name in the body.
fn elements(request: &Request, name: &str) -> Vec<String> {
    let body = String::from_utf8(request.body.clone()).unwrap();
    let begin = format!("<{name}>");
    let found = body.split(&begin).skip(1);
    found
        .map(|rest| rest.split('<').next().unwrap().to_owned())
        .collect()
}

fn xml(body: &str) -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_raw(body, "application/xml")
}

fn problem(status: u16, code: &str) -> ResponseTemplate {
    let body = format!("<Error><Code>{code}</Code><Message>No.</Message></Error>");
    ResponseTemplate::new(status).set_body_raw(body, "application/xml")
}
