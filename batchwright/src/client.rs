//! A client of the job service's REST API.

mod conditions;
mod events;
mod letters;
mod pipes;
mod sources;
mod submission;
mod tokens;
mod transport;

use std::fmt;
use std::time::Duration;

use contract::JobShare;
use contract::rest::{
    ErrorBody, ErrorCode, Failures, History, Job, JobChange, MAX_BODY_BYTES, NewJob, Resubmit,
    Retried, RetriedJobs, SubmittedJob, Task, TaskCounts, Tasks,
};
pub use events::{Happened, JobEvents};
use framework::http::{HttpClient, HttpResponse, Method, StatusCode};
use framework::tls::Tls;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::time::timeout;

use self::transport::{Call, http_client, refused};

/// How long a request may take that changes many jobs. The service makes the change in batches
/// while the client waits.
const BULK_LIMIT: Duration = Duration::from_hours(1);
/// How long an event stream may be silent. The job service sends a comment every 15 s.
const SILENCE_LIMIT: Duration = Duration::from_mins(1);

/// One check of the health of a job service.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
pub struct HealthCheck {
    /// What was checked.
    pub name: String,
    /// Whether it works.
    pub healthy: bool,
    /// Whether it works, but something grows or lags.
    #[serde(default)]
    pub degraded: bool,
    /// What is wrong.
    #[serde(default)]
    pub message: Option<String>,
}

/// A client for the jobs of one partition. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Client {
    http: HttpClient,
    base: String,
    partition: String,
    token: Option<BearerToken>,
}

/// A token of the job service, which is never printed.
#[derive(Clone)]
struct BearerToken(String);

impl fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The job service cannot be reached, or the connection broke.
    #[error(
        "cannot reach the job service at {url}: {reason}; is it running, and is the URL correct?"
    )]
    Unreachable {
        /// The base URL of the client.
        url: String,
        /// The innermost error of the connection.
        reason: String,
    },
    /// The job service rejected the request.
    #[error("{} (HTTP {status}{})", body.message, suffix(body))]
    Refused {
        /// The HTTP status code.
        status: u16,
        /// The body of the response.
        body: Box<ErrorBody>,
    },
    /// The request is larger than any that the job service accepts, and was not sent.
    #[error(
        "the job has {bytes} bytes; a request has at most {MAX_BODY_BYTES}. Name large inputs instead of including them, or use several jobs"
    )]
    TooLarge {
        /// The size of the body of the request.
        bytes: usize,
    },
    /// The body of a response is not what the API specifies.
    #[error("cannot parse the response of {url}: {reason}")]
    InvalidResponse {
        /// The URL of the request.
        url: String,
        /// The error of the JSON parser.
        reason: String,
    },
}

impl ClientError {
    /// Returns the error as the body of an error response. Errors that are not the job service's
    /// have codes of their own.
    pub fn body(&self) -> ErrorBody {
        let code = match self {
            Self::Refused { body, .. } => return (**body).clone(),
            Self::Unreachable { .. } => "SERVICE_UNREACHABLE",
            Self::TooLarge { .. } => ErrorCode::BodyTooLarge.as_str(),
            Self::InvalidResponse { .. } => "INVALID_RESPONSE",
        };
        ErrorBody {
            code: Some(code.to_owned()),
            ..ErrorBody::of_message(self.to_string())
        }
    }

    /// Returns whether the same request may succeed later: the job service is away or overloaded,
    /// or what answers instead of it does not know it. That a job does not exist is certain only if
    /// the job service itself says so.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Refused { status, body } => match status {
                404 => !body.message.starts_with("ERROR: job_id {"),
                408 | 429 | 500.. => true,
                _ => false,
            },
            Self::TooLarge { .. } | Self::InvalidResponse { .. } => false,
        }
    }
}

impl Client {
    /// Returns a client for the jobs of `partition`. `base` ends in `/job-service/v1`.
    pub fn new(base: &str, partition: &str) -> Self {
        Self::with_tls(base, partition, &Tls::default())
    }

    /// Returns a client that also trusts these certificate authorities and shows this certificate.
    pub fn with_tls(base: &str, partition: &str, tls: &Tls) -> Self {
        Self {
            http: http_client(tls),
            base: base.trim_end_matches('/').to_owned(),
            partition: partition.to_owned(),
            token: None,
        }
    }

    /// Returns this client with a token, which each of its requests shows.
    #[must_use]
    pub fn with_token(self, token: &str) -> Self {
        Self {
            token: Some(BearerToken(token.to_owned())),
            ..self
        }
    }

