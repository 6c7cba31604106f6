//! Keeps blobs: pieces of data that are written once, read from the beginning, and deleted. In a
//! folder, in a bucket of a cloud (with the feature `buckets`), or in memory. [`ExportStore`] is a
//! place for files that others read.
//!
//! Hides where the blobs are. A blob has a name of three parts, `owner/group/name`: the owner is
//! the database that knows the blob, so that several can share a place, and all blobs of a group
//! are deleted together.
//!
//! What must stay true: a blob that [`Blobs::write`] has returned from is complete, and survives a
//! crash of the machine. One that is being written is not visible under its name.
#![warn(missing_docs)]

mod export;
mod fingerprint;
mod folder;
mod location;
mod memory;
#[cfg(feature = "buckets")]
mod objects;
mod sources;

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::slice;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

pub use self::export::{ExportFile, ExportPath, ExportStore};
pub use self::fingerprint::{Fingerprint, Fingerprinter};
use self::folder::Folder;
pub use self::location::{BucketOptions, Cloud, Location, LocationError};
use self::memory::Memory;
#[cfg(feature = "buckets")]
use self::objects::Objects;
pub use self::sources::Bucket;

/// A place for blobs. Clones share it.
#[derive(Debug, Clone)]
pub struct Blobs(Place);

#[derive(Debug, Clone)]
enum Place {
    Folder(Folder),
    #[cfg(feature = "buckets")]
    Objects(Objects),
    Memory(Memory),
}

/// The name of a blob.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName {
    /// The database that knows the blob. Letters and digits.
    pub owner: String,
    /// The number of the group.
    pub group: i64,
    /// The name within the group. Letters, digits, `-` and `.`.
    pub name: String,
}

/// Reads a blob from its beginning.
pub type BlobReader = Pin<Box<dyn AsyncBufRead + Send>>;

/// A blob that a list found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The number of its group.
    pub group: i64,
    /// Its name within the group.
    pub name: String,
    /// When it was written.
    pub written: SystemTime,
}

/// What an object looks like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// The size in bytes.
    pub size: u64,
    /// The tag of its content (`ETag`).
    pub tag: Option<String>,
}

/// Objects below a path.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// Their paths below the prefix, and what they look like, in no order.
    pub files: Vec<(String, Object)>,
    /// Whether there are more than were asked for.
    pub has_more: bool,
}

/// Why an operation on a blob failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{place} cannot be {action}: {reason}")]
pub struct BlobError {
    place: String,
    action: &'static str,
    reason: String,
    cause: Cause,
}

/// What callers tell apart.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    Missing,
    /// The blob with this name is not as it was written.
    Damaged(String),
    #[cfg_attr(not(feature = "buckets"), expect(dead_code, reason = "folders do not"))]
    Denied,
    #[cfg_attr(not(feature = "buckets"), expect(dead_code, reason = "folders do not"))]
    Changed,
    Other,
}

impl BlobError {
    fn new(place: impl fmt::Display, action: &'static str, error: &std::io::Error) -> Self {
        Self {
            place: place.to_string(),
            action,
            reason: error.to_string(),
            cause: if error.kind() == std::io::ErrorKind::NotFound {
                Cause::Missing
            } else {
                Cause::Other
            },
        }
    }

    fn damaged(place: impl fmt::Display, blob: &str, reason: String) -> Self {
        Self {
            place: place.to_string(),
            action: "read",
            reason,
            cause: Cause::Damaged(blob.to_owned()),
        }
    }

    /// Returns the text of the error with another name of the place, for readers who need not know
    /// where it is.
    pub fn with_place(&self, place: &str) -> String {
        format!("{place} cannot be {}: {}", self.action, self.reason)
    }

    /// Returns whether there is no such blob.
    pub const fn is_missing(&self) -> bool {
        matches!(self.cause, Cause::Missing)
    }

    /// Returns the name of the blob that is not as it was written, if that is the error.
    pub fn damaged_blob(&self) -> Option<&str> {
        match &self.cause {
            Cause::Damaged(blob) => Some(blob),
            _ => None,
        }
    }

    /// Returns whether the store says that one has no right to do it.
    pub const fn is_denied(&self) -> bool {
        matches!(self.cause, Cause::Denied)
    }

