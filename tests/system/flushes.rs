//! A flush of the tracking worker that its database refuses.

use std::sync::Arc;

use contract::{
    JobId, JobStatus, PartitionId, ReportFailure, ReportStatus, TaskMessage, TrackingReport,
    TrackingReportTask,
};
use framework::broker::memory::Memory;
use framework::broker::{Broker, HeaderValue, Outgoing};
use framework::handler::REASON_HEADER;
use framework::{Runtime, Settings};
use harness::{unique, wait_for};
use store::{Creation, JobRequest, Store};
use tokio_util::sync::CancellationToken;
use tracking_worker::TrackingWorker;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_flush_is_halved_until_the_bad_report_is_alone() {
    const ITEMS: u32 = 300;
    let database = harness::postgres().await.unwrap().url;
    let store = Store::open(&database).await.unwrap();
    let refuse = "alter table batchwright.failure add check (failure not like '%unstorable%')";
    harness::psql(&database, &[refuse]).await.unwrap();
    let partition = PartitionId::parse(&unique("p")).unwrap();
    let create = async |id: &str| {
        let job = JobId::parse(id).unwrap();
        let request = JobRequest::new(partition.clone(), job.clone());
        let created = store
            .create_job(&request, |_| ("start".to_owned(), Vec::new()))
            .await
            .unwrap();
        let Creation::Created(incarnation) = created else {
            panic!("{created:?}")
        };
        (job, incarnation.job_task_id())
    };
    let ((job, job_task_id), (_, other)) = (create("j").await, create("other").await);

    let broker = Memory::new();
    let message = |report: TrackingReport| {
        let task = TrackingReportTask {
            tracking_reports: vec![report],
        };
        Outgoing::new(
            "tracking-in",
            TaskMessage::new(unique("report"), "tracking-in", &task)
                .unwrap()
                .encode(),
        )
    };
    let complete =
        |step: String| TrackingReport::new(format!("{job_task_id}.{step}"), ReportStatus::Complete);
    let bad = ReportFailure {
        failure_message: Some("unstorable".to_owned()),
        ..ReportFailure::default()
    };
    let mut reports: Vec<_> = (1..=ITEMS).map(|item| complete(item.to_string())).collect();
    reports.insert(100, TrackingReport::failed(other.clone(), bad));
    reports.push(complete(format!("{}*", ITEMS + 1)));
    for report in reports {
        broker.publish(message(report)).await.unwrap();
    }

    let stop = CancellationToken::new();
    let runtime = Runtime::new(Settings::new("tracking"), Arc::new(broker.clone()))
        .handler(TrackingWorker::new(store.clone()));
    let watching = async {
        let state = wait_for("the job to end", async || {
            match store.job(&partition, &job).await.unwrap() {
                Some(state) if state.status.is_finished() => Ok(state),
                state => Err(format!("{state:?}")),
            }
        })
        .await;
        let seen = (state.status, state.completed_items, state.failed_tasks);
        assert_eq!(
            seen,
            (JobStatus::Completed, i64::from(ITEMS), 0),
            "{state:?}"
        );
        let delivery = broker
            .consume("tracking-invalid", 1)
            .await
            .unwrap()
            .next()
            .await
            .unwrap();
        let message = TaskMessage::decode(&delivery.body()).unwrap();
        let task: TrackingReportTask = serde_json::from_slice(&message.task_data.unwrap()).unwrap();
        assert_eq!(task.tracking_reports[0].job_task_id, other);
        let Some(HeaderValue::Text(reason)) = delivery.headers.get(REASON_HEADER) else {
            panic!("no reason: {delivery:?}")
        };
        assert!(reason.starts_with("the database refused: "), "{reason}");
        delivery.ack();
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(runtime.run_until(stop.clone()), watching);
    ended.unwrap();
    for pipe in ["tracking-in", "tracking-invalid"] {
        assert_eq!(broker.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
    store.close().await;
}
