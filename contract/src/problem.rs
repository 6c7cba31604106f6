//! The body of every error response, and the codes that programs decide by.

use serde::{Deserialize, Serialize};

/// The body of every error response: CAF's `message`; for clients that accept
/// `application/problem+json`, also the details of a problem as RFC 9457 has them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
pub struct ErrorBody {
    /// The error and, where possible, how to fix it.
    pub message: String,
    /// What kind of error it is. Codes stay the same from version to version; new ones are added.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "utoipa", schema(value_type = Option<ErrorCode>))]
    pub code: Option<String>,
    /// The code in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The HTTP status code of the response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The text of `message`, under the name that RFC 9457 gives it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// What to do about errors with this code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
    /// When the error occurred, in milliseconds since 1970, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<i64>,
    /// The partition that the URL of the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition_id: Option<String>,
    /// The job that the URL of the request names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// The correlation id of the request, under which the log of the service has the details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
}

impl ErrorBody {
    /// Returns a body with a message alone, as CAF's job service sends it.
    pub fn of_message(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }
}

/// Defines the codes: the name of each in JSON, its title and its remedy.
macro_rules! error_codes {
    ($($(#[$doc:meta])* $code:ident = $name:literal: $title:literal, $remedy:literal;)*) => {
        /// What kind of error a response is about.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
        #[cfg_attr(feature = "utoipa", derive(utoipa::ToSchema))]
        pub enum ErrorCode {
            $($(#[$doc])* $code,)*
        }

        impl ErrorCode {
            /// All codes, in the order of the documentation.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$code),*];

            /// Returns the code, its title and its remedy.
            const fn facts(self) -> (&'static str, &'static str, &'static str) {
                match self {
                    $(Self::$code => ($name, $title, $remedy),)*
                }
            }
        }
    };
}

error_codes! {
    /// The request is not valid, for a reason that has no code of its own.
    InvalidRequest = "INVALID_REQUEST": "The request is not valid",
        "Correct what the message names and send the request again.";
    /// The body is not JSON, or has not the shape of the request.
    InvalidJson = "INVALID_JSON": "The body is not what the operation reads",
        "Send a JSON object as the description of the API shows it.";
    /// A partition id, job id or task id in the URL cannot exist.
    InvalidId = "INVALID_ID": "The id is not possible",
        "Use an id without the characters that the message names.";
    /// A parameter of the query has an impossible value.
    InvalidParameter = "INVALID_PARAMETER": "A parameter of the query is not valid",
        "Correct the parameter that the message names.";
    /// The filter of a list or a bulk operation cannot be understood.
    InvalidFilter = "INVALID_FILTER": "The filter cannot be understood",
        "Correct the filter at the place that the message names.";
    /// A field or parameter is unknown, and the request is strict.
    UnknownField = "UNKNOWN_FIELD": "A field or parameter is unknown",
        "Correct or remove it, or send the request without 'strict=true'.";
    /// The task of a new job lacks something, or cannot be run.
    InvalidTask = "INVALID_TASK": "The task of the job is not valid",
        "Complete or correct the field of the task that the message names.";
    /// A new job names a pipe that no task may be addressed to.
    ReservedPipe = "RESERVED_PIPE": "The pipe is reserved",
        "Name the input pipe of a worker; if this pipe is one, its operator can allow it.";
    /// A message cannot be put into a pipe.
    InvalidMessage = "INVALID_MESSAGE": "The message cannot be put into the pipe",
        "Correct the message that the error names. None of the request was put.";
    /// The labels of a new job are too many, too long or have characters that are not allowed.
    InvalidLabel = "INVALID_LABEL": "A label is not valid",
        "Use fewer or shorter labels, with letters, digits, '-', '_' and ':' in their names.";
    /// The prerequisites of a new job cannot be met.
    InvalidPrerequisite = "INVALID_PREREQUISITE": "A prerequisite is not valid",
        "Name jobs that exist in this partition, or add ',pc' to those that are created later.";
    /// The batch of a new job cannot be split.
    InvalidBatch = "INVALID_BATCH": "The batch cannot be split",
        "Correct the batch type or the definition, or put the source where the batch worker finds it.";
    /// No batch worker says what a batch would be split into.
    NotExplained = "NOT_EXPLAINED": "No batch worker explains the batch",
        "Start a batch worker that takes messages from the task pipe, and send the request again.";
    /// A new job names a job type that the service does not have.
    UnknownJobType = "UNKNOWN_JOB_TYPE": "The job type is unknown",
        "Name a job type that the operator has installed, or send a task.";
    /// The parameters of a job type are not valid.
    InvalidJobParameters = "INVALID_JOB_PARAMETERS": "The parameters of the job type are not valid",
        "Correct the parameters that the message names.";
    /// The definition of a job type built no valid task.
    JobTypeFailed = "JOB_TYPE_FAILED": "The definition of the job type is at fault",
        "Tell the operator the correlation id; the log of the service has the reason.";
    /// The page has more jobs than a response may have.
    PageTooLarge = "PAGE_TOO_LARGE": "The page is too large",
        "Ask for a smaller 'limit', and for the next page with 'offset'.";
    /// The partition has no job with this id.
    JobNotFound = "JOB_NOT_FOUND": "The job does not exist",
        "Check the partition and the id, which is case-sensitive. The job may have been deleted.";
    /// The key of a worker is not that of the job.
    WrongJobKey = "WRONG_JOB_KEY": "The key is not that of the job",
        "Ask at the status URL of a message of the job, as the message has it. A deleted job that is created again has another key.";
    /// The job has no task with this id.
    TaskNotFound = "TASK_NOT_FOUND": "The task does not exist",
        "Check the id of the task; subtasks exist from the moment on in which a worker makes them.";
    /// There is no pipe of this name.
    PipeNotFound = "PIPE_NOT_FOUND": "The pipe does not exist",
        "Check the name, which is case-sensitive. A pipe exists from the moment on in which it is first used.";
    /// The receipt of taken messages is unknown, or too old.
    ReceiptNotFound = "RECEIPT_NOT_FOUND": "The receipt is unknown or too old",
        "Take the messages again: they have gone back to their pipe.";
    /// The service has nothing at this URL.
    UrlNotFound = "URL_NOT_FOUND": "There is nothing at this URL",
        "Check the URL; the API is described at /job-service-ui/.";
    /// The URL does not support the method.
    MethodNotAllowed = "METHOD_NOT_ALLOWED": "The URL does not support the method",
        "Check the method; the API is described at /job-service-ui/.";
    /// The id belongs to a job that another request created.
    JobExists = "JOB_EXISTS": "Another job has this id",
        "Choose another id, or delete the job first. The same request for the same job is accepted again.";
    /// The key belongs to another request.
    IdempotencyKeyTaken = "IDEMPOTENCY_KEY_TAKEN": "The key belongs to another request",
        "Give each request a key of its own, and repeat a request unchanged.";
    /// The status of the job does not allow the operation.
    WrongJobStatus = "WRONG_JOB_STATUS": "The status of the job does not allow this",
        "Read the job to see its status.";
    /// The request has no token, or one that is not valid.
    TokenNeeded = "TOKEN_NEEDED": "The request has no valid token",
        "Send 'Authorization: Bearer' with a token of the service that is valid; an administrator creates tokens.";
    /// Too many requests from one address had a token that is not valid.
    TooManyRefused = "TOO_MANY_REFUSED": "Too many tokens were refused",
        "Wait for the time in Retry-After, and send a valid token.";
    /// Whoever sends the request may not do that.
    RoleNeeded = "ROLE_NEEDED": "A role is missing",
        "Use a token with the role that the message names, or ask an administrator for one.";
    /// There is no token with this id.
    TokenNotFound = "TOKEN_NOT_FOUND": "The token does not exist",
        "List the tokens. It may have been revoked.";
    /// The token cannot be created.
    InvalidToken = "INVALID_TOKEN": "The token cannot be created",
        "Correct what the message names.";
    /// The service lets no client take or put messages.
    PipesNotServed = "PIPES_NOT_SERVED": "The service does not give access to pipes",
        "Use the broker itself, or let the operator allow it.";
    /// The broker cannot show messages without taking them.
    PipeNotPeekable = "PIPE_NOT_PEEKABLE": "The messages of the pipe cannot be shown",
        "Take the messages and give them back, if a counted delivery does no harm.";
    /// The job does not keep its outputs.
    OutputsNotKept = "OUTPUTS_NOT_KEPT": "The job does not keep its outputs",
        "Create the job with '\"outputs\": \"keep\"', or read its target pipe.";
    /// The outputs of the job were removed because their time was over.
    OutputsRemoved = "OUTPUTS_REMOVED": "The outputs of the job were removed",
        "Run the job again, and read its outputs before their time is over.";
    /// The service cannot read the outputs that are kept.
    OutputsUnreadable = "OUTPUTS_UNREADABLE": "The outputs cannot be read",
        "Tell the operator the correlation id; the log of the service has the reason.";
    /// The service cannot write an export to its place.
    ExportFailed = "EXPORT_FAILED": "The place for exports cannot be used, or has taken nothing for five minutes",
        "Send the request again when the operator has repaired the place; it continues the export.";
    /// Something else is at the path of an export.
    ExportExists = "EXPORT_EXISTS": "Something else is at the path of the export",
        "Choose another path, or delete what is there.";
    /// The partition has no uploaded source with this id.
    SourceNotFound = "SOURCE_NOT_FOUND": "The source does not exist",
        "Check the partition and the id. A source is deleted with its last job, or if no job names it for a day.";
    /// The state of an uploaded source does not allow the operation.
    SourceConflict = "SOURCE_CONFLICT": "The state of the source does not allow this",
        "Read the source to see how many bytes it has, whether it is committed, and which jobs name it.";
    /// There is no room for more bytes of uploaded sources.
    SourcesFull = "SOURCES_FULL": "There is no room for more sources",
        "Delete sources, or jobs that name some, or let the operator raise the limit that the message names.";
    /// The service cannot write or read the bytes of uploaded sources.
    SourcesUnusable = "SOURCES_UNUSABLE": "The bytes of sources cannot be written or read",
        "Try again later; the log of the service has the reason under the correlation id.";
    /// What was known about the tasks of the job is deleted.
    TasksNotKept = "TASKS_NOT_KEPT": "The tasks of the job were not kept",
        "Resubmit the job, which does all of it again. The operator sets how long tasks are kept.";
    /// There is no room for another memo of the task or of its job.
    TooManyMemos = "TOO_MANY_MEMOS": "There are too many memos",
        "Let the task do fewer parts once, or make subtasks of them; keep keys instead of large results.";
    /// There is no dead letter with this number.
    DeadLetterNotFound = "DEAD_LETTER_NOT_FOUND": "The dead letter does not exist",
        "List the dead letters. It may have been replayed or deleted, or its time was over.";
    /// The dead letter cannot be sent again.
    DeadLetterNotReplayable = "DEAD_LETTER_NOT_REPLAYABLE": "The dead letter cannot be sent again",
        "Do what the message says, or delete the letter.";
    /// No task waits for a condition with this key.
    ConditionNotFound = "CONDITION_NOT_FOUND": "No task waits for the condition",
        "List the conditions. Its tasks may have been sent again, or have failed.";
    /// The dead letter belongs to an earlier job with this id.
    PastIncarnation = "PAST_INCARNATION": "The dead letter belongs to a job that was deleted",
        "Create a job that does the task, and delete the letter.";
    /// The tasks of the job that have not ended can only be done again by a retry of the job.
    RetryInstead = "RETRY_INSTEAD": "Other tasks of the job have not ended either",
        "Retry the job: that does all of it that is not done, the task of this letter included.";
    /// A web page of another origin must not change jobs.
    ForeignOrigin = "FOREIGN_ORIGIN": "The web page is of another origin",
        "Let the operator allow the origin, if it is trusted.";
    /// The host of the request is not a name of the service.
    ForeignHost = "FOREIGN_HOST": "The host is not a name of this service",
        "Call the service by its address, or let the operator allow the name.";
    /// The body of the request is too large.
    BodyTooLarge = "BODY_TOO_LARGE": "The body is too large",
        "Send less in one request: name large inputs instead of including them, or use several jobs.";
    /// The body is compressed, or encoded in another way.
    BodyEncoded = "BODY_ENCODED": "The body is compressed",
        "Send the body as it is, without the header Content-Encoding.";
    /// The body of the request did not arrive in time.
    BodyTooSlow = "BODY_TOO_SLOW": "The body did not arrive in time",
        "Send the request again over a faster connection.";
    /// The service handles as much as it may.
    Busy = "BUSY": "The service handles as much as it may",
        "Send the request again after the time in Retry-After.";
    /// The service shuts down.
    ShuttingDown = "SHUTTING_DOWN": "The service is shutting down",
        "Send the request again, to another instance or later.";
    /// The disk of the service is short of space.
    DiskFull = "DISK_FULL": "The disk is short of space",
        "Send the request again when the operator has made room.";
    /// The broker does not respond, or takes no messages.
    BrokerUnavailable = "BROKER_UNAVAILABLE": "The broker does not respond",
        "Send the request again later. Messages that were put may have been stored.";
    /// The database does not respond.
    DatabaseUnavailable = "DATABASE_UNAVAILABLE": "The database does not respond",
        "Send the request again later.";
    /// The service has a fault.
    InternalError = "INTERNAL_ERROR": "The service has a fault",
        "Tell the operator the correlation id; the log of the service has the details.";
}

impl ErrorCode {
    /// Returns the code as it is in JSON, such as `JOB_NOT_FOUND`.
    pub const fn as_str(self) -> &'static str {
        self.facts().0
    }

    /// Returns the code in words.
    pub const fn title(self) -> &'static str {
        self.facts().1
    }

    /// Returns what to do about it.
    pub const fn remedy(self) -> &'static str {
        self.facts().2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_reads_the_same_in_json() {
        for code in ErrorCode::ALL {
            let json = serde_json::to_value(code).unwrap();
            assert_eq!(json, code.as_str());
            assert_eq!(serde_json::from_value::<ErrorCode>(json).unwrap(), code);
        }
    }

    #[test]
    fn documentation_lists_every_code() {
        let page = include_str!("../../docs/reference/errors.md");
        let documented: Vec<_> = page
            .lines()
            .filter(|line| line.starts_with("| `"))
            .collect();
        let rows = ErrorCode::ALL.map(|code| {
            let (code, title, remedy) = code.facts();
            format!("| `{code}` | {title} | {remedy} |")
        });
        assert_eq!(documented, rows);
    }

    #[test]
    fn body_of_another_job_service_is_read_whatever_it_lacks_or_adds() {
        let body: ErrorBody = serde_json::from_str(r#"{"message": "no", "extra": 1}"#).unwrap();
        assert_eq!(body, ErrorBody::of_message("no"));
        let body: ErrorBody =
            serde_json::from_str(r#"{"message": "no", "code": "OF_A_LATER_VERSION"}"#).unwrap();
        assert_eq!(body.code.as_deref(), Some("OF_A_LATER_VERSION"));
    }
}
