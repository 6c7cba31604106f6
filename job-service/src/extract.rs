//! What routes take from a request, parsed at the edge. Hides axum's own refusals, which are not JSON.

use std::str::FromStr;

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::Method;
use axum::http::request::Parts;
use contract::{IdError, JobId, PartitionId};
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use crate::error::{ApiError, ApiResult};

/// `/partitions/{partitionId}/…`
#[derive(Debug, IntoParams)]
#[into_params(names("partitionId"), parameter_in = Path)]
pub struct InPartition(
    /// 1 to 40 characters
    #[param(value_type = String, example = "acme", min_length = 1, max_length = 40, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub PartitionId,
);

/// `/partitions/{partitionId}/jobs/{jobId}…`. The partition is looked at first.
#[derive(Debug, IntoParams)]
#[into_params(names("partitionId", "jobId"), parameter_in = Path)]
pub struct OfJob(
    /// 1 to 40 characters
    #[param(value_type = String, example = "acme", min_length = 1, max_length = 40, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub PartitionId,
    /// 1 to 48 characters
    #[param(value_type = String, example = "reindex-7", min_length = 1, max_length = 48, pattern = r"^[^.,:;*?!|()\u0000-\u001f\u007f-\u009f]+$")]
    pub JobId,
);

/// `/partitions/{partitionId}/jobs/{jobId}/tasks/{taskId}`
#[derive(Debug)]
pub struct OfTask(pub PartitionId, pub JobId, pub String);

/// The query of the URL.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<S: Send + Sync> FromRequestParts<S> for InPartition {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let partition: String = path(parts, state).await?;
        Ok(Self(PartitionId::parse(&partition)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for OfJob {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let (partition, job): (String, String) = path(parts, state).await?;
        Ok(Self(
            PartitionId::parse(&partition)?,
            job_id(&job, &parts.method)?,
        ))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for OfTask {
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

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> ApiResult<Self> {
        let read = Query::<T>::from_request_parts(parts, state).await;
        read.map(|Query(params)| Self(params))
            .map_err(|refusal| ApiError::bad_request(refusal.body_text()))
    }
}

/// An id too long for any job is not found, as in CAF; who would create one is told why that cannot be.
fn job_id(text: &str, method: &Method) -> ApiResult<JobId> {
    JobId::parse(text).map_err(|error| match error {
        IdError::JobTooLong if *method != Method::PUT => ApiError::job_not_found(text),
        error => error.into(),
    })
}

/// The decoded parts of the path.
async fn path<S: Send + Sync, T: DeserializeOwned + Send>(
    parts: &mut Parts,
    state: &S,
) -> ApiResult<T> {
    let read = Path::<T>::from_request_parts(parts, state).await;
    read.map(|Path(value)| value)
        .map_err(|refusal| ApiError::bad_request(refusal.body_text()))
}

/// A whole number in the query. Nothing at all counts as absent, as in `?limit=`.
pub fn whole_number<N: FromStr>(name: &str, text: Option<&str>) -> ApiResult<Option<N>> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let number = text.parse().map_err(|_| {
        ApiError::bad_request(format!(
            "The parameter '{name}' must be a whole number, but is '{text}'."
        ))
    })?;
    Ok(Some(number))
}
