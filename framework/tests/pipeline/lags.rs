//! What the health of a process tells while its worker works: tasks that last, and pipes that are
//! full.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use contract::{RangeItem, TaskMessage};
use framework::broker::memory::Memory;
use framework::broker::{Broker, Confirm, Outgoing, PublishError};
use framework::health::Health;
use framework::{Context, Reply, Runtime, Settings, TaskError, Worker};
use harness::wait_for;
use tokio::time::advance;
use tokio_util::sync::CancellationToken;

/// Returns its input, once it may.
pub struct Waiting {
    pub begun: CancellationToken,
    pub may_end: CancellationToken,
}

impl Worker for Waiting {
    type Input = RangeItem;
    type Output = RangeItem;

    async fn run(&self, item: RangeItem, _: Context) -> Result<Reply<RangeItem>, TaskError> {
        self.begun.cancel();
        self.may_end.cancelled().await;
        Ok(Reply::send(item))
    }
}

fn told(health: &Health) -> Vec<String> {
    let degradations = health.degradations().into_iter();
    degradations
        .map(|trouble| format!("{}: {}", trouble.name, trouble.reason))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn old_deliveries_and_full_pipes_degrade_the_process_while_they_last() {
    let is_full = Arc::new(AtomicBool::new(true));
    let (memory, refusing) = (Memory::new(), Arc::clone(&is_full));
    let broker = memory.clone().intercepting(move |message: Outgoing| {
        if &*message.pipe == "lags-out" && refusing.load(Ordering::Relaxed) {
            let refusal = PublishError::refused("lags-out", "it is full");
            Err(Confirm::ready(Err(refusal)))
        } else {
            Ok(message)
        }
    });
    let item = RangeItem {
        number: 1,
        params: [].into(),
    };
    let message = TaskMessage::new("t", "lags-in", &item).unwrap();
    let message = Outgoing::new("lags-in", message.encode());
    broker.publish(message).await.unwrap();
    let health = Health::default();
    let settings = Settings {
        output: Some("lags-out".to_owned()),
        old_delivery: Duration::from_secs(90),
        health: health.clone(),
        ..Settings::new("lags")
    };
    let (begun, may_end) = (CancellationToken::new(), CancellationToken::new());
    let worker = Waiting {
        begun: begun.clone(),
        may_end: may_end.clone(),
    };
    let stop = CancellationToken::new();
    let service = Runtime::new(settings, Arc::new(broker)).worker(worker);
    let looking = async {
        begun.cancelled().await;
        assert_eq!(told(&health), [""; 0]);
        advance(Duration::from_secs(90)).await;
        assert_eq!(
            told(&health),
            [
                "old-delivery: lags has worked on a delivery for 90 s (the limit is 90 s); look whether its task hangs"
            ]
        );
        may_end.cancel();
        wait_for("the full pipe to be told", async || {
            let told = told(&health);
            let full = "full-pipe: the broker refuses messages for lags-out (1 wait)";
            if told.iter().any(|told| told.contains(full)) {
                Ok(())
            } else {
                Err(format!("{told:?}"))
            }
        })
        .await;
        is_full.store(false, Ordering::Relaxed);
        let mut outputs = memory.consume("lags-out", 1).await.unwrap();
        outputs.next().await.unwrap().ack();
        wait_for("the end of both", async || match told(&health) {
            none if none.is_empty() => Ok(()),
            told => Err(format!("{told:?}")),
        })
        .await;
        stop.cancel();
    };
    let both = async { tokio::join!(service.run_until(stop.clone()), looking).0 };
    both.await.unwrap();
}
