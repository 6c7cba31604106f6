//! Tracking reports, by which workers inform the tracking worker about tasks. The format is CAF's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::split::digest_if_known;
use crate::{BatchTask, SourceDigest, TaskData, without_secrets};

/// The payload of a report message: reports about any number of tasks, of any number of jobs.
///
/// It has exactly these fields, because CAF's tracking worker rejects unknown ones. A writer may
/// borrow the reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrackingReportTask<R = TrackingReport> {
    /// The reports, in the order of the events.
    pub tracking_reports: Vec<R>,
}

impl TaskData for TrackingReportTask {
    const CLASSIFIER: &'static str = "TrackingReportTask";
    const API_VERSION: i32 = 1;
}

/// A report about one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrackingReport {
    /// The task, in the format of a [`JobTaskId`](crate::JobTaskId).
    pub job_task_id: String,
    /// What happened to the task.
    pub status: ReportStatus,
    /// The progress, 0 to 100. Only used in a `Progress` report.
    #[serde(default)]
    pub estimated_percentage_completed: i32,
    /// In a `Retry` report: how often the task was attempted.
    ///
    /// In a `Progress` report of 0 %, as an addition of ours: how often the task was attempted
    /// before the attempt that has been running for a while. CAF's tracking worker ignores such a
    /// report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<i32>,
    /// In a `Failed` or `Retry` report: why the attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ReportFailure>,
    /// In a `Progress` report of a final task: what its splitter states. Travels in
    /// [`ReportDetails`].
    #[serde(skip)]
    pub announced: Option<Announced>,
    /// In a `Progress` report of a final task: the digest of what its split is made from. Travels
    /// in [`ReportDetails`].
    #[serde(skip)]
    pub digest: Option<SourceDigest>,
}

impl TrackingReport {
    /// Returns a report with a progress of 0, without retries and without a failure.
    pub fn new(job_task_id: impl Into<String>, status: ReportStatus) -> Self {
        Self {
            job_task_id: job_task_id.into(),
            status,
            estimated_percentage_completed: 0,
            retries: None,
            failure: None,
            announced: None,
            digest: None,
        }
    }

    /// Returns a `Failed` report.
    pub fn failed(job_task_id: impl Into<String>, failure: ReportFailure) -> Self {
        Self {
            failure: Some(failure),
            ..Self::new(job_task_id, ReportStatus::Failed)
        }
    }
}

/// What happened to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReportStatus {
    /// The task is running.
    Progress,
    /// The task is done.
    Complete,
    /// The task has failed and will not be attempted again.
    Failed,
    /// An attempt has failed; the task will be attempted again.
    Retry,
}

/// Why a task failed. Unknown fields are left out on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportFailure {
    /// The kind of failure: the name of a [`TaskStatus`](crate::TaskStatus), e.g.
    /// `RESULT_EXCEPTION`, or a word that the worker defines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_id: Option<String>,
    /// When the task failed, in milliseconds since 1970, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_time: Option<i64>,
    /// The name of the worker that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_source: Option<String>,
    /// A description of the failure for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
    /// Which item has failed. Travels in [`ReportDetails`].
    #[serde(skip)]
    pub item: Option<FailedItem>,
    /// Which attempt has failed, and where it ran. Travels in [`ReportDetails`].
    #[serde(skip)]
    pub run: Option<FailedRun>,
}

impl ReportFailure {
    /// Returns when the task is due for its next attempt, if one follows and not at once.
    pub fn next_attempt(&self) -> Option<i64> {
        self.run.as_ref().and_then(|run| run.next)
    }
}

/// Which attempt of a task has failed, when it began and where it ran. What the worker does not
/// know is left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedRun {
    /// The number of the attempt, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// When the attempt began, in milliseconds since 1970, UTC.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<i64>,
    /// The name of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The number of the process on its host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// When the task is due for its next attempt, in milliseconds since 1970, UTC. `None` if it
    /// begins at once, or none follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<i64>,
}

impl FailedRun {
    /// The longest name of a host, in bytes.
    pub const HOST_BYTES: usize = 255;

    /// Cuts what a message says to the bounds.
    #[must_use]
    pub fn bounded(self) -> Self {
        let host = self.host;
        Self {
            host: host.map(|host| cut(&host, Self::HOST_BYTES).to_owned()),
            ..self
        }
    }
}

/// Which item has failed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FailedItem {
    /// What the item is, in a few words; see [`TaskData::label`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// The beginning of its task data, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// Whether this is no item but stands for any number of them: a batch, or a task that has
    /// dispatched subtasks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub batch: bool,
}

impl FailedItem {
    /// The longest label, in bytes.
    pub const LABEL_BYTES: usize = 256;
    /// The longest input, in bytes.
    pub const INPUT_BYTES: usize = 1024;

    /// Describes an item by its label and its task data, each cut to its bound.
    pub fn new(label: Option<&str>, data: &[u8]) -> Self {
        // A character has at most four bytes, so that the cut is behind the last whole one.
        let beginning = &data[..data.len().min(Self::INPUT_BYTES + 4)];
        Self {
            label: label.map(|label| cut(label, Self::LABEL_BYTES).to_owned()),
            input: Some(cut(&String::from_utf8_lossy(beginning), Self::INPUT_BYTES).to_owned()),
            batch: false,
        }
    }

