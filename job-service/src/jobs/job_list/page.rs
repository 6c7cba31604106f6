//! The parameters that sort a list and cut a page out of it.

use contract::rest::ErrorCode;
use serde::Deserialize;
use store::{Detail, JobQuery, Sort, SortBy};
use utoipa::IntoParams;

use crate::http::{ApiError, ApiResult, reject_nul, truth, whole_number};

/// The parameters of a page.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct Page {
    /// The maximum number of jobs to return. If absent, 0 or negative, the service's page size (25
    /// by default) applies. A page that has more jobs than the service allows (10000 by default) is
    /// refused.
    #[param(value_type = Option<i64>, example = 25)]
    limit: Option<String>,
    /// The number of jobs to skip.
    #[param(value_type = Option<i64>, example = 0)]
    offset: Option<String>,
    /// The sort order: a field, a colon, and `asc` or `desc`. Default: `createTime:desc` (newest
    /// first).
    ///
    /// Fields: `jobId`, `name`, `description`, `externalData`, `createTime`, `lastUpdateTime`,
    /// `status`, `percentageComplete` and `labels.KEY`. A label key may contain colons; the last
    /// colon separates the direction.
    ///
    /// Text sorts in dictionary order (`a`, `A`, `ä`, `b`). Jobs without the text come last with
    /// `asc` and first with `desc`. Jobs that compare equal are sorted by creation.
    #[param(example = "createTime:desc")]
    sort: Option<String>,
    /// `true` shows of each job only the first 200 characters of `description` and `externalData`,
    /// the first 3 failures, and the first 20 `labels` and jobs that it waits for. Its field `cut`
    /// names those that are not whole.
    #[param(value_type = Option<bool>, example = false)]
    brief: Option<String>,
}

/// The names of the parameters of a [`Page`].
pub const PAGE: [&str; 4] = ["limit", "offset", "sort", "brief"];

impl Page {
    /// Adds the page and the sort order to a query. `page_size` is the limit if the request sets
    /// none. The query returns at most one job more than `most`, which shows that the page is too
    /// large ([`check`]).
    pub fn apply_to(&self, query: JobQuery, page_size: u32, most: u32) -> ApiResult<JobQuery> {
        let limit = whole_number::<i64>("limit", self.limit.as_deref())?.filter(|limit| *limit > 0);
        let offset = whole_number::<i64>("offset", self.offset.as_deref())?.unwrap_or(0);
        Ok(JobQuery {
            limit: limit.map_or(page_size, |limit| {
                let limit = u32::try_from(limit).unwrap_or(u32::MAX);
                limit.min(most.saturating_add(1))
            }),
            offset: u64::try_from(offset).unwrap_or(0),
            sort: parse_sort(self.sort.as_deref())?,
            ..query
        })
    }

    /// Returns how much of each job is shown.
    pub fn detail(&self) -> ApiResult<Detail> {
        let is_brief = truth("brief", self.brief.as_deref())?;
        Ok(if is_brief {
            Detail::Brief
        } else {
            Detail::Whole
        })
    }
}

/// Refuses a page of more than `most` jobs.
///
/// Clients ask for the largest number to get all jobs, so a large `limit` alone is no error. A page
/// that is cut without a word would be: its client would believe that it has them all.
pub fn check(jobs: usize, most: u32) -> ApiResult<()> {
    if jobs > most as usize {
        return Err(ApiError::bad_request(
            ErrorCode::PageTooLarge,
            format!(
                "The page has more than {most} jobs. Ask for a smaller 'limit', and for the next page with 'offset'. The setting is \
             --max-page-size (BATCHWRIGHT_MAX_PAGE_SIZE)."
            ),
        ));
    }
    Ok(())
}

/// Splits at the last colon. CAF splits at the first one, so it cannot sort by a label whose key
/// contains a colon.
fn parse_sort(text: Option<&str>) -> ApiResult<Sort> {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return Ok(Sort::default());
    };
    reject_nul("sort", Some(text))?;
    let refused = |what: &str, value: &str| {
        Err(ApiError::bad_request(
            ErrorCode::InvalidParameter,
            format!("{what}: {value}"),
        ))
    };
    let Some((field, direction)) = text.rsplit_once(':') else {
        return refused("Invalid format for sort", text);
    };
    let by = match (field, field.strip_prefix("labels.")) {
        (_, Some("")) => {
            return Err(ApiError::bad_request(
                ErrorCode::InvalidParameter,
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
        // CAF's message quotes the whole parameter, including the direction.
        _ => return refused("Invalid value for sort field", text),
    };
    let ascending = match direction {
        "asc" => true,
        "desc" => false,
        unknown => return refused("Invalid value for sort direction", unknown),
    };
    Ok(Sort { by, ascending })
}
