//! Blobs as objects in a bucket of a cloud: `prefix/owner/group/name`.
//!
//! A bucket does what the folder has to work for: an object appears whole, and is safe when the
//! request returns.
//!
//! What must stay true: a request fails within minutes, so that the caller can say why it waits; it
//! is the caller who asks again.

mod clouds;
mod errors;
#[cfg(test)]
pub mod server;

use std::fmt;
use std::io::{self, Cursor};
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::try_join_all;
use futures_util::stream::StreamExt as _;
use object_store::buffered::BufReader;
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetRange, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt as _,
    PutMode, PutOptions,
};

use self::errors::{cause_of, text_of};
use crate::location::{BucketOptions, Cloud, Location, LocationError};
use crate::{BlobError, BlobName, BlobReader, Cause, Listed, Listing, Object};

/// The size up to which an object is read at once, and the bytes that are read at a time of a
/// larger one.
const BUFFER: usize = 1 << 20;
/// The bytes that are written at a time of a file that is exported. S3 and Google demand 5 MiB at
/// least.
const PART: usize = 8 << 20;
/// How many objects are deleted at the same time.
const DELETIONS: usize = 16;

#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    prefix: String,
    cloud: Cloud,
    place: Arc<str>,
}

impl Objects {
    /// Returns the bucket at this location.
    pub fn at(location: &Location, options: &BucketOptions) -> Result<Self, LocationError> {
        let error = |reason: String| LocationError {
            location: location.to_string(),
            reason,
        };
        let Location::Bucket {
            cloud,
            bucket,
            prefix,
        } = location
        else {
            return Err(error("it is no bucket".to_owned()));
        };
        let store = clouds::open(*cloud, bucket, options);
        Ok(Self {
            store: store.map_err(|of_store| error(text_of(*cloud, &of_store)))?,
            prefix: prefix.clone(),
            cloud: *cloud,
            place: location.to_string().into(),
        })
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
        let (cloud, place) = (self.cloud, Arc::clone(&self.place));
        move |error| BlobError {
            place: place.to_string(),
            action,
            reason: text_of(cloud, &error),
            cause: cause_of(&error),
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

    pub async fn delete_all(&self, names: &[BlobName]) -> Result<(), BlobError> {
        for names in names.chunks(DELETIONS) {
            let paths = names.iter().map(|name| self.blob("changed", name));
            let paths: Vec<Path> = paths.collect::<Result<_, _>>()?;
            try_join_all(paths.iter().map(|path| self.delete_path(path))).await?;
        }
        Ok(())
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
        found
            .map(|found| self.object(found))
            .map_err(self.error("read"))
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
        // Not every store that speaks the protocol looks at the condition.
        if tag.is_some() && self.object(found.meta.clone()).tag.as_deref() != tag {
            return Err(BlobError {
                place: self.place.to_string(),
                action: "read",
                reason: "the object has changed".to_owned(),
                cause: Cause::Changed,
            });
        }
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
            listing.files.push((path, self.object(found)));
        }
        Ok(listing)
    }

    fn object(&self, meta: ObjectMeta) -> Object {
        // Azure's lists leave out the quotes that are part of a tag.
        let tag = meta.e_tag.map(|tag| match self.cloud {
            Cloud::Azure if !tag.ends_with('"') => format!("\"{tag}\""),
            _ => tag,
        });
        let size = meta.size;
        Object { size, tag }
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
            cloud: self.cloud,
        })
    }

    /// Writes an object unless there is one of this name. Returns whether it did.
    pub async fn write_new(&self, path: &str, content: Bytes) -> Result<bool, BlobError> {
        let path = self.path("written", &[path])?;
        let (new, again) = (PutOptions::from(PutMode::Create), content.clone());
        match self.store.put_opts(&path, content.into(), new).await {
            Ok(_) => Ok(true),
            // Azure says so of other conflicts, too.
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => {
                let found = self.store.head(&path).await;
                found.map(|_| false).map_err(self.error("written"))
            }
            // Not every store that speaks the protocol can do that in one step.
            Err(error) if error.to_string().contains("NotImplemented") => {
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

/// An object that appears when it is finished. A large one is uploaded in parts, which the bucket
/// keeps, and which cost, until the object is finished or given up. Azure has no request that gives
/// up; it drops the parts after a week.
pub struct NewObject {
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// What is not uploaded yet.
    buffer: BytesMut,
    upload: Option<Box<dyn MultipartUpload>>,
    cloud: Cloud,
}

impl NewObject {
    fn error(&self) -> impl Fn(Error) -> io::Error + use<> {
        let cloud = self.cloud;
        move |error| io::Error::other(text_of(cloud, &error))
    }

    pub async fn write(&mut self, content: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(content);
        while self.buffer.len() >= PART {
            if self.upload.is_none() {
                self.upload = Some(
                    self.store
                        .put_multipart(&self.path)
                        .await
                        .map_err(self.error())?,
                );
            }
            let part = self.buffer.split_to(PART).freeze();
            self.put_part(part).await?;
        }
        Ok(())
    }

    async fn put_part(&mut self, part: Bytes) -> io::Result<()> {
        match &mut self.upload {
            Some(upload) => upload.put_part(part.into()).await.map_err(self.error()),
            // It was given up, with the parts before this one.
            None => Err(io::Error::other("the upload of this object has ended")),
        }
    }

    pub async fn finish(&mut self) -> io::Result<()> {
        let rest = self.buffer.split().freeze();
        if self.upload.is_none() {
            let put = self.store.put(&self.path, rest.into()).await;
            return put.map(drop).map_err(self.error());
        }
        if !rest.is_empty() {
            self.put_part(rest).await?;
        }
        if let Some(upload) = &mut self.upload {
            upload.complete().await.map_err(self.error())?;
            self.upload = None;
        }
        Ok(())
    }

    /// Lets the bucket delete the parts.
    pub async fn give_up(&mut self) -> io::Result<()> {
        match self.upload.take() {
            Some(mut upload) => upload.abort().await.map_err(self.error()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for NewObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NewObject({})", self.path)
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects({})", self.place)
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn part_of_an_object_that_was_given_up_is_refused() {
        let store = Arc::new(object_store::memory::InMemory::new());
        let mut object = NewObject {
            store,
            path: Path::from("a"),
            buffer: BytesMut::new(),
            upload: None,
            cloud: Cloud::S3,
        };
        object.write(&vec![0; PART + 1]).await.unwrap();
        object.give_up().await.unwrap();
        assert!(object.put_part(Bytes::from_static(b"x")).await.is_err());
    }
}
