//! The history of a job, with valid and invalid parameters.

use reqwest::Method;
use serde_json::json;

use crate::service::{Answer, Service, new_job};

#[tokio::test]
async fn history_says_when_who_and_why() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    for operation in ["pause", "resume", "cancel"] {
        let path = service.path(&format!("/jobs/j/{operation}"));
        let request = service.request(Method::POST, &path);
        let request = request.header("caf-correlation-id", format!("to-{operation}"));
        Answer::of(request).await.is(204);
    }
    let page = service.get("/jobs/j/history").await.is(200).json();
    let history = page["history"].as_array().unwrap();
    let seen: Vec<_> = history
        .iter()
        .map(|step| [&step["from"], &step["to"], &step["actor"], &step["reason"]].map(Clone::clone))
        .collect();
    assert_eq!(
        json!(seen),
        json!([
            [null, "Waiting", "client", "created"],
            ["Waiting", "Paused", "client", "paused"],
            ["Paused", "Active", "client", "resumed"],
            ["Active", "Cancelled", "client", "cancelled"],
        ])
    );
    assert_eq!(history[3]["correlationId"], "to-cancel");
    assert_eq!(history[3]["round"], 1);
    assert!(history[0]["correlationId"].is_string());

    let first = service.get("/jobs/j/history?limit=3").await.json();
    assert_eq!(first["history"].as_array().unwrap().len(), 3);
    let next = first["next"].as_str().unwrap();
    let path = format!("/jobs/j/history?limit=3&after={next}");
    let last = service.get(&path).await.is(200).json();
    assert_eq!(last, json!({ "history": [history[3]] }));
}

#[tokio::test]
async fn invalid_parameters_of_a_history_are_refused() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    for (query, message) in [
        (
            "limit=x",
            "The parameter 'limit' must be a whole number, but is 'x'.",
        ),
        (
            "after=x",
            "The parameter 'after': 'x' is no place in the history; use the value of 'next' of the page before.",
        ),
        (
            "before=3&strict=true",
            "The parameter 'before' is unknown. Correct or remove it; without 'strict=true', it is ignored.",
        ),
    ] {
        let path = format!("/jobs/j/history?{query}");
        service.get(&path).await.refuses(400, message);
    }
    service
        .get("/jobs/unknown/history")
        .await
        .refuses(404, "ERROR: job_id {unknown} not found");
}
