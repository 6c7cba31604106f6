//! Extractors: parse the path and the query of a request into typed values. They replace axum's own
//! rejections, which are not JSON, with [`ApiError`].

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::Method;
use axum::http::request::Parts;
use contract::{ConditionKey, IdError, InvalidCondition, JobId, MAX_PIPE_BYTES, PartitionId};
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use crate::http::error::{ApiError, ApiResult};
use contract::rest::ErrorCode;

/// The path `/partitions/{partitionId}/…`.
#[derive(Debug, IntoParams)]
#[into_params(names("partitionId"), parameter_in = Path)]
pub struct PartitionPath(
    /// The partition id, 1 to 40 characters
    #[param(value_type = String, example = "acme", min_length = 1, max_length = 40, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub PartitionId,
);

/// The path `/partitions/{partitionId}/jobs/{jobId}…`. A bad partition id is reported before a bad
/// job id.
#[derive(Debug, IntoParams)]
#[into_params(names("partitionId", "jobId"), parameter_in = Path)]
pub struct JobPath(
    /// The partition id, 1 to 40 characters
    #[param(value_type = String, example = "acme", min_length = 1, max_length = 40, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub PartitionId,
    /// The job id, 1 to 48 characters
    #[param(value_type = String, example = "reindex-7", min_length = 1, max_length = 48, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub JobId,
);

/// The path `/partitions/{partitionId}/jobs/{jobId}/tasks/{taskId}`, or another one with a text
/// behind the job. It is not parsed yet.
#[derive(Debug)]
pub struct TaskPath(pub PartitionId, pub JobId, pub String);

/// The path `/partitions/{partitionId}/jobs/{jobId}/memos/{taskId}/{key}`. Task and key are not
/// parsed yet.
#[derive(Debug, IntoParams)]
#[into_params(names("partitionId", "jobId", "taskId", "key"), parameter_in = Path)]
pub struct MemoPath(
    /// The partition id, 1 to 40 characters
    #[param(value_type = String, example = "acme", min_length = 1, max_length = 40, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub PartitionId,
    /// The job id, 1 to 48 characters
    #[param(value_type = String, example = "reindex-7", min_length = 1, max_length = 48, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub JobId,
    /// The path from the job to the task: numbers from 1, separated by dots, each optionally
    /// followed by `*`. `0` is the job's first task
    #[param(value_type = String, example = "3", pattern = r"^(0|[1-9][0-9]*\*?(\.[1-9][0-9]*\*?)*)$")]
    pub String,
    /// The name of the part in its task
    #[param(value_type = String, example = "charge", pattern = r"^[A-Za-z0-9_:-][A-Za-z0-9_:.-]{0,99}$")]
    pub String,
);

/// The path `/conditions/{key}…`.
#[derive(Debug, IntoParams)]
#[into_params(names("key"), parameter_in = Path)]
pub struct ConditionPath(
    /// The key of the condition
    #[param(value_type = String, example = "0d3a506323d39ba742675eceb7c8cf7c")]
    pub ConditionKey,
);

/// The path `/partitions/{partitionId}/sources/{sourceId}…`.
#[derive(Debug, IntoParams)]
#[into_params(names("partitionId", "sourceId"), parameter_in = Path)]
pub struct SourcePath(
    /// The partition id, 1 to 40 characters
    #[param(value_type = String, example = "acme", min_length = 1, max_length = 40, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub PartitionId,
    /// The id of the source, as its creation has returned it
    #[param(value_type = String, example = "0197b3c1d3a87e0f8e5f1c9b7a2d4e6f")]
    pub String,
);

/// The path `/pipes/{pipe}/…`. A broker has no pipe with an empty name, or with one that is too
/// long.
#[derive(Debug, IntoParams)]
#[into_params(names("pipe"), parameter_in = Path)]
pub struct PipePath(
    /// The name of the pipe, at most 255 bytes
    #[param(value_type = String, example = "words-out", min_length = 1, max_length = 255)]
    pub String,
);

/// The query parameters of a request.
#[derive(Debug)]
pub struct QueryParams<T>(pub T);

