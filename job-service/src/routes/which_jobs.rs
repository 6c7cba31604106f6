//! Which jobs of a partition are meant: the parameters that lists, counts, cancellations and deletions of many share.

use contract::JobStatus;
use serde::Deserialize;
use store::{JobQuery, Sort, SortBy};
use utoipa::IntoParams;

use crate::error::{ApiError, ApiResult};
use crate::extract::whole_number;
use crate::filter;

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct WhichJobs {
    /// Jobs whose id begins with exactly this.
    #[param(example = "reindex-")]
    job_id_starts_with: Option<String>,
    /// Jobs that have one of these labels (separated by commas), whatever its value.
    #[param(example = "team,tier")]
    label_exist: Option<String>,
    /// A condition in RSQL, at most 8192 bytes long.
    ///
    /// - `id`, `name`, `status`, `percentageComplete` and `labels.KEY` are compared by `==`, `!=`, `=gt=` or `>`, `=ge=` or `>=`,
    ///   `=lt=` or `<`, `=le=` or `<=`, `=in=(a,b)` and `=out=(a,b)`;
    /// - conditions are joined by `;` or ` and `, then by `,` or ` or `; parentheses go first;
    /// - a value with one of `" ' ( ) ; , = ! ~ < >` or a blank needs single or double quotes, in which `\` takes its meaning from
    ///   what follows;
    /// - a `*` in a value of `==` or `!=` stands for any run of characters.
    ///
    /// Upper and lower case differ. Less and greater are as in a dictionary, which is how lists are sorted. A job without the text
    /// that is looked at (it has no name, or not that label, or the label has no value) is not meant, by `!=` and `=out=` neither.
    #[param(example = "labels.team==search;status=in=(Waiting,Active);name!='*test*'")]
    filter: Option<String>,
}

/// Apart from the rest because an unknown type means every status in a list, as it does in CAF.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct WhichStatus {
    /// `NotFinished` (Waiting, Active, Paused, Blocked), `NotCompleted` (those, Cancelled and Failed), `Completed`, `Inactive`
    /// (Completed, Cancelled, Failed). Anything else: jobs of every status.
    #[param(example = "NotFinished")]
    pub status_type: Option<String>,
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct WhichPage {
    /// How many jobs to show; the page size of the service when it is left out or not above 0.
    #[param(value_type = Option<i64>, example = 25)]
    limit: Option<String>,
    /// How many jobs to leave out before.
    #[param(value_type = Option<i64>, example = 0)]
    offset: Option<String>,
    /// What to sort by, a colon, and `asc` or `desc`: `jobId`, `name`, `description`, `externalData`, `createTime`,
    /// `lastUpdateTime`, `status`, `percentageComplete` or `labels.KEY`. `createTime:desc` (newest first) when left out.
    ///
    /// A key may contain colons: the last one counts. Texts are sorted as in a dictionary (`a`, `A`, `ä`, `b`); jobs without the
    /// text come last, with `desc` first. What is equal is in order of creation.
    #[param(example = "createTime:desc")]
    sort: Option<String>,
}

impl WhichJobs {
    pub fn query(&self) -> ApiResult<JobQuery> {
        let id_prefix = self
            .job_id_starts_with
            .clone()
            .filter(|prefix| !prefix.is_empty());
        no_nul("jobIdStartsWith", id_prefix.as_deref())?;
        no_nul("labelExist", self.label_exist.as_deref())?;
        let labels = self
            .label_exist
            .as_deref()
            .unwrap_or_default()
            .split(',')
            .map(str::trim);
        let labels = labels
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        let filter = self
            .filter
            .as_deref()
            .filter(|text| !text.trim().is_empty())
            .map(filter::parse)
            .transpose();
        let filter = filter.map_err(|error| ApiError::bad_request(error.to_string()))?;
        Ok(JobQuery {
            id_prefix,
            labels,
            filter,
            ..JobQuery::default()
        })
    }
}

impl WhichStatus {
    /// Empty = any. CAF's table, with Blocked where Active is.
    pub fn statuses(&self) -> Vec<JobStatus> {
        use JobStatus::{Active, Blocked, Cancelled, Completed, Failed, Paused, Waiting};
        match self.status_type.as_deref() {
            Some("NotCompleted") => vec![Active, Blocked, Paused, Waiting, Cancelled, Failed],
            Some("Completed") => vec![Completed],
            Some("Inactive") => vec![Completed, Cancelled, Failed],
            Some("NotFinished") => vec![Active, Blocked, Paused, Waiting],
            _ => Vec::new(),
        }
    }
}

impl WhichPage {
    pub fn of(&self, query: JobQuery, page_size: u32) -> ApiResult<JobQuery> {
        let limit = whole_number::<i64>("limit", self.limit.as_deref())?.filter(|limit| *limit > 0);
        let offset = whole_number::<i64>("offset", self.offset.as_deref())?.unwrap_or(0);
        Ok(JobQuery {
            limit: limit.map_or(page_size, |limit| u32::try_from(limit).unwrap_or(u32::MAX)),
            offset: u64::try_from(offset).unwrap_or(0),
            sort: sort(self.sort.as_deref())?,
            ..query
        })
    }
}

/// Takes apart at the last colon. CAF does so at the first, and cannot sort by a label whose key has one.
fn sort(text: Option<&str>) -> ApiResult<Sort> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(Sort::default());
    };
    no_nul("sort", Some(text))?;
    let refused = |what: &str, value: &str| Err(ApiError::bad_request(format!("{what}: {value}")));
    let Some((field, direction)) = text.rsplit_once(':') else {
        return refused("Invalid format for sort", text);
    };
    let by = match (field, field.strip_prefix("labels.")) {
        (_, Some("")) => {
            return Err(ApiError::bad_request(
                "Invalid format for label sort specified",
            ));
        }
        (_, Some(key)) => SortBy::Label(key.to_owned()),
        ("jobId", _) => SortBy::Id,
        ("name", _) => SortBy::Name,
        ("description", _) => SortBy::Description,
        ("externalData", _) => SortBy::ExternalData,
        ("createTime", _) => SortBy::CreateTime,
        ("lastUpdateTime", _) => SortBy::LastUpdateTime,
        ("status", _) => SortBy::Status,
        ("percentageComplete", _) => SortBy::Percentage,
        // As CAF has it: with the direction.
        _ => return refused("Invalid value for sort field", text),
    };
    match direction {
        "asc" => Ok(Sort {
            by,
            ascending: true,
        }),
        "desc" => Ok(Sort {
            by,
            ascending: false,
        }),
        unknown => refused("Invalid value for sort direction", unknown),
    }
}

/// No text of a job contains it, and PostgreSQL takes none that does.
fn no_nul(name: &str, value: Option<&str>) -> ApiResult<()> {
    if value.is_some_and(|value| value.contains('\0')) {
        return Err(ApiError::bad_request(format!(
            "The parameter '{name}' contains the character U+0000."
        )));
    }
    Ok(())
}
