//! What all features need of HTTP: connections, requests, responses and errors.
//!
//! Features import its types from here; what has fewer users is in the files.
//!
//! What must stay true:
//! - Whatever a request holds while it waits for its client is bounded: connections, bytes of
//!   bodies, streams.

pub mod access;
pub mod between;
pub mod connections;
pub mod correlation;
pub mod current_request;
pub mod error;
pub mod error_responses;
pub mod extract;
pub mod form;
pub mod health_check;
pub mod idempotency;
pub mod in_pieces;
pub mod measured;
pub mod ndjson;
pub mod notes;
pub mod ping;
pub mod places;
pub mod request_body;
mod shared;
pub mod url;

pub use self::error::{ApiError, ApiResult};
pub use self::error_responses::{
    BadBody, InvalidParameter, NoCondition, NoJob, NoLetter, NoSource, StoreErrors, WrongKey,
};
pub use self::extract::{
    ConditionPath, JobPath, MemoPath, PartitionPath, PipePath, QueryParams, SourcePath, TaskPath,
    condition_key, no_source, page_limit, reject_nul, truth, whole_number,
};
pub use self::notes::{Unknown, only_known};
pub use self::places::{Client, Place};
pub use self::request_body::RequestBody;
pub use self::shared::HttpState;
