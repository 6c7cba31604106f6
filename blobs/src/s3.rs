//! Blobs as objects in a bucket of S3: `prefix/owner/group/name`.
//!
//! S3 does what the folder has to work for: an object appears whole, and is safe when the request returns.
//!
//! What must stay true: a request fails within a minute, so that the caller can say why it waits; it is the caller who asks
//! again.

use std::fmt;
use std::io::{self, Cursor};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use futures_util::stream::StreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::buffered::BufReader;
use object_store::path::Path;
use object_store::{
    BackoffConfig, Certificate, ClientOptions, Error, GetOptions, GetRange, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, RetryConfig,
};

use crate::location::{LocationError, S3Options};
use crate::{BlobError, BlobName, BlobReader, Cause, Listed, Listing, Object};

/// The region where none is set. Stores that are not Amazon's mostly ignore it.
const REGION: &str = "us-east-1";
/// The size up to which an object is read at once, and the bytes that are read at a time of a larger one.
const BUFFER: usize = 1 << 20;
/// The bytes that are written at a time of a file that is exported. S3 demands 5 MiB at least.
const PART: usize = 8 << 20;
/// How many objects are deleted at the same time.
const DELETIONS: usize = 16;
/// The codes of what has no right to do something.
const DENIALS: [&str; 3] = [
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
];
/// What the library writes before the status of a response.
const STATUS: &str = "status code: ";
/// The longest text of an error.
const LONGEST: usize = 300;

#[derive(Clone)]
pub struct S3 {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    place: Arc<str>,
}

