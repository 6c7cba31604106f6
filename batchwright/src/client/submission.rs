//! The requests that create jobs, or say what would happen if a job were created.

use contract::Explanation;
use contract::rest::NewJob;
use framework::http::{Method, StatusCode};
use serde::Deserialize;

use super::{Client, ClientError, MAX_BODY_BYTES, parsed};

/// What the service says of a request.
#[derive(Default, Deserialize)]
struct Said {
    notes: Vec<String>,
}

impl Client {
    /// Creates a job under this id. Returns whether it is new, and what the service says of the
    /// request.
    pub async fn put_noting(
        &self,
        job: &str,
        new_job: &NewJob,
    ) -> Result<(bool, Vec<String>), ClientError> {
        let (url, body) = (self.job_url(job), body(new_job)?);
        let (status, body) = self.send(Method::PUT, &url, body).await?;
        // Without notes, the response is empty.
        let said = serde_json::from_str::<Said>(&body).unwrap_or_default();
        Ok((status == StatusCode::CREATED, said.notes))
    }

    /// Returns what the batch of a job would be split into.
    pub async fn explain(&self, new_job: &NewJob) -> Result<Explanation, ClientError> {
        let url = self.partition_url("jobs:explain", &[]);
        let (_, body) = self.send(Method::POST, &url, body(new_job)?).await?;
        parsed(&body, &url)
    }
}

fn body(new_job: &NewJob) -> Result<Vec<u8>, ClientError> {
    let body = serde_json::to_vec(new_job).unwrap_or_default();
    if body.len() > MAX_BODY_BYTES {
        return Err(ClientError::TooLarge { bytes: body.len() });
    }
    Ok(body)
}
