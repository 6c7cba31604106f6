//! A flush of the tracking worker that its database refuses, or that meets a locked job.

use std::collections::BTreeMap;
use std::sync::Arc;

use contract::{
    JobId, JobStatus, PartitionId, RangeItem, ReportFailure, ReportStatus, TaskMessage, Tracking,
    TrackingReport, TrackingReportTask,
};
use framework::broker::memory::Memory;
use framework::broker::{Broker, HeaderValue, Outgoing};
use framework::config::Route;
use framework::handler::REASON_HEADER;
use framework::{Runtime, Settings};
use harness::{HeldLock, unique, wait_for};
use store::{Creation, JobRequest, Store};
use tokio_util::sync::CancellationToken;
use tracking_worker::TrackingWorker;

use crate::fixture::{Fixture, Servers};
use crate::workers::{Gate, gated};

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

/// Returns the statement that locks the row of a job.
fn row_of(job: &str) -> String {
    format!("select 1 from batchwright.job where job_id = '{job}' for update")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_and_messages_of_a_locked_job_come_again_and_hold_up_no_other() {
    const OTHERS: u32 = 40;
    let database = harness::postgres().await.unwrap().url;
    let store = Store::open(&database).await.unwrap();
    let partition = PartitionId::parse(&unique("p")).unwrap();
    let create = async |id: &str| {
        let request = JobRequest::new(partition.clone(), JobId::parse(id).unwrap());
        let created = store.create_job(&request, |_| ("start".to_owned(), Vec::new()));
        let Creation::Created(incarnation) = created.await.unwrap() else {
            panic!("{id} is there")
        };
        incarnation.job_task_id()
    };
    let broker = Memory::new();
    let publish = async |message: TaskMessage| {
        let message = Outgoing::new("tracking-in", message.encode());
        broker.publish(message).await.unwrap();
    };
    // Of each locked job, a report and a message that passes through the tracking worker.
    let (reported, passing) = (create("reported").await, create("passing").await);
    let locks = [
        HeldLock::by(&database, &row_of("reported")).await.unwrap(),
        HeldLock::by(&database, &row_of("passing")).await.unwrap(),
    ];
    let item = RangeItem {
        number: 1,
        params: BTreeMap::default(),
    };
    let tracking = Tracking {
        job_task_id: Some(passing),
        tracking_pipe: Some("tracking-in".into()),
        track_to: Some("out".into()),
        ..Tracking::default()
    };
    publish(TaskMessage {
        tracking: Some(tracking),
        ..TaskMessage::new("t", "out", &item).unwrap()
    })
    .await;
    let mut ids = vec![reported];
    for other in 0..OTHERS {
        ids.push(create(&format!("other-{other}")).await);
    }
    // In one message, which comes again as a whole.
    let complete = |id: &String| TrackingReport::new(id.clone(), ReportStatus::Complete);
    let task = TrackingReportTask {
        tracking_reports: ids.iter().map(complete).collect(),
    };
    publish(TaskMessage::new("r", "tracking-in", &task).unwrap()).await;

    let stop = CancellationToken::new();
    let runtime = Runtime::new(Settings::new("tracking"), Arc::new(broker.clone()))
        .handler(TrackingWorker::new(store.clone()));
    let status = async |job: &str| {
        let job = store.job(&partition, &JobId::parse(job).unwrap()).await;
        job.unwrap().unwrap().status
    };
    let completed = async |job: &str| {
        wait_for("the job to be completed", async || {
            match status(job).await {
                JobStatus::Completed => Ok(()),
                other => Err(format!("{job}: {other:?}")),
            }
        })
        .await;
    };
    let watching = async {
        for other in 0..OTHERS {
            completed(&format!("other-{other}")).await;
        }
        wait_for("the message in its pipe", async || {
            match broker.depth("out").await.unwrap() {
                1 => Ok(()),
                depth => Err(depth.to_string()),
            }
        })
        .await;
        for (job, lock) in ["reported", "passing"].into_iter().zip(locks) {
            assert_eq!(status(job).await, JobStatus::Waiting, "{job}");
            lock.let_go().await.unwrap();
            completed(job).await;
        }
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(runtime.run_until(stop.clone()), watching);
    ended.unwrap();
    // It has gone on once.
    assert_eq!(broker.depth("out").await.unwrap(), 1);
    for pipe in ["tracking-in", "tracking-invalid"] {
        assert_eq!(broker.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_completes_while_another_one_is_locked_which_completes_afterwards() {
    const ITEMS: u32 = 300;
    for route in [Route::Direct, Route::Reroute] {
        let fixture = Fixture::new(route, Servers::Real).await;
        let gate = Gate::closed();
        let system = fixture.run(gated(&gate)).await;
        for job in ["locked", "other"] {
            let range = fixture.range(ITEMS.into());
            system.client.put(job, &range).await.unwrap();
        }
        let row = row_of("locked");
        let lock = HeldLock::by(fixture.database(), &row).await.unwrap();
        gate.open();
        system.completed("other", ITEMS.into()).await;
        let state = system.job("locked").await;
        assert!(!state.status.is_finished(), "{state:?}");
        assert_eq!(state.completed_items, 0, "{state:?}");
        lock.let_go().await.unwrap();
        system.completed("locked", ITEMS.into()).await;
        let output = fixture.pipe("output");
        wait_for("each output, once", async || {
            match system.running.broker().depth(&output).await.unwrap() {
                depth if depth == 2 * u64::from(ITEMS) => Ok(()),
                depth => Err(depth.to_string()),
            }
        })
        .await;
        system.stop().await;
    }
}
