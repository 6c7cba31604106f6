//! The start message: what the first worker of a job is given. Pure.
//!
//! What must stay true: `to` is the task pipe, tracking ends at the target pipe, and the status URL carries the
//! incarnation, so that messages of a past life of the job id are discarded by every worker.

use std::collections::BTreeMap;

use contract::{TaskMessage, TaskStatus, Tracking};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use store::Incarnation;
use uuid::Uuid;

use super::first_task::FirstTask;
use crate::options::ServiceOptions;

/// What only the context of the request knows.
#[derive(Debug, Clone)]
pub struct RequestContext {
    pub task_id: Uuid,
    /// Milliseconds since 1970.
    pub now: i64,
    pub correlation_id: String,
}

pub fn start_message(
    task: FirstTask,
    life: &Incarnation,
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
            job_task_id: Some(life.job_task_id()),
            last_status_check_time: Some(context.now),
            status_check_interval_millis: i64::try_from(options.status_check_interval.as_millis())
                .unwrap_or(i64::MAX),
            status_check_url: Some(status_url(&options.webservice_url, life)),
            tracking_pipe: Some(options.tracking_pipe.clone()),
            track_to: task.target_pipe,
        }),
        source_info: None,
        priority: None,
        correlation_id: Some(context.correlation_id),
    }
}

fn status_url(webservice_url: &str, life: &Incarnation) -> String {
    /// All but the characters that no URL ever needs to encode.
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
    let base = webservice_url.trim_end_matches('/');
    let partition = utf8_percent_encode(life.partition.as_str(), ENCODED);
    let job = utf8_percent_encode(life.job.as_str(), ENCODED);
    format!(
        "{base}/partitions/{partition}/jobs/{job}/status?n={}",
        life.number
    )
}

#[cfg(test)]
mod tests {
    use contract::{JobId, PartitionId};

    use super::*;

    fn life(job: &str, incarnation: i64, first: bool) -> Incarnation {
        Incarnation {
            partition: PartitionId::parse("acme").unwrap(),
            job: JobId::parse(job).unwrap(),
            number: incarnation,
            first,
        }
    }

    fn start(life: &Incarnation, target_pipe: Option<&str>) -> String {
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
        String::from_utf8(start_message(task, life, context, &options).encode()).unwrap()
    }

    #[test]
    fn a_start_message_is_written_as_caf_writes_it_with_the_incarnation_in_the_status_url() {
        assert_eq!(
            start(&life("reindex-7", 42, true), Some("orders-out")),
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
    fn from_the_second_life_on_the_job_task_id_names_the_incarnation() {
        assert!(start(&life("j", 43, false), None).contains(r#""jobTaskId":"acme:j!43""#));
    }

    #[test]
    fn without_a_target_pipe_tracking_ends_nowhere_in_particular() {
        assert!(start(&life("j", 1, true), None).contains(r#""trackTo":null"#));
    }

    #[test]
    fn ids_are_encoded_in_the_status_url() {
        assert!(
            start(&life("a/b ü%#&=", 1, true), None)
                .contains("/jobs/a%2Fb%20%C3%BC%25%23%26%3D/status?n=1")
        );
    }
}
