//! Validates a request to create a job and builds its start message. Pure.
//!
//! The checks, their order and their error texts are CAF's; clients match on them. Input that CAF
//! accepts but its database refuses (CAF responds with 500) is rejected here too, after CAF's own
//! checks.
//!
//! What must stay true: task data that is an object reaches the worker as the client wrote it,
//! minus whitespace. Numbers are not parsed and reformatted.

mod batch_definition;
mod content_hash;
mod first_task;
mod prerequisites;
mod raw_request;
mod start_message;
#[cfg(test)]
mod tests;

use contract::headers::TASK_TIME_LIMIT_HEADER;
use contract::rest::{ErrorCode, Expiry, ExpiryOperation, NewJob, Outputs, Policer};
use contract::{JobId, PartitionId, ReservedPipes};
use store::{Header, JobRequest, KeptUntil, StartCondition};

pub use self::content_hash::Content;
use self::content_hash::content;
use self::first_task::{check_pipes, required_fields, task_data};
use crate::http::{ApiError, ApiResult};
use crate::jobs::job_types::MadeTask;
use crate::rights::Subject;

pub use self::batch_definition::{items_pipe_of, uploads_of};
pub use self::first_task::FirstTask;
pub use self::prerequisites::refusal_message;
pub use self::raw_request::RawRequest;
pub use self::start_message::{RequestContext, next_start_message, start_message};

/// The longest name, label name and label value, in characters.
const MAX_CHARS: usize = 255;

/// A valid request: the job to store and its first task.
#[derive(Debug)]
pub struct ValidJob {
    pub request: JobRequest,
    pub task: FirstTask,
    /// What the client asks for, in the form in which requests are compared.
    pub content: Content,
    /// What happens to the outputs. The task of a job that keeps them has no target pipe yet.
    pub outputs: Option<Outputs>,
}

impl RawRequest {
    /// Validates the request. `made_task` is the task that the job type built, if the request has a
    /// type. No pipe of the task may be one of `reserved_pipes`.
    ///
    /// # Errors
    ///
    /// Returns 400 for an invalid request, and 500 if the task of a job type is invalid.
    pub fn validate(
        self,
        partition: PartitionId,
        job: JobId,
        made_task: Option<MadeTask>,
        reserved_pipes: &ReservedPipes,
    ) -> ApiResult<ValidJob> {
        let Self {
            job: mut new,
            mut task_data_json,
            ..
        } = self;
        if let Some(MadeTask { task, data_json }) = made_task {
            (new.task, task_data_json) = (Some(task), Some(data_json.into_bytes()));
        }
        // The client cannot correct a task that a job type built, so an error in it is the
        // definition's.
        let job_type = new.job_type.clone();
        let task_error = |error: ApiError| match &job_type {
            Some(id) => ApiError::JobType {
                id: id.clone(),
                reason: error.to_string(),
            },
            None => error,
        };
        let fields = required_fields(&new).map_err(task_error)?;
        check_label_names(&new)?;
        let data = task_data(&fields, task_data_json).map_err(task_error)?;
        let task = check_pipes(&fields, data, reserved_pipes).map_err(task_error)?;
        check_outputs(&new, &task)?;
        check_texts(&new)?;
        let start = start(&new)?;
        let expiry = check_expiry(new.expiry.clone().unwrap_or_default())?;

        // The hash covers only what the client sent, so a new version of a job type does not change
        // it.
        new.task = new.task.filter(|_| job_type.is_none());
        new.prerequisite_job_ids = prerequisites::format(&start.prerequisites);
        let content = content(&mut new)?;
        let NewJob {
            name,
            description,
            external_data,
            labels,
            on_failure,
            outputs,
            task_time_limit,
            retry,
            share,
            ..
        } = new;
        let headers = task_time_limit.map(|limit| {
            let name = TASK_TIME_LIMIT_HEADER.to_owned();
            (name, Header::Text(limit.to_string()))
        });
        let request = JobRequest {
            partition,
            job,
            name,
            description,
            external_data,
            labels: labels.unwrap_or_default(),
            on_failure,
            expiry,
            start,
            without_target: task.target_pipe.is_none() && outputs.is_none(),
            correlation_id: None,
            output_pipe: None,
            items_pipe: None,
            retry,
            task_time_limit,
            share: share.unwrap_or_default(),
            owner: Subject::current().name().map(str::to_owned),
            headers: headers.into_iter().collect(),
            definition: Vec::new(),
            content_hash: content.hash(),
            key: None,
            replaces: None,
            only_tries: false,
            remark: None,
            uploads: Vec::new(),
        };
        Ok(ValidJob {
            request,
            task,
            content,
            outputs,
        })
    }
}

