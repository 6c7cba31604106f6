//! The parameters that select the jobs of a partition.

use contract::JobStatus;
use serde::Deserialize;
use store::JobQuery;
use utoipa::IntoParams;

use crate::http::{ApiError, ApiResult, reject_nul};
use crate::jobs::job_list::filter;
use contract::rest::ErrorCode;

/// The parameters that select jobs. A job must match all of them; without any, every job in the
/// partition matches.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct JobSelector {
    /// Selects jobs whose id starts with this text. Case-sensitive.
    #[param(example = "reindex-")]
    job_id_starts_with: Option<String>,
    /// Selects jobs that have at least one of these labels, whatever its value. Separate label
    /// names with commas.
    #[param(example = "team,tier")]
    label_exist: Option<String>,
    /// Selects jobs that satisfy this RSQL expression, at most 8192 bytes long, with at most 50
    /// conditions on labels.
    ///
    /// - Fields: `id`, `name`, `correlationId`, `status`, `percentageComplete`, `blockedTasks` and
    ///   `labels.KEY`. `blockedTasks` is the number of tasks that wait for a condition, or were
    ///   sent again and have not ended since.
    /// - `status==Blocked` selects the Active jobs of which nothing is under way but tasks that
    ///   wait for conditions, and `status!=Blocked` all other jobs. Every other comparison sees
    ///   such a job as Active.
    /// - Operators: `==`, `!=`, `=gt=` or `>`, `=ge=` or `>=`, `=lt=` or `<`, `=le=` or `<=`,
    ///   `=in=(a,b)`, `=out=(a,b)`.
    /// - Combine conditions with `;` or ` and `, and with `,` or ` or `. "And" binds more tightly
    ///   than "or"; use parentheses to group.
    /// - Quote a value with `'` or `"` if it contains a blank or one of `" ' ( ) ; , = ! ~ < >`.
    ///   Inside quotes, `\` escapes the next character.
    /// - In a value of `==` or `!=`, `*` matches any sequence of characters.
    ///
    /// Comparisons are case-sensitive. `<` and `>` compare text in dictionary order, the order in
    /// which lists are sorted. A job without the compared text (no name or correlation id, no such
    /// label, or a label without a value) never matches, not even with `!=` or `=out=`.
    #[param(example = "labels.team==search;status=in=(Waiting,Active);name!='*test*'")]
    filter: Option<String>,
    /// Selects jobs by status: `NotFinished` (Waiting, Active, Paused), `NotCompleted` (the same,
    /// Cancelled and Failed), `Completed`, or `Inactive` (Completed, Cancelled, Failed). Lists and
    /// counts ignore any other value; bulk operations reject it.
    #[param(example = "NotFinished")]
    status_type: Option<String>,
    /// Whether unknown parameters are refused. By default they are ignored; bulk operations name
    /// them in the notes of the response.
    #[param(value_type = Option<bool>, example = true)]
    #[serde(rename = "strict")]
    _strict: Option<String>,
}

/// The names of the parameters of a [`JobSelector`].
pub const SELECTOR: [&str; 4] = ["jobIdStartsWith", "labelExist", "filter", "statusType"];

impl JobSelector {
    /// Returns the query for a list or a count. Ignores an unknown `statusType`, as CAF does.
    pub fn lenient_query(&self) -> ApiResult<JobQuery> {
        let id_prefix = self
            .job_id_starts_with
            .clone()
            .filter(|prefix| !prefix.is_empty());
        reject_nul("jobIdStartsWith", id_prefix.as_deref())?;
        reject_nul("labelExist", self.label_exist.as_deref())?;
        let labels = self
            .label_exist
            .as_deref()
            .unwrap_or_default()
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        let filter = self
            .filter
            .as_deref()
            .filter(|text| !text.trim().is_empty())
            .map(filter::parse)
            .transpose()
            .map_err(|error| ApiError::bad_request(ErrorCode::InvalidFilter, error.to_string()))?;
        Ok(JobQuery {
            id_prefix,
            labels,
            filter,
            statuses: self.statuses(),
            ..JobQuery::default()
        })
    }

    /// Returns the query for a bulk cancellation or deletion. Rejects an unknown `statusType`:
    /// ignoring it would select jobs of every status.
    pub fn strict_query(&self) -> ApiResult<JobQuery> {
        match self.status_type.as_deref() {
            Some(unknown) if !unknown.is_empty() && self.statuses().is_empty() => {
                Err(ApiError::bad_request(
                    ErrorCode::InvalidParameter,
                    format!(
                        "The parameter 'statusType' must be NotFinished, NotCompleted, Completed or Inactive, but is '{unknown}'."
                    ),
                ))
            }
            _ => self.lenient_query(),
        }
    }

    /// Returns the statuses of CAF's `statusType`. Empty means every status.
    fn statuses(&self) -> Vec<JobStatus> {
        use JobStatus::{Active, Cancelled, Completed, Failed, Paused, Waiting};
        match self.status_type.as_deref() {
            Some("NotCompleted") => vec![Active, Paused, Waiting, Cancelled, Failed],
            Some("Completed") => vec![Completed],
            Some("Inactive") => vec![Completed, Cancelled, Failed],
            Some("NotFinished") => vec![Active, Paused, Waiting],
            _ => Vec::new(),
        }
    }
}