    /// Returns whether what was to be read is another state than the one that was asked for.
    pub const fn is_changed(&self) -> bool {
        matches!(self.cause, Cause::Changed)
    }
}

impl Blobs {
    /// Returns the blobs at this location.
    ///
    /// # Errors
    ///
    /// Returns an error if this build, or these options, can never reach it.
    pub fn at(location: &Location, options: &BucketOptions) -> Result<Self, LocationError> {
        match location {
            Location::Folder(folder) => Ok(Self::folder(folder)),
            #[cfg(feature = "buckets")]
            Location::Bucket { .. } => Ok(Self(Place::Objects(Objects::at(location, options)?))),
            #[cfg(not(feature = "buckets"))]
            Location::Bucket { .. } => Err(LocationError::without_buckets(location, options)),
        }
    }

    /// Returns the blobs in this folder, which is made when the first blob is written.
    pub fn folder(folder: impl Into<PathBuf>) -> Self {
        Self(Place::Folder(Folder::new(folder.into(), 0)))
    }

    /// Leaves this many bytes of the disk free if the blobs are in a folder: blobs that do not fit
    /// are refused.
    #[must_use]
    pub fn leaving(mut self, reserve: u64) -> Self {
        if let Place::Folder(folder) = &mut self.0 {
            folder.reserve = reserve;
        }
        self
    }

    /// Returns blobs in the memory of this process, for tests and simulations.
    pub fn memory() -> Self {
        Self(Place::Memory(Memory::default()))
    }

    /// Checks that blobs can be written to a folder, and makes it if it is not there. A full disk
    /// may have room later; whether a bucket can be written shows only when a blob is.
    pub async fn check(&self) -> Result<(), BlobError> {
        match &self.0 {
            Place::Folder(folder) => folder.check().await,
            #[cfg(feature = "buckets")]
            Place::Objects(_) => Ok(()),
            Place::Memory(_) => Ok(()),
        }
    }

    /// Writes a blob. Returns when it is safe.
    pub async fn write(&self, name: &BlobName, content: Bytes) -> Result<(), BlobError> {
        match &self.0 {
            Place::Folder(folder) => folder.write(name, content).await,
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.write(name, content).await,
            Place::Memory(memory) => {
                memory.write(name.clone(), content);
                Ok(())
            }
        }
    }

    /// Writes a blob of the contents of others of the same owner, in this order. Returns when it is
    /// safe.
    ///
    /// # Errors
    ///
    /// Returns an error, and writes nothing, if one of the others cannot be read or is not as it
    /// was written.
    pub async fn join(
        &self,
        parts: &[(BlobName, Fingerprint)],
        name: &BlobName,
    ) -> Result<Fingerprint, BlobError> {
        let bytes: u64 = parts.iter().map(|(_, written)| written.bytes).sum();
        let mut content = Vec::with_capacity(usize::try_from(bytes).unwrap_or_default());
        for (part, written) in parts {
            let begin = content.len();
            let blob = self.open(part).await?;
            // One that has become longer is not read to its end.
            let read = blob.take(written.bytes + 1).read_to_end(&mut content).await;
            read.map_err(|error| BlobError::new(self, "read", &error))?;
            written.check(Fingerprint::of(&content[begin..]), self, &part.name)?;
        }
        let joined = Fingerprint::of(&content);
        self.write(name, content.into()).await?;
        Ok(joined)
    }

    /// Checks that a blob is as it was written.
    ///
    /// # Errors
    ///
    /// Returns an error if it cannot be read or is not.
    pub async fn verify(&self, name: &BlobName, written: &Fingerprint) -> Result<(), BlobError> {
        let mut blob = self.open(name).await?.take(written.bytes + 1);
        let mut now = Fingerprinter::default();
        loop {
            let read = blob.fill_buf().await;
            let piece = read.map_err(|error| BlobError::new(self, "read", &error))?;
            if piece.is_empty() {
                return written.check(now.finish(), self, &name.name);
            }
            now.add(piece);
            let length = piece.len();
            blob.consume(length);
        }
    }

    /// Opens a blob.
    pub async fn open(&self, name: &BlobName) -> Result<BlobReader, BlobError> {
        match &self.0 {
            Place::Folder(folder) => folder.open(name).await,
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.open(name).await,
            Place::Memory(memory) => memory.open(name),
        }
    }

