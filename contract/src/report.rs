//! Tracking reports: what a worker tells the tracking worker about tasks.

use serde::{Deserialize, Serialize};

use crate::TaskData;

/// The payload of a report message: reports of any number of tasks and jobs.
///
/// A strict Java tracker reads it, so it has exactly these fields.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrackingReportTask {
    pub tracking_reports: Vec<TrackingReport>,
}

impl TaskData for TrackingReportTask {
    const CLASSIFIER: &'static str = "TrackingReportTask";
    const API_VERSION: i32 = 1;
}

/// What happened to one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TrackingReport {
    pub job_task_id: String,
    pub status: ReportStatus,
    /// 0 to 100. Only a `Progress` report gives it a meaning.
    #[serde(default)]
    pub estimated_percentage_completed: i32,
    /// How often the task has been tried, in a `Retry` report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<i32>,
    /// What went wrong, in a `Failed` or `Retry` report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<ReportFailure>,
}

impl TrackingReport {
    pub fn new(job_task_id: impl Into<String>, status: ReportStatus) -> Self {
        Self {
            job_task_id: job_task_id.into(),
            status,
            estimated_percentage_completed: 0,
            retries: None,
            failure: None,
        }
    }

    pub fn failed(job_task_id: impl Into<String>, failure: ReportFailure) -> Self {
        Self {
            failure: Some(failure),
            ..Self::new(job_task_id, ReportStatus::Failed)
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ReportStatus {
    /// The task is under way.
    Progress,
    /// The task is done.
    Complete,
    /// The task has failed and is not tried again.
    Failed,
    /// The task has failed and will be tried again.
    Retry,
}

/// Why a task failed. Members that are not known are left out on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportFailure {
    /// The kind of failure: the name of a task status, or a word of the worker's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_id: Option<String>,
    /// Milliseconds since 1970, UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_time: Option<i64>,
    /// The worker in which it happened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_message: Option<String>,
}

/// The older way to tell the progress of a task: one event, not a list of reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobTrackingEvent {
    pub job_task_id: String,
    /// 0 to 100.
    #[serde(default)]
    pub estimated_percentage_completed: i32,
}

impl TaskData for JobTrackingEvent {
    const CLASSIFIER: &'static str = "JobTrackingWorker";
    const API_VERSION: i32 = 1;
}
