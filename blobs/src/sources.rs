//! Files that others have put into a bucket, to read.

use std::ops::Range;

use bytes::Bytes;

use crate::location::{Location, LocationError, S3Options};
#[cfg(feature = "s3")]
use crate::s3::S3;
use crate::{BlobError, Listing, Object};

/// A bucket with a prefix, whose objects are only read. Clones share it.
#[derive(Debug, Clone)]
pub struct Bucket(
    #[cfg(feature = "s3")] S3,
    #[cfg(not(feature = "s3"))] std::convert::Infallible,
);

#[cfg(feature = "s3")]
impl Bucket {
    /// Returns the bucket at this location.
    ///
    /// # Errors
    ///
    /// Returns an error if it is a folder, or these options can never reach it.
    pub fn at(location: &Location, s3: &S3Options) -> Result<Self, LocationError> {
        match location {
            Location::Bucket { bucket, prefix } => S3::new(bucket, prefix, s3).map(Self),
            Location::Folder(_) => Err(LocationError {
                location: location.to_string(),
                reason: "it is no bucket".to_owned(),
            }),
        }
    }

    /// Returns what an object looks like.
    pub async fn look(&self, path: &str) -> Result<Object, BlobError> {
        self.0.look(path).await
    }

    /// Returns a range of an object that has this tag.
    pub async fn read(
        &self,
        path: &str,
        tag: Option<&str>,
        range: Range<u64>,
    ) -> Result<Bytes, BlobError> {
        self.0.read(path, tag, range).await
    }

    /// Returns the objects below a path, at most so many.
    pub async fn list(&self, path: &str, most: usize) -> Result<Listing, BlobError> {
        self.0.list_files(path, most).await
    }
}

#[cfg(not(feature = "s3"))]
impl Bucket {
    /// Returns an error: this program is built without S3.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn at(location: &Location, s3: &S3Options) -> Result<Self, LocationError> {
        Err(LocationError::without_s3(location, s3))
    }

    /// Never runs.
    #[expect(clippy::unused_async, reason = "it is so with S3")]
    pub async fn look(&self, _: &str) -> Result<Object, BlobError> {
        match self.0 {}
    }

    /// Never runs.
    #[expect(clippy::unused_async, reason = "it is so with S3")]
    pub async fn read(&self, _: &str, _: Option<&str>, _: Range<u64>) -> Result<Bytes, BlobError> {
        match self.0 {}
    }

    /// Never runs.
    #[expect(clippy::unused_async, reason = "it is so with S3")]
    pub async fn list(&self, _: &str, _: usize) -> Result<Listing, BlobError> {
        match self.0 {}
    }
}

#[cfg(all(test, feature = "s3"))]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::{ObjectStore as _, ObjectStoreExt as _, path::Path};

    use super::*;

    #[tokio::test]
    async fn object_is_read_by_ranges_as_it_was_when_it_was_looked_at() {
        let store = Arc::new(InMemory::new());
        let put = async |path: &str, text: &'static str| {
            store.put(&Path::from(path), text.into()).await.unwrap();
        };
        put("in/2026/a.csv", "0123456789").await;
        put("in/b.csv", "x").await;
        put("other/c.csv", "x").await;
        let bucket = Bucket(S3::of(Arc::clone(&store) as Arc<_>, "in"));
        let found = bucket.look("2026/a.csv").await.unwrap();
        assert_eq!(found.size, 10);
        let tag = found.tag.as_deref();
        assert_eq!(bucket.read("2026/a.csv", tag, 3..6).await.unwrap(), "345");
        let mut listing = bucket.list("", 10).await.unwrap();
        listing.files.sort_by(|a, b| a.0.cmp(&b.0));
        let paths: Vec<&str> = listing
            .files
            .iter()
            .map(|(path, _)| path.as_str())
            .collect();
        assert_eq!(
            (paths, listing.has_more),
            (vec!["2026/a.csv", "b.csv"], false)
        );
        assert!(bucket.list("", 1).await.unwrap().has_more);
        assert_eq!(bucket.list("2026", 10).await.unwrap().files.len(), 1);
        put("in/2026/a.csv", "9876543210").await;
        let changed = bucket.read("2026/a.csv", tag, 3..6).await.unwrap_err();
        assert!(changed.is_changed(), "{changed}");
        assert!(bucket.look("nothing").await.unwrap_err().is_missing());
        for path in ["../other/c.csv", "", "a//b", "2026/../../other/c.csv"] {
            let refused = bucket.look(path).await;
            assert!(refused.is_err(), "{path}");
        }
        drop(store.list(None));
    }
}