    /// Creates a job. Returns false if the same request already created it.
    pub async fn put(&self, job: &str, new_job: &NewJob) -> Result<bool, ClientError> {
        let body = serde_json::to_vec(new_job).unwrap_or_default();
        if body.len() > MAX_BODY_BYTES {
            return Err(ClientError::TooLarge { bytes: body.len() });
        }
        let (status, _) = self.send(Method::PUT, &self.job_url(job), body).await?;
        Ok(status == StatusCode::CREATED)
    }

    /// Creates a job whose id the service makes. Returns it, and whether it is new: with a key, an
    /// earlier request may have created it.
    pub async fn post_job(
        &self,
        new_job: &NewJob,
        key: Option<&str>,
    ) -> Result<(SubmittedJob, bool), ClientError> {
        let body = serde_json::to_vec(new_job).unwrap_or_default();
        if body.len() > MAX_BODY_BYTES {
            return Err(ClientError::TooLarge { bytes: body.len() });
        }
        let url = self.partition_url("jobs", &[]);
        self.create(&url, body, key).await
    }

    /// Creates a job like this one. Returns it, and whether it is new: an earlier request may have
    /// created it.
    pub async fn resubmit(
        &self,
        job: &str,
        new: &Resubmit,
        key: Option<&str>,
    ) -> Result<(SubmittedJob, bool), ClientError> {
        let url = format!("{}/resubmit?strict=true", self.job_url(job));
        let body = serde_json::to_vec(new).unwrap_or_default();
        self.create(&url, body, key).await
    }

    async fn create(
        &self,
        url: &str,
        body: Vec<u8>,
        key: Option<&str>,
    ) -> Result<(SubmittedJob, bool), ClientError> {
        let call = Call::new(Method::POST, url).json(body);
        let call = match key {
            Some(key) => call.header("idempotency-key", key),
            None => call,
        };
        let (status, body) = self.exchange(call).await?;
        Ok((parsed(&body, url)?, status == StatusCode::CREATED))
    }

    /// Returns the current state of a job.
    pub async fn get(&self, job: &str) -> Result<Job, ClientError> {
        self.read(self.job_url(job)).await
    }

    /// Returns a task of a job, named by the path to it.
    pub async fn task(&self, job: &str, path: &str) -> Result<Task, ClientError> {
        let (url, path) = (self.job_url(job), encode(path));
        self.read(format!("{url}/tasks/{path}")).await
    }

