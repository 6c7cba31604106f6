//! Builds the start message, the task message for the first worker of a job. Pure.
//!
//! What must stay true: `to` is the task pipe, tracking ends at the target pipe, and the status URL contains the incarnation, so
//! that every worker discards the messages of past incarnations of the job id.

use std::collections::BTreeMap;

use contract::{TaskMessage, TaskStatus, Tracking};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use store::Incarnation;
use uuid::Uuid;

use super::first_task::FirstTask;
use crate::options::ServiceOptions;

/// The values of a start message that differ from request to request.
#[derive(Debug, Clone)]
pub struct RequestContext {
    /// The id of the task message.
    pub task_id: Uuid,
    /// The time of the request, in milliseconds since 1970.
    pub now: i64,
    pub correlation_id: String,
}

/// Returns the start message of an incarnation of a job.
pub fn start_message(
    task: FirstTask,
    incarnation: &Incarnation,
    context: RequestContext,
    options: &ServiceOptions,
) -> TaskMessage {
    TaskMessage {
        version: 3,
        task_id: context.task_id.to_string(),
        task_classifier: Some(task.classifier),
        task_api_version: task.api_version,
        task_data: Some(task.data),
        task_status: Some(TaskStatus::NewTask),
        context: BTreeMap::new(),
        to: Some(task.pipe),
        tracking: Some(Tracking {
            job_task_id: Some(incarnation.job_task_id()),
            last_status_check_time: Some(context.now),
            status_check_interval_millis: i64::try_from(options.status_check_interval.as_millis())
                .unwrap_or(i64::MAX),
            status_check_url: Some(status_url(&options.webservice_url, incarnation)),
            tracking_pipe: Some(options.tracking_pipe.clone()),
            track_to: task.target_pipe,
        }),
        source_info: None,
        priority: None,
        correlation_id: Some(context.correlation_id),
    }
}

/// Returns the URL at which workers check the status of the job.
fn status_url(webservice_url: &str, incarnation: &Incarnation) -> String {
    /// Every character except those that never need encoding in a URL.
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
    let base = webservice_url.trim_end_matches('/');
    let partition = utf8_percent_encode(incarnation.partition.as_str(), ENCODED);
    let job = utf8_percent_encode(incarnation.job.as_str(), ENCODED);
    format!(
        "{base}/partitions/{partition}/jobs/{job}/status?n={}",
        incarnation.number
    )
}

#[cfg(test)]
mod tests {
    use contract::{JobId, PartitionId};

    use super::*;

    fn incarnation(job: &str, number: i64, first: bool) -> Incarnation {
        Incarnation {
            partition: PartitionId::parse("acme").unwrap(),
            job: JobId::parse(job).unwrap(),
            number,
            first,
        }
    }

    fn start(incarnation: &Incarnation, target_pipe: Option<&str>) -> String {
        let task = FirstTask {
            classifier: "BatchWorker".into(),
            api_version: 1,
            data: b"{}".to_vec(),
            pipe: "batch-in".into(),
            target_pipe: target_pipe.map(str::to_owned),
        };
        let context = RequestContext {
            task_id: Uuid::nil(),
            now: 1_767_225_600_000,
            correlation_id: "corr-42".into(),
        };
        let options = ServiceOptions {
            webservice_url: "http://job-service:8080/job-service/v1/".into(),
            ..ServiceOptions::default()
        };
        String::from_utf8(start_message(task, incarnation, context, &options).encode()).unwrap()
    }

    #[test]
    fn a_start_message_is_cafs_with_the_incarnation_in_the_status_url() {
        assert_eq!(
            start(&incarnation("reindex-7", 42, true), Some("orders-out")),
            concat!(
                r#"{"version":3,"taskId":"00000000-0000-0000-0000-000000000000","taskClassifier":"BatchWorker","taskApiVersion":1,"#,
                r#""taskData":"e30=","taskStatus":"NEW_TASK","context":{},"to":"batch-in","tracking":{"jobTaskId":"acme:reindex-7","#,
                r#""lastStatusCheckTime":1767225600000,"statusCheckIntervalMillis":10000,"#,
                r#""statusCheckUrl":"http://job-service:8080/job-service/v1/partitions/acme/jobs/reindex-7/status?n=42","#,
                r#""trackingPipe":"worker-jobtracking-in","trackTo":"orders-out"},"#,
                r#""sourceInfo":null,"priority":null,"correlationId":"corr-42"}"#
            )
        );
    }

    #[test]
    fn from_the_second_incarnation_on_the_job_task_id_contains_its_number() {
        assert!(start(&incarnation("j", 43, false), None).contains(r#""jobTaskId":"acme:j!43""#));
    }

    #[test]
    fn without_a_target_pipe_track_to_is_null() {
        assert!(start(&incarnation("j", 1, true), None).contains(r#""trackTo":null"#));
    }

    #[test]
    fn ids_are_percent_encoded_in_the_status_url() {
        assert!(
            start(&incarnation("a/b ü%#&=", 1, true), None)
                .contains("/jobs/a%2Fb%20%C3%BC%25%23%26%3D/status?n=1")
        );
    }
}
