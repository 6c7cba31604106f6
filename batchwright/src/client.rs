//! A client of the REST API, for the command line and for tests.

use std::time::Duration;

use contract::rest::{ErrorBody, Job, NewJob};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{Method, StatusCode};

/// Speaks to a job service.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    partition: String,
}

/// What a request came to.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "cannot reach the job service at {url}: {reason}; is it running, and is the URL right?"
    )]
    Unreachable { url: String, reason: String },
    /// The service said no.
    #[error("{message} (HTTP {status})")]
    Refused { status: u16, message: String },
    #[error("the answer of {url} was not understood: {reason}")]
    NotUnderstood { url: String, reason: String },
}

impl Client {
    /// A client for the jobs of a partition; `base` ends in `/job-service/v1`.
    pub fn new(base: &str, partition: &str) -> Result<Self, ClientError> {
        // Whoever comes first wins; either way there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let base = base.trim_end_matches('/').to_owned();
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(30))
            .build()
            .map_err(|error| ClientError::Unreachable {
                url: base.clone(),
                reason: error.to_string(),
            })?;
        Ok(Self {
            http,
            base,
            partition: partition.to_owned(),
        })
    }

    /// Creates a job; false when the same request had created it before.
    pub async fn put(&self, job: &str, new_job: &NewJob) -> Result<bool, ClientError> {
        let body = serde_json::to_vec(new_job).unwrap_or_default();
        let (status, _) = self.send(Method::PUT, &self.job_url(job), body).await?;
        Ok(status == StatusCode::CREATED)
    }

    pub async fn get(&self, job: &str) -> Result<Job, ClientError> {
        self.read(self.job_url(job)).await
    }

    /// The jobs of the partition, newest first.
    pub async fn list(&self, query: &[(&str, String)]) -> Result<Vec<Job>, ClientError> {
        self.read(self.partition_url("jobs", query)).await
    }

    /// How many jobs there are.
    pub async fn count(&self, query: &[(&str, String)]) -> Result<u64, ClientError> {
        self.read(self.partition_url("jobStats/count", query)).await
    }

    /// Begins to watch a job: every state that it comes to, or the latest when there are many.
    pub async fn watch(&self, job: &str) -> Result<Watch, ClientError> {
        let url = format!("{}/events", self.job_url(job));
        // It lasts as long as the job.
        let request = self
            .http
            .get(&url)
            .timeout(Duration::from_secs(u64::from(u32::MAX)));
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(Watch {
                response,
                read: Vec::new(),
            });
        }
        let body = response
            .text()
            .await
            .map_err(|error| self.unreachable(&error))?;
        Err(refused(status, &body, &url))
    }

    pub async fn cancel(&self, job: &str) -> Result<(), ClientError> {
        self.send(
            Method::POST,
            &format!("{}/cancel", self.job_url(job)),
            Vec::new(),
        )
        .await
        .map(drop)
    }

    pub async fn pause(&self, job: &str) -> Result<(), ClientError> {
        self.send(
            Method::POST,
            &format!("{}/pause", self.job_url(job)),
            Vec::new(),
        )
        .await
        .map(drop)
    }

    pub async fn resume(&self, job: &str) -> Result<(), ClientError> {
        self.send(
            Method::POST,
            &format!("{}/resume", self.job_url(job)),
            Vec::new(),
        )
        .await
        .map(drop)
    }

    pub async fn delete(&self, job: &str) -> Result<(), ClientError> {
        self.send(Method::DELETE, &self.job_url(job), Vec::new())
            .await
            .map(drop)
    }

    fn partition_url(&self, what: &str, query: &[(&str, String)]) -> String {
        let query: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{name}={}", encode(value)))
            .collect();
        format!(
            "{}/partitions/{}/{what}?{}",
            self.base,
            encode(&self.partition),
            query.join("&")
        )
    }

    fn job_url(&self, job: &str) -> String {
        format!(
            "{}/partitions/{}/jobs/{}",
            self.base,
            encode(&self.partition),
            encode(job)
        )
    }

    async fn read<T: serde::de::DeserializeOwned>(&self, url: String) -> Result<T, ClientError> {
        let (_, body) = self.send(Method::GET, &url, Vec::new()).await?;
        serde_json::from_str(&body).map_err(|error| ClientError::NotUnderstood {
            url,
            reason: error.to_string(),
        })
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, String), ClientError> {
        let request = self
            .http
            .request(method, url)
            .header("content-type", "application/json")
            .body(body);
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let body = response
            .text()
            .await
            .map_err(|error| self.unreachable(&error))?;
        if status.is_success() {
            return Ok((status, body));
        }
        Err(refused(status, &body, url))
    }

    fn unreachable(&self, error: &reqwest::Error) -> ClientError {
        ClientError::Unreachable {
            url: self.base.clone(),
            reason: innermost(error),
        }
    }
}

/// A job that is watched.
#[derive(Debug)]
pub struct Watch {
    response: reqwest::Response,
    read: Vec<u8>,
}

impl Watch {
    /// The next state of the job; `None` when the stream has ended, for whatever reason.
    pub async fn next(&mut self) -> Option<Job> {
        loop {
            while let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                // Of an event only the data matters; that of a deleted job is no job.
                let job = line
                    .strip_prefix(b"data:")
                    .and_then(|data| serde_json::from_slice(data).ok());
                if job.is_some() {
                    return job;
                }
            }
            self.read
                .extend_from_slice(&self.response.chunk().await.ok()??);
        }
    }
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

fn refused(status: StatusCode, body: &str, url: &str) -> ClientError {
    let message = serde_json::from_str::<ErrorBody>(body).map_or_else(
        |_| format!("unexpected answer of {url}"),
        |error| error.message,
    );
    ClientError::Refused {
        status: status.as_u16(),
        message,
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
