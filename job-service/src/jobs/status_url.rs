//! The URL at which workers ask about a job: what the service writes into messages, and what it
//! reads from the queries of requests. The URLs of splits and memos have the same query.

use contract::rest::AccessRole;
use contract::{JobId, LifeKey, PartitionId};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use store::{Asked, AskedJob, Incarnation};
use utoipa::IntoParams;

use crate::http::{ApiError, ApiResult, whole_number};
use crate::rights::Subject;

/// Returns the URL at which workers check the status of the job.
pub fn status_url(webservice_url: &str, incarnation: &Incarnation) -> String {
    /// Every character except those that never need encoding in a URL.
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
    let base = webservice_url.trim_end_matches('/');
    let partition = utf8_percent_encode(incarnation.partition.as_str(), ENCODED);
    let job = utf8_percent_encode(incarnation.job.as_str(), ENCODED);
    let number = incarnation.number;
    let round = match incarnation.round {
        1 => String::new(),
        round => format!("&r={round}"),
    };
    let key = incarnation.key.as_ref();
    let key = key.map(|key| format!("&k={}", key.secret()));
    let key = key.unwrap_or_default();
    format!("{base}/partitions/{partition}/jobs/{job}/status?n={number}{round}{key}")
}

/// The query of that URL.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct LifeParams {
    /// The incarnation of the job: the number in the status URL of its messages. A past incarnation
    /// returns 404.
    #[param(value_type = Option<i64>, example = 42)]
    n: Option<String>,
    /// The round of the job, as in that URL: from 2 for a job that was taken up again. With `n`, it
    /// is 1 if absent. A past round returns 404.
    #[param(value_type = Option<u32>, example = 2)]
    r: Option<String>,
    /// The key of the incarnation, as in that URL. A wrong one returns 401.
    #[param(value_type = Option<String>, example = "9f86d081884c7d659a2feaa0c55ad015")]
    k: Option<LifeKey>,
}

impl LifeParams {
    /// Returns the job that is asked about. Whoever lacks this role in its partition needs the key.
    pub fn of<'a>(
        &'a self,
        role: AccessRole,
        partition: &'a PartitionId,
        job: &'a JobId,
    ) -> ApiResult<AskedJob<'a>> {
        let incarnation = whole_number("n", self.n.as_deref())?;
        let round = whole_number("r", self.r.as_deref())?;
        Ok(AskedJob {
            partition,
            job,
            incarnation,
            round: round.or(incarnation.map(|_| 1)),
            key: self.k.as_ref(),
            is_key_needed: !Subject::current().has_in(role, partition),
        })
    }
}

/// Returns what is told about a job.
pub fn told<T>(asked: Asked<T>, job: &JobId) -> ApiResult<T> {
    match asked {
        Asked::Found(found) => Ok(found),
        Asked::Gone => Err(ApiError::job_not_found(job)),
        Asked::WrongKey => Err(ApiError::WrongJobKey(job.to_string())),
    }
}