impl S3 {
    pub fn new(bucket: &str, prefix: &str, options: &S3Options) -> Result<Self, LocationError> {
        // The HTTP client takes what the process has. If it has something already, that stays.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = AmazonS3Builder::new().with_region(REGION);
        for (name, value) in &options.variables {
            if let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() {
                builder = builder.with_config(key, value);
            }
        }
        if let Some(region) = &options.region {
            builder = builder.with_region(region);
        }
        if let Some(endpoint) = &options.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        let endpoints = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint];
        let is_plain = endpoints.iter().any(|key| {
            let endpoint = builder.get_config_value(key);
            endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
        });
        let place = match prefix {
            "" => format!("the bucket s3://{bucket}"),
            prefix => format!("the bucket s3://{bucket}/{prefix}"),
        };
        let unusable = |error: Error| LocationError {
            location: place.clone(),
            reason: text_of(&error),
        };
        let mut client = ClientOptions::new()
            .with_allow_http(is_plain)
            .with_connect_timeout(Duration::from_secs(5))
            .with_timeout(Duration::from_mins(1));
        for authority in Certificate::from_pem_bundle(&options.authorities).map_err(unusable)? {
            client = client.with_root_certificate(authority);
        }
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: 2,
            retry_timeout: Duration::from_secs(10),
        };
        let built = builder
            .with_bucket_name(bucket)
            .with_client_options(client)
            .with_retry(retry)
            .build();
        let store = built.map_err(unusable)?;
        Ok(Self {
            store: Arc::new(store),
            prefix: prefix.to_owned(),
            place: place.into(),
        })
    }

    /// Returns a bucket in the memory of the library, which behaves as S3 does.
    #[cfg(test)]
    pub fn in_memory(prefix: &str) -> Self {
        Self::of(Arc::new(object_store::memory::InMemory::new()), prefix)
    }

    #[cfg(test)]
    pub fn of(store: Arc<dyn ObjectStore>, prefix: &str) -> Self {
        Self {
            store,
            prefix: prefix.to_owned(),
            place: "the bucket in memory".into(),
        }
    }

    /// Returns the path of an object below the prefix.
    fn path(&self, action: &'static str, parts: &[&str]) -> Result<Path, BlobError> {
        let prefix = Some(self.prefix.as_str()).filter(|prefix| !prefix.is_empty());
        let parts: Vec<&str> = prefix.into_iter().chain(parts.iter().copied()).collect();
        Path::parse(parts.join("/")).map_err(|error| self.error(action)(error.into()))
    }

    fn blob(&self, action: &'static str, name: &BlobName) -> Result<Path, BlobError> {
        self.path(action, &[&name.owner, &name.group.to_string(), &name.name])
    }

    fn error(&self, action: &'static str) -> impl Fn(Error) -> BlobError {
        let place = Arc::clone(&self.place);
        move |error| BlobError {
            place: place.to_string(),
            action,
            reason: text_of(&error),
            cause: match error {
                Error::Precondition { .. } => Cause::Changed,
                _ if is_denied(&error) => Cause::Denied,
                Error::NotFound { .. } => Cause::Missing,
                _ if status_of(&error) == Some(404) => Cause::Missing,
                _ => Cause::Other,
            },
        }
    }

    pub async fn write(&self, name: &BlobName, content: Bytes) -> Result<(), BlobError> {
        let path = self.blob("written", name)?;
        let written = self.store.put(&path, content.into()).await;
        written.map(drop).map_err(self.error("written"))
    }

    pub async fn open(&self, name: &BlobName) -> Result<BlobReader, BlobError> {
        let path = self.blob("read", name)?;
        self.open_path(&path).await
    }

    async fn open_path(&self, path: &Path) -> Result<BlobReader, BlobError> {
        let found = self.store.get(path).await.map_err(self.error("read"))?;
        if found.meta.size <= BUFFER as u64 {
            let content = found.bytes().await.map_err(self.error("read"))?;
            return Ok(Box::pin(Cursor::new(content)));
        }
        // Piece by piece: a reader may be slow, and a request may not.
        let store = Arc::clone(&self.store);
        let reader = BufReader::with_capacity(store, &found.meta, BUFFER);
        Ok(Box::pin(reader))
    }

    pub async fn delete(&self, name: &BlobName) -> Result<(), BlobError> {
        self.delete_path(&self.blob("changed", name)?).await
    }

    async fn delete_path(&self, path: &Path) -> Result<(), BlobError> {
        match self.store.delete(path).await {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error("changed")(error)),
        }
    }

    pub async fn delete_group(&self, owner: &str, group: i64) -> Result<(), BlobError> {
        let folder = self.path("changed", &[owner, &group.to_string()])?;
        let mut listed = self.store.list(Some(&folder)).chunks(DELETIONS);
        while let Some(found) = listed.next().await {
            let mut paths = Vec::with_capacity(found.len());
            for found in found {
                paths.push(found.map_err(self.error("read"))?.location);
            }
            try_join_all(paths.iter().map(|path| self.delete_path(path))).await?;
        }
        Ok(())
    }

    pub async fn groups(&self, owner: &str) -> Result<Vec<i64>, BlobError> {
        let folder = self.path("read", &[owner])?;
        let listed = self.store.list_with_delimiter(Some(&folder)).await;
        let folders = listed.map_err(self.error("read"))?.common_prefixes;
        // What is no number is not ours.
        let numbers = folders.iter().filter_map(|folder| folder.filename());
        Ok(numbers.filter_map(|name| name.parse().ok()).collect())
    }

    pub async fn list(&self, owner: &str, group: i64) -> Result<Vec<Listed>, BlobError> {
        let folder = self.path("read", &[owner, &group.to_string()])?;
        let mut listed = self.store.list(Some(&folder));
        let mut blobs = Vec::new();
        while let Some(found) = listed.next().await {
            let found = found.map_err(self.error("read"))?;
            blobs.extend(found.location.filename().map(|name| Listed {
                group,
                name: name.to_owned(),
                written: found.last_modified.into(),
            }));
        }
        Ok(blobs)
    }

    /// Opens an object by its path below the prefix.
    pub async fn open_file(&self, path: &str) -> Result<BlobReader, BlobError> {
        self.open_path(&self.path("read", &[path])?).await
    }

    /// Returns what an object looks like, by its path below the prefix.
    pub async fn look(&self, path: &str) -> Result<Object, BlobError> {
        let found = self.store.head(&self.path("read", &[path])?).await;
        found.map(object).map_err(self.error("read"))
    }

    /// Returns a range of an object that has this tag.
    pub async fn read(
        &self,
        path: &str,
        tag: Option<&str>,
        range: Range<u64>,
    ) -> Result<Bytes, BlobError> {
        let path = self.path("read", &[path])?;
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: tag.map(str::to_owned),
            ..GetOptions::default()
        };
        let found = self.store.get_opts(&path, options).await;
        let found = found.map_err(self.error("read"))?;
        found.bytes().await.map_err(self.error("read"))
    }

    /// Returns the objects below a path, at most so many.
    pub async fn list_files(&self, path: &str, most: usize) -> Result<Listing, BlobError> {
        let folder = match (path, self.prefix.as_str()) {
            ("", "") => None,
            ("", prefix) => {
                Some(Path::parse(prefix).map_err(|error| self.error("read")(error.into()))?)
            }
            (path, _) => Some(self.path("read", &[path])?),
        };
        let mut listed = self.store.list(folder.as_ref());
        let mut listing = Listing::default();
        let below = if self.prefix.is_empty() {
            0
        } else {
            self.prefix.len() + 1
        };
        while let Some(found) = listed.next().await {
            let found = found.map_err(self.error("listed"))?;
            if listing.files.len() == most {
                listing.has_more = true;
                break;
            }
            let path = found
                .location
                .as_ref()
                .get(below..)
                .unwrap_or_default()
                .to_owned();
            listing.files.push((path, object(found)));
        }
        Ok(listing)
    }

    /// Deletes an object by its path below the prefix.
    pub async fn delete_file(&self, path: &str) -> Result<(), BlobError> {
        self.delete_path(&self.path("changed", &[path])?).await
    }

    /// Begins an object that appears when it is finished.
    pub fn create_file(&self, path: &str) -> Result<NewObject, BlobError> {
        Ok(NewObject {
            store: Arc::clone(&self.store),
            path: self.path("written", &[path])?,
            buffer: BytesMut::new(),
            upload: None,
        })
    }

    /// Writes an object unless there is one of this name. Returns whether it did.
    pub async fn write_new(&self, path: &str, content: Bytes) -> Result<bool, BlobError> {
        let path = self.path("written", &[path])?;
        let (new, again) = (PutOptions::from(PutMode::Create), content.clone());
        match self.store.put_opts(&path, content.into(), new).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            // Not every store that speaks the protocol can do that in one step.
            Err(error) if text_of(&error).contains("NotImplemented") => {
                match self.store.head(&path).await {
                    Ok(_) => Ok(false),
                    Err(Error::NotFound { .. }) => {
                        let put = self.store.put(&path, again.into()).await;
                        put.map(|_| true).map_err(self.error("written"))
                    }
                    Err(error) => Err(self.error("read")(error)),
                }
            }
            Err(error) => Err(self.error("written")(error)),
        }
    }
}

