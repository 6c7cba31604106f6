//! The results of parts of tasks that are done once, as workers ask for them and keep them.

use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{Answer, Service, new_job};

async fn put(service: &Service, path: &str, body: Value) -> Answer {
    let path = service.path(path);
    service
        .call(Method::PUT, &path, Some(body.to_string()))
        .await
}

#[tokio::test]
async fn part_of_a_task_is_done_once_its_result_is_kept() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let number = service.get("/jobs/j").await.json()["incarnation"].clone();
    let url = format!("/jobs/j/memos/3.1*/charge?n={number}");
    let unknown = json!({"done": false, "result": null});
    assert_eq!(service.get(&url).await.is(200).json(), unknown);
    // The text stays as it is, also what no program writes so.
    let result = "{\"amount\": 1.10, \"at\": 1e2}";
    let kept = json!({"done": true, "result": result});
    for sent in [result, "2"] {
        let put = put(&service, &url, json!({"result": sent})).await;
        assert_eq!(put.is(200).json(), kept);
    }
    assert_eq!(service.get(&url).await.is(200).json(), kept);
    for (path, status, reason) in [
        (
            "/jobs/j/memos/x/charge",
            400,
            "The task id 'x' is not of the form 3.17 or 3.17*, nor 0 for the job's own task.",
        ),
        (
            "/jobs/j/memos/3/.a",
            400,
            "'.a' is no key: a key has 1 to 100 ASCII letters, digits, '-', '_', ':' and '.', and does not begin with '.'.",
        ),
        (
            "/jobs/j/memos/3/charge?n=x",
            400,
            "The parameter 'n' must be a whole number, but is 'x'.",
        ),
        (
            "/jobs/other/memos/3/charge",
            404,
            "ERROR: job_id {other} not found",
        ),
    ] {
        service.get(path).await.refuses(status, reason);
        put(&service, path, json!({"result": "1"}))
            .await
            .refuses(status, reason);
    }
    let large = format!("\"{}\"", "x".repeat(16 * 1024));
    for (body, status, reason) in [
        (
            json!({"result": "{"}),
            400,
            "The result is not JSON: EOF while parsing an object at line 1 column 1.",
        ),
        (
            json!({"result": large}),
            413,
            "The body is larger than 16384 bytes.",
        ),
        (
            json!({}),
            400,
            "The body cannot be understood: missing field `result` at line 1 column 2.",
        ),
    ] {
        put(&service, "/jobs/j/memos/3/b", body)
            .await
            .refuses(status, reason);
    }
}

#[tokio::test]
async fn job_that_has_ended_or_has_no_room_is_never_told_as_not_done() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    for number in 0..100 {
        let url = format!("/jobs/j/memos/0/{number}");
        put(&service, &url, json!({"result": "1"})).await.is(200);
    }
    let full = service.get("/jobs/j/memos/0/100").await;
    assert_eq!(full.header("x-batchwright-error"), "TOO_MANY_MEMOS");
    full.refuses(409, "The task has 100 memos; more are not kept.");
    service.cancel("j").await.is(204);
    let ended = service.get("/jobs/j/memos/0/0").await;
    assert_eq!(ended.header("x-batchwright-error"), "WRONG_JOB_STATUS");
    ended.refuses(409, "The job 'j' has ended.");
    // What a worker has done meanwhile is kept for the next round.
    put(&service, "/jobs/j/memos/1/a", json!({"result": "1"}))
        .await
        .is(200);
    let round = service.post("/jobs/j/retry").await.is(200).json();
    assert_eq!(round["round"], 2);
    let kept: Value = service.get("/jobs/j/memos/1/a?r=2").await.is(200).json();
    assert_eq!(kept["result"], "1");
    service
        .get("/jobs/j/memos/1/a?r=1")
        .await
        .refuses(404, "ERROR: job_id {j} not found");
}
