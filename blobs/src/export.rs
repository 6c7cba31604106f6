//! Files for others: what the service exports to a place that the operator has named.
//!
//! Hides where the files are. What must stay true: a file appears under its name when it is
//! complete, and not before; no path leads out of the place.

use std::fmt;
use std::io;
use std::str::FromStr;

use bytes::Bytes;
use tokio::io::AsyncReadExt as _;

use crate::folder::{Folder, NewFile};
use crate::location::{BucketOptions, Location, LocationError};
#[cfg(feature = "buckets")]
use crate::objects::{NewObject, Objects};
use crate::{BlobError, BlobReader};

/// The largest file that is read as a whole, in bytes.
const LARGEST_READ: u64 = 16 << 20;
/// The largest number of parts of a path, and the longest part.
const MOST_PARTS: usize = 16;
const LONGEST_PART: usize = 100;

/// A place for exported files. Clones share it.
#[derive(Debug, Clone)]
pub struct ExportStore(Place);

#[derive(Debug, Clone)]
enum Place {
    Folder(Folder),
    #[cfg(feature = "buckets")]
    Objects(Objects),
}

/// A relative path that stays below the place that it is joined to: parts of letters, digits and
/// `-_.=+@`, which do not begin with a dot, joined by `/`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ExportPath(String);

/// A file that is being written. It appears when it is finished.
#[derive(Debug)]
pub struct ExportFile {
    store: ExportStore,
    writer: Writer,
}

#[derive(Debug)]
enum Writer {
    Folder(NewFile),
    #[cfg(feature = "buckets")]
    Objects(NewObject),
}

impl ExportStore {
    /// Returns the place at this location. `reserve` bytes of a disk stay free.
    ///
    /// # Errors
    ///
    /// Returns an error if this build, or these options, can never reach it.
    pub fn at(
        location: &Location,
        reserve: u64,
        options: &BucketOptions,
    ) -> Result<Self, LocationError> {
        match location {
            Location::Folder(folder) => {
                Ok(Self(Place::Folder(Folder::new(folder.clone(), reserve))))
            }
            #[cfg(feature = "buckets")]
            Location::Bucket { .. } => Ok(Self(Place::Objects(Objects::at(location, options)?))),
            #[cfg(not(feature = "buckets"))]
            Location::Bucket { .. } => Err(LocationError::without_buckets(location, options)),
        }
    }

    /// Returns the content of a file; `None` if there is none.
    pub async fn read(&self, path: &ExportPath) -> Result<Option<Bytes>, BlobError> {
        let opened: Result<BlobReader, BlobError> = match &self.0 {
            Place::Folder(folder) => folder.open_file(&path.0).await,
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.open_file(&path.0).await,
        };
        let reader = match opened {
            Err(error) if error.is_missing() => return Ok(None),
            reader => reader?,
        };
        let mut content = Vec::new();
        let read = reader
            .take(LARGEST_READ + 1)
            .read_to_end(&mut content)
            .await;
        let too_large = || io::Error::other(format!("{path} is larger than {LARGEST_READ} bytes"));
        match read {
            Ok(_) if content.len() as u64 <= LARGEST_READ => Ok(Some(content.into())),
            Ok(_) => Err(BlobError::new(self, "read", &too_large())),
            Err(error) => Err(BlobError::new(self, "read", &error)),
        }
    }

    /// Begins a file, which replaces one of this name when it is finished.
    pub async fn begin(&self, path: &ExportPath) -> Result<ExportFile, BlobError> {
        let writer = match &self.0 {
            Place::Folder(folder) => Writer::Folder(folder.create_file(&path.0).await?),
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => Writer::Objects(objects.create_file(&path.0)?),
        };
        let store = self.clone();
        Ok(ExportFile { store, writer })
    }

    /// Writes a file.
    pub async fn write(&self, path: &ExportPath, content: Bytes) -> Result<(), BlobError> {
        let mut file = self.begin(path).await?;
        let written = async {
            file.write(content).await?;
            file.finish().await
        };
        if let Err(error) = written.await {
            // The error of the writing is the cause.
            let _ = file.give_up().await;
            return Err(error);
        }
        Ok(())
    }

    /// Writes a file unless there is one of this name. Returns whether it did: of several writers
    /// at once, one does.
    pub async fn write_new(&self, path: &ExportPath, content: Bytes) -> Result<bool, BlobError> {
        match &self.0 {
            Place::Folder(folder) => {
                let file = folder.create_file(&path.0).await?;
                let written = match file.write(content).await {
                    Ok(()) => file.finish_new().await,
                    Err(error) => Err(error),
                };
                written.map_err(|error| BlobError::new(self, "written", &error))
            }
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.write_new(&path.0, content).await,
        }
    }

    /// Deletes a file. One that is not there is deleted.
    pub async fn delete(&self, path: &ExportPath) -> Result<(), BlobError> {
        match &self.0 {
            Place::Folder(folder) => folder.delete_file(&path.0).await,
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => objects.delete_file(&path.0).await,
        }
    }
}

