//! The signs of life of a worker.

use std::sync::Arc;
use std::time::Duration;

use contract::{RangeItem, SignOfLife, TaskMessage, Tracking};
use framework::broker::memory::Memory;
use framework::broker::{Announcements, Broker, Event, Outgoing};
use framework::signs::EVERY;
use framework::{Runtime, Settings};
use harness::in_time;
use tokio::time::advance;
use tokio_util::sync::CancellationToken;

use crate::lags::Waiting;

async fn next(signs: &mut Announcements) -> SignOfLife {
    loop {
        match in_time("a sign", signs.next()).await.unwrap() {
            Event::Message(body) => {
                assert!(body.len() <= SignOfLife::MAX_BYTES);
                return serde_json::from_slice(&body).unwrap();
            }
            Event::Missed => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn worker_tells_what_it_is_and_does_until_it_ends() {
    let broker = Memory::new();
    let mut signs = broker.signs().await.unwrap();
    assert_eq!(signs.next().await, Some(Event::Missed));
    let settings = Settings {
        output: Some("signs-out".to_owned()),
        version: "1.2.3".to_owned(),
        concurrency: 3,
        ..Settings::new("signs")
    };
    let (begun, may_end) = (CancellationToken::new(), CancellationToken::new());
    let worker = Waiting {
        begun: begun.clone(),
        may_end: may_end.clone(),
    };
    let stop = CancellationToken::new();
    let service = Runtime::new(settings, Arc::new(broker.clone())).worker(worker);
    let story = async {
        let first = next(&mut signs).await;
        let facts = (
            &*first.name,
            &*first.version,
            first.slots,
            first.slots_in_use,
        );
        assert_eq!(facts, ("signs", "1.2.3", Some(3), Some(0)));
        let pipes = [&first.input, &first.output, &first.reject, &first.invalid];
        let pipes = pipes.map(|pipe| pipe.as_deref().unwrap());
        let settings = Settings::new("signs");
        assert_eq!(
            pipes,
            [
                "signs-in",
                "signs-out",
                &*settings.reject,
                &*settings.invalid
            ]
        );
        assert_eq!((first.longest, first.process), (None, std::process::id()));

        let item = RangeItem {
            number: 1,
            params: [].into(),
        };
        // The sender of a message names its task.
        let id = format!("p:j.{}", "9".repeat(100_000));
        let message = TaskMessage {
            tracking: Some(Tracking {
                job_task_id: Some(id.clone()),
                ..Tracking::default()
            }),
            ..TaskMessage::new("t", "signs-in", &item).unwrap()
        };
        let message = Outgoing::new("signs-in", message.encode());
        broker.publish(message).await.unwrap();
        begun.cancelled().await;
        advance(Duration::from_secs(1)).await;
        advance(EVERY).await;
        let mut busy = next(&mut signs).await;
        while busy.longest.is_none() {
            busy = next(&mut signs).await;
        }
        assert_eq!((busy.slots_in_use, busy.open), (Some(1), Some(1)));
        let longest = busy.longest.unwrap();
        assert_eq!(longest.task, id[..256]);
        assert!(longest.age >= 5000, "{longest:?}");
        assert_eq!((busy.id, busy.ended), (first.id.clone(), false));

        may_end.cancel();
        while next(&mut signs).await.longest.is_some() {}
        stop.cancel();
        let mut last = next(&mut signs).await;
        while !last.ended {
            last = next(&mut signs).await;
        }
        assert_eq!(last.id, first.id);
    };
    let both = async { tokio::join!(service.run_until(stop.clone()), story).0 };
    both.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn worker_tells_of_which_jobs_the_short_tasks_in_its_slots_are() {
    let broker = Memory::new();
    let mut signs = broker.signs().await.unwrap();
    assert_eq!(signs.next().await, Some(Event::Missed));
    let settings = Settings {
        concurrency: 6,
        ..Settings::new("slots")
    };
    let (stop, may_end) = (CancellationToken::new(), CancellationToken::new());
    let worker = Waiting {
        begun: CancellationToken::new(),
        may_end: may_end.clone(),
    };
    let service = Runtime::new(settings, Arc::new(broker.clone())).worker(worker);
    let story = async {
        assert_eq!(next(&mut signs).await.jobs, []);
        // The next sign comes a second after the first one. The tasks are short then.
        tokio::time::sleep(Duration::from_millis(500)).await;
        for id in ["p:j.1", "p:j!7r2.3.4*", "q:other.1", ""] {
            let item = RangeItem {
                number: 1,
                params: [].into(),
            };
            let message = TaskMessage {
                tracking: (!id.is_empty()).then(|| Tracking {
                    job_task_id: Some(id.to_owned()),
                    ..Tracking::default()
                }),
                ..TaskMessage::new("t", "slots-in", &item).unwrap()
            };
            let message = Outgoing::new("slots-in", message.encode());
            broker.publish(message).await.unwrap();
        }
        let jobs = next(&mut signs).await.jobs;
        let jobs: Vec<(&str, u32)> = jobs.iter().map(|it| (&*it.job, it.tasks)).collect();
        assert_eq!(jobs, [("p:j", 2), ("q:other", 1)]);
        // They run for long, which is reported.
        assert_eq!(next(&mut signs).await.jobs, []);
        may_end.cancel();
        stop.cancel();
    };
    let both = async { tokio::join!(service.run_until(stop.clone()), story).0 };
    both.await.unwrap();
}