fn object(meta: ObjectMeta) -> Object {
    Object {
        size: meta.size,
        tag: meta.e_tag,
    }
}

/// An object that appears when it is finished. A large one is uploaded in parts, which the bucket keeps, and which cost, until
/// the object is finished or given up.
pub struct NewObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// What is not uploaded yet.
    buffer: BytesMut,
    upload: Option<Box<dyn MultipartUpload>>,
}

impl NewObject {
    pub async fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(content);
        while self.buffer.len() >= PART {
            if self.upload.is_none() {
                self.upload = Some(
                    self.store
                        .put_multipart(&self.path)
                        .await
                        .map_err(|error| io_error(&error))?,
                );
            }
            let part = self.buffer.split_to(PART).freeze();
            self.put_part(part).await?;
        }
        Ok(())
    }

    async fn put_part(&mut self, part: Bytes) -> io::Result<()> {
        match &mut self.upload {
            Some(upload) => upload
                .put_part(part.into())
                .await
                .map_err(|error| io_error(&error)),
            // It was given up, with the parts before this one.
            None => Err(io::Error::other("the upload of this object has ended")),
        }
    }

    pub async fn finish(&mut self) -> io::Result<()> {
        let rest = self.buffer.split().freeze();
        if self.upload.is_none() {
            let put = self.store.put(&self.path, rest.into()).await;
            return put.map(drop).map_err(|error| io_error(&error));
        }
        if !rest.is_empty() {
            self.put_part(rest).await?;
        }
        if let Some(upload) = &mut self.upload {
            upload.complete().await.map_err(|error| io_error(&error))?;
            self.upload = None;
        }
        Ok(())
    }

    /// Lets the bucket delete the parts.
    pub async fn give_up(&mut self) -> io::Result<()> {
        match self.upload.take() {
            Some(mut upload) => upload.abort().await.map_err(|error| io_error(&error)),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for NewObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewObject({})", self.path)
    }
}

