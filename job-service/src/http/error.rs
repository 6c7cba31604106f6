//! The error type of the API. It becomes a status code and an [`ErrorBody`]: CAF's message, and for
//! clients that accept them the details of a problem. For a person who looks at the web page it
//! becomes a page.
//!
//! Internal details, such as the errors of the database and the messages of panics, are not sent to
//! the client. They are logged here, once, in the span of the request.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use contract::rest::{ERROR_HEADER, ErrorBody, ErrorCode, NOT_FOUND_HEADER};
use contract::{IdError, PartitionId};
use framework::clock::Clock;
use store::StoreError;

use crate::html::{ErrorPage, Layout, Place, html};
use crate::http::current_request::{CurrentRequest, PLAIN, PROBLEM};

pub type ApiResult<T> = Result<T, ApiError>;

#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// 400: the request is invalid.
    #[error("{1}")]
    BadRequest(ErrorCode, String),
    /// 403: another request created a job with this id.
    #[error("Job already exists")]
    JobExists,
    /// 422: another request has this key, which created this job.
    #[error(
        "The Idempotency-Key '{key}' belongs to another request, which created the job '{job}'. Give each request a key of its own, and \
         repeat a request unchanged."
    )]
    KeyTaken { key: String, job: String },
    /// 403: the operator does not give access to pipes.
    #[error(
        "This service gives no access to pipes over HTTP. Use the broker itself (--broker amqp://…), or start the service with \
         --pipe-access on (BATCHWRIGHT_PIPE_ACCESS)."
    )]
    PipesNotServed,
    /// 401: the request has no token, or one that is not valid, for this reason.
    #[error("{0}")]
    TokenNeeded(&'static str),
    /// 429: too many requests from this address had no valid token.
    #[error(
        "Too many requests from your address had a token that is not valid. Try again in a minute, with a valid one."
    )]
    TooManyRefused,
    /// 403: whoever sends the request lacks a role, which the message names.
    #[error("{0}")]
    RoleNeeded(String),
    /// 503: the broker does not do what it is asked, for this reason.
    #[error("The broker cannot be used now: {0}. Try again later.")]
    BrokerUnavailable(String),
    /// 503: no batch worker says what a batch would be split into, for this reason.
    #[error(
        "The batch cannot be explained now: {0}. Start a batch worker that takes messages from the task pipe, or try again later."
    )]
    NotExplained(String),
    /// 403: a web page of this foreign origin must not change jobs.
    #[error(
        "A web page of the origin '{0}' must not change jobs: the origin is not this service's. Allow it with --allowed-origin \
         (BATCHWRIGHT_ALLOWED_ORIGIN)."
    )]
    ForeignOrigin(String),
    /// 403: a form of the web page was sent by something else than the page.
    #[error(
        "This form can be sent by the page itself only, and nothing in the request shows that it was. A program uses the API: {0}."
    )]
    NotOwnPage(&'static str),
    /// 421: this host is not a name of this server.
    #[error(
        "The host '{0}' is not a name of this service. Call it by its address, or allow the name with --allowed-host \
         (BATCHWRIGHT_ALLOWED_HOST)."
    )]
    ForeignHost(String),
    /// 401: a worker asks about this job with another key.
    #[error(
        "The key 'k' in the URL is not that of the job '{0}'. Ask at the status URL of a message of the job, as the message has it; where \
         a message is shown, its key is not."
    )]
    WrongJobKey(String),
    /// 404: this job does not exist. CAF's text, including the braces; clients match on it.
    #[error("ERROR: job_id {{{0}}} not found")]
    JobNotFound(String),
    /// 404: the task or the URL does not exist.
    #[error("{1}")]
    NotFound(ErrorCode, String),
    /// 409: this job does not keep its outputs.
    #[error("The job '{0}' does not keep its outputs. Create it with \"outputs\": \"keep\".")]
    OutputsNotKept(String),
    /// 410: the outputs of this job are gone.
    #[error("The outputs of the job '{0}' were removed, because their time was over.")]
    OutputsRemoved(String),
    /// 410: what was known about the tasks of this job is gone.
    #[error(
        "The job '{0}' ended long ago, and what was known about its tasks is deleted (--keep-failed-tasks, --max-failed-tables)."
    )]
    TasksRemoved(String),
    /// 503: the outputs are kept in a place that this process cannot read.
    #[error("the outputs cannot be read: {0}")]
    OutputsUnreadable(String),
    /// 503: the place for exports with this name cannot be used.
    #[error("{0}")]
    OutputsNotExported(String),
    /// 503: the bytes of uploaded sources cannot be written or read, for this reason.
    #[error("the sources cannot be used: {0}")]
    SourcesUnusable(String),
    /// 507: there is no room for more sources.
    #[error("{0}")]
    SourcesFull(String),
    /// 409: the job is not in a state that allows this.
    #[error("{1}")]
    Conflict(ErrorCode, String),
    /// 405: the URL does not support the method.
    #[error("{0}")]
    MethodNotAllowed(String),
    /// 408: the body did not arrive in time.
    #[error("The body did not arrive within {0:?}.")]
    TooSlow(Duration),
    /// 413: the body is larger than this number of bytes.
    #[error("The body is larger than {0} bytes.")]
    TooLarge(usize),
    /// 415: the body has this encoding.
    #[error(
        "The body has the Content-Encoding '{0}', but the service reads bodies only as they are."
    )]
    Encoded(String),
    /// 503: the service has as many of these as it may have.
    #[error("The service has {0}. Try again later.")]
    Busy(&'static str),
    /// 503: the service shuts down.
    #[error("The service is shutting down. Send the request again, to another instance or later.")]
    ShuttingDown,
    /// 500: the definition of a job type failed to build a valid task.
    #[error("the job type {id} failed: {reason}")]
    JobType { id: String, reason: String },
    /// 503: the disk that the job would be written to is short of space.
    #[error("New jobs are refused until there is room for them: {0}. Try again later.")]
    NoSpace(String),
    /// 503 if the store is unavailable, 500 if it refuses the operation.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// 500: a bug of the service.
    #[error("internal error: {0}")]
    Bug(String),
}

