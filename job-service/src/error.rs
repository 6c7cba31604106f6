//! The one error of the API: what went wrong, as a status and the body `{"message": …}`.
//!
//! Hides from clients what they cannot use: the words of the database, of panics. Those are logged here, once, in the
//! span of the request.

use std::any::Any;
use std::fmt;

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use contract::IdError;
use contract::rest::ErrorBody;
use store::StoreError;

pub type ApiResult<T> = Result<T, ApiError>;

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// 400: the request cannot be meant like this.
    #[error("{0}")]
    BadRequest(String),
    /// 403: what exists stands against it.
    #[error("{0}")]
    Forbidden(String),
    /// 404
    #[error("{0}")]
    NotFound(String),
    /// 405
    #[error("{0}")]
    MethodNotAllowed(String),
    /// 413
    #[error("The body is larger than {0} bytes.")]
    TooLarge(usize),
    /// 500: the definition of a job type does not do what it is for.
    #[error("the job type {id} has failed: {reason}")]
    JobType { id: String, reason: String },
    /// 503 when the store cannot be reached, 500 when it refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// 500: a bug.
    #[error("The service has failed: {0}")]
    Bug(String),
}

impl ApiError {
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::BadRequest(message.into())
    }

    /// CAF's text, down to the braces: clients look for it.
    pub fn job_not_found(job: impl fmt::Display) -> Self {
        Self::NotFound(format!("ERROR: job_id {{{job}}} not found"))
    }

    /// What a caught panic becomes.
    pub fn panic_response(panic: Box<dyn Any + Send>) -> Response {
        let text = panic
            .downcast::<String>()
            .map(|text| *text)
            .or_else(|panic| panic.downcast::<&str>().map(|text| (*text).to_owned()));
        Self::Bug(text.unwrap_or_else(|_| "panic".to_owned())).into_response()
    }

    const fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Forbidden(_) => StatusCode::FORBIDDEN,
            Self::NotFound(_) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Store(StoreError::Unavailable(_) | StoreError::Unusable { .. }) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Store(StoreError::Refused(_)) | Self::JobType { .. } | Self::Bug(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    /// What the client is told.
    fn message(&self) -> String {
        match self {
            Self::Store(StoreError::Unavailable(_) | StoreError::Unusable { .. }) => {
                "The database is not available. Try again later.".into()
            }
            Self::Store(StoreError::Refused(_)) | Self::Bug(_) => {
                "The service has failed. Its log tells why, under the correlation id of this response.".into()
            }
            // Why may quote the configuration, passwords included.
            Self::JobType { id, .. } => format!(
                "The definition of the job type '{id}' does not make a task of these parameters. That is a flaw of the definition; the \
                 service's log tells which, under the correlation id of this response."
            ),
            other => other.to_string(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self.status() {
            StatusCode::SERVICE_UNAVAILABLE => {
                tracing::warn!(error = %self, "a request could not be answered");
            }
            StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::error!(error = %self, "a request has failed");
            }
            status => tracing::debug!(error = %self, %status, "a request was refused"),
        }
        (
            self.status(),
            Json(ErrorBody {
                message: self.message(),
            }),
        )
            .into_response()
    }
}

impl From<IdError> for ApiError {
    fn from(error: IdError) -> Self {
        Self::BadRequest(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_the_database_and_panics_say_stays_in_the_log() {
        let refused = ApiError::Store(StoreError::Refused("secret".into())).into_response();
        let panic = ApiError::panic_response(Box::new("secret"));
        for response in [refused, panic] {
            assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let body = axum::body::to_bytes(response.into_body(), 1000)
                .await
                .unwrap();
            assert!(!body.is_empty() && !String::from_utf8_lossy(&body).contains("secret"));
        }
        let unavailable = ApiError::Store(StoreError::Unavailable("secret".into()));
        assert_eq!(unavailable.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert!(!unavailable.message().contains("secret"));
    }
}
