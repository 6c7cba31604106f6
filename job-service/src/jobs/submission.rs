//! Creates jobs from the bodies of requests, whichever operation they come from.

use std::mem;
use std::sync::Arc;

use contract::rest::ErrorCode;
use contract::{Explanation, JobId, PartitionId, kept_track_to};
use framework::clock::Clock;
use framework::trace::{Span, SpanKind, TraceContext};
use store::{Creation, Header, Incarnation, JobRequest, StartCondition, UploadRefusal};
use uuid::Uuid;

use crate::http::idempotency::Key;
use crate::http::{ApiError, ApiResult, Unknown};
use crate::jobs::batches::{self, Checked};
use crate::jobs::new_job::{
    RawRequest, RequestContext, ValidJob, items_pipe_of, refusal_message, start_message, uploads_of,
};
use crate::state::AppState;

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
        let (mut valid, mut notes) = self.read(partition, &job, &body, unknown).await?;
        self.identify(&mut valid).await?;
        self.apply_options(&mut valid.request);
        // What is wrong with the batch matters only for a job that is not there: a repeated request
        // changes nothing.
        let refused = self.check_batch(&mut valid).await;
        valid.request.only_tries = refused.is_some();
        self.send_outputs_to_service(&mut valid)?;
        let ValidJob {
            mut request, task, ..
        } = valid;
        notes.extend(request.remark.clone());
        let key_text = key.as_ref().map(|key| key.text.clone()).unwrap_or_default();
        request.key = key.map(|key| key.stored(&request.content_hash));
        request.replaces = replaces;
        request.definition = body;
        request.correlation_id = Some(correlation_id.clone());
        let _span = begin_span(&mut request, trace, &correlation_id);
        self.note_tracking_shards().await?;
        let context = RequestContext {
            task_id: Uuid::new_v4(),
            now: Clock::system().now_millis(),
            correlation_id,
        };
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

    /// Reads and validates the body of a request. Returns notes on what is unknown of it.
    async fn read(
        &self,
        partition: &PartitionId,
        job: &JobId,
        body: &[u8],
        unknown: Unknown,
    ) -> ApiResult<(ValidJob, Vec<String>)> {
        let mut raw = RawRequest::parse(body)?;
        let notes = unknown.and(raw.take_unknown_fields()).into_notes()?;
        raw.check_limits(&self.options.limits)?;
        let made_task = match raw.job_type()? {
            Some((id, parameters)) => {
                let types = &self.options.job_types;
                Some(types.make_task(id, partition, job, parameters).await?)
            }
            None => None,
        };
        let (partition, job) = (partition.clone(), job.clone());
        let valid = raw.validate(partition, job, made_task, &self.pipes.reserved)?;
        Ok((valid, notes))
    }

    /// Notes what the request reads and sends to, and the hash by which it is compared with others:
    /// it has the digests of the uploads, if these are few.
    async fn identify(&self, valid: &mut ValidJob) -> ApiResult<()> {
        // It is as large as the request, and needed no longer.
        let mut content = mem::take(&mut valid.content);
        let ValidJob { request, task, .. } = valid;
        request.uploads = uploads_of(&task.classifier, &task.data);
        request.items_pipe = items_pipe_of(&task.classifier, &task.data);
        if request.uploads.len() <= COMPARED_UPLOADS {
            for id in &request.uploads {
                let upload = self.store.upload(&request.partition, id).await?;
                if let Some(digest) = upload.and_then(|upload| upload.digest) {
                    content.set_digest(id, &digest);
                }
            }
        }
        request.content_hash = content.hash();
        Ok(())
    }

    /// Adds what the operator has decided for jobs that say nothing else.
    fn apply_options(&self, request: &mut JobRequest) {
        let options = &self.options;
        let expiry = mem::take(&mut request.expiry);
        request.expiry = expiry.or(&options.expiry);
        let suspended = options.suspended_partitions.as_ref();
        request.start.suspended =
            suspended.is_some_and(|pattern| pattern.matches(&request.partition));
    }

    /// Asks a batch worker about the batch, and notes what it cannot tell. Returns why the batch
    /// cannot be split.
    async fn check_batch(&self, valid: &mut ValidJob) -> Option<ApiError> {
        let ValidJob { request, task, .. } = valid;
        let (questions, own_pipe) = (&self.jobs.batch_questions, &self.options.page_pipes.batch);
        let partition = &request.partition;
        let checked = questions.check(&*self.broker, own_pipe, partition, task);
        match checked.await {
            Checked::Fine => None,
            Checked::Unknown(reason) => {
                request.remark = Some(batches::unchecked(&reason));
                None
            }
            Checked::Refused(refusal) if refusal.missing && starts_later(&request.start) => {
                request.remark = Some(batches::missing_yet(&refusal));
                None
            }
            Checked::Refused(refusal) => Some(batches::refused(&refusal)),
        }
    }

    /// Lets the outputs of the job come to the service, if it is to keep them.
    fn send_outputs_to_service(&self, valid: &mut ValidJob) -> ApiResult<()> {
        if valid.outputs.is_none() {
            return Ok(());
        }
        let options = &self.options.outputs;
        if options.blobs.is_none() {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidRequest,
                "This service keeps no outputs, because it has no place for them: its operator sets it with --outputs-folder.",
            ));
        }
        valid.task.target_pipe = Some(kept_track_to(&options.pipe));
        valid.request.output_pipe = Some(options.pipe.clone());
        Ok(())
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
        let (ValidJob { task, .. }, notes) =
            self.read(partition, &made_id()?, body, unknown).await?;
        let explanation = self
            .jobs
            .batch_questions
            .explain(&*self.broker, partition, &task);
        let mut explanation = explanation.await?;
        explanation.notes.splice(..0, notes);
        if let Some(pipe) = items_pipe_of(&task.classifier, &task.data) {
            explanation.notes.extend(self.users_of(&pipe).await);
        }
        Ok(explanation)
    }
}

/// Begins the span of a request. The headers of the start message carry it on.
fn begin_span(request: &mut JobRequest, trace: Option<TraceContext>, correlation_id: &str) -> Span {
    let span = Span::begin(SpanKind::Request, trace, || {
        let job = format!("{}:{}", request.partition, request.job);
        let attributes = vec![
            ("batchwright.job", job),
            ("batchwright.correlation_id", correlation_id.to_owned()),
        ];
        ("create job".to_owned(), attributes)
    });
    if let Some(context) = span.context() {
        let header =
            |(name, value): (&str, &str)| (name.to_owned(), Header::Text(value.to_owned()));
        request.headers.extend(context.headers().map(header));
    }
    span
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
