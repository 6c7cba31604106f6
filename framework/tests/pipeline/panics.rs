//! Panics of a worker's loops, and of the steps for a delivery: they are told, and nothing is lost.

use std::collections::BTreeSet;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use contract::ReportStatus;
use framework::broker::Broker;
use framework::broker::memory::Memory;
use framework::health::Health;
use framework::{Runtime, Settings};
use harness::{free_port, wait_for};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::retries::{message, noting, reports, run_until};

#[tokio::test(start_paused = true)]
async fn every_loop_of_a_worker_may_panic_and_no_report_is_lost() {
    let (pipes, health) = (Memory::new(), Health::default());
    let settings = Settings {
        listen: Some(([127, 0, 0, 1], free_port()).into()),
        health: health.clone(),
        ..Settings::new("w")
    };
    let story = async {
        let mut number = 0;
        let mut panicked = BTreeSet::new();
        loop {
            let loops = health.loops();
            let Some((name, begun)) = loops.iter().find(|(name, _)| !panicked.contains(*name))
            else {
                break;
            };
            health.plan_panic(name);
            // Before, during and after the restart.
            for _ in 0..20 {
                number += 1;
                pipes.publish(message(number, "tracking")).await.unwrap();
            }
            wait_for("the loop to be missed", async || {
                let outages = health.outages();
                let named = outages.iter().any(|outage| outage.name == *name);
                named.then_some(()).ok_or_else(|| format!("{outages:?}"))
            })
            .await;
            wait_for("the loop to begin again", async || {
                let now = health.loops()[name];
                (now > *begun && health.outages().is_empty())
                    .then_some(())
                    .ok_or_else(|| format!("{name} has begun {now} times"))
            })
            .await;
            panicked.insert(name.clone());
        }
        let expected = [
            "announcements",
            "deliveries",
            "health endpoint",
            "quarantine",
            "reports",
            "signs of life",
        ];
        assert_eq!(panicked, expected.map(|name| format!("w: {name}")).into());
        let reports = reports(&pipes, number.try_into().unwrap()).await;
        let complete: BTreeSet<String> = reports
            .into_iter()
            .filter(|report| report.status == ReportStatus::Complete)
            .map(|report| report.job_task_id)
            .collect();
        assert_eq!(
            complete,
            (1..=number).map(|number| format!("p:j.{number}")).collect()
        );
    };
    run_until(&pipes, settings, noting(|_, _| Ok(())), story).await;
    assert_eq!(pipes.depth("w-in").await.unwrap(), 0);
    assert_eq!(pipes.depth("w-in.suspects").await.unwrap(), 0);
}

/// A log in memory.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_whose_processing_panics_is_logged_with_its_task_and_comes_again() {
    let log = Log::default();
    let kept = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || kept.clone())
        .with_ansi(false);
    let _kept = tracing::subscriber::set_default(subscriber.finish());
    let memory = Memory::new();
    let panicked = AtomicBool::default();
    let broker = memory.clone().intercepting(move |message| {
        let panics = *message.pipe == *"w-invalid" && !panicked.swap(true, Ordering::Relaxed);
        assert!(!panics, "a planned panic");
        Ok(message)
    });
    // The handler decides that it is invalid; to publish it there panics.
    let mut stray = message(7, "tracking");
    let body = String::from_utf8(stray.body.to_vec()).unwrap();
    stray.body = body.replace("\"w-in\"", "\"w-reject\"").into();
    memory.publish(stray).await.unwrap();
    memory.publish(message(8, "tracking")).await.unwrap();
    let stop = CancellationToken::new();
    let runtime = Runtime::new(Settings::new("w"), Arc::new(broker)).worker(noting(|_, _| Ok(())));
    let (ended, reports) = tokio::join!(runtime.run_until(stop.clone()), async {
        let reports = reports(&memory, 2).await;
        wait_for("the delivery to come again", async || {
            let depth = memory.depth("w-invalid").await.unwrap();
            (depth == 1)
                .then_some(())
                .ok_or(format!("{depth} messages"))
        })
        .await;
        stop.cancel();
        reports
    });
    ended.unwrap();
    let statuses: BTreeSet<_> = reports
        .iter()
        .map(|report| (report.job_task_id.as_str(), report.status))
        .map(|(id, status)| (id, status == ReportStatus::Failed))
        .collect();
    assert_eq!(
        statuses,
        BTreeSet::from([("p:j.7", true), ("p:j.8", false)])
    );
    let text = String::from_utf8(log.0.lock().clone()).unwrap();
    let said = "processing a delivery has panicked; it comes again task=\"t.7\" job=\"p:j.7\" panic=\"a planned panic\"";
    assert!(text.contains(said), "{text}");
}
