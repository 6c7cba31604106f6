//! What the service ignores of a request is named in the response, or refused.

use reqwest::Method;
use serde_json::json;

use crate::list::call;
use crate::service::{Service, new_job};

#[tokio::test]
async fn unknown_fields_are_named_in_the_notes_and_refused_if_strict() {
    let service = Service::start().await;
    let mut job = new_job();
    job["prioirty"] = json!(7);
    job["task"]["targetpipe"] = json!({"a": 1});
    let put = async |path: &str| {
        let path = service.path(path);
        service
            .call(Method::PUT, &path, Some(job.to_string()))
            .await
    };
    let refused = put("/jobs/j?strict=true").await;
    refused.refuses(
        400,
        "The field 'prioirty' is unknown. Correct or remove it; without 'strict=true', it is ignored.",
    );
    service.get("/jobs/j").await.is(404);
    let created = put("/jobs/j?strct=true").await.is(201);
    assert_eq!(
        created.json(),
        json!({"notes": [
            "The parameter 'strct' is unknown and was ignored.",
            "The field 'prioirty' is unknown and was ignored.",
            "The field 'task.targetpipe' is unknown and was ignored.",
        ]})
    );
    assert_eq!(put("/jobs/j").await.is(204).body, "");
    assert_eq!(service.put("k", &new_job()).await.is(201).body, "");
    let mut many = new_job();
    for n in 0..30 {
        many[format!("field-{n}")] = json!(n);
    }
    let notes = service.put("l", &many).await.is(201).json();
    assert_eq!(notes["notes"].as_array().unwrap().len(), 21, "{notes}");
    assert_eq!(notes["notes"][20], "10 more were ignored.");
    put("/jobs/m?strict=maybe").await.refuses(
        400,
        "The parameter 'strict' must be true or false, but is 'maybe'.",
    );
}

#[tokio::test]
async fn unknown_parameters_of_bulk_operations_are_named_and_refused_if_strict() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    for path in ["/jobs:cancel", "/jobs:delete"] {
        let strict = [("labelExists", "x"), ("strict", "true")];
        let refused = call(&service, Method::POST, path, &strict).await;
        refused.refuses(
            400,
            "The parameter 'labelExists' is unknown. Correct or remove it; without 'strict=true', it is ignored.",
        );
    }
    for path in ["/jobs", "/jobStats/count"] {
        let strict = [("offset", "0"), ("limits", "1"), ("strict", "true")];
        call(&service, Method::GET, path, &strict).await.is(400);
        call(&service, Method::GET, path, &strict[..2])
            .await
            .is(200);
    }
    let cancelled = call(
        &service,
        Method::POST,
        "/jobs:cancel",
        &[("labelExists", "x")],
    )
    .await;
    assert_eq!(
        cancelled.is(200).json(),
        json!({"jobsCanceled": 1, "notes": ["The parameter 'labelExists' is unknown and was ignored."]})
    );
}
