//! Tracking reports, by which workers inform the tracking worker about tasks. The format is CAF's.

use serde::{Deserialize, Serialize};

use crate::TaskData;

/// The payload of a report message: reports about any number of tasks, of any number of jobs.
///
/// It has exactly these fields, because CAF's tracking worker rejects unknown ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrackingReportTask {
    /// The reports, in the order of the events.
    pub tracking_reports: Vec<TrackingReport>,
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
    /// In a `Progress` report of 0 %, as an addition of ours: how often the task was attempted before the attempt that has
    /// been running for a while. CAF's tracking worker ignores such a report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<i32>,
    /// In a `Failed` or `Retry` report: why the attempt failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ReportFailure>,
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
    /// The kind of failure: the name of a [`TaskStatus`](crate::TaskStatus), e.g. `RESULT_EXCEPTION`, or a word that the
    /// worker defines.
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
