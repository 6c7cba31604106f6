//! Builds the start message, the task message for the first worker of a job. Pure.
//!
//! What must stay true: `to` is the task pipe, tracking ends at the target pipe, and the status URL
//! contains the incarnation, so that every worker discards the messages of past incarnations of the
//! job id, and its key, by which the worker may ask about it. From round 2 on it also contains the
//! round, so that they discard the messages of past rounds, and tracking goes to a pipe of its own,
//! which tracking workers that know no rounds leave alone. A job keeps its tracking shard, as long
//! as there is one.

use std::collections::BTreeMap;

use contract::{TaskMessage, TaskStatus, Tracking};
use store::Incarnation;
use uuid::Uuid;

use crate::jobs::new_job::first_task::FirstTask;
use crate::jobs::status_url::status_url;
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
        task_classifier: Some(task.classifier.into()),
        task_api_version: task.api_version,
        task_data: Some(task.data),
        task_status: Some(TaskStatus::NewTask),
        context: BTreeMap::new(),
        to: Some(task.pipe.into()),
        tracking: Some(Tracking {
            job_task_id: Some(incarnation.job_task_id()),
            last_status_check_time: Some(context.now),
            status_check_interval_millis: i64::try_from(options.status_check_interval.as_millis())
                .unwrap_or(i64::MAX),
            status_check_url: Some(status_url(&options.webservice_url, incarnation).into()),
            tracking_pipe: Some(options.tracking_pipe_of(incarnation).into()),
            track_to: task.target_pipe.map(Into::into),
        }),
        source_info: None,
        priority: None,
        correlation_id: Some(context.correlation_id.into()),
    }
}

/// Returns the start message of another round of a job, made of that of its first round.
///
/// # Errors
/// Returns an error if the stored message cannot be parsed.
pub fn next_start_message(
    first: &[u8],
    incarnation: &Incarnation,
    (task_id, now): (Uuid, i64),
    options: &ServiceOptions,
) -> Result<Vec<u8>, String> {
    let message = TaskMessage::decode(first).map_err(|error| error.to_string())?;
    let tracking = message.tracking.unwrap_or_default();
    let earlier = tracking.tracking_pipe.as_deref();
    let message = TaskMessage {
        // A worker may still run the task of an earlier round.
        task_id: task_id.to_string(),
        tracking: Some(Tracking {
            job_task_id: Some(incarnation.job_task_id()),
            last_status_check_time: Some(now),
            status_check_url: Some(status_url(&options.webservice_url, incarnation).into()),
            tracking_pipe: earlier.map(|pipe| {
                let again =
                    options.tracking_pipe_again(pipe, incarnation.number, incarnation.round);
                again.into()
            }),
            ..tracking
        }),
        ..message
    };
    Ok(message.encode())
}

#[cfg(test)]
mod tests {
    use contract::{JobId, LifeKey, PartitionId, TrackingShards};

    use super::*;

    fn incarnation(job: &str, number: i64, first: bool) -> Incarnation {
        Incarnation {
            partition: PartitionId::parse("acme").unwrap(),
            job: JobId::parse(job).unwrap(),
            number,
            first,
            round: 1,
            key: Some(LifeKey::from("00f1")),
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
                r#""statusCheckUrl":"http://job-service:8080/job-service/v1/partitions/acme/jobs/reindex-7/status?n=42&k=00f1","#,
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
    fn another_round_differs_in_its_ids_its_tracking_pipe_and_the_status_url_alone() {
        let first = start(&incarnation("j", 42, true), Some("orders-out"));
        let second = Incarnation {
            round: 2,
            ..incarnation("j", 42, true)
        };
        let options = ServiceOptions {
            webservice_url: "http://job-service:8080/job-service/v1/".into(),
            ..ServiceOptions::default()
        };
        let ids = (Uuid::max(), 1_767_225_700_000);
        let next = next_start_message(first.as_bytes(), &second, ids, &options).unwrap();
        let expected = first
            .replace(&Uuid::nil().to_string(), &Uuid::max().to_string())
            .replace("1767225600000", "1767225700000")
            .replace(r#""acme:j""#, r#""acme:j!42r2""#)
            .replace("worker-jobtracking-in", "worker-jobtracking-in.rounds")
            .replace("status?n=42&k=", "status?n=42&r=2&k=");
        assert_eq!(String::from_utf8(next).unwrap(), expected);
        assert!(next_start_message(b"{", &second, ids, &options).is_err());
    }

    #[test]
    fn job_is_tracked_in_one_shard_in_all_rounds_and_in_another_if_that_is_gone() {
        let options = |shards| ServiceOptions {
            tracking_shards: TrackingShards::new(shards).unwrap(),
            ..ServiceOptions::default()
        };
        let task = FirstTask {
            classifier: "C".into(),
            api_version: 1,
            data: Vec::new(),
            pipe: "in".into(),
            target_pipe: None,
        };
        let context = RequestContext {
            task_id: Uuid::nil(),
            now: 1,
            correlation_id: String::new(),
        };
        let pipe = |message: TaskMessage| message.tracking.unwrap().tracking_pipe.unwrap();
        let job = incarnation("j", 47, true);
        let first = start_message(task, &job, context, &options(4));
        let again = |shards, round| {
            let job = Incarnation {
                round,
                ..job.clone()
            };
            let next =
                next_start_message(&first.encode(), &job, (Uuid::max(), 2), &options(shards));
            pipe(TaskMessage::decode(&next.unwrap()).unwrap())
        };
        assert_eq!(pipe(first.clone()), "worker-jobtracking-in-3");
        assert_eq!(again(4, 2), "worker-jobtracking-in-3.rounds");
        assert_eq!(again(9, 3), "worker-jobtracking-in-3.rounds");
        assert_eq!(again(3, 2), "worker-jobtracking-in-2.rounds");
        assert_eq!(again(1, 2), "worker-jobtracking-in.rounds");
    }

    #[test]
    fn without_a_target_pipe_track_to_is_null() {
        assert!(start(&incarnation("j", 1, true), None).contains(r#""trackTo":null"#));
    }

    #[test]
    fn job_of_before_there_were_keys_has_none_in_its_status_url() {
        let job = Incarnation {
            key: None,
            ..incarnation("j", 1, true)
        };
        assert!(start(&job, None).contains("/jobs/j/status?n=1\""));
    }

    #[test]
    fn ids_are_percent_encoded_in_the_status_url() {
        assert!(
            start(&incarnation("a/b ü%#&=", 1, true), None)
                .contains("/jobs/a%2Fb%20%C3%BC%25%23%26%3D/status?n=1")
        );
    }
}