/// Checks that a job that keeps its outputs does not also say where its tracking ends.
fn check_outputs(new: &NewJob, task: &FirstTask) -> ApiResult<()> {
    let (Some(Outputs::Keep), Some(target)) = (new.outputs, &task.target_pipe) else {
        return Ok(());
    };
    let whose = match &new.job_type {
        Some(id) => format!("The task that the job type '{id}' builds"),
        None => "The task".to_owned(),
    };
    Err(ApiError::bad_request(
        ErrorCode::InvalidTask,
        format!(
            "{whose} has the targetPipe '{target}', which says where its outputs go; with \"outputs\": \"keep\" the service takes \
             them. Leave one of both out."
        ),
    ))
}

/// Checks the characters of the label names, with CAF's text. Colons are allowed too.
fn check_label_names(new: &NewJob) -> ApiResult<()> {
    let allowed = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_:".contains(&b))
    };
    if !new.labels.iter().flatten().all(|(name, _)| allowed(name)) {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidLabel,
            "A provided label name contains an invalid character, only alphanumeric, '-' and '_' are supported",
        ));
    }
    Ok(())
}

/// Checks the lengths of names and labels, and that the database can store every text.
fn check_texts(new: &NewJob) -> ApiResult<()> {
    let too_long = |what: &str| {
        ApiError::bad_request(
            ErrorCode::InvalidRequest,
            format!("{what} is longer than {MAX_CHARS} characters."),
        )
    };
    let long = |text: &str| text.chars().count() > MAX_CHARS;
    if new.name.as_deref().is_some_and(long) {
        return Err(too_long("The name"));
    }
    for (label, value) in new.labels.iter().flatten() {
        if long(label) {
            return Err(too_long(&format!("The label name '{label}'")));
        }
        if value.as_deref().is_some_and(long) {
            return Err(too_long(&format!("The value of the label '{label}'")));
        }
    }
    // PostgreSQL cannot store U+0000 in a text.
    let texts = [
        ("name", &new.name),
        ("description", &new.description),
        ("externalData", &new.external_data),
    ]
    .into_iter();
    for (field, text) in texts.chain(
        new.labels
            .iter()
            .flatten()
            .map(|(_, value)| ("labels", value)),
    ) {
        if text.as_deref().is_some_and(|text| text.contains('\0')) {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidRequest,
                format!("The field '{field}' contains the character U+0000."),
            ));
        }
    }
    Ok(())
}

/// Checks the retention and records that the client set it.
fn check_expiry(mut expiry: Expiry) -> ApiResult<Expiry> {
    for (status, policy) in expiry.policies() {
        policy.policer = Some(Policer::User);
        let until: Result<KeptUntil, String> = policy.expiry_time.parse();
        until.map_err(|error| {
            ApiError::bad_request(
                ErrorCode::InvalidRequest,
                format!("The expiry of a {status} job is not valid: {error}."),
            )
        })?;
        if policy.operation == ExpiryOperation::Expire {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidRequest,
                format!(
                    "The expiry of a {status} job is not supported: this service can delete a job, not mark it as expired. Use the \
                 operation Delete."
                ),
            ));
        }
    }
    Ok(expiry)
}

/// Returns when the job starts. A negative delay means none, as in CAF.
fn start(new: &NewJob) -> ApiResult<StartCondition> {
    let prerequisites =
        prerequisites::parse(new.prerequisite_job_ids.as_deref().unwrap_or_default())?;
    Ok(StartCondition {
        delay: u32::try_from(new.delay.unwrap_or(0)).unwrap_or(0),
        prerequisites,
        suspended: false,
    })
}