    /// Deletes a blob. One that is not there is deleted.
    pub async fn delete(&self, name: &BlobName) -> Result<(), BlobError> {
        self.delete_all(slice::from_ref(name)).await
    }

    /// Deletes blobs. Those that are not there are deleted.
    pub async fn delete_all(&self, names: &[BlobName]) -> Result<(), BlobError> {
        match &self.0 {
            Place::Folder(folder) => folder.delete_all(names).await,
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.delete_all(names).await,
            Place::Memory(memory) => {
                for name in names {
                    memory.delete(name);
                }
                Ok(())
            }
        }
    }

    /// Deletes all blobs of a group.
    pub async fn delete_group(&self, owner: &str, group: i64) -> Result<(), BlobError> {
        match &self.0 {
            Place::Folder(folder) => folder.delete_group(owner, group).await,
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.delete_group(owner, group).await,
            Place::Memory(memory) => {
                memory.delete_group(owner, group);
                Ok(())
            }
        }
    }

    /// Returns the numbers of all groups of an owner.
    pub async fn groups(&self, owner: &str) -> Result<Vec<i64>, BlobError> {
        match &self.0 {
            Place::Folder(folder) => folder.groups(owner).await,
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.groups(owner).await,
            Place::Memory(memory) => Ok(memory.groups(owner)),
        }
    }

    /// Returns all blobs of a group, with those that a crash has left unfinished.
    pub async fn list(&self, owner: &str, group: i64) -> Result<Vec<Listed>, BlobError> {
        match &self.0 {
            Place::Folder(folder) => folder.list(owner, group).await,
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.list(owner, group).await,
            Place::Memory(memory) => Ok(memory.list(owner, group)),
        }
    }
}

