//! Which results are dropped, and when.

use proptest::prelude::*;

use super::super::EmbeddedOptions;
use super::*;
use crate::broker::{Broker as _, HeaderValue, Headers, Outgoing};
use crate::clock::Clock;

const RESULT: &str = r#"{"taskId":"t","taskStatus":"RESULT_SUCCESS","tracking":null}"#;

fn message(body: &str, headers: Headers) -> Message {
    Message {
        id: 1,
        delivery_count: 0,
        sent: 0,
        headers,
        body: body.to_owned().into(),
    }
}

async fn open(folder: &tempfile::TempDir, bounds: UnreadBounds) -> Embedded {
    open_on(100, folder, bounds).await
}

/// Opens the broker on this day since 1970.
async fn open_on(day: i64, folder: &tempfile::TempDir, bounds: UnreadBounds) -> Embedded {
    const DAY: i64 = 24 * 3600 * 1000;
    let options = EmbeddedOptions {
        clock: Clock::simulated(day * DAY),
        unread: bounds,
        ..EmbeddedOptions::default()
    };
    Embedded::open_with(folder.path(), options).await.unwrap()
}

/// Publishes results with the numbers `numbers`, each of which takes 300 bytes.
async fn publish(broker: &Embedded, pipe: &str, numbers: std::ops::Range<usize>) {
    for number in numbers {
        let head = format!("{{\"taskId\":\"{number}\",\"taskStatus\":\"RESULT_SUCCESS\",\"x\":\"");
        let body = format!("{head:_<98}\"}}");
        broker.publish(Outgoing::new(pipe, body)).await.unwrap();
    }
}

fn dropped(pipe: &str, count: u64) -> DroppedOutputs {
    DroppedOutputs {
        pipe: pipe.into(),
        count,
    }
}

#[test]
fn only_results_that_no_job_tracks_and_nobody_keeps_are_dropped() {
    let mut kept = Headers::default();
    kept.set(REASON_HEADER, HeaderValue::Text("gave up".into()));
    for (body, headers, expected) in [
        (RESULT, Headers::default(), true),
        (
            r#"{"taskId":"t","taskStatus":"INVALID_TASK"}"#,
            Headers::default(),
            true,
        ),
        (RESULT, kept, false),
        (
            "{\"taskId\":\"t\",\"taskStatus\":\"RESULT_SUCCESS\"}\n[[1,2],[2,2]]\n{}{}",
            Headers::default(),
            true,
        ),
        (
            r#"{"taskId":"t","taskStatus":"NEW_TASK","tracking":null}"#,
            Headers::default(),
            false,
        ),
        (
            r#"{"taskId":"t","taskStatus":"RESULT_SUCCESS","tracking":{"jobTaskId":"p:j.1"}}"#,
            Headers::default(),
            false,
        ),
        (
            r#"{"taskId":"t","tracking":null}"#,
            Headers::default(),
            false,
        ),
        (
            r#"{"taskStatus":"RESULT_SUCCESS"}"#,
            Headers::default(),
            false,
        ),
        ("not a task message", Headers::default(), false),
    ] {
        assert_eq!(is_ended_result(&message(body, headers)), expected, "{body}");
    }
}