impl<S: Send + Sync> FromRequestParts<S> for PartitionPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let partition: String = path(parts, state).await?;
        Ok(Self(PartitionId::parse(&partition)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for PipePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let pipe: String = path(parts, state).await?;
        if pipe.len() > MAX_PIPE_BYTES || pipe.contains(char::is_control) {
            let message = format!(
                "No pipe has a name with control characters, or with more than {MAX_PIPE_BYTES} bytes."
            );
            return Err(ApiError::bad_request(ErrorCode::InvalidId, message));
        }
        Ok(Self(pipe))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for JobPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let (partition, job): (String, String) = path(parts, state).await?;
        Ok(Self(
            PartitionId::parse(&partition)?,
            job_id(&job, &parts.method)?,
        ))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for SourcePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let (partition, id): (String, String) = path(parts, state).await?;
        let partition = PartitionId::parse(&partition)?;
        // No source has an id with other characters.
        if !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(no_source(&partition, &id));
        }
        Ok(Self(partition, id))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let (partition, job, task): (String, String, String) = path(parts, state).await?;
        Ok(Self(
            PartitionId::parse(&partition)?,
            job_id(&job, &parts.method)?,
            task,
        ))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for MemoPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let (partition, job, task, key): (String, String, String, String) =
            path(parts, state).await?;
        // A PUT creates no job here.
        Ok(Self(
            PartitionId::parse(&partition)?,
            job_id(&job, &Method::GET)?,
            task,
            key,
        ))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for ConditionPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let key: String = path(parts, state).await?;
        Ok(Self(condition_key(&key)?))
    }
}

/// Reads the key of a condition.
pub fn condition_key(text: &str) -> ApiResult<ConditionKey> {
    text.parse().map_err(|error: InvalidCondition| {
        ApiError::bad_request(ErrorCode::InvalidParameter, format!("{error}."))
    })
}

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for QueryParams<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        query
            .map(|Query(params)| Self(params))
            .map_err(|rejection| {
                ApiError::bad_request(ErrorCode::InvalidParameter, rejection.body_text())
            })
    }
}

/// Parses a job id. No job has an id that is too long, so such an id returns "not found", as in
/// CAF. A PUT, which would create the job, returns the reason instead.
fn job_id(text: &str, method: &Method) -> ApiResult<JobId> {
    JobId::parse(text).map_err(|error| match error {
        IdError::JobTooLong if *method != Method::PUT => ApiError::job_not_found(text),
        error => error.into(),
    })
}

/// Returns the percent-decoded path parameters.
async fn path<S: Send + Sync, T: DeserializeOwned + Send>(
    parts: &mut Parts,
    state: &S,
) -> ApiResult<T> {
    let params = Path::<T>::from_request_parts(parts, state).await;
    params
        .map(|Path(value)| value)
        .map_err(|rejection| ApiError::bad_request(ErrorCode::InvalidId, rejection.body_text()))
}

/// Parses a whole number of the query. An empty value counts as absent, as in `?limit=`.
pub fn whole_number<N: FromStr>(name: &str, text: Option<&str>) -> ApiResult<Option<N>> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let number = text.parse().map_err(|_| {
        ApiError::bad_request(
            ErrorCode::InvalidParameter,
            format!("The parameter '{name}' must be a whole number, but is '{text}'."),
        )
    })?;
    Ok(Some(number))
}

/// Parses the parameter `limit`: absent, 0 and negative mean `default`, and no page is larger than
/// `most`.
pub fn page_limit(text: Option<&str>, default: u32, most: u32) -> ApiResult<u32> {
    let limit = whole_number::<i64>("limit", text)?.filter(|limit| *limit > 0);
    let limit = limit.map_or(default, |limit| u32::try_from(limit).unwrap_or(u32::MAX));
    Ok(limit.min(most))
}

/// Parses a truth value of the query. Absent and empty mean false.
pub fn truth(name: &str, text: Option<&str>) -> ApiResult<bool> {
    match text {
        None | Some("" | "false") => Ok(false),
        Some("true") => Ok(true),
        Some(text) => Err(ApiError::bad_request(
            ErrorCode::InvalidParameter,
            format!("The parameter '{name}' must be true or false, but is '{text}'."),
        )),
    }
}

/// Rejects a query parameter that contains U+0000. PostgreSQL refuses such a text, and no stored
/// text contains it.
pub fn reject_nul(name: &str, value: Option<&str>) -> ApiResult<()> {
    if value.is_some_and(|value| value.contains('\0')) {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidParameter,
            format!("The parameter '{name}' contains the character U+0000."),
        ));
    }
    Ok(())
}

/// Returns the error for a source that is not there.
pub fn no_source(partition: &PartitionId, id: &str) -> ApiError {
    let id: String = id.chars().take(100).collect();
    ApiError::NotFound(
        ErrorCode::SourceNotFound,
        format!("The partition '{partition}' has no source '{id}'."),
    )
}
