//! Creates jobs from the bodies of requests, whichever operation they come from.

use std::sync::Arc;

use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri};
use contract::rest::ErrorCode;
use contract::{Explanation, JobId, PartitionId, kept_track_to};
use framework::clock::Clock;
use framework::trace::{Span, SpanKind, TRACEPARENT, TRACESTATE, TraceContext};
use sha2::{Digest as _, Sha256};
use store::{Creation, Header, Incarnation, RequestKey, StartCondition, UploadRefusal};
use uuid::Uuid;

use crate::batches::{self, Checked};
use crate::error::{ApiError, ApiResult};
use crate::new_job::{
    Content, RawRequest, RequestContext, ValidJob, items_pipe_of, refusal_message, start_message,
    uploads_of,
};
use crate::notes::Unknown;
use crate::options::BASE_PATH;
use crate::paths::encoded;
use crate::state::AppState;

/// The header with the key of a request that creates a job.
pub const KEY_HEADER: &str = "idempotency-key";
/// The longest key, in characters.
const MAX_KEY_CHARS: usize = 255;
/// How many uploads of a request are compared by what is in them. A request that names more is the
/// same one only if it names the same.
const COMPARED_UPLOADS: usize = 16;

/// A request to create a job.
#[derive(Debug)]
pub struct Submission {
    pub job: JobId,
    /// The key of the request.
    pub key: Option<Key>,
    /// The incarnation in whose place the job is created.
    pub replaces: Option<i64>,
    /// The job, as the client sent it.
    pub body: Vec<u8>,
    /// What the service does not know of the rest of the request.
    pub unknown: Unknown,
    pub correlation_id: String,
    pub trace: Option<TraceContext>,
}

/// The key that a client gave to a request.
#[derive(Debug)]
pub struct Key {
    text: String,
    /// What the request asks for beside the definition of the job.
    asks_for: String,
}

/// What has become of a submission.
#[derive(Debug)]
pub enum Submitted {
    /// The job was created.
    Created {
        /// The new job.
        job: Incarnation,
        /// What the service ignored of the request.
        notes: Vec<String>,
    },
    /// The same request created the job before.
    AlreadyThere,
    /// A request with the same key created this job before.
    Repeated(JobId),
}

impl Key {
    /// Returns the key in these headers, if there is one. `asks_for` is what the request asks for
    /// beside the definition of the job.
    ///
    /// # Errors
    /// Returns 400 for more than one key, and for an impossible one.
    pub fn of(headers: &HeaderMap, asks_for: String) -> ApiResult<Option<Self>> {
        let mut keys = headers.get_all(KEY_HEADER).iter();
        let Some(key) = keys.next() else {
            return Ok(None);
        };
        match (key.to_str(), keys.next()) {
            (Ok(text), None) => Self::new(text, asks_for).map(Some),
            _ => Err(impossible_key()),
        }
    }

    /// Returns the key with this text, which the page or a client made.
    ///
    /// # Errors
    /// Returns 400 for an impossible text.
    pub fn new(text: &str, asks_for: String) -> ApiResult<Self> {
        let text = text.trim();
        let is_visible = |byte: u8| matches!(byte, b' '..=b'~');
        if text.is_empty() || text.len() > MAX_KEY_CHARS || !text.bytes().all(is_visible) {
            return Err(impossible_key());
        }
        Ok(Self {
            text: text.to_owned(),
            asks_for,
        })
    }

    /// Returns the key as the store keeps it.
    fn stored(self, content_hash: &[u8; 32]) -> RequestKey {
        RequestKey {
            fingerprint: self.fingerprint(content_hash),
            key: self.text,
        }
    }

    /// Returns the fingerprint of the request, if it creates a job with this content.
    fn fingerprint(&self, content_hash: &[u8]) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.asks_for.as_bytes());
        hash.update([0]);
        hash.update(content_hash);
        hash.finalize().into()
    }
}

fn impossible_key() -> ApiError {
    ApiError::bad_request(
        ErrorCode::InvalidParameter,
        format!(
            "The header 'Idempotency-Key' must be there once, with 1 to {MAX_KEY_CHARS} visible ASCII characters."
        ),
    )
}