impl ExportFile {
    /// Appends to the file.
    pub async fn write(&mut self, content: Bytes) -> Result<(), BlobError> {
        let written = match &mut self.writer {
            Writer::Folder(file) => file.write(content).await,
            #[cfg(feature = "buckets")]
            Writer::Objects(object) => object.write(&content).await,
        };
        written.map_err(|error| BlobError::new(&self.store, "written", &error))
    }

    /// Lets the file appear. Returns when it is safe.
    pub async fn finish(&mut self) -> Result<(), BlobError> {
        let finished = match &mut self.writer {
            Writer::Folder(file) => file.finish().await,
            #[cfg(feature = "buckets")]
            Writer::Objects(object) => object.finish().await,
        };
        finished.map_err(|error| BlobError::new(&self.store, "written", &error))
    }

    /// Removes what is written of a file that will not be finished.
    pub async fn give_up(mut self) -> Result<(), BlobError> {
        let given_up = match &mut self.writer {
            Writer::Folder(file) => file.remove().await,
            #[cfg(feature = "buckets")]
            Writer::Objects(object) => object.give_up().await,
        };
        given_up.map_err(|error| BlobError::new(&self.store, "changed", &error))
    }
}

impl ExportPath {
    /// Returns the path of a file in this folder.
    ///
    /// # Errors
    ///
    /// Returns an error if that is no path.
    pub fn join(&self, name: &str) -> Result<Self, String> {
        format!("{self}/{name}").parse()
    }

    /// Returns the names of the folders on the way, and of the file or folder itself.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    /// Returns the folders that contain it, from the outermost.
    pub fn parents(&self) -> impl Iterator<Item = Self> {
        let slashes = self.0.match_indices('/');
        slashes.map(|(at, _)| Self(self.0[..at].to_owned()))
    }
}

impl FromStr for ExportPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_allowed = |c: char| c.is_alphanumeric() || "-_.=+@".contains(c);
        let is_part = |part: &str| {
            !part.is_empty()
                && part.len() <= LONGEST_PART
                && !part.starts_with('.')
                && part.chars().all(is_allowed)
        };
        if text.split('/').all(is_part) && text.split('/').count() <= MOST_PARTS {
            return Ok(Self(text.to_owned()));
        }
        Err(format!(
            "it must be relative: up to {MOST_PARTS} parts joined by `/`, each of 1 to {LONGEST_PART} letters, digits and -_.=+@, and none \
             that begins with a dot"
        ))
    }
}

