//! Dead letters: collected from the pipes that the operator names, listed, shown, replayed and
//! deleted.

use contract::headers::{CAUSE_HEADER, LABEL_HEADER, ORIGIN_HEADER, REASON_HEADER, RUN_HEADER};
use contract::{ReportFailure, TaskMessage};
use framework::broker::{Broker, HeaderValue, Outgoing};
use harness::{in_time, wait_for};
use job_service::LetterOptions;
use reqwest::Method;
use serde_json::{Value, json};
use store::{EventKind, LetterLimits, Store, StoreOptions};

use crate::page::{page, submit};
use crate::service::{Answer, Service, new_job};

/// The header of a form that the page itself sends.
const OWN: (&str, &str) = ("Sec-Fetch-Site", "same-origin");

async fn service() -> Service {
    Service::start_configured(|options| options.letters = collected()).await
}

fn collected() -> LetterOptions {
    LetterOptions {
        pipes: vec!["w-reject".to_owned(), "w-invalid".to_owned()],
        max_body: 2000,
    }
}

/// Puts a copy of a task into the reject pipe, as a worker does that gives it up.
async fn give_up(service: &Service, task: &str) {
    let task_id = task.replace('.', "-");
    let body = json!({
        "version": 3, "taskId": task_id, "taskClassifier": "C", "taskApiVersion": 1, "taskData": "eyJuIjoxfQ==",
        "taskStatus": "RESULT_EXCEPTION", "context": {}, "to": "w-reject",
        "tracking": {
            "jobTaskId": format!("{}:{task}", service.partition), "trackingPipe": "worker-jobtracking-in",
            "statusCheckUrl": "http://h/status?n=1&k=00f1"
        }
    });
    let mut message = Outgoing::new("w-reject", body.to_string());
    for (name, value) in [
        (CAUSE_HEADER, "givenUp"),
        (REASON_HEADER, "no luck (given up after 3 attempts)"),
        (ORIGIN_HEADER, "w-in"),
        (LABEL_HEADER, "a <b>.tif"),
        (RUN_HEADER, r#"{"attempt":3}"#),
    ] {
        message.headers.set(name, HeaderValue::Text(value.into()));
    }
    service.broker.publish(message).await.unwrap();
}

async fn call(service: &Service, method: Method, path: &str) -> Answer {
    service
        .call(method, &format!("/job-service/v1{path}"), None)
        .await
}

/// Waits for so many letters, and returns the list.
async fn letters(service: &Service, number: usize) -> Value {
    wait_for("the letters", async || {
        let list = call(service, Method::GET, "/deadLetters")
            .await
            .is(200)
            .json();
        let is_all = list["deadLetters"].as_array().unwrap().len() == number;
        if is_all {
            Ok(list)
        } else {
            Err(list.to_string())
        }
    })
    .await
}

/// Creates a job that tolerates failures, of whose three tasks the first two have failed.
async fn with_failures(service: &Service, job: &str) {
    let mut new = new_job();
    new["onFailure"] = json!({"continue": {"tolerate": 5}});
    service.put(job, &new).await.is(201);
    for task in [".1", ".2"] {
        let failure = ReportFailure::default();
        service.report(job, task, EventKind::Failed(failure)).await;
    }
    for task in [".3", ".4*"] {
        service.report(job, task, EventKind::Complete).await;
    }
}

#[tokio::test]
async fn what_is_above_the_bound_of_a_job_goes_to_the_overflow_pipe_and_is_counted() {
    let letters_of_job = StoreOptions {
        letters: LetterLimits {
            letters_of_job: 2,
            ..LetterLimits::DEFAULT
        },
        ..StoreOptions::default()
    };
    let store = Store::temporary(letters_of_job);
    let service =
        Service::start_configured_over(store, |options| options.letters = collected()).await;
    for number in 1..=5 {
        give_up(&service, &format!("j.{number}")).await;
    }
    give_up(&service, "other.1").await;
    let mut overflow = service
        .broker
        .consume("w-reject.overflow", 10)
        .await
        .unwrap();
    for _ in 0..3 {
        let delivery = in_time("a letter above the bound", overflow.next());
        let delivery = delivery.await.unwrap();
        let cause = delivery.headers.get(CAUSE_HEADER);
        assert_eq!(cause, Some(&HeaderValue::Text("givenUp".into())));
        delivery.ack();
    }
    let list = letters(&service, 3).await;
    let numbers = &list["numbers"];
    assert_eq!(
        [&numbers["kept"], &numbers["overflowed"], &numbers["full"]],
        [&json!(3), &json!(3), &json!(false)]
    );
    assert_eq!(service.broker.depth("w-reject.overflow").await.unwrap(), 0);
}

#[tokio::test]
async fn what_is_in_the_named_pipes_is_kept_once_and_shown() {
    let service = service().await;
    give_up(&service, "j.3.17").await;
    let noise = Outgoing::new("w-invalid", vec![b'x'; 3000]);
    service.broker.publish(noise).await.unwrap();
    service
        .broker
        .publish(Outgoing::new("other-reject", "stays"))
        .await
        .unwrap();
    letters(&service, 2).await;
    let list = call(&service, Method::GET, "/deadLetters?cause=givenUp&limit=1").await;
    let list = list.is(200).json();
    let letter = &list["deadLetters"][0];
    let id = letter["id"].as_i64().unwrap();
    let expected = json!({
        "id": id, "time": letter["time"], "cause": "givenUp", "reason": "no luck (given up after 3 attempts)", "pipe": "w-reject",
        "origin": "w-in", "attempts": 3, "partitionId": service.partition, "jobId": "j", "taskId": "3.17", "label": "a <b>.tif",
        "bytes": letter["bytes"]
    });
    assert_eq!(*letter, expected);
    assert_eq!(list["numbers"]["kept"], 2);
    let full = call(&service, Method::GET, &format!("/deadLetters/{id}"))
        .await
        .is(200)
        .json();
    assert_eq!(full["message"]["taskData"], json!({"n": 1}));
    let url = &full["message"]["envelope"]["tracking"]["statusCheckUrl"];
    assert_eq!(url, "http://h/status?n=1&k=***");
    assert_eq!(full["message"]["headers"][ORIGIN_HEADER], "w-in");

    // Of a body that is too large, the beginning is kept.
    let list = call(&service, Method::GET, "/deadLetters?pipe=w-invalid")
        .await
        .json();
    let noise = &list["deadLetters"][0];
    assert_eq!(
        (&noise["cut"], &noise["bytes"]),
        (&json!(true), &json!(3000))
    );
    let refused = call(
        &service,
        Method::POST,
        &format!("/deadLetters/{}:replay", noise["id"]),
    )
    .await;
    assert_eq!(refused.status, 409);
    refused.contains("only the beginning of its body is kept");
    for pipe in ["w-reject", "w-invalid"] {
        assert_eq!(service.broker.depth(pipe).await.unwrap(), 0, "{pipe}");
    }
    assert_eq!(service.broker.depth("other-reject").await.unwrap(), 1);
}

#[tokio::test]
async fn replay_sends_a_task_of_a_finished_job_in_a_round_of_its_own() {
    let service = service().await;
    with_failures(&service, "j").await;
    give_up(&service, "j.1").await;
    give_up(&service, "j.2").await;
    let list = letters(&service, 2).await;
    let id = list["deadLetters"][1]["id"].as_i64().unwrap();
    let replayed = call(&service, Method::POST, &format!("/deadLetters/{id}:replay")).await;
    let expected = json!({"id": id, "pipe": "w-in", "round": 2});
    assert_eq!(replayed.is(200).json(), expected);
    let mut consumer = service.broker.consume("w-in", 10).await.unwrap();
    let message = harness::in_time("the task", consumer.next()).await.unwrap();
    let task = TaskMessage::decode(&message.body()).unwrap();
    let tracking = task.tracking.unwrap();
    let incarnation = service.get("/jobs/j").await.json()["incarnation"].clone();
    let expected = format!("{}:j!{incarnation}r2.1", service.partition);
    assert_eq!(tracking.job_task_id, Some(expected));
    let url = tracking.status_check_url.unwrap();
    assert!(
        url.contains("&r=2&k=") && !url.ends_with("&k=00f1"),
        "{url}"
    );
    let path = url.strip_prefix(&service.root).unwrap();
    service.call(Method::GET, path, None).await.is(200);
    assert_eq!(task.to.as_deref(), Some("w-in"));
    let job = service.get("/jobs/j").await.json();
    assert_eq!(
        (&job["status"], &job["round"]),
        (&json!("Active"), &json!(2))
    );

    // The other one follows in the same round.
    let all = call(&service, Method::POST, "/deadLetters:replay?job=j").await;
    let expected = json!({"replayed": 1, "refused": 0, "more": false});
    assert_eq!(all.is(200).json(), expected);
    letters(&service, 0).await;
    let message = harness::in_time("the task", consumer.next()).await.unwrap();
    let task = TaskMessage::decode(&message.body()).unwrap();
    assert!(task.job_task_id().unwrap().ends_with("r2.2"));
}

#[tokio::test]
async fn letter_that_cannot_be_replayed_says_why_and_is_deleted() {
    let service = service().await;
    service.put("gone", &new_job()).await.is(201);
    give_up(&service, "gone.1").await;
    let list = letters(&service, 1).await;
    service.delete("gone").await.is(204);
    let id = list["deadLetters"][0]["id"].as_i64().unwrap();
    let refused = call(&service, Method::POST, &format!("/deadLetters/{id}/replay")).await;
    refused.refuses(
        409,
        &format!(
            "The dead letter {id} cannot be replayed: its job was deleted. Delete the letter."
        ),
    );
    assert_eq!(refused.header("x-batchwright-error"), "PAST_INCARNATION");
    let all = call(&service, Method::POST, "/deadLetters:replay")
        .await
        .is(200)
        .json();
    assert_eq!(all["refused"], 1);
    assert_eq!(all["refusals"][0]["code"], "PAST_INCARNATION");
    let deleted = call(&service, Method::DELETE, &format!("/deadLetters/{id}")).await;
    assert_eq!(deleted.is(200).json(), json!({"deleted": 1, "more": false}));
    for (method, path) in [
        (Method::GET, format!("/deadLetters/{id}")),
        (Method::DELETE, format!("/deadLetters/{id}")),
        (Method::POST, format!("/deadLetters/{id}:replay")),
    ] {
        let message = format!("There is no dead letter {id}.");
        call(&service, method, &path).await.refuses(404, &message);
    }
}

#[tokio::test]
async fn invalid_requests_about_dead_letters_select_nothing() {
    let service = service().await;
    give_up(&service, "j.1").await;
    letters(&service, 1).await;
    for (query, message) in [
        (
            "cause=x",
            "The parameter 'cause' must be one of givenUp, poison, notUnderstood, unroutable, but is 'x'.",
        ),
        (
            "since=today",
            "The parameter 'since' must be a whole number, but is 'today'.",
        ),
        (
            "after=x",
            "The parameter 'after' must be a whole number, but is 'x'.",
        ),
        (
            "limit=x",
            "The parameter 'limit' must be a whole number, but is 'x'.",
        ),
        (
            "job=%00",
            "The parameter 'job' contains the character U+0000.",
        ),
        ("jobs=j", "The parameter 'jobs' is unknown."),
    ] {
        for (method, path) in [
            (Method::GET, "/deadLetters"),
            (Method::DELETE, "/deadLetters"),
            (Method::POST, "/deadLetters:replay"),
        ] {
            let answer = call(&service, method, &format!("{path}?{query}")).await;
            answer.refuses(400, message);
        }
    }
    let message = "'x' is not the number of a dead letter.";
    call(&service, Method::GET, "/deadLetters/x")
        .await
        .refuses(400, message);
    letters(&service, 1).await;
    let deleted = call(&service, Method::DELETE, "/deadLetters?job=other").await;
    assert_eq!(deleted.json()["deleted"], 0);
    let deleted = call(&service, Method::DELETE, "/deadLetters").await;
    assert_eq!(deleted.is(200).json(), json!({"deleted": 1, "more": false}));
}

#[tokio::test]
async fn page_shows_filters_replays_and_deletes_dead_letters() {
    let service = service().await;
    let empty = page(&service, "/dead-letters").await.is(200);
    empty.contains("There are no dead letters");
    with_failures(&service, "j").await;
    give_up(&service, "j.1").await;
    give_up(&service, "j.2").await;
    let list = letters(&service, 2).await;
    let id = list["deadLetters"][1]["id"].as_i64().unwrap();
    let shown = page(&service, "/dead-letters?cause=givenUp").await.is(200);
    shown.contains("a &#60;b&#62;.tif");
    shown.contains(&format!("/dead-letters/{id}"));
    let other = page(&service, "/dead-letters?cause=poison").await.is(200);
    other.contains("No dead letter matches");
    page(&service, "/dead-letters?cause=x").await.is(400);
    let one = page(&service, &format!("/dead-letters/{id}")).await.is(200);
    one.contains("no luck (given up after 3 attempts)");
    assert!(
        one.body.contains("k=***") && !one.body.contains("00f1"),
        "{one:?}"
    );
    let job = page(
        &service,
        &format!("/partitions/{}/jobs/j", service.partition),
    )
    .await;
    job.contains(&format!(
        "/dead-letters?partition={}&#38;job=j",
        service.partition
    ));

    let path = format!("/dead-letters/{id}/replay");
    let foreign = ("Origin", "http://elsewhere.example");
    submit(&service, &path, "", foreign).await.is(403);
    let sent = submit(&service, &path, "pipe=", OWN).await.is(303);
    assert_eq!(sent.header("location"), "/dead-letters?done=replay&n=1");
    let told = page(&service, sent.header("location")).await;
    told.contains("1 dead letter was replayed.");
    let asked = page(&service, "/dead-letters/confirm?action=delete&job=j").await;
    asked.contains("Delete all dead letters that match?");
    let gone = submit(&service, "/dead-letters", "action=delete&job=j", OWN).await;
    assert_eq!(
        gone.is(303).header("location"),
        "/dead-letters?job=j&done=delete&n=1"
    );
    letters(&service, 0).await;
}