    /// Says whether the task that has failed is a batch, by the type of its data. A batch names its
    /// sources without their secrets.
    #[must_use]
    pub fn of_type(self, classifier: Option<&str>) -> Self {
        if classifier != Some(BatchTask::CLASSIFIER) {
            return Self {
                batch: false,
                ..self
            };
        }
        let shown = |text: String| without_secrets(&text).into_owned();
        Self {
            label: self.label.map(shown),
            input: self.input.map(shown),
            batch: true,
        }
    }

    /// Describes an item by its label alone, cut to its bound.
    pub fn labelled(label: &str) -> Self {
        Self {
            label: Some(cut(label, Self::LABEL_BYTES).to_owned()),
            ..Self::default()
        }
    }

    /// Cuts what a message says to the bounds.
    #[must_use]
    pub fn bounded(self) -> Self {
        let bounded = |text: Option<String>, bytes| text.map(|text| cut(&text, bytes).to_owned());
        Self {
            label: bounded(self.label, Self::LABEL_BYTES),
            input: bounded(self.input, Self::INPUT_BYTES),
            ..self
        }
    }
}

pub(crate) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// What a splitter states about the subtasks of its split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Announced {
    /// The number of subtasks that are sub-batches; the others are items.
    pub batches: u32,
    /// The number of items below the split in the end, if the splitter knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<u64>,
}

/// What reports say beyond CAF's fields, by the index of the report: a header of their message
/// ([`REPORT_DETAILS_HEADER`](crate::headers::REPORT_DETAILS_HEADER)), as JSON.
///
/// CAF's tracking worker rejects unknown fields of a report, and ignores headers. Readers ignore
/// what they do not know.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(transparent)]
pub struct ReportDetails(BTreeMap<usize, ReportDetail>);

#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReportDetail {
    item: Option<FailedItem>,
    run: Option<FailedRun>,
    announced: Option<Announced>,
    #[serde(deserialize_with = "digest_if_known")]
    digest: Option<SourceDigest>,
}

/// [`ReportDetail`] to write.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DetailOf<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<&'a FailedItem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a FailedRun>,
    #[serde(skip_serializing_if = "Option::is_none")]
    announced: Option<&'a Announced>,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<SourceDigest>,
}

impl<'a> DetailOf<'a> {
    fn of(report: &'a TrackingReport) -> Option<Self> {
        let failure = report.failure.as_ref();
        let item = failure.and_then(|it| it.item.as_ref());
        let run = failure.and_then(|it| it.run.as_ref());
        let (announced, digest) = (report.announced.as_ref(), report.digest);
        let any = item.is_some() || run.is_some() || announced.is_some() || digest.is_some();
        any.then_some(Self {
            item,
            run,
            announced,
            digest,
        })
    }
}

impl ReportDetails {
    /// How many bytes of details one message takes: what a frame of every broker has room for,
    /// beside other headers. The details of a single report are far below.
    pub const MAX_BYTES: usize = 32 * 1024;

    /// Collects the details of these reports. Returns the header, or `None` if there are none.
    pub fn of<'r>(reports: impl IntoIterator<Item = &'r TrackingReport>) -> Option<String> {
        let details: BTreeMap<usize, DetailOf<'_>> = reports
            .into_iter()
            .enumerate()
            .filter_map(|(index, report)| Some((index, DetailOf::of(report)?)))
            .collect();
        if details.is_empty() {
            return None;
        }
        serde_json::to_string(&details).ok()
    }

    /// Returns how many bytes the details of this report take in a header at most; 0 if it has
    /// none.
    pub fn bytes_of(report: &TrackingReport) -> usize {
        // The index of the report and its punctuation, and the braces of the header.
        const AROUND: usize = 16;
        DetailOf::of(report).map_or(0, |detail| {
            let mut counted = Counted(0);
            // Counting never fails.
            let _ = serde_json::to_writer(&mut counted, &detail);
            counted.0 + AROUND
        })
    }

    /// Adds the details in a header to the reports of its message. A header that cannot be parsed
    /// has none.
    pub fn add_to(header: &str, reports: &mut [TrackingReport]) {
        let Ok(details) = serde_json::from_str::<Self>(header) else {
            return;
        };
        for (index, detail) in details.0 {
            let Some(report) = reports.get_mut(index) else {
                continue;
            };
            let ReportDetail {
                item,
                run,
                announced,
                digest,
            } = detail;
            (report.announced, report.digest) = (announced, digest);
            if let Some(failure) = &mut report.failure {
                failure.item = item.map(FailedItem::bounded);
                failure.run = run.map(FailedRun::bounded);
            }
        }
    }
}

/// Counts what is written.
struct Counted(usize);

impl std::io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// CAF's older format for progress: a single event instead of a list of reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTrackingEvent {
    /// The task, in the format of a [`JobTaskId`](crate::JobTaskId).
    pub job_task_id: String,
    /// The progress, 0 to 100.
    #[serde(default)]
    pub estimated_percentage_completed: i32,
}

impl TaskData for JobTrackingEvent {
    const CLASSIFIER: &'static str = "JobTrackingWorker";
    const API_VERSION: i32 = 1;
}