impl fmt::Display for ExportPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for ExportStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Folder(folder) => write!(f, "{folder}"),
            #[cfg(feature = "buckets")]
            Place::Objects(objects) => write!(f, "{objects}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn path(text: &str) -> ExportPath {
        text.parse().unwrap()
    }

    fn store(folder: &std::path::Path) -> ExportStore {
        let location = Location::Folder(folder.to_owned());
        ExportStore::at(&location, 0, &BucketOptions::default()).unwrap()
    }

    #[tokio::test]
    async fn file_appears_when_it_is_finished_and_replaces_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let store = store(&folder.path().join("not/there/yet"));
        let name = path("2026/words/part-1.ndjson");
        for text in ["one", "two"] {
            let before = store.read(&name).await.unwrap();
            let mut file = store.begin(&name).await.unwrap();
            file.write(text.into()).await.unwrap();
            assert_eq!(store.read(&name).await.unwrap(), before);
            file.write("!".into()).await.unwrap();
            file.finish().await.unwrap();
            let read = store.read(&name).await.unwrap().unwrap();
            assert_eq!(read, format!("{text}!"));
        }
        store.delete(&name).await.unwrap();
        store.delete(&name).await.unwrap();
        assert_eq!(store.read(&name).await.unwrap(), None);
    }

    /// Checks what every place for exports must do.
    async fn takes_files(store: ExportStore) {
        let name = path("2026/words/part-1.ndjson");
        assert_eq!(store.read(&name).await.unwrap(), None);
        // Of two that begin it, one does.
        assert!(store.write_new(&name, "first".into()).await.unwrap());
        assert!(!store.write_new(&name, "second".into()).await.unwrap());
        assert_eq!(store.read(&name).await.unwrap().unwrap(), "first");
        // More than one part of an upload, in pieces that do not fit into them.
        let piece = Bytes::from(vec![b'x'; 3 << 20]);
        let mut file = store.begin(&name).await.unwrap();
        for _ in 0..4 {
            file.write(piece.clone()).await.unwrap();
        }
        assert_eq!(store.read(&name).await.unwrap().unwrap(), "first");
        file.finish().await.unwrap();
        let read = store.read(&name).await.unwrap().unwrap();
        assert!(read.len() == 12 << 20 && read.iter().all(|byte| *byte == b'x'));
        // One that is given up leaves what was there.
        let mut file = store.begin(&name).await.unwrap();
        for _ in 0..4 {
            file.write(piece.clone()).await.unwrap();
        }
        file.give_up().await.unwrap();
        assert_eq!(store.read(&name).await.unwrap().unwrap().len(), 12 << 20);
        store.write(&name, "last".into()).await.unwrap();
        assert_eq!(store.read(&name).await.unwrap().unwrap(), "last");
        for _ in 0..2 {
            store.delete(&name).await.unwrap();
        }
        assert_eq!(store.read(&name).await.unwrap(), None);
    }

    #[tokio::test]
    async fn folder_takes_files() {
        let folder = tempfile::tempdir().unwrap();
        takes_files(store(folder.path())).await;
        let left = std::fs::read_dir(folder.path().join("2026/words")).unwrap();
        assert_eq!(left.count(), 0);
    }

    #[cfg(feature = "buckets")]
    #[tokio::test]
    async fn buckets_take_files() {
        use crate::location::Cloud;
        use crate::objects::server::Server;
        for cloud in Cloud::ALL {
            let server = Server::start(cloud).await;
            let (location, options) = server.at("a/prefix");
            takes_files(ExportStore::at(&location, 0, &options).unwrap()).await;
            // Azure has no request that gives an upload up.
            let left = usize::from(cloud == Cloud::Azure);
            assert_eq!(server.uploads(), left, "{cloud:?}");
        }
        for (location, options) in crate::objects::server::real_buckets() {
            takes_files(ExportStore::at(&location, 0, &options).unwrap()).await;
        }
    }

    #[tokio::test]
    async fn file_is_written_by_one_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let (store, name) = (store(folder.path()), path("a/part-1.ndjson"));
        // A crash has left it.
        std::fs::create_dir(folder.path().join("a")).unwrap();
        std::fs::write(folder.path().join("a/part-1.ndjson.part"), "left over").unwrap();
        let mut first = store.begin(&name).await.unwrap();
        first.write("one".into()).await.unwrap();
        let refused = store.begin(&name).await.unwrap_err().to_string();
        assert!(
            refused.ends_with("part-1.ndjson.part is being written already"),
            "{refused}"
        );
        first.finish().await.unwrap();
        assert_eq!(store.read(&name).await.unwrap().unwrap(), "one");
        store.write(&name, "two".into()).await.unwrap();
        assert_eq!(store.read(&name).await.unwrap().unwrap(), "two");
    }

    #[tokio::test]
    async fn link_does_not_lead_out_of_the_folder() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        std::os::unix::fs::symlink(outside.path(), folder.path().join("link")).unwrap();
        let store = store(folder.path());
        let error = store.write(&path("link/a/b"), "x".into()).await;
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with(": link leads out of it"), "{error}");
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn nothing_is_read_deleted_or_written_through_a_link_that_leads_out_of_the_folder() {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let secret = outside.path().join("secret");
        std::fs::write(&secret, "secret").unwrap();
        let link = |to: &std::path::Path, name: &str| {
            std::os::unix::fs::symlink(to, folder.path().join(name)).unwrap();
        };
        link(outside.path(), "link");
        link(&secret, "file");
        link(&secret, "new.part");
        let store = store(folder.path());
        for name in ["link/secret", "file"] {
            let refused = store.read(&path(name)).await.unwrap_err().to_string();
            let expected = format!(": {name} leads out of it");
            assert!(refused.ends_with(&expected), "{refused}");
        }
        let refused = store.delete(&path("link/secret")).await.unwrap_err();
        let refused = refused.to_string();
        assert!(refused.ends_with(": link leads out of it"), "{refused}");
        // The link itself is a file of the folder.
        store.delete(&path("file")).await.unwrap();
        store.write(&path("new"), "x".into()).await.unwrap_err();
        assert_eq!(std::fs::read(&secret).unwrap(), b"secret");
        // What only looks like one stays inside.
        std::fs::create_dir(folder.path().join("real")).unwrap();
        link(&folder.path().join("real"), "alias");
        store.write(&path("alias/a"), "x".into()).await.unwrap();
        assert_eq!(store.read(&path("real/a")).await.unwrap().unwrap(), "x");
        assert_eq!(store.read(&path("alias/a")).await.unwrap().unwrap(), "x");
        store.delete(&path("alias/a")).await.unwrap();
        assert_eq!(store.read(&path("real/a")).await.unwrap(), None);
    }

    #[test]
    fn path_that_could_lead_elsewhere_is_refused() {
        for refused in [
            "",
            "/",
            "/a",
            "a/",
            "a//b",
            ".",
            "..",
            "a/../b",
            "a/.hidden",
            "a\\b",
            "a\0b",
            "a b",
            "a:b",
            "~/a*",
        ] {
            refused.parse::<ExportPath>().unwrap_err();
        }
        for accepted in ["a", "2026/dt=01-02/words_1.x", "übung"] {
            assert_eq!(path(accepted).to_string(), accepted);
        }
    }

    proptest! {
        #[test]
        fn accepted_path_has_only_ordinary_parts(text in "[a./\\\\:\u{0}ü-]{0,24}|\\PC{0,300}") {
            if let Ok(path) = text.parse::<ExportPath>() {
                use std::path::{Component, Path};
                let text = path.to_string();
                prop_assert!(text.len() <= MOST_PARTS * (LONGEST_PART + 1));
                let parts: Vec<Component<'_>> = Path::new(&text).components().collect();
                prop_assert!(parts.iter().all(|part| matches!(part, Component::Normal(_))));
            }
        }
    }
}
