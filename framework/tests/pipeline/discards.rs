//! How a worker gets rid of the messages of a job that has ended.

use std::sync::Arc;

use bytes::Bytes;
use contract::{RangeItem, TaskMessage, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{
    Announcements, Broker, BrokerError, BrokerState, Confirm, Consumer, Delivery, Headers,
    Outgoing, Settlement, Settler,
};
use framework::{Context, NoOutput, Reply, Runtime, Settings, TaskError, Worker};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use harness::wait_for;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

/// A worker that must not run.
struct Unused;

impl Worker for Unused {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        let number = item.number;
        Err(TaskError::failed(format!(
            "item {number} ran although its job has ended"
        )))
    }
}

/// Delivers what it is given to the first consumer of `w-in`, and records how the deliveries are
/// settled.
#[derive(Debug)]
struct Recorder {
    memory: Memory,
    deliveries: Mutex<Option<Consumer>>,
}

#[derive(Default)]
struct Settlements(Mutex<Vec<Settlement>>);

impl Settler for Settlements {
    fn settle(&self, _: u64, settlement: Settlement) {
        self.0.lock().push(settlement);
    }
}

impl Broker for Recorder {
    fn publish(&self, message: Outgoing) -> Confirm {
        self.memory.publish(message)
    }
    fn consume<'a>(
        &'a self,
        pipe: &'a str,
        prefetch: u32,
    ) -> BoxFuture<'a, Result<Consumer, BrokerError>> {
        match self.deliveries.lock().take_if(|_| pipe == "w-in") {
            Some(consumer) => ready(Ok(consumer)).boxed(),
            None => self.memory.consume(pipe, prefetch),
        }
    }
    fn announce(&self, body: Bytes) -> Confirm {
        self.memory.announce(body)
    }
    fn announcements(&self) -> BoxFuture<'_, Result<Announcements, BrokerError>> {
        self.memory.announcements()
    }
    fn depth<'a>(&'a self, pipe: &'a str) -> BoxFuture<'a, Result<u64, BrokerError>> {
        self.memory.depth(pipe)
    }
    fn state(&self) -> BrokerState {
        self.memory.state()
    }
    fn close(&self) -> BoxFuture<'_, ()> {
        self.memory.close()
    }
    fn kind(&self) -> &'static str {
        "recorder"
    }
}

#[tokio::test]
async fn discarded_messages_are_acknowledged_so_that_brokers_forget_many_at_once() {
    let service = MockServer::start().await;
    let gone =
        ResponseTemplate::new(404).set_body_string(r#"{"message":"ERROR: job_id {j} not found"}"#);
    // One check serves all of them; the start of the worker may make it due once more.
    let check = Mock::given(any()).respond_with(gone).expect(1..=2);
    check.mount(&service).await;
    let (sender, receiver) = mpsc::channel(100);
    let settlements = Arc::new(Settlements::default());
    for number in 1..=100 {
        let tracking = Tracking {
            job_task_id: Some(format!("p:j.{number}")),
            status_check_url: Some(format!("{}/partitions/p/jobs/j/status", service.uri()).into()),
            tracking_pipe: Some("tracking".into()),
            ..Tracking::default()
        };
        let item = RangeItem {
            number,
            params: std::collections::BTreeMap::new(),
        };
        let message = TaskMessage {
            tracking: Some(tracking),
            ..TaskMessage::new("t", "w-in", &item).unwrap()
        };
        let settler = Arc::clone(&settlements) as Arc<dyn Settler>;
        let delivery = Delivery::new(
            "w-in".into(),
            message.encode().into(),
            Headers::default(),
            0,
            number,
            settler,
        );
        sender.try_send(delivery).unwrap();
    }
    let broker = Arc::new(Recorder {
        memory: Memory::new(),
        deliveries: Mutex::new(Some(Consumer::new(receiver))),
    });
    let stop = CancellationToken::new();
    let runtime = Runtime::new(Settings::new("w"), broker).worker(Unused);
    let (ended, ()) = tokio::join!(runtime.run_until(stop.clone()), async {
        wait_for("the messages to be settled", async || {
            let settled = settlements.0.lock().len();
            (settled == 100).then_some(()).ok_or(settled.to_string())
        })
        .await;
        stop.cancel();
    });
    ended.unwrap();
    let settled = settlements.0.lock();
    assert!(
        settled
            .iter()
            .all(|settlement| *settlement == Settlement::Ack),
        "{settled:?}"
    );
    drop(sender);
}
