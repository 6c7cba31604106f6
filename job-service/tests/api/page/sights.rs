//! The pages of pipes and workers, of large outputs, and what they answer to wrong addresses.

use blobs::Blobs;
use contract::rest::OutputStatus;
use framework::broker::{Broker as _, Outgoing};
use job_service::PipeAccess;
use serde_json::json;

use super::page;
use crate::outputs::{keep, keeping};
use crate::service::{Service, new_job};
use crate::workers::{sign, tell};

async fn publish(service: &Service, pipe: &str, task: &str) {
    let body = json!({
        "taskId": task, "taskClassifier": "Words", "taskApiVersion": 1, "to": pipe, "taskData": "eyJuIjoxfQ==",
        "tracking": {"jobTaskId": "acme:j.3", "trackingPipe": "tracking-in"}
    });
    let message = Outgoing::new(pipe, body.to_string());
    service.broker.publish(message).await.unwrap();
}

#[tokio::test]
async fn pipes_are_shown_with_what_waits_and_who_takes_it() {
    let service = Service::start().await;
    let first = page(&service, "/pipes").await.is(200);
    first.contains(r#"<a href="/pipes" aria-current="page">Pipes</a>"#);
    first.contains("tracking-in");
    first.contains("It comes into being when it is used first.");
    tell(&service, &sign()).await;
    for (pipe, count) in [("words-in", 1200), ("words-in.suspects", 1), ("<b>&", 2)] {
        for number in 0..count {
            publish(&service, pipe, &format!("t{number}")).await;
        }
    }
    let list = page(&service, "/pipes").await.is(200);
    list.contains(r#"<a href="/pipes/words-in">words-in</a><span class="name">word-count</span>"#);
    list.contains("1,200");
    list.contains("Nobody takes messages from it.");
    list.contains(r#"<td class="num bad">1</td>"#);
    list.contains(r#"<a href="/pipes/%3Cb%3E%26">&#60;b&#62;&#38;</a>"#);
    let one = page(&service, "/pipes/words-in").await.is(200);
    one.contains("Nobody takes messages from it.");
    one.contains("word-count");
    one.contains("This service gives no access to pipes over HTTP.");
    page(&service, "/pipes/nowhere")
        .await
        .is(404)
        .contains("There is no pipe");
    for wrong in ["peek=x", "peek=-1"] {
        let wrong = page(&service, &format!("/pipes/words-in?{wrong}")).await;
        wrong.is(400).contains("peek");
    }
    page(&service, "/pipes/a%0Ab").await.is(400);
}

#[tokio::test]
async fn first_messages_of_a_pipe_are_shown_where_they_may_be() {
    let service = Service::start_configured(|options| options.pipe_access = PipeAccess::On).await;
    publish(&service, "words-in", "<i>first").await;
    for number in 1..12 {
        publish(&service, "words-in", &format!("t{number}")).await;
    }
    service
        .broker
        .publish(Outgoing::new("words-in", "no JSON"))
        .await
        .unwrap();
    for _ in 0..2 {
        let one = page(&service, "/pipes/words-in").await.is(200);
        one.contains("&#60;i&#62;first</code> Words");
        one.contains("{&#34;n&#34;:1}");
        one.contains(r#"<a href="/partitions/acme/jobs/j/tasks/3">j</a>"#);
        assert!(!one.body.contains("t10"));
        one.contains(r#"<a href="/pipes/words-in?peek=100">Show more</a>"#);
    }
    let all = page(&service, "/pipes/words-in?peek=100").await.is(200);
    all.contains("t11");
    all.contains("not a task message");
    assert!(!all.body.contains("Show more"));
    assert_eq!(service.broker.depth("words-in").await.unwrap(), 13);
    let one = page(&service, "/pipes/words-in?peek=0").await.is(200);
    one.contains("first</code> Words");
    assert!(!one.body.contains("t1<") && !one.body.contains("No message waits here"));
}

#[tokio::test]
async fn workers_are_shown_as_they_tell_of_themselves() {
    let service = Service::start().await;
    let none = page(&service, "/workers").await.is(200);
    none.contains("No worker has told of itself yet");
    tell(&service, &sign()).await;
    let shown = page(&service, "/workers").await.is(200);
    for part in [
        "word-count",
        "1.2",
        "node-3, process 17",
        r#"<a href="/pipes/words-in">words-in</a>"#,
        "1 of 4",
        r#"<a href="/partitions/p/jobs/j/tasks/1">p:j.1</a>"#,
    ] {
        shown.contains(part);
    }
    assert!(!shown.body.contains("No worker has told"));
}

#[tokio::test]
async fn large_outputs_are_shown_as_far_as_they_fit_and_the_rest_is_offered() {
    let blobs = Blobs::memory();
    let kept = blobs.clone();
    let service = Service::start_configured(|options| options.outputs.blobs = Some(kept)).await;
    service.put("j", &keeping()).await.is(201);
    let line = |task: u32, size: usize| {
        let text = "x".repeat(size);
        json!({"task": task.to_string(), "status": "done", "output": format!("begin{task}{text}")})
            .to_string()
    };
    let large: Vec<String> = [5, 1, 2, 2]
        .iter()
        .zip(1..)
        .map(|(size, task)| line(task, size * 1024 * 1024))
        .collect();
    let lines: Vec<(u32, &str)> = (1..).zip(large.iter().map(String::as_str)).collect();
    keep(&service, &blobs, OutputStatus::Done, &lines).await;
    let outputs = format!("/partitions/{}/jobs/j/outputs", service.partition);
    let first = page(&service, &outputs).await.is(200);
    first.contains("begin1xxx");
    assert!(!first.body.contains("begin2") && first.body.len() < 100_000);
    first.contains("These outputs are large");
    first.contains("outputs?offset=0&amp;limit=1");
    first.contains(r#"rel="next" href=""#);
    let second = page(&service, &format!("{outputs}?offset=1")).await.is(200);
    for task in ["begin2", "begin3"] {
        second.contains(task);
    }
    assert!(!second.body.contains("begin4"));
    let last = page(&service, &format!("{outputs}?offset=3")).await.is(200);
    last.contains("begin4");
    assert!(!last.body.contains("These outputs are large") && !last.body.contains(r#"rel="next""#));
}

#[tokio::test]
async fn job_says_when_it_is_deleted() {
    let service = Service::start().await;
    let mut job = new_job();
    service.put("kept", &job).await.is(201);
    job["expiry"] =
        json!({"Cancelled": {"expiryTime": "lastUpdateTime+P1D", "operation": "Delete"}});
    service.put("j", &job).await.is(201);
    let path = |job: &str| format!("/partitions/{}/jobs/{job}", service.partition);
    let before = page(&service, &path("j")).await.is(200);
    before.contains("if Cancelled: lastUpdateTime+P1D");
    page(&service, &path("kept")).await.contains("by hand only");
    service.cancel("j").await.is(204);
    let found = service.get("/jobs/j").await.json();
    let day = 24 * 60 * 60 * 1000;
    assert_eq!(
        found["expiryTime"].as_i64().unwrap(),
        found["endTime"].as_i64().unwrap() + day
    );
    let after = page(&service, &path("j")).await.is(200);
    assert!(!after.body.contains("lastUpdateTime"), "{}", after.body);
    let expires = chrono::DateTime::from_timestamp_millis(found["expiryTime"].as_i64().unwrap());
    let text = expires.unwrap().format("%Y-%m-%d %H:%M:%S UTC");
    after.contains(&text.to_string());
}

#[tokio::test]
async fn wrong_addresses_and_parameters_get_a_page_that_says_what_is_wrong() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let partition = format!("/partitions/{}", service.partition);
    for (path, status, text) in [
        ("/nothing", 404, "There is nothing at"),
        ("/jobs/j/nothing", 404, "There is no page"),
        ("/jobs/j/pause", 405, "does not support GET"),
        ("/jobs/unknown/failures", 404, "job_id {unknown} not found"),
        ("/jobs/unknown/tasks/0", 404, "job_id {unknown} not found"),
        ("/jobs/unknown/live", 404, "job_id {unknown} not found"),
        (
            "/jobs/unknown/confirm?action=cancel",
            404,
            "job_id {unknown} not found",
        ),
        ("/jobs/j/tasks/9", 404, "9"),
        ("/jobs/j/tasks/x", 400, "x"),
        ("/jobs/j/tasks/0?after=x", 400, "after"),
        ("/jobs/j/tasks/0?state=x", 400, "state"),
        ("/jobs/j/failures?after=x", 400, "after"),
        ("/jobs/j/failures?after=1-x", 400, "after"),
        ("/jobs/j/outputs?offset=x", 400, "offset"),
        ("/jobs/j/outputs?offset=-1", 400, "offset"),
        ("/jobs/j/confirm?action=x", 400, "must be one of pause"),
        (
            "/jobs?filter=colour%3D%3Dred",
            400,
            "Unsupported filter key specified: colour",
        ),
        ("/jobs?filter=%28", 400, "role=\"alert\""),
        ("/jobs?sort=colour:asc", 400, "role=\"alert\""),
        ("/jobs?offset=x", 400, "offset"),
        ("/jobs?filter=a%00b", 400, "U+0000"),
        (
            "/bulk?action=cancel&of=some",
            400,
            "must be all or selected",
        ),
        (
            "/bulk?action=cancel&of=all&filter=colour%3D%3Dred",
            400,
            "colour",
        ),
        ("/submit?kind=x", 400, "There is no kind of job"),
        ("/jobs/a%00b", 400, "<h1>"),
    ] {
        let shown = page(&service, &format!("{partition}{path}")).await;
        assert_eq!(shown.status, status, "{path}: {}", shown.body);
        assert_eq!(
            shown.header("content-type"),
            "text/html; charset=utf-8",
            "{path}"
        );
        assert!(shown.body.contains(text), "{path}: {}", shown.body);
    }
    let no_page = page(&service, &format!("{partition}/jobs/j/pause")).await;
    assert_eq!(no_page.header("allow"), "POST");
    // What costs more than an overview is read less often.
    for (path, pace) in [
        ("", 1),
        ("/tasks/0", 1),
        ("/failures", 5),
        ("/outputs", 5),
        ("/definition", 5),
    ] {
        let shown = page(&service, &format!("{partition}/jobs/j{path}")).await;
        shown.is(200).contains(&format!("data-pace=\"{pace}\""));
    }
    for path in ["/?after=a%00b", "/partitions/a%00b/jobs", "/assets/x/y"] {
        let shown = page(&service, path).await;
        assert!(shown.status.is_client_error(), "{path}: {shown:?}");
        shown.contains("<h1>");
    }
}
