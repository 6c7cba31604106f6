//! Which messages a sweep deletes.

use futures_util::FutureExt as _;

use super::*;
use crate::broker::{Broker as _, Outgoing};

fn body(id: &str, url: &str, status: &str) -> String {
    format!(
        r#"{{"version":3,"taskId":"t","taskStatus":"{status}","taskData":"e30=","to":"x","tracking":{{"jobTaskId":"{id}","statusCheckUrl":"{url}"}}}}"#
    )
}

#[test]
fn job_of_a_message_includes_its_incarnation() {
    let of = |id: &str, url: &str| {
        job_of(body(id, url, "NEW_TASK").as_bytes()).map(|(job, _)| job.incarnation)
    };
    let url = "http://h/partitions/p/jobs/j/status";
    assert_eq!(of("p:j.1.2*", &format!("{url}?n=42")), Some(Some(42)));
    assert_eq!(of("p:j!42.1", &format!("{url}?a=b&n=42")), Some(Some(42)));
    assert_eq!(of("p:j!42.1", url), Some(Some(42)));
    assert_eq!(of("p:j.1", url), Some(None));
    assert_eq!(of("p:j!42.1", &format!("{url}?n=7")), None);
    assert_eq!(of("p:", url), None);
    let bundle = format!("{}\n[[1,2]]\n{{}}", body("p:j!42.1", url, "NEW_TASK"));
    let (job, is_failure) = job_of(bundle.as_bytes()).unwrap();
    assert_eq!((job.incarnation, is_failure), (Some(42), false));
    for body in [
        "",
        "[]",
        r#"{"taskId":"t"}"#,
        r#"{"tracking":{"jobTaskId":"p:j"}}"#,
    ] {
        assert_eq!(job_of(body.as_bytes()), None, "{body}");
    }
}

#[tokio::test]
async fn sweep_deletes_what_ended_jobs_left_in_pipes_without_consumers() {
    let folder = tempfile::tempdir().unwrap();
    let broker = Embedded::open(folder.path()).await.unwrap();
    let url = |n: i64| format!("http://h/partitions/p/jobs/j/status?n={n}");
    let publish = async |pipe: &'static str, body: String| {
        broker.publish(Outgoing::new(pipe, body)).await.unwrap();
    };
    for pipe in ["typo", "consumed"] {
        publish(pipe, "not a task message".to_owned()).await;
        for n in [1, 2, 3] {
            for status in ["NEW_TASK", "RESULT_EXCEPTION"] {
                publish(pipe, body("p:j.1", &url(n), status)).await;
            }
        }
    }
    let consumer = broker.consume("consumed", 1).await.unwrap();
    let fate = |job: MessageJob| {
        let fate = match job.incarnation {
            Some(1) => Fate::Deleted,
            Some(2) => Fate::Cancelled,
            _ => Fate::Needed,
        };
        async move { fate }.boxed()
    };
    assert_eq!(broker.sweep(fate).await.unwrap(), 3);
    assert_eq!(broker.depth("typo").await.unwrap(), 4);
    assert_eq!(broker.sweep(fate).await.unwrap(), 0);
    drop(consumer);
    broker.close().await;

    // The deletions are on the disk.
    let broker = Embedded::open(folder.path()).await.unwrap();
    let mut consumer = broker.consume("typo", 10).await.unwrap();
    let mut bodies = Vec::new();
    while bodies.len() < 4 {
        let delivery = consumer.next().await.unwrap();
        bodies.push(delivery.body());
        delivery.ack();
    }
    let kept = [
        ("RESULT_EXCEPTION", 2),
        ("NEW_TASK", 3),
        ("RESULT_EXCEPTION", 3),
    ];
    for (body_found, (status, n)) in bodies[1..].iter().zip(kept) {
        assert_eq!(*body_found, body("p:j.1", &url(n), status));
    }
}