impl ApiError {
    /// Returns a [`BadRequest`](Self::BadRequest) with a code.
    pub fn bad_request(code: ErrorCode, message: impl Into<String>) -> Self {
        Self::BadRequest(code, message.into())
    }

    /// Returns a [`JobNotFound`](Self::JobNotFound).
    pub fn job_not_found(job: impl fmt::Display) -> Self {
        Self::JobNotFound(job.to_string())
    }

    /// Returns the 404 for what is in a partition that the caller may not see.
    pub fn partition_not_seen(partition: &PartitionId) -> Self {
        match CurrentRequest::get().job {
            Some(job) => Self::JobNotFound(job),
            None => Self::NotFound(
                ErrorCode::UrlNotFound,
                format!("There is no partition '{partition}' that you may see."),
            ),
        }
    }

    /// Returns a [`BrokerUnavailable`](Self::BrokerUnavailable).
    pub fn broker_unavailable(reason: impl fmt::Display) -> Self {
        Self::BrokerUnavailable(reason.to_string())
    }

    /// Returns the response for a handler that panicked.
    pub fn panic_response(panic: Box<dyn Any + Send>) -> Response {
        let text = panic
            .downcast::<String>()
            .map(|text| *text)
            .or_else(|panic| panic.downcast::<&str>().map(|text| (*text).to_owned()));
        Self::Bug(text.unwrap_or_else(|_| "panic".to_owned())).into_response()
    }

