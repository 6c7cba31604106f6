//! Runs a worker without a broker, for its author's tests.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use contract::{TaskData, TaskMessage};
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::{Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Outgoing};
use crate::clock::Clock;
use crate::config::Route;
use crate::context::Shared;
use crate::current::CurrentMessage;
use crate::health::Health;
use crate::meters::Counters;
use crate::process_name::ProcessName;
use crate::steps::output::{WorkerIdentity, new_message};
use crate::steps::report_buffer::ReportBuffer;
use crate::steps::status_check::StatusChecker;
use crate::tls::Tls;
use crate::worker::{ReplyKind, TaskErrorKind};
use crate::{Context, Reply, RetryPolicy, Settings, TaskError, Worker};

/// What a worker did with a task; see [`run`].
#[derive(Debug)]
pub struct Run<O> {
    /// What [`Worker::run`] returned.
    pub result: Result<Reply<O>, TaskError>,
    dispatched: Vec<TaskMessage>,
}

impl<O> Run<O> {
    /// Returns the output, if the worker sent one.
    pub fn sent(&self) -> Option<&O> {
        match &self.result {
            Ok(Reply(ReplyKind::Send { output, .. })) => Some(output),
            _ => None,
        }
    }

    /// Returns why the task failed (`or_fail`, `or_invalid`), if it did.
    pub fn failure(&self) -> Option<String> {
        let error = self.result.as_ref().err()?;
        matches!(error.kind, TaskErrorKind::Failed | TaskErrorKind::Invalid).then(|| error.chain())
    }

    /// Returns why the task would run again (`?`), if it would.
    pub fn retry(&self) -> Option<String> {
        let error = self.result.as_ref().err()?;
        (error.kind == TaskErrorKind::Retry).then(|| error.chain())
    }

    /// Returns the dispatched subtasks of this type with their pipes, in order.
    pub fn dispatched<T: TaskData>(&self) -> Vec<(String, T)> {
        let of_type =
            |message: &&TaskMessage| message.task_classifier.as_deref() == Some(T::CLASSIFIER);
        let decoded = |message: &TaskMessage| {
            let data = serde_json::from_slice(message.task_data.as_deref()?).ok()?;
            Some((message.to.clone()?, data))
        };
        self.dispatched
            .iter()
            .filter(of_type)
            .filter_map(decoded)
            .collect()
    }

    /// Returns how many subtasks were dispatched.
    pub fn dispatched_count(&self) -> usize {
        self.dispatched.len()
    }
}

/// Runs one task and returns what the worker did. A panic of the worker fails the test.
pub async fn run<W: Worker>(worker: &W, input: W::Input) -> Run<W::Output> {
    let recorder = Arc::new(Recorder::default());
    let tasks = TaskTracker::new();
    let data = serde_json::to_vec(&input).unwrap_or_default();
    let broker: Arc<dyn Broker> = recorder.clone();
    let shared = Arc::new(Shared {
        identity: Arc::new(WorkerIdentity {
            name: "test".into(),
            version: "1".into(),
            zero_progress: false,
            service_path: "batchwright/test".into(),
            route: Route::Direct,
            clock: Clock::system(),
            process: ProcessName::default(),
        }),
        reports: ReportBuffer::start(
            Arc::clone(&broker),
            Arc::default(),
            &tasks,
            Health::default(),
            "reports".into(),
        ),
        broker,
        status: StatusChecker::new(
            Duration::from_secs(1),
            Tls::default(),
            Clock::system(),
            &tasks,
        ),
        depths: Arc::default(),
        reserved: Arc::new(Settings::new("test").all_reserved_pipes()),
        retry: RetryPolicy::default(),
        counters: Counters::of("test"),
        running: Arc::default(),
        shutdown: CancellationToken::new(),
    });
    let ctx = Context::new(
        CurrentMessage::new(
            "test-in".into(),
            new_message::<W::Input>("test".into(), "test-in", data),
            1,
            None,
            false,
        ),
        1,
        shared,
    );
    let result = worker.run(input, ctx).await;
    let published = recorder
        .published
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    Run {
        result,
        dispatched: published
            .iter()
            .filter_map(|message| TaskMessage::decode(&message.body).ok())
            .collect(),
    }
}

/// A broker that records what is published and delivers nothing.
#[derive(Debug, Default)]
struct Recorder {
    published: Mutex<Vec<Outgoing>>,
}

impl Broker for Recorder {
    fn publish(&self, message: Outgoing) -> Confirm {
        self.published
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(message);
        Confirm::ready(Ok(()))
    }

    fn consume<'a>(&'a self, _: &'a str, _: u32) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        Box::pin(async { Err(BrokerError::Closed) })
    }

    fn announce(&self, _: Bytes) -> Confirm {
        Confirm::ready(Ok(()))
    }

    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        Box::pin(async { Err(BrokerError::Closed) })
    }

    fn depth<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        Box::pin(async { Ok(0) })
    }

    fn state(&self) -> BrokerState {
        BrokerState::Connected
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn kind(&self) -> &'static str {
        "recorder"
    }
}
