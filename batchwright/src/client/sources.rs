//! The requests about uploaded sources.

use std::time::Duration;

use bytes::Bytes;
use contract::UPLOAD_OFFSET_HEADER;
use contract::rest::{SourceCommit, UploadedSource, UploadedSources};
use framework::http::Method;

use super::transport::Call;
use super::{BULK_LIMIT, Client, ClientError, encode, parsed};

/// How long a request may take that adds bytes.
const APPEND_LIMIT: Duration = Duration::from_mins(10);

impl Client {
    /// Creates a source, to which bytes are then added.
    pub async fn create_source(&self) -> Result<UploadedSource, ClientError> {
        let url = self.partition_url("sources", &[]);
        let (_, body) = self.send(Method::POST, &url, Vec::new()).await?;
        parsed(&body, &url)
    }

    /// Returns a page of the sources of the partition.
    pub async fn sources(&self, query: &[(&str, String)]) -> Result<UploadedSources, ClientError> {
        self.read(self.partition_url("sources", query)).await
    }

    /// Returns a source.
    pub async fn source(&self, id: &str) -> Result<UploadedSource, ClientError> {
        self.read(self.source_url(id)).await
    }

    /// Adds bytes to a source that has `offset` bytes.
    pub async fn append_to_source(
        &self,
        id: &str,
        offset: u64,
        bytes: Bytes,
    ) -> Result<UploadedSource, ClientError> {
        let url = self.source_url(id);
        let call = Call::new(Method::PATCH, &url)
            .bytes(bytes)
            .header(UPLOAD_OFFSET_HEADER, &offset.to_string())
            .limit(APPEND_LIMIT);
        let (_, body) = self.exchange(call).await?;
        parsed(&body, &url)
    }

    /// Commits a source that has all its bytes. The service reads them before it responds.
    pub async fn commit_source(
        &self,
        id: &str,
        commit: &SourceCommit,
    ) -> Result<UploadedSource, ClientError> {
        let url = format!("{}/commit", self.source_url(id));
        let body = serde_json::to_vec(commit).unwrap_or_default();
        let call = Call::new(Method::POST, &url).json(body).limit(BULK_LIMIT);
        let (_, body) = self.exchange(call).await?;
        parsed(&body, &url)
    }

    /// Deletes a source that no job names.
    pub async fn delete_source(&self, id: &str) -> Result<(), ClientError> {
        let url = self.source_url(id);
        self.send(Method::DELETE, &url, Vec::new()).await?;
        Ok(())
    }

    fn source_url(&self, id: &str) -> String {
        let Self {
            base, partition, ..
        } = self;
        format!(
            "{base}/partitions/{}/sources/{}",
            encode(partition),
            encode(id)
        )
    }
}
