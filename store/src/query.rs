//! Queries: which jobs of a partition a client asks for, in which order, and which page of them.
//! Pure.
//!
//! What must stay true: the order is total, so that pages neither overlap nor leave out a job: jobs
//! with equal sort keys are in order of creation. Descending order is the exact reverse of
//! ascending order.

pub(crate) mod collation;
pub(crate) mod filter;

use contract::JobStatus;

use crate::job_row::JobPlace;
use filter::{Candidate, Filter};

/// Selects jobs of a partition, their order, and a page of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobQuery {
    /// Only jobs whose id begins with this text. Case matters, and no character is special.
    pub id_prefix: Option<String>,
    /// Only jobs with one of these statuses, as they are stored; with any status if empty.
    pub statuses: Vec<JobStatus>,
    /// Only jobs with one of these labels, whatever its value; all jobs if empty.
    pub labels: Vec<String>,
    /// Only jobs that this filter accepts.
    pub filter: Option<Filter>,
    /// The order of the jobs.
    pub sort: Sort,
    /// The largest number of jobs to return.
    pub limit: u32,
    /// The number of jobs to skip.
    pub offset: u64,
    /// Only jobs that were created after this one, in whatever order they are returned.
    pub after: Option<JobPlace>,
}

impl JobQuery {
    /// Returns the query that selects only those of its jobs that can begin another round.
    #[must_use]
    pub fn that_can_go_on(self) -> Self {
        let conditions = self.filter.into_iter().chain([Filter::CanGoOn]);
        Self {
            filter: Some(Filter::All(conditions.collect())),
            ..self
        }
    }

    /// Returns the query that selects only jobs that people are shown with this status.
    #[must_use]
    pub fn shown_as(self, status: JobStatus) -> Self {
        let (stored, blocked) = match status {
            JobStatus::Blocked => (JobStatus::Active, Some(true)),
            JobStatus::Active => (JobStatus::Active, Some(false)),
            other => (other, None),
        };
        let blocked = blocked.map(Filter::ShownAsBlocked);
        let conditions: Vec<Filter> = self.filter.into_iter().chain(blocked).collect();
        Self {
            statuses: vec![stored],
            filter: (!conditions.is_empty()).then_some(Filter::All(conditions)),
            ..self
        }
    }

    /// Returns whether the query is made by [`that_can_go_on`](Self::that_can_go_on).
    pub(crate) fn wants_those_that_can_go_on(&self) -> bool {
        matches!(&self.filter, Some(Filter::All(conditions)) if conditions.contains(&Filter::CanGoOn))
    }

    /// Returns whether the query selects this job. Its limit and offset are ignored.
    pub(crate) fn selects(&self, candidate: &Candidate) -> bool {
        let Candidate { job, labels, .. } = candidate;
        let prefix = self.id_prefix.as_deref().unwrap_or_default();
        let mut filter = self.filter.iter();
        job.job.as_str().starts_with(prefix)
            && self.after.is_none_or(|after| job.place() > after)
            && (self.statuses.is_empty() || self.statuses.contains(&job.status))
            && (self.labels.is_empty() || self.labels.iter().any(|it| labels.contains_key(it)))
            && filter.all(|filter| filter.accepts(candidate))
    }
}

/// The order of jobs. By default the newest job comes first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sort {
    /// The sort key.
    pub by: SortBy,
    /// Whether the order is ascending, with the jobs without a sort key last. Descending order is
    /// the exact reverse.
    pub ascending: bool,
}

/// The sort key of jobs. Texts are in dictionary order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SortBy {
    /// The time of creation.
    #[default]
    CreateTime,
    /// The time of the last change.
    LastUpdateTime,
    /// The job id.
    Id,
    /// The display name.
    Name,
    /// The description.
    Description,
    /// The external data.
    ExternalData,
    /// The name of the status.
    Status,
    /// The published percentage.
    Percentage,
    /// The value of the label with this name.
    Label(String),
}
