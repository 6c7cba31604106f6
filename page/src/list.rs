//! The list of the jobs of a partition.

use askama::Template;
use contract::JobStatus;
use contract::rest::Job;

use crate::job::Bar;
use crate::layout::{Layout, Live, Place};
use crate::partitions::example;
use crate::text::{self, Time};
use crate::url;

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

/// A list of jobs.
#[derive(Debug, Template)]
#[template(path = "list.html")]
pub struct ListPage {
    layout: Layout,
    asked: Asked,
    partition: String,
    others: Vec<(String, String)>,
    tabs: Vec<Tab>,
    rows: Vec<Row>,
    /// The numbers of the tabs may be some seconds old.
    may_be_old: bool,
    total: u64,
    first: u64,
    last: u64,
    previous: Option<String>,
    next: Option<String>,
    problem: Option<String>,
    example: String,
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

/// A tab of the list.
#[derive(Debug, Clone)]
pub struct Tab {
    name: &'static str,
    class: String,
    url: String,
    count: String,
    is_current: bool,
}

/// A job in the list.
#[derive(Debug, Clone)]
pub struct Row {
    id: String,
    url: String,
    name: String,
    labels: Vec<String>,
    more_labels: String,
    status: JobStatus,
    bar: Bar,
    items: String,
    failed: String,
    pace: String,
    created: Time,
}

impl ListPage {
    /// The list of a partition. `partitions` are some others to go to, `api` is the URL of the API
    /// for the example.
    pub fn new(
        partition: &str,
        asked: Asked,
        found: Found,
        partitions: Vec<String>,
        done: Option<String>,
        api: &str,
    ) -> Self {
        let Found {
            jobs,
            counts,
            may_be_old,
            offset,
            limit,
            problem,
        } = found;
        let current = JobStatus::from_name(&asked.status);
        let of = |status: Option<JobStatus>| -> u64 {
            let counted = counts
                .iter()
                .filter(|(counted, _)| status.is_none_or(|status| status == *counted));
            counted.map(|(_, count)| count).sum()
        };
        let path = url::jobs(partition);
        let total = of(current);
        let shown = jobs.len() as u64;
        let turn = |offset: u64| {
            let offset = if offset == 0 {
                String::new()
            } else {
                offset.to_string()
            };
            format!("{path}{}", asked.query(&asked.status, &offset))
        };
        let statuses = [
            JobStatus::Active,
            JobStatus::Waiting,
            JobStatus::Paused,
            JobStatus::Blocked,
            JobStatus::Completed,
            JobStatus::Failed,
            JobStatus::Cancelled,
        ];
        let tab = |status: Option<JobStatus>| {
            let name = status.map_or("All", JobStatus::name);
            Tab {
                name,
                class: status.map_or_else(String::new, |_| name.to_lowercase()),
                url: format!(
                    "{path}{}",
                    asked.query(status.map_or("", JobStatus::name), "")
                ),
                count: text::number(i64::try_from(of(status)).unwrap_or(i64::MAX)),
                is_current: status == current,
            }
        };
        // Jobs are rarely Blocked.
        let is_shown = |status: &JobStatus| {
            *status != JobStatus::Blocked || current == Some(*status) || of(Some(*status)) > 0
        };
        let tabs = std::iter::once(None)
            .chain(statuses.into_iter().filter(is_shown).map(Some))
            .map(tab)
            .collect();
        let other = |name: String| (url::jobs(&name), name);
        Self {
            layout: Layout {
                title: format!("Jobs in {partition}"),
                place: Place::Jobs,
                partition: Some(partition.to_owned()),
                live: Live::EventsAndEvery(url::live_jobs(partition), EVERY),
                done,
                ..Layout::default()
            },
            others: partitions
                .into_iter()
                .filter(|name| name != partition)
                .map(other)
                .collect(),
            tabs,
            may_be_old,
            rows: jobs
                .into_iter()
                .map(|job| Row::of(partition, job))
                .collect(),
            total,
            first: offset + 1,
            last: offset + shown,
            previous: (offset > 0).then(|| turn(offset.saturating_sub(limit))),
            next: (offset + shown < total && shown > 0).then(|| turn(offset + shown)),
            problem,
            example: example(api),
            partition: partition.to_owned(),
            asked,
        }
    }

    fn path(&self) -> String {
        url::jobs(&self.partition)
    }

    fn sources(&self) -> String {
        url::sources(&self.partition)
    }

    /// Returns whether the numbers of a job on the page may change without an event.
    fn shows_work(&self) -> bool {
        let works = |row: &Row| !row.status.is_finished() && row.status != JobStatus::Waiting;
        self.rows.iter().any(works)
    }

    fn first_page(&self) -> String {
        format!(
            "{}{}",
            self.path(),
            self.asked.query(&self.asked.status, "")
        )
    }

    fn bulk_url(&self) -> String {
        format!("/partitions/{}/bulk", url::encode(&self.partition))
    }

    fn total_text(&self) -> String {
        text::number(i64::try_from(self.total).unwrap_or(i64::MAX))
    }

    /// The orders to choose from, with the current one even if it is none of ours.
    fn orders(&self) -> Vec<(&str, &str, bool)> {
        let sort = self.asked.sort.as_str();
        let known = ORDERS.iter().any(|(order, _)| *order == sort);
        let ours = ORDERS
            .iter()
            .map(|(order, name)| (*order, *name, *order == sort));
        let further = (!known).then_some((sort, sort, true));
        ours.chain(further).collect()
    }
}

impl Row {
    fn of(partition: &str, job: Job) -> Self {
        let labels: Vec<String> = job
            .labels
            .iter()
            .map(|(key, value)| {
                value
                    .as_ref()
                    .map_or_else(|| key.clone(), |value| format!("{key}={value}"))
            })
            .collect();
        let items = match job.items.total {
            Some(total) => format!(
                "{} / {}{}",
                text::number(job.items.done),
                text::number(total),
                if job.items.total_is_final { "" } else { "+" }
            ),
            None if job.completed_items > 0 => text::number(job.completed_items),
            None => String::new(),
        };
        let active = job.status == JobStatus::Active;
        Self {
            url: url::job(partition, &job.id),
            bar: Bar::of(&job),
            items,
            failed: if job.failed_tasks > 0 {
                text::number(job.failed_tasks)
            } else {
                String::new()
            },
            pace: job
                .items_per_second
                .filter(|_| active)
                .map(|rate| format!("{}/s", text::rate(rate)))
                .unwrap_or_default(),
            more_labels: match labels.len().saturating_sub(LABELS) {
                0 => String::new(),
                more if job.cut.iter().any(|field| field == "labels") => format!("at least {more}"),
                more => more.to_string(),
            },
            labels: labels.into_iter().take(LABELS).collect(),
            status: job.shown_status(),
            name: job.name.unwrap_or_default(),
            created: Time(job.create_time),
            id: job.id,
        }
    }
}