impl AppState {
    /// Creates a job.
    ///
    /// # Errors
    /// Returns 400 for an invalid request; 403, 404, 409 or 422 if another job or request is in the
    /// way; and 503 if no job can be created now.
    pub async fn submit(
        &self,
        partition: &PartitionId,
        submission: Submission,
    ) -> ApiResult<Submitted> {
        let Submission {
            job,
            key,
            replaces,
            body,
            unknown,
            correlation_id,
            trace,
        } = submission;
        if let Some(reason) = self.no_space_for_jobs() {
            return Err(ApiError::NoSpace(reason));
        }
        let options = &self.options;
        let mut raw = RawRequest::parse(&body)?;
        let mut notes = unknown.and(raw.take_unknown_fields()).into_notes()?;
        raw.check_limits(&options.limits)?;
        let ValidJob {
            mut request,
            mut task,
            content: asked,
            outputs,
        } = self.validate(raw, partition, &job).await?;
        request.uploads = uploads_of(&task.classifier, &task.data);
        request.items_pipe = items_pipe_of(&task.classifier, &task.data);
        let asked = self.by_digests(asked, partition, &request.uploads);
        request.content_hash = asked.await?.hash();
        let own_pipe = &options.page_pipes.batch;
        let checked = self
            .batch_questions
            .check(&*self.broker, own_pipe, partition, &task);
        let checked = checked.await;
        if outputs.is_some() {
            if options.outputs.blobs.is_none() {
                return Err(ApiError::bad_request(
                    ErrorCode::InvalidRequest,
                    "This service keeps no outputs, because it has no place for them: its operator sets it with --outputs-folder.",
                ));
            }
            let pipe = &options.outputs.pipe;
            task.target_pipe = Some(kept_track_to(pipe));
            request.output_pipe = Some(pipe.clone());
        }
        let key_text = key.as_ref().map(|key| key.text.clone()).unwrap_or_default();
        request.key = key.map(|key| key.stored(&request.content_hash));
        request.replaces = replaces;
        request.definition = body;
        request.expiry = request.expiry.or(&options.expiry);
        request.start.suspended = options
            .suspended_partitions
            .as_ref()
            .is_some_and(|pattern| pattern.matches(&request.partition));
        let mut refused = None;
        match checked {
            Checked::Fine => {}
            Checked::Unknown(reason) => request.remark = Some(batches::unchecked(&reason)),
            Checked::Refused(refusal) if refusal.missing && starts_later(&request.start) => {
                request.remark = Some(batches::missing_yet(&refusal));
            }
            Checked::Refused(refusal) => refused = Some(batches::refused(&refusal)),
        }
        notes.extend(request.remark.clone());
        // What is wrong with the batch matters only for a job that is not there: a repeated request
        // changes nothing.
        request.only_tries = refused.is_some();
        let span = Span::begin(SpanKind::Request, trace, || {
            let job = format!("{}:{}", request.partition, request.job);
            let attributes = vec![
                ("batchwright.job", job),
                ("batchwright.correlation_id", correlation_id.clone()),
            ];
            ("create job".to_owned(), attributes)
        });
        if let Some(context) = span.context() {
            let header =
                |(name, value): (&str, &str)| (name.to_owned(), Header::Text(value.to_owned()));
            request.headers.extend(context.headers().map(header));
        }
        request.correlation_id = Some(correlation_id.clone());
        let context = RequestContext {
            task_id: Uuid::new_v4(),
            now: Clock::system().now_millis(),
            correlation_id,
        };
        self.note_tracking_shards().await?;
        // The store calls this once per attempt of its transaction.
        let options = Arc::clone(&self.options);
        let start = move |incarnation: &Incarnation| {
            let message = start_message(task.clone(), incarnation, context.clone(), &options);
            (task.pipe.clone(), message.encode())
        };
        match self.store.create_job(&request, start).await? {
            Creation::Created(job) => {
                tracing::info!(
                    job = job.job_task_id(),
                    incarnation = job.number,
                    "created a job"
                );
                Ok(Submitted::Created { job, notes })
            }
            Creation::AlreadyThere => Ok(Submitted::AlreadyThere),
            Creation::Repeated(job) => Ok(Submitted::Repeated(job)),
            Creation::Possible => Err(refused.unwrap_or(ApiError::JobExists)),
            other => Err(refusal(other, &job, &key_text)),
        }
    }

    /// Returns the content of a request with the digests of the uploads that it names, if these are
    /// few.
    async fn by_digests(
        &self,
        mut content: Content,
        partition: &PartitionId,
        uploads: &[String],
    ) -> ApiResult<Content> {
        if uploads.len() > COMPARED_UPLOADS {
            return Ok(content);
        }
        for id in uploads {
            let upload = self.store.upload(partition, id).await?;
            if let Some(digest) = upload.and_then(|upload| upload.digest) {
                content = content.with_digest(id, &digest);
            }
        }
        Ok(content)
    }

    /// Returns the job that a request with this key has created, if its definition is not there to
    /// compare the requests: the job that it created has the same content. `None` if no such
    /// request is known.
    ///
    /// # Errors
    /// Returns 422 if the key belongs to another request.
    pub async fn created_with(
        &self,
        partition: &PartitionId,
        key: &Key,
    ) -> ApiResult<Option<JobId>> {
        let found = self.store.request_with_key(partition, &key.text).await?;
        let Some((found, content)) = found.and_then(|mut it| {
            let content = it.content_hash.take()?;
            Some((it, content))
        }) else {
            return Ok(None);
        };
        if found.fingerprint != key.fingerprint(&content) {
            return Err(ApiError::KeyTaken {
                key: key.text.clone(),
                job: found.job.to_string(),
            });
        }
        Ok(Some(found.job))
    }