#[tokio::test]
async fn oldest_results_beyond_the_bound_are_dropped_and_everything_else_stays() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = UnreadBounds {
        bytes: 3000,
        ..UnreadBounds::default()
    };
    let broker = open_on(100, &folder, bounds).await;
    let task = r#"{"taskId":"task","taskStatus":"NEW_TASK","tracking":null}"#;
    broker.publish(Outgoing::new("out", task)).await.unwrap();
    publish(&broker, "out", 0..8).await;
    assert_eq!(broker.drop_unread().await.unwrap(), []);
    broker.unread_grew().await;
    broker.close().await;

    // What comes on the next day is younger.
    let broker = open_on(101, &folder, bounds).await;
    publish(&broker, "other", 0..8).await;
    publish(&broker, "consumed", 0..50).await;
    let consumer = broker.consume("consumed", 1).await.unwrap();
    assert_eq!(broker.drop_unread().await.unwrap(), [dropped("out", 6)]);
    assert_eq!(broker.drop_unread().await.unwrap(), []);
    let mut depths = Vec::new();
    for pipe in ["out", "other"] {
        depths.push(broker.depth(pipe).await.unwrap());
    }
    assert_eq!(depths, [3, 8]);
    drop(consumer);
    broker.close().await;

    // It is so on the disk, too, and the next process finds the task and the last two of the first
    // pipe.
    let broker = open_on(101, &folder, bounds).await;
    let found = broker.drop_unread().await.unwrap();
    assert_eq!(found.iter().map(|it| it.count).sum::<u64>(), 50);
    let mut consumer = broker.consume("consumed", 10).await.unwrap();
    let oldest = consumer.next().await.unwrap();
    assert!(
        oldest.body().starts_with(b"{\"taskId\":\"40\""),
        "{oldest:?}"
    );
    broker.close().await;
}

#[tokio::test]
async fn results_are_dropped_when_they_are_old_unless_a_consumer_has_come() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = UnreadBounds {
        age: Duration::ZERO,
        ..UnreadBounds::default()
    };
    let broker = open(&folder, bounds).await;
    publish(&broker, "read", 0..3).await;
    publish(&broker, "unread", 0..3).await;
    let mut consumer = broker.consume("read", 10).await.unwrap();
    let first = consumer.next().await.unwrap();
    assert_eq!(broker.drop_unread().await.unwrap(), [dropped("unread", 3)]);
    first.ack();
    for _ in 0..2 {
        consumer.next().await.unwrap().ack();
    }
    broker.close().await;
}

#[tokio::test]
async fn age_of_a_result_counts_across_restarts() {
    let folder = tempfile::tempdir().unwrap();
    for (day, expected) in [
        (0, vec![]),
        (6, vec![]),
        (-1, vec![]),
        (8, vec![dropped("out", 3)]),
    ] {
        let broker = open_on(100 + day, &folder, UnreadBounds::default()).await;
        if day == 0 {
            publish(&broker, "out", 0..3).await;
        }
        assert_eq!(broker.drop_unread().await.unwrap(), expected, "day {day}");
        broker.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn runs_are_dropped_in_the_order_in_which_they_were_seen_until_the_rest_is_within_the_bounds()
{
    let bounds = UnreadBounds {
        bytes: 1000,
        age: Duration::from_secs(100),
    };
    let mut unread = Unread::default();
    let run = |number: i64, bytes| (number, bytes, Instant::now());
    let add = |unread: &mut Unread, (number, bytes, since): (i64, u64, Instant)| {
        let pipe = UnconsumedPipe {
            number,
            name: "p".into(),
            joined: 0,
        };
        unread.seen(&pipe).runs.push_back(Run {
            after: 0,
            to: 1,
            bytes,
            since,
        });
    };
    add(&mut unread, run(1, 400));
    tokio::time::advance(Duration::from_secs(10)).await;
    add(&mut unread, run(2, 400));
    tokio::time::advance(Duration::from_secs(10)).await;
    add(&mut unread, run(1, 400));
    let mut take = |now| unread.take_overdue(bounds, now).map(|(number, ..)| number);
    let now = Instant::now();
    assert_eq!((take(now), take(now)), (Some(1), None));
    let later = now + Duration::from_secs(90);
    assert_eq!((take(later), take(later)), (Some(2), None));
    assert_eq!(take(now + Duration::from_secs(100)), Some(1));
}

proptest! {
    #[test]
    fn no_body_panics(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        is_ended_result(&Message {
            id: 1,
            delivery_count: 0,
            sent: 0,
            headers: Headers::default(),
            body: body.into(),
        });
    }
}