impl fmt::Display for Blobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Folder(folder) => write!(f, "{folder}"),
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => write!(f, "{objects}"),
            Place::Memory(_) => f.write_str("memory"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(group: i64, name: &str) -> BlobName {
        BlobName {
            owner: "db".to_owned(),
            group,
            name: name.to_owned(),
        }
    }

    async fn content(blobs: &Blobs, name: &BlobName) -> String {
        let mut text = String::new();
        let mut reader = blobs.open(name).await.unwrap();
        reader.read_to_string(&mut text).await.unwrap();
        text
    }

    /// Checks what every place for blobs must do.
    async fn keeps_blobs(blobs: Blobs) {
        assert!(blobs.groups("db").await.unwrap().is_empty());
        assert!(blobs.list("db", 1).await.unwrap().is_empty());
        let missing = blobs.open(&name(1, "a")).await.err().unwrap();
        assert!(missing.is_missing(), "{missing}");
        for (group, file, text) in [(1, "a", "one\n"), (1, "b", "two\n"), (2, "c", "")] {
            let content = Bytes::from_static(text.as_bytes());
            blobs.write(&name(group, file), content).await.unwrap();
        }
        assert_eq!(content(&blobs, &name(1, "a")).await, "one\n");
        assert_eq!(content(&blobs, &name(2, "c")).await, "");
        let of = |text: &str| Fingerprint::of(text.as_bytes());
        let parts = [
            (name(1, "b"), of("two\n")),
            (name(1, "a"), of("one\n")),
            (name(2, "c"), of("")),
        ];
        let joined = blobs.join(&parts, &name(3, "joined")).await.unwrap();
        assert_eq!(joined, of("two\none\n"));
        assert_eq!(content(&blobs, &name(3, "joined")).await, "two\none\n");
        for (part, written) in [("a", "one"), ("a", "one\n\n"), ("a", "One\n"), ("none", "")] {
            let parts = [(name(1, "b"), of("two\n")), (name(1, part), of(written))];
            let odd = blobs.join(&parts, &name(3, "odd")).await.unwrap_err();
            let verified = blobs.verify(&parts[1].0, &parts[1].1).await.unwrap_err();
            assert_eq!(odd.to_string(), verified.to_string());
            assert_eq!(odd.damaged_blob(), (part == "a").then_some("a"), "{odd}");
        }
        blobs.verify(&parts[0].0, &parts[0].1).await.unwrap();
        let listed = blobs.list("db", 3).await.unwrap();
        assert_eq!(listed.len(), 1, "{listed:?}");
        blobs.delete_group("db", 3).await.unwrap();
        let mut groups = blobs.groups("db").await.unwrap();
        groups.sort_unstable();
        assert_eq!(groups, [1, 2]);
        let mut listed = blobs.list("db", 1).await.unwrap();
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        let names: Vec<&str> = listed.iter().map(|listed| listed.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        blobs.delete(&name(1, "a")).await.unwrap();
        blobs.delete(&name(1, "a")).await.unwrap();
        assert!(blobs.open(&name(1, "a")).await.err().unwrap().is_missing());
        assert_eq!(content(&blobs, &name(1, "b")).await, "two\n");
        let several = [name(1, "a"), name(1, "b"), name(2, "c")];
        blobs.delete_all(&several[..2]).await.unwrap();
        assert!(blobs.open(&several[1]).await.err().unwrap().is_missing());
        assert_eq!(content(&blobs, &several[2]).await, "");
        for _ in 0..2 {
            blobs.delete_group("db", 1).await.unwrap();
            assert_eq!(blobs.groups("db").await.unwrap(), [2]);
        }
        assert!(blobs.groups("other").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn folder_keeps_blobs() {
        let folder = tempfile::tempdir().unwrap();
        keeps_blobs(Blobs::folder(folder.path().join("not/there/yet"))).await;
    }

    #[tokio::test]
    async fn memory_keeps_blobs() {
        keeps_blobs(Blobs::memory()).await;
    }

    /// In a server that speaks their protocols, and in the real ones that [`real_buckets`] names.
    #[cfg(feature = "buckets")]
    #[tokio::test]
    async fn buckets_keep_blobs() {
        use crate::objects::server::{Server, real_buckets};
        for cloud in Cloud::ALL {
            let server = Server::start(cloud).await;
            for prefix in ["", "a/prefix"] {
                let (location, options) = server.at(prefix);
                keeps_blobs(Blobs::at(&location, &options).unwrap()).await;
            }
        }
        for (location, options) in real_buckets() {
            keeps_blobs(Blobs::at(&location, &options).unwrap()).await;
        }
    }

    #[cfg(feature = "buckets")]
    #[tokio::test]
    async fn error_names_the_bucket_that_does_not_answer_and_no_secret() {
        use crate::objects::server::{SECRET, options};
        // A port that nothing listens on.
        let keys = options("http://127.0.0.1:1");
        let signed = BucketOptions {
            variables: vec![
                ("AZURE_STORAGE_ACCOUNT".to_owned(), "account".to_owned()),
                (
                    "AZURE_STORAGE_SAS_TOKEN".to_owned(),
                    format!("?sv=2026&sig={SECRET}"),
                ),
            ],
            ..keys.clone()
        };
        for (place, options) in [
            ("bucket s3://bucket/a", &keys),
            ("bucket gs://bucket/a", &keys),
            ("container az://bucket/a", &keys),
            ("container az://bucket/a", &signed),
        ] {
            let (_, url) = place.split_once(' ').unwrap();
            let blobs = Blobs::at(&url.parse().unwrap(), options).unwrap();
            let errors = [
                blobs.write(&name(1, "a"), Bytes::new()).await.unwrap_err(),
                blobs.list("a", 1).await.unwrap_err(),
                blobs.delete(&name(1, "a")).await.unwrap_err(),
            ];
            for error in errors {
                let text = error.to_string();
                assert!(
                    text.starts_with(&format!("the {place} cannot be ")),
                    "{text}"
                );
                let shown = format!("{text}{error:?}{blobs:?}{options:?}");
                assert!(!shown.contains(SECRET), "{shown}");
                assert!(!error.is_missing() && !error.is_denied(), "{text}");
            }
        }
    }

    #[cfg(feature = "buckets")]
    #[tokio::test]
    async fn endpoint_of_a_flag_counts_before_those_of_variables_and_may_end_with_a_slash() {
        use crate::objects::server::Server;
        let elsewhere = [
            "AWS_ENDPOINT_URL",
            "AWS_ENDPOINT_URL_S3",
            "GOOGLE_BASE_URL",
            "AZURE_STORAGE_ENDPOINT",
        ];
        for cloud in Cloud::ALL {
            let server = Server::start(cloud).await;
            let (location, mut options) = server.at("a");
            // A port that nothing listens on.
            let elsewhere =
                elsewhere.map(|name| (name.to_owned(), "http://127.0.0.1:1".to_owned()));
            options.variables.extend(elsewhere);
            for endpoint in [
                &mut options.s3_endpoint,
                &mut options.gs_endpoint,
                &mut options.az_endpoint,
            ] {
                endpoint.as_mut().unwrap().push('/');
            }
            let blobs = Blobs::at(&location, &options).unwrap();
            blobs.write(&name(1, "a"), Bytes::new()).await.unwrap();
            assert_eq!(blobs.groups("db").await.unwrap(), [1], "{cloud:?}");
        }
    }

    #[cfg(feature = "buckets")]
    #[test]
    fn bucket_that_can_never_be_reached_is_refused_with_the_reason_and_no_secret() {
        for (url, variable, value, reason) in [
            (
                "az://bucket",
                "AZURE_STORAGE_KEY",
                "aHVzaC1odXNo",
                "(AZURE_STORAGE_ACCOUNT)",
            ),
            (
                "gs://bucket",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "\"hush-hush\"",
                "of a service account",
            ),
            (
                "gs://bucket",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                r#"{"private_key": "-----BEGIN PRIVATE KEY-----\\nhush", "private_key_id": "", "client_email": ""}"#,
                "of a service account",
            ),
            (
                "gs://bucket",
                "GOOGLE_SERVICE_ACCOUNT",
                "/no/such/file",
                "/no/such/file",
            ),
        ] {
            let options = BucketOptions {
                variables: vec![(variable.to_owned(), value.to_owned())],
                ..BucketOptions::default()
            };
            let refused = Blobs::at(&url.parse().unwrap(), &options).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(reason) && !text.contains("hush"), "{text}");
        }
    }

    #[cfg(feature = "buckets")]
    #[tokio::test]
    async fn bucket_of_a_private_authority_is_reached_only_by_who_trusts_it() {
        use harness::tls::{Authority, TlsServer};
        const RESPONSE: &[u8] =
            b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let authority = Authority::new().unwrap();
        let certificate = authority.issue("localhost").unwrap();
        let server = TlsServer::start(&certificate, None).await.unwrap();
        let port = server.address().unwrap().port();
        let error = async |authorities: Vec<u8>| {
            let secret = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
            let options = BucketOptions {
                s3_endpoint: Some(format!("https://localhost:{port}")),
                authorities,
                variables: secret.map(|name| (name.to_owned(), "x".to_owned())).into(),
                ..BucketOptions::default()
            };
            let blobs = Blobs::at(&"s3://bucket/a".parse().unwrap(), &options).unwrap();
            let name = name(1, "a");
            tokio::select! {
                never = server.serve(RESPONSE) => match never {},
                opened = blobs.open(&name) => opened.err().unwrap(),
            }
        };
        let pem = std::fs::read(authority.file()).unwrap();
        let trusted = error(pem).await;
        assert!(trusted.is_missing(), "{trusted}");
        let untrusted = error(Vec::new()).await;
        assert!(!untrusted.is_missing(), "{untrusted}");
        assert!(
            untrusted.to_string().contains("UnknownIssuer"),
            "{untrusted}"
        );
    }

    #[tokio::test]
    async fn folder_refuses_a_blob_that_leaves_less_than_the_reserve_free() {
        let folder = tempfile::tempdir().unwrap();
        let system = rustix::fs::statvfs(folder.path()).unwrap();
        let size = system.f_blocks * system.f_frsize;
        let write = async |reserve| {
            let blobs = Blobs::folder(folder.path()).leaving(reserve);
            blobs.write(&name(1, "a"), Bytes::from_static(b"one")).await
        };
        let refused = write(size).await.unwrap_err().to_string();
        let expected = format!("and {} MiB must stay free", size >> 20);
        assert!(refused.ends_with(&expected), "{refused}");
        assert!(
            Blobs::folder(folder.path())
                .list("db", 1)
                .await
                .unwrap()
                .is_empty()
        );
        write(1).await.unwrap();
    }

    #[tokio::test]
    async fn error_names_the_folder_and_what_the_system_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "no folder").unwrap();
        let error = Blobs::folder(&file)
            .write(&name(1, "a"), Bytes::new())
            .await;
        let error = error.unwrap_err().to_string();
        let expected = format!("the folder {} cannot be written: ", file.display());
        assert!(error.starts_with(&expected), "{error}");
    }
}