    /// Says what the batch of a job would be split into, and creates nothing.
    ///
    /// # Errors
    /// Returns 400 for an invalid request, for a task that is no batch, and for a batch that cannot
    /// be split; and 503 if no batch worker explains it.
    pub async fn explain(
        &self,
        partition: &PartitionId,
        body: &[u8],
        unknown: Unknown,
    ) -> ApiResult<Explanation> {
        let mut raw = RawRequest::parse(body)?;
        let notes = unknown.and(raw.take_unknown_fields()).into_notes()?;
        raw.check_limits(&self.options.limits)?;
        let ValidJob { task, .. } = self.validate(raw, partition, &made_id()?).await?;
        let explanation = self
            .batch_questions
            .explain(&*self.broker, partition, &task);
        let mut explanation = explanation.await?;
        explanation.notes.splice(..0, notes);
        Ok(explanation)
    }

    async fn validate(
        &self,
        raw: RawRequest,
        partition: &PartitionId,
        job: &JobId,
    ) -> ApiResult<ValidJob> {
        let made_task = match raw.job_type()? {
            Some((id, parameters)) => {
                let types = &self.options.job_types;
                Some(types.make_task(id, partition, job, parameters).await?)
            }
            None => None,
        };
        let (partition, job) = (partition.clone(), job.clone());
        raw.validate(partition, job, made_task, &self.reserved_pipes)
    }
}

/// Returns whether a job does not start at once, so that its sources may come meanwhile.
const fn starts_later(start: &StartCondition) -> bool {
    start.delay > 0 || start.suspended || !start.prerequisites.is_empty()
}

/// Returns the error for a job that was not created.
fn refusal(creation: Creation, job: &JobId, key: &str) -> ApiError {
    match creation {
        Creation::Refused(refusal) => {
            ApiError::bad_request(ErrorCode::InvalidPrerequisite, refusal_message(&refusal))
        }
        Creation::KeyTaken(other) => ApiError::KeyTaken {
            key: key.to_owned(),
            job: other.to_string(),
        },
        Creation::NotEnded(status) => ApiError::Conflict(
            ErrorCode::WrongJobStatus,
            format!(
                "job_id {{{job}}} cannot be replaced as it has a status of {{{status}}}. Cancel it first, or resubmit it under another id."
            ),
        ),
        Creation::NotThere => ApiError::Conflict(
            ErrorCode::WrongJobStatus,
            format!("job_id {{{job}}} was replaced or deleted by another request in this moment."),
        ),
        Creation::NoUpload(refusal) => ApiError::bad_request(
            ErrorCode::InvalidBatch,
            match refusal {
                UploadRefusal::Unknown(id) => format!(
                    "The batch names the source 'upload://{id}', which this partition does not have. Upload it, or correct its id."
                ),
                UploadRefusal::Uncommitted(id) => format!(
                    "The batch names the source 'upload://{id}', which is not committed. Send the rest of it, and commit it."
                ),
            },
        ),
        Creation::Conflict
        | Creation::Created(_)
        | Creation::AlreadyThere
        | Creation::Possible
        | Creation::Repeated(_) => ApiError::JobExists,
    }
}

/// Returns an id for a job whose client names none.
pub fn made_id() -> ApiResult<JobId> {
    // In the order of creation.
    JobId::parse(&Uuid::now_v7().to_string()).map_err(ApiError::from)
}

/// Returns the trace that the request belongs to. A client may spread the state over several
/// headers.
pub fn trace_context(headers: &HeaderMap) -> Option<TraceContext> {
    let text = |name| headers.get_all(name).iter().map(|value| value.to_str());
    let mut parents = text(TRACEPARENT);
    let (Some(Ok(parent)), None) = (parents.next(), parents.next()) else {
        return None;
    };
    let state: Vec<&str> = text(TRACESTATE)
        .collect::<Result<_, _>>()
        .unwrap_or_default();
    TraceContext::parse(parent, Some(&state.join(",")))
}

/// Returns the path of a job.
pub fn job_path(partition: &PartitionId, job: &JobId) -> String {
    format!(
        "{BASE_PATH}/partitions/{}/jobs/{}",
        encoded(partition.as_str()),
        encoded(job.as_str())
    )
}

/// Returns the URL of a path as the client of this request sees it, also behind a proxy that sets
/// `X-Forwarded-Host` and `X-Forwarded-Proto`.
pub fn url(path: &str, uri: &Uri, headers: &HeaderMap) -> String {
    let header = |name: &str| {
        headers
            .get(name)?
            .to_str()
            .ok()?
            .split(',')
            .next()
            .map(str::trim)
    };
    let host = header("x-forwarded-host")
        .or_else(|| uri.authority().map(Authority::as_str))
        .or_else(|| header("host"));
    let scheme = header("x-forwarded-proto").unwrap_or("http");
    host.map_or_else(
        || path.to_owned(),
        |host| format!("{scheme}://{host}{path}"),
    )
}
