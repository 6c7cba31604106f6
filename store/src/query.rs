//! Which jobs of a partition, in which order, and which page of them.
//!
//! What must stay true: the order is total (jobs that are equal by what they are sorted by are in order of creation), so that
//! pages neither overlap nor leave out a job; descending is ascending backwards.

pub(crate) mod collation;
pub(crate) mod filter;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use contract::JobStatus;

use crate::job_row::JobRow;
use filter::{Filter, Subject, TextField};

/// Which jobs of a partition, in which order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobQuery {
    /// A literal, case-sensitive prefix of the job id.
    pub id_prefix: Option<String>,
    /// Jobs with one of these statuses; empty = any.
    pub statuses: Vec<JobStatus>,
    /// Jobs with one of these labels, whatever its value; empty = any job.
    pub labels: Vec<String>,
    pub filter: Option<Filter>,
    pub sort: Sort,
    pub limit: u32,
    pub offset: u64,
}

/// In which order; newest first when nothing is said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sort {
    pub by: SortBy,
    /// Otherwise backwards, with the jobs first that have nothing to be sorted by.
    pub ascending: bool,
}

/// What jobs are sorted by. Texts are in the order of a dictionary.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SortBy {
    #[default]
    CreateTime,
    LastUpdateTime,
    Id,
    Name,
    Description,
    ExternalData,
    /// By its name.
    Status,
    Percentage,
    /// The value of the label with this name.
    Label(String),
}

/// A job with what a query may ask of it.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub job: JobRow,
    pub labels: BTreeMap<String, Option<String>>,
}

impl Subject for Candidate {
    fn status(&self) -> JobStatus {
        self.job.status
    }
    fn percentage(&self) -> i32 {
        self.job.totals.percentage
    }
    fn text(&self, field: &TextField) -> Option<&str> {
        match field {
            TextField::Id => Some(self.job.job.as_str()),
            TextField::Name => self.job.name.as_deref(),
            TextField::Label(name) => self.labels.get(name)?.as_deref(),
        }
    }
}

impl Candidate {
    pub fn is_meant_by(&self, query: &JobQuery) -> bool {
        let prefix = query.id_prefix.as_deref().unwrap_or_default();
        self.job.job.as_str().starts_with(prefix)
            && (query.statuses.is_empty() || query.statuses.contains(&self.job.status))
            && (query.labels.is_empty()
                || query
                    .labels
                    .iter()
                    .any(|name| self.labels.contains_key(name)))
            && query
                .filter
                .as_ref()
                .is_none_or(|filter| filter.accepts(self))
    }

    pub fn compare(&self, other: &Self, sort: &Sort) -> Ordering {
        let (a, b) = (&self.job, &other.job);
        let by = match &sort.by {
            SortBy::CreateTime => Ordering::Equal,
            SortBy::LastUpdateTime => a.last_update_time.cmp(&b.last_update_time),
            SortBy::Id => collation::compare(a.job.as_str(), b.job.as_str()),
            SortBy::Name => texts(a.name.as_deref(), b.name.as_deref()),
            SortBy::Description => texts(a.description.as_deref(), b.description.as_deref()),
            SortBy::ExternalData => texts(a.external_data.as_deref(), b.external_data.as_deref()),
            SortBy::Status => a.status.name().cmp(b.status.name()),
            SortBy::Percentage => a.totals.percentage.cmp(&b.totals.percentage),
            SortBy::Label(name) => {
                let value = |of: &'_ Self| of.labels.get(name).cloned().flatten();
                texts(value(self).as_deref(), value(other).as_deref())
            }
        };
        let ordering =
            by.then_with(|| (a.create_time, a.incarnation).cmp(&(b.create_time, b.incarnation)));
        if sort.ascending {
            ordering
        } else {
            ordering.reverse()
        }
    }
}

fn texts(a: Option<&str>, b: Option<&str>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => collation::compare(a, b),
        // What is not there comes last.
        (a, b) => a.is_none().cmp(&b.is_none()),
    }
}