fn io_error(error: &Error) -> io::Error {
    io::Error::other(text_of(error))
}

/// Returns whether an error says that one has no right to do something.
fn is_denied(error: &Error) -> bool {
    let says_so = |text: &str| {
        DENIALS
            .iter()
            .any(|code| text.contains(&format!(">{code}<")))
    };
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => true,
        error => matches!(status_of(error), Some(401 | 403)) || says_so(&error.to_string()),
    }
}

/// Returns the status of the response that an error is about, if it has no kind of its own, as those that a list meets.
fn status_of(error: &Error) -> Option<u16> {
    let Error::Generic { .. } = error else {
        return None;
    };
    let text = error.to_string();
    let (_, listed) = text.split_once("performing list request")?;
    let (_, status) = listed.split_once(STATUS)?;
    status.get(..3)?.parse().ok()
}

/// Returns what a person needs of an error, on one line: an error of S3 is a page of XML.
fn text_of(error: &Error) -> String {
    let text = error.to_string();
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        Some(rest.split_once('<')?.0)
    };
    let text = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        _ => match text.split_once(STATUS) {
            Some((_, status)) => status.trim_end_matches([':', ' ']).to_owned(),
            None => with_cause(text, error),
        },
    };
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut text = words.join(" ");
    text.truncate(text.floor_char_boundary(LONGEST));
    if is_denied(error) {
        format!("access is denied ({text}); check its rights and the credentials (AWS_…)")
    } else {
        text
    }
}

/// Adds the innermost cause, for example what is wrong with a certificate.
fn with_cause(text: String, error: &Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let cause = cause.to_string();
    if text.contains(&cause) {
        text
    } else {
        format!("{text}: {cause}")
    }
}

impl fmt::Debug for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S3({})", self.place)
    }
}

impl fmt::Display for S3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_s3_is_one_line_with_its_code_and_message() {
        let generic = |text: &str| Error::Generic {
            store: "S3",
            source: text.to_owned().into(),
        };
        let page = "Server returned 503: <?xml version=\"1.0\"?>\n<Error><Code>SlowDown</Code>\n<Message>Reduce your\nrate</Message></Error>";
        assert_eq!(text_of(&generic(page)), "SlowDown: Reduce your rate");
        let long = text_of(&generic(&"ü".repeat(10_000)));
        assert!(long.len() <= LONGEST, "{long}");
        let denied = Error::PermissionDenied {
            path: "a".to_owned(),
            source: page.into(),
        };
        let denied = text_of(&denied);
        assert!(denied.starts_with("access is denied (SlowDown"), "{denied}");
    }

    #[tokio::test]
    async fn part_of_an_object_that_was_given_up_is_refused() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let mut object = NewObject {
            store,
            path: Path::from("a"),
            buffer: BytesMut::new(),
            upload: None,
        };
        object.write(&vec![0; PART + 1]).await.unwrap();
        object.give_up().await.unwrap();
        assert!(object.put_part(Bytes::from_static(b"x")).await.is_err());
    }
}
