//! The list of the jobs of a partition.

use askama::Template;
use contract::JobStatus;
use contract::rest::Job;

use crate::job::Bar;
use crate::layout::{Layout, Live};
use crate::{filters, text, url};

/// The number of labels that a row shows.
const LABELS: usize = 4;
/// How often a list is read again that shows jobs at work, in seconds: their progress is no event.
const EVERY: u32 = 3;

/// The orders that the page offers; others can be written into the URL.
const ORDERS: [(&str, &str); 8] = [
    ("", "newest first"),
    ("createTime:asc", "oldest first"),
    ("lastUpdateTime:desc", "changed last"),
    ("jobId:asc", "id"),
    ("name:asc", "name"),
    ("status:asc", "status"),
    ("percentageComplete:desc", "most complete"),
    ("percentageComplete:asc", "least complete"),
];

/// The tabs of the list, beside that of all jobs.
const TABS: [JobStatus; 7] = [
    JobStatus::Active,
    JobStatus::Waiting,
    JobStatus::Paused,
    JobStatus::Blocked,
    JobStatus::Completed,
    JobStatus::Failed,
    JobStatus::Cancelled,
];

/// What a list is asked for: the parameters of its URL, as the viewer wrote them.
#[derive(Debug, Clone, Default)]
pub struct Asked {
    /// The status of the tab; empty for all.
    pub status: String,
    /// The RSQL filter.
    pub filter: String,
    /// The beginning of the ids.
    pub job_id_starts_with: String,
    /// The names of labels, of which a job has one.
    pub label_exist: String,
    /// The order.
    pub sort: String,
    /// The number of jobs on a page; empty for the default.
    pub limit: String,
}

impl Asked {
    fn query(&self, status: &str, offset: &str) -> String {
        url::query([
            ("status", status),
            ("filter", &self.filter),
            ("jobIdStartsWith", &self.job_id_starts_with),
            ("labelExist", &self.label_exist),
            ("sort", &self.sort),
            ("limit", &self.limit),
            ("offset", offset),
        ])
    }

    fn is_narrowed(&self) -> bool {
        [&self.filter, &self.job_id_starts_with, &self.label_exist]
            .iter()
            .any(|text| !text.is_empty())
    }
}

/// What a list shows.
#[derive(Debug, Default)]
pub struct Found {
    /// The jobs of the page.
    pub jobs: Vec<Job>,
    /// The number of jobs by status, whatever the tab.
    pub counts: Vec<(JobStatus, u64)>,
    /// Whether these numbers may be some seconds old.
    pub may_be_old: bool,
    /// The number of jobs before the page.
    pub offset: u64,
    /// The largest number of jobs on the page.
    pub limit: u64,
    /// What is wrong with the filter or another parameter.
    pub problem: Option<String>,
}

/// A list of jobs.
#[derive(Debug, Template)]
#[template(path = "list.html")]
pub struct ListPage<'a> {
    layout: Layout,
    partition: &'a str,
    asked: Asked,
    found: Found,
    /// The number of jobs on the tab.
    total: u64,
    /// The first partitions, to go to another one.
    partitions: Vec<String>,
    api: &'a str,
}

impl<'a> ListPage<'a> {
    /// The list of a partition. `partitions` are some to go to, `api` is the URL of the API for the
    /// example.
    pub fn new(
        partition: &'a str,
        asked: Asked,
        found: Found,
        partitions: Vec<String>,
        done: Option<String>,
        api: &'a str,
    ) -> Self {
        Self {
            layout: Layout {
                live: Live::EventsAndEvery(url::live_jobs(partition), EVERY),
                done,
                ..Layout::of_jobs(format!("Jobs in {partition}"), partition)
            },
            total: found.count(JobStatus::from_name(&asked.status)),
            partition,
            asked,
            found,
            partitions,
            api,
        }
    }

    fn has_others(&self) -> bool {
        self.partitions.iter().any(|name| name != self.partition)
    }

    fn path(&self) -> String {
        url::jobs(self.partition)
    }

    /// Returns the names of the tabs with their numbers: the status, or nothing for all jobs.
    fn tabs(&self) -> Vec<(&'static str, u64)> {
        let all = ("", self.found.count(None));
        let counted = TABS.map(|status| (status.name(), self.found.count(Some(status))));
        // Jobs are rarely Blocked.
        let is_shown = |(name, count): &(&str, u64)| {
            *name != JobStatus::Blocked.name() || self.is_current(name) || *count > 0
        };
        let counted = counted.into_iter().filter(is_shown);
        std::iter::once(all).chain(counted).collect()
    }

    /// Returns whether a tab is the current one; that of all jobs is if there is no such status.
    fn is_current(&self, tab: &str) -> bool {
        JobStatus::from_name(&self.asked.status).map_or("", JobStatus::name) == tab
    }

    /// Returns the URL of the first page of a tab.
    fn tab(&self, status: &str) -> String {
        format!("{}{}", self.path(), self.asked.query(status, ""))
    }

    /// Returns the URL of the page that begins after so many jobs.
    fn turn(&self, offset: u64) -> String {
        let offset = Some(offset.to_string()).filter(|_| offset > 0);
        let query = self
            .asked
            .query(&self.asked.status, &offset.unwrap_or_default());
        format!("{}{query}", self.path())
    }

    fn last(&self) -> u64 {
        self.found.offset + self.found.jobs.len() as u64
    }

    /// Returns whether the numbers of a job on the page may change without an event.
    fn shows_work(&self) -> bool {
        let works = |job: &Job| {
            let status = job.shown_status();
            !status.is_finished() && status != JobStatus::Waiting
        };
        self.found.jobs.iter().any(works)
    }

    /// The orders to choose from, with the current one even if it is none of ours.
    fn orders(&self) -> Vec<(&str, &str)> {
        let sort = self.asked.sort.as_str();
        let known = ORDERS.iter().any(|(order, _)| *order == sort);
        let further = (!known).then_some((sort, sort));
        ORDERS.into_iter().chain(further).collect()
    }
}

impl Found {
    /// Returns the number of jobs that are shown with a status, or of all.
    fn count(&self, status: Option<JobStatus>) -> u64 {
        let counted = self.counts.iter();
        let counted = counted.filter(|(counted, _)| status.is_none_or(|it| it == *counted));
        counted.map(|(_, count)| count).sum()
    }
}

/// Returns the first labels of a job as a row shows them, and how many more there are.
fn labels(job: &Job) -> (Vec<String>, String) {
    let label = |(key, value): (&String, &Option<String>)| match value {
        Some(value) => format!("{key}={value}"),
        None => key.clone(),
    };
    let more = match job.labels.len().saturating_sub(LABELS) {
        0 => String::new(),
        more if job.cut.iter().any(|field| field == "labels") => format!("at least {more}"),
        more => more.to_string(),
    };
    (job.labels.iter().map(label).take(LABELS).collect(), more)
}

/// Returns the number of items of a job, as a row shows them.
fn items(job: &Job) -> String {
    match job.items.total {
        Some(total) => {
            let plus = if job.items.total_is_final { "" } else { "+" };
            let (done, total) = (text::number(job.items.done), text::number(total));
            format!("{done} / {total}{plus}")
        }
        None if job.completed_items > 0 => text::number(job.completed_items),
        None => String::new(),
    }
}