    /// Returns the failures of a job that follow the place `after`, at most `limit`.
    pub async fn failures(
        &self,
        job: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Failures, ClientError> {
        let after = after.map(|after| format!("&after={}", encode(after)));
        let after = after.unwrap_or_default();
        let url = self.job_url(job);
        self.read(format!("{url}/failures?limit={limit}{after}"))
            .await
    }

    /// Returns a page of the tasks of a job that the query parameters select.
    pub async fn tasks(&self, job: &str, query: &[(&str, String)]) -> Result<Tasks, ClientError> {
        let path = format!("jobs/{}/tasks", encode(job));
        self.read(self.partition_url(&path, query)).await
    }

    /// Returns how many tasks of a job there are in each state, below one task or in all.
    pub async fn task_counts(
        &self,
        job: &str,
        under: Option<&str>,
    ) -> Result<TaskCounts, ClientError> {
        let query: Vec<_> = under
            .map(|it| ("under", it.to_owned()))
            .into_iter()
            .collect();
        let path = format!("jobs/{}/tasks/count", encode(job));
        self.read(self.partition_url(&path, &query)).await
    }

    /// Returns the request that created a job.
    pub async fn definition(&self, job: &str) -> Result<NewJob, ClientError> {
        let url = self.job_url(job);
        self.read(format!("{url}/definition")).await
    }

    /// Returns what the job service says of its own health. That it is unhealthy is no error.
    pub async fn health(&self) -> Result<Vec<HealthCheck>, ClientError> {
        let root = self.base.strip_suffix("/job-service/v1");
        let root = root.unwrap_or(&self.base);
        let url = format!("{root}/health-check?name=all&type=READY");
        let call = Call::new(Method::GET, &url).header("accept", "application/json");
        let (status, headers, body) = self.ask(call).await?;
        if status.is_success() || body.starts_with('[') {
            parsed(&body, &url)
        } else {
            Err(refused(status, &headers, &body, &url))
        }
    }

    /// Returns the failures of a job in groups.
    pub async fn failure_groups(&self, job: &str) -> Result<Failures, ClientError> {
        let url = self.job_url(job);
        self.read(format!("{url}/failures?group=true")).await
    }

    /// Returns a page of the changes of a job's status that follow the place `after`.
    pub async fn history(&self, job: &str, after: Option<&str>) -> Result<History, ClientError> {
        let after = after.map(|after| format!("?after={}", encode(after)));
        let after = after.unwrap_or_default();
        let url = self.job_url(job);
        self.read(format!("{url}/history{after}")).await
    }

    /// Returns the jobs of the partition, newest first unless the query parameters sort them.
    pub async fn list(&self, query: &[(&str, String)]) -> Result<Vec<Job>, ClientError> {
        self.read(self.partition_url("jobs", query)).await
    }

    /// Returns the number of jobs of the partition that match the query parameters.
    pub async fn count(&self, query: &[(&str, String)]) -> Result<u64, ClientError> {
        self.read(self.partition_url("jobStats/count", query)).await
    }

    /// Subscribes to the states of a job. If several follow each other quickly, the stream may
    /// contain only the latest.
    pub async fn watch(&self, job: &str) -> Result<Watch, ClientError> {
        let url = format!("{}/events", self.job_url(job));
        let lines = self.lines(Method::GET, &url).await?;
        Ok(Watch { lines })
    }

    /// Returns the kept outputs of a job that match the query parameters, as lines of JSON.
    pub async fn outputs(
        &self,
        job: &str,
        query: &[(&str, String)],
    ) -> Result<OutputLines, ClientError> {
        let query: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{name}={}", encode(value)))
            .collect();
        let url = format!("{}/outputs?{}", self.job_url(job), query.join("&"));
        self.lines(Method::GET, &url).await
    }

    /// Exports the outputs of a job to a place that the operator has named, or continues to do so.
    /// The lines tell the progress.
    pub async fn export(
        &self,
        job: &str,
        store: &str,
        path: &str,
    ) -> Result<OutputLines, ClientError> {
        let (store, path) = (encode(store), encode(path));
        let url = format!(
            "{}/outputs:export?store={store}&path={path}",
            self.job_url(job)
        );
        self.lines(Method::POST, &url).await
    }

    async fn lines(&self, method: Method, url: &str) -> Result<OutputLines, ClientError> {
        Ok(OutputLines {
            response: self.begin(Call::new(method, url)).await?,
            read: Vec::new(),
            base: self.base.clone(),
        })
    }

    /// Cancels a job.
    pub async fn cancel(&self, job: &str) -> Result<(), ClientError> {
        self.post(job, "cancel").await
    }

    /// Cancels every unfinished job that matches the query parameters; without any, all of the
    /// partition. Returns their number.
    pub async fn cancel_all(&self, query: &[(&str, String)]) -> Result<u64, ClientError> {
        self.change_all("jobs:cancel", "jobsCanceled", query).await
    }

    /// Deletes every job that matches the query parameters; without any, all of the partition.
    /// Returns their number.
    pub async fn delete_all(&self, query: &[(&str, String)]) -> Result<u64, ClientError> {
        self.change_all("jobs:delete", "jobsDeleted", query).await
    }

    /// Pauses a job.
    pub async fn pause(&self, job: &str) -> Result<(), ClientError> {
        self.post(job, "pause").await
    }

    /// Resumes a paused job.
    pub async fn resume(&self, job: &str) -> Result<(), ClientError> {
        self.post(job, "resume").await
    }

    /// Changes the share of a job that has not ended.
    pub async fn adjust(&self, job: &str, share: JobShare) -> Result<(), ClientError> {
        let change = JobChange { share: Some(share) };
        let body = serde_json::to_vec(&change).unwrap_or_default();
        let url = self.job_url(job);
        self.send(Method::PATCH, &url, body).await?;
        Ok(())
    }

    /// Takes a job up again that has failed, was cancelled, or is Completed although items have
    /// failed; with `dependents` also the jobs that ended with it.
    pub async fn retry(&self, job: &str, dependents: bool) -> Result<Retried, ClientError> {
        let url = format!(
            "{}/retry?dependents={dependents}&strict=true",
            self.job_url(job)
        );
        let (_, body) = self.send(Method::POST, &url, Vec::new()).await?;
        parsed(&body, &url)
    }

    /// Takes up again every job that matches the query parameters and has failed, was cancelled, or
    /// is Completed although items have failed; without any, all of the partition.
    pub async fn retry_all(
        &self,
        query: &[(&str, String)],
        dependents: bool,
    ) -> Result<RetriedJobs, ClientError> {
        let more = [
            ("strict", "true".to_owned()),
            ("dependents", dependents.to_string()),
        ];
        let url = self.partition_url("jobs:retry", &[query, &more].concat());
        let call = Call::new(Method::POST, &url).limit(BULK_LIMIT);
        let (_, body) = self.exchange(call).await?;
        parsed(&body, &url)
    }

    /// Deletes a job.
    pub async fn delete(&self, job: &str) -> Result<(), ClientError> {
        let url = self.job_url(job);
        self.send(Method::DELETE, &url, Vec::new()).await?;
        Ok(())
    }

    async fn post(&self, job: &str, action: &str) -> Result<(), ClientError> {
        let url = format!("{}/{action}", self.job_url(job));
        self.send(Method::POST, &url, Vec::new()).await?;
        Ok(())
    }

    async fn change_all(
        &self,
        operation: &str,
        count: &str,
        query: &[(&str, String)],
    ) -> Result<u64, ClientError> {
        // A job service that does not know a condition must not change jobs without it.
        let strict = [("strict", "true".to_owned())];
        let url = self.partition_url(operation, &[query, &strict].concat());
        let call = Call::new(Method::POST, &url).limit(BULK_LIMIT);
        let (_, body) = self.exchange(call).await?;
        let response: serde_json::Value = parsed(&body, &url)?;
        let changed = response.get(count).and_then(serde_json::Value::as_u64);
        changed.ok_or_else(|| ClientError::InvalidResponse {
            url,
            reason: format!("there is no {count}"),
        })
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
        parsed(&body, &url)
    }

    async fn send(
        &self,
        method: Method,
        url: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, String), ClientError> {
        self.exchange(Call::new(method, url).json(body)).await
    }
}

/// The stream of the states of a job.
#[derive(Debug)]
pub struct Watch {
    lines: OutputLines,
}

impl Watch {
    /// Returns the next state of the job, or `None` if the stream ended for any reason, or is
    /// silent.
    pub async fn next(&mut self) -> Option<Job> {
        loop {
            let line = self.lines.next().await.ok()??;
            // Only the data lines matter. Those about a deleted job do not parse as a job and are
            // skipped.
            let job = line
                .strip_prefix(b"data:")
                .and_then(|data| serde_json::from_slice(data).ok());
            if job.is_some() {
                return job;
            }
        }
    }
}

/// The lines of a response.
#[derive(Debug)]
pub struct OutputLines {
    response: HttpResponse,
    read: Vec<u8>,
    base: String,
}

impl OutputLines {
    /// Returns the next line, with its line break; `None` at the end. A line that was cut off is
    /// not returned.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] if the connection broke, or is silent.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        let mut searched = 0;
        loop {
            let end = self.read[searched..].iter().position(|byte| *byte == b'\n');
            if let Some(end) = end {
                return Ok(Some(self.read.drain(..=searched + end).collect()));
            }
            searched = self.read.len();
            let broken = |reason: String| ClientError::Unreachable {
                url: self.base.clone(),
                reason,
            };
            match timeout(SILENCE_LIMIT, self.response.chunk()).await {
                Ok(Ok(Some(chunk))) => self.read.extend_from_slice(&chunk),
                Ok(Ok(None)) if self.read.is_empty() => return Ok(None),
                Ok(Ok(None)) => return Err(broken("the last line is not complete".to_owned())),
                Ok(Err(error)) => return Err(broken(error.innermost())),
                Err(_) => return Err(broken(format!("nothing came within {SILENCE_LIMIT:?}"))),
            }
        }
    }
}