    pub const fn status(&self) -> StatusCode {
        match self {
            Self::BadRequest(..) => StatusCode::BAD_REQUEST,
            Self::JobExists
            | Self::ForeignOrigin(_)
            | Self::NotOwnPage(_)
            | Self::RoleNeeded(_)
            | Self::PipesNotServed => StatusCode::FORBIDDEN,
            Self::TooManyRefused => StatusCode::TOO_MANY_REQUESTS,
            Self::TokenNeeded(_) | Self::WrongJobKey(_) => StatusCode::UNAUTHORIZED,
            Self::ForeignHost(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::JobNotFound(_) | Self::NotFound(..) => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Conflict(..) | Self::OutputsNotKept(_) => StatusCode::CONFLICT,
            Self::KeyTaken { .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Self::OutputsRemoved(_) | Self::TasksRemoved(_) => StatusCode::GONE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Encoded(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::SourcesFull(_) => StatusCode::INSUFFICIENT_STORAGE,
            Self::NoSpace(_)
            | Self::Busy(_)
            | Self::ShuttingDown
            | Self::BrokerUnavailable(_)
            | Self::NotExplained(_)
            | Self::OutputsUnreadable(_)
            | Self::OutputsNotExported(_)
            | Self::SourcesUnusable(_)
            | Self::Store(StoreError::Unavailable(_) | StoreError::Unusable { .. }) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Store(StoreError::Refused(_)) | Self::JobType { .. } | Self::Bug(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
        }
    }

    pub const fn code(&self) -> ErrorCode {
        match self {
            Self::BadRequest(code, _) | Self::NotFound(code, _) | Self::Conflict(code, _) => *code,
            Self::JobNotFound(_) => ErrorCode::JobNotFound,
            Self::WrongJobKey(_) => ErrorCode::WrongJobKey,
            Self::JobExists => ErrorCode::JobExists,
            Self::KeyTaken { .. } => ErrorCode::IdempotencyKeyTaken,
            Self::PipesNotServed => ErrorCode::PipesNotServed,
            Self::TokenNeeded(_) => ErrorCode::TokenNeeded,
            Self::RoleNeeded(_) => ErrorCode::RoleNeeded,
            Self::TooManyRefused => ErrorCode::TooManyRefused,
            Self::BrokerUnavailable(_) => ErrorCode::BrokerUnavailable,
            Self::NotExplained(_) => ErrorCode::NotExplained,
            Self::OutputsNotKept(_) => ErrorCode::OutputsNotKept,
            Self::OutputsRemoved(_) => ErrorCode::OutputsRemoved,
            Self::TasksRemoved(_) => ErrorCode::TasksNotKept,
            Self::OutputsUnreadable(_) => ErrorCode::OutputsUnreadable,
            Self::OutputsNotExported(_) => ErrorCode::ExportFailed,
            Self::SourcesUnusable(_) => ErrorCode::SourcesUnusable,
            Self::SourcesFull(_) => ErrorCode::SourcesFull,
            Self::ForeignOrigin(_) | Self::NotOwnPage(_) => ErrorCode::ForeignOrigin,
            Self::ForeignHost(_) => ErrorCode::ForeignHost,
            Self::MethodNotAllowed(_) => ErrorCode::MethodNotAllowed,
            Self::TooSlow(_) => ErrorCode::BodyTooSlow,
            Self::TooLarge(_) => ErrorCode::BodyTooLarge,
            Self::Encoded(_) => ErrorCode::BodyEncoded,
            Self::Busy(_) => ErrorCode::Busy,
            Self::ShuttingDown => ErrorCode::ShuttingDown,
            Self::JobType { .. } => ErrorCode::JobTypeFailed,
            Self::NoSpace(_) => ErrorCode::DiskFull,
            Self::Store(error) => error.code(),
            Self::Bug(_) => ErrorCode::InternalError,
        }
    }

    fn problem(&self, request: CurrentRequest) -> ErrorBody {
        let (code, message) = (self.code(), self.message());
        ErrorBody {
            code: Some(code.as_str().to_owned()),
            title: Some(code.title().to_owned()),
            status: Some(self.status().as_u16()),
            detail: Some(message.clone()),
            message,
            remedy: Some(code.remedy().to_owned()),
            time: Some(Clock::system().now_millis()),
            partition_id: request.partition,
            job_id: request.job,
            correlation_id: request.correlation_id,
        }
    }

    /// Returns the response for a person.
    fn page(&self, request: CurrentRequest) -> Response {
        let (status, code) = (self.status(), self.code());
        let page = ErrorPage {
            layout: Layout {
                partition: request.partition,
                ..Layout::new(code.title().to_owned(), Place::Nowhere)
            },
            status: status.as_u16(),
            message: self.message(),
            remedy: code.remedy(),
            correlation_id: request.correlation_id,
        };
        html(status, &page)
    }

    /// Returns the message that the client sees.
    pub fn message(&self) -> String {
        match self {
            Self::Store(StoreError::Unavailable(_) | StoreError::Unusable { .. }) => {
                "The database is not available. Try again later.".into()
            }
            Self::Store(StoreError::Refused(_)) | Self::Bug(_) => {
                "Internal error. The log of the service has the details under the correlation id of this response.".into()
            }
            // The reason names folders of the server.
            Self::OutputsUnreadable(_) => {
                "The outputs cannot be read now. The log of the service has the reason under the correlation id of this response.".into()
            }
            Self::SourcesUnusable(_) => {
                "The bytes of sources cannot be written or read now. The log of the service has the reason under the correlation id of this \
                 response."
                    .into()
            }
            // The reason may quote the configuration, including passwords.
            Self::JobType { id, .. } => format!(
                "The definition of the job type '{id}' did not build a valid task from these parameters. This is an error in the definition; \
                 the log of the service has the details under the correlation id of this response."
            ),
            other => other.to_string(),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, code) = (self.status(), self.code());
        match status {
            StatusCode::SERVICE_UNAVAILABLE => {
                tracing::warn!(error = %self, code = code.as_str(), "a request failed because the service is unavailable");
            }
            StatusCode::INTERNAL_SERVER_ERROR => {
                tracing::error!(error = %self, code = code.as_str(), "request failed");
            }
            _ => {
                tracing::debug!(error = %self, code = code.as_str(), %status, "request rejected");
            }
        }
        let request = CurrentRequest::get();
        if request.wants_page {
            return self.page(request);
        }
        let (content_type, body) = if request.accepts_problem {
            (PROBLEM, self.problem(request))
        } else {
            (PLAIN, ErrorBody::of_message(self.message()))
        };
        let mut response = (status, Json(body)).into_response();
        let of_all = [
            (header::CONTENT_TYPE, content_type),
            (HeaderName::from_static(ERROR_HEADER), code.as_str()),
        ];
        let further = match self {
            Self::Busy(_) => Some((header::RETRY_AFTER, "1")),
            Self::TooManyRefused => Some((header::RETRY_AFTER, "60")),
            Self::TokenNeeded(_) => Some((header::WWW_AUTHENTICATE, "Bearer")),
            Self::JobNotFound(_) => Some((HeaderName::from_static(NOT_FOUND_HEADER), "job")),
            _ => None,
        };
        for (name, value) in of_all.into_iter().chain(further) {
            let value = HeaderValue::from_static(value);
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<IdError> for ApiError {
    fn from(error: IdError) -> Self {
        Self::BadRequest(ErrorCode::InvalidId, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn responses_hide_database_errors_and_panic_messages() {
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
