//! Files that others have put into a bucket, to read.

use std::ops::Range;

use bytes::Bytes;

use crate::location::{BucketOptions, Location, LocationError};
#[cfg(feature = "buckets")]
use crate::objects::Objects;
use crate::{BlobError, Listing, Object};

/// A bucket with a prefix, whose objects are only read. Clones share it.
#[derive(Debug, Clone)]
pub struct Bucket(
    #[cfg(feature = "buckets")] Objects,
    #[cfg(not(feature = "buckets"))] std::convert::Infallible,
);

#[cfg(feature = "buckets")]
impl Bucket {
    /// Returns the bucket at this location.
    ///
    /// # Errors
    ///
    /// Returns an error if it is a folder, or these options can never reach it.
    pub fn at(location: &Location, options: &BucketOptions) -> Result<Self, LocationError> {
        Objects::at(location, options).map(Self)
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

#[cfg(not(feature = "buckets"))]
impl Bucket {
    /// Returns an error: this program is built without buckets.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn at(location: &Location, options: &BucketOptions) -> Result<Self, LocationError> {
        Err(LocationError::without_buckets(location, options))
    }

    /// Never runs.
    #[expect(clippy::unused_async, reason = "it is so with buckets")]
    pub async fn look(&self, _: &str) -> Result<Object, BlobError> {
        match self.0 {}
    }

    /// Never runs.
    #[expect(clippy::unused_async, reason = "it is so with buckets")]
    pub async fn read(&self, _: &str, _: Option<&str>, _: Range<u64>) -> Result<Bytes, BlobError> {
        match self.0 {}
    }

    /// Never runs.
    #[expect(clippy::unused_async, reason = "it is so with buckets")]
    pub async fn list(&self, _: &str, _: usize) -> Result<Listing, BlobError> {
        match self.0 {}
    }
}

#[cfg(feature = "buckets")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::ExportStore;
    use crate::location::Cloud;
    use crate::objects::server::{SECRET, Server, real_buckets};

    /// Checks what every bucket with files of others must do.
    async fn gives_files(location: &Location, options: &BucketOptions) {
        let Location::Bucket {
            cloud,
            bucket,
            prefix,
        } = location
        else {
            panic!("{location} is no bucket")
        };
        let whole = ExportStore::at(location, 0, options).unwrap();
        let inside = Location::Bucket {
            cloud: *cloud,
            bucket: bucket.clone(),
            prefix: format!("{prefix}/in"),
        };
        let put = async |path: &str, text: &'static str| {
            let path = path.parse().unwrap();
            whole.write(&path, text.into()).await.unwrap();
        };
        put("in/2026/a.csv", "0123456789").await;
        put("in/b.csv", "x").await;
        put("in/c.csv", "x").await;
        put("other/c.csv", "x").await;
        let bucket = Bucket::at(&inside, options).unwrap();
        let found = bucket.look("2026/a.csv").await.unwrap();
        assert_eq!(found.size, 10);
        let tag = found.tag.as_deref();
        assert_eq!(bucket.read("2026/a.csv", tag, 3..6).await.unwrap(), "345");
        let mut listing = bucket.list("", 10).await.unwrap();
        // What a list says is what a file is asked for.
        for (path, listed) in &listing.files {
            let tag = listed.tag.as_deref();
            assert!(tag.is_some(), "{path}");
            let read = bucket.read(path, tag, 0..listed.size).await.unwrap();
            assert_eq!(read.len() as u64, listed.size);
        }
        listing.files.sort_by(|a, b| a.0.cmp(&b.0));
        let paths: Vec<&str> = listing
            .files
            .iter()
            .map(|(path, _)| path.as_str())
            .collect();
        assert_eq!(
            (paths, listing.has_more),
            (vec!["2026/a.csv", "b.csv", "c.csv"], false)
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
    }

    #[tokio::test]
    async fn file_of_a_bucket_is_read_by_ranges_as_it_was_when_it_was_looked_at() {
        for cloud in Cloud::ALL {
            for ignores_conditions in [false, true] {
                let server = Server::start(cloud).await;
                server.ignore_conditions(ignores_conditions);
                let (location, options) = server.at("a");
                gives_files(&location, &options).await;
            }
        }
        for (location, options) in real_buckets() {
            gives_files(&location, &options).await;
        }
    }

    #[tokio::test]
    async fn who_has_no_rights_reads_that_and_which_variables_say_who_asks() {
        for (cloud, variables) in [
            (Cloud::S3, "AWS_…"),
            (Cloud::Google, "GOOGLE_…"),
            (Cloud::Azure, "AZURE_…"),
        ] {
            let server = Server::start(cloud).await;
            server.deny();
            let (location, options) = server.at("a");
            let bucket = Bucket::at(&location, &options).unwrap();
            let whole = ExportStore::at(&location, 0, &options).unwrap();
            let errors = [
                bucket.look("b.csv").await.unwrap_err(),
                bucket.read("b.csv", None, 0..1).await.unwrap_err(),
                bucket.list("", 1).await.unwrap_err(),
                whole.delete(&"b.csv".parse().unwrap()).await.unwrap_err(),
            ];
            for error in errors {
                let text = error.to_string();
                assert!(error.is_denied() && !error.is_missing(), "{text}");
                assert!(text.contains("access is denied"), "{text}");
                assert!(text.contains(variables) && !text.contains(SECRET), "{text}");
            }
        }
    }
}