fn parsed<T: serde::de::DeserializeOwned>(body: &str, url: &str) -> Result<T, ClientError> {
    serde_json::from_str(body).map_err(|error| ClientError::InvalidResponse {
        url: url.to_owned(),
        reason: error.to_string(),
    })
}

fn encode(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

/// Returns the code of an error for the end of its text.
fn suffix(body: &ErrorBody) -> String {
    body.code
        .as_ref()
        .map_or_else(String::new, |code| format!(", {code}"))
}

#[cfg(test)]
mod tests {
    use framework::tls::TlsFiles;
    use harness::tls::{Authority, TlsServer};

    use super::*;

    #[tokio::test]
    async fn client_at_https_checks_the_certificate_and_shows_its_own() {
        const RESPONSE: &[u8] =
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\n7";
        let authority = Authority::new().unwrap();
        let certificate = authority.issue("localhost").unwrap();
        let own = authority.issue("client").unwrap();
        let server = TlsServer::start(&certificate, Some(&authority))
            .await
            .unwrap();
        let url = format!("https://localhost:{}", server.address().unwrap().port());
        let count = async |files: &TlsFiles| {
            let tls = Tls::load(files).unwrap();
            let client = Client::with_tls(&url, "p", &tls);
            tokio::select! {
                never = server.serve(RESPONSE) => match never {},
                count = client.count(&[]) => count.map_err(|error| error.to_string()),
            }
        };
        let untrusted = count(&TlsFiles::default()).await.unwrap_err();
        assert!(
            untrusted.contains("invalid peer certificate: UnknownIssuer"),
            "{untrusted}"
        );
        let files = TlsFiles {
            ca: Some(authority.file()),
            certificate: Some(own.certificate),
            key: Some(own.key),
        };
        assert_eq!(count(&files).await, Ok(7));
        let anonymous = TlsFiles {
            ca: files.ca,
            ..TlsFiles::default()
        };
        assert!(count(&anonymous).await.is_err());
    }
}
