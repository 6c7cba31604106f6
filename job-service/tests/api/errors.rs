//! The bodies of error responses, as programs read them.

use contract::rest::{ERROR_HEADER, ErrorBody, ErrorCode as Code};
use framework::clock::Clock;
use reqwest::Method;
use serde_json::json;

use crate::service::{Answer, Service, new_job};

#[tokio::test]
async fn every_kind_of_error_has_its_code() {
    let service = Service::start().await;
    service.put("taken", &new_job()).await.is(201);
    service.cancel("taken").await.is(204);
    let jobs = |path: &str| service.path(&format!("/jobs{path}"));
    let changed = |field: &str, value| {
        let mut job = new_job();
        job[field] = value;
        Some(job.to_string())
    };
    let task_changed = |field: &str, value| {
        let mut job = new_job();
        job["task"][field] = value;
        Some(job.to_string())
    };
    let (get, put, post) = (Method::GET, Method::PUT, Method::POST);
    for (method, path, body, status, code) in [
        (&get, jobs("/absent"), None, 404, Code::JobNotFound),
        (&get, jobs("/a:b"), None, 400, Code::InvalidId),
        (&get, jobs("?sort=x:up"), None, 400, Code::InvalidParameter),
        (
            &get,
            jobs("?filter=status%3D"),
            None,
            400,
            Code::InvalidFilter,
        ),
        (&get, "/nothing".to_owned(), None, 404, Code::UrlNotFound),
        (&post, jobs("/taken"), None, 405, Code::MethodNotAllowed),
        (&post, jobs("/taken/pause"), None, 400, Code::WrongJobStatus),
        (
            &put,
            jobs("/new"),
            Some("{".to_owned()),
            400,
            Code::InvalidJson,
        ),
        (
            &put,
            jobs("/new"),
            changed("task", json!(null)),
            400,
            Code::InvalidTask,
        ),
        (
            &put,
            jobs("/new"),
            changed("type", json!("x")),
            400,
            Code::InvalidTask,
        ),
        (
            &put,
            jobs("/new"),
            changed("labels", json!({"a b": "c"})),
            400,
            Code::InvalidLabel,
        ),
        (
            &put,
            jobs("/new?strict=true"),
            changed("nam", json!("x")),
            400,
            Code::UnknownField,
        ),
        (
            &put,
            jobs("/new"),
            task_changed("taskPipe", json!("tracking-in")),
            400,
            Code::ReservedPipe,
        ),
        (
            &put,
            jobs("/taken"),
            changed("name", json!("another")),
            403,
            Code::JobExists,
        ),
        (
            &put,
            jobs("/new"),
            Some(json!({"type": "unknown"}).to_string()),
            400,
            Code::UnknownJobType,
        ),
        (
            &put,
            jobs("/new"),
            changed("prerequisiteJobIds", json!(["taken"])),
            400,
            Code::InvalidPrerequisite,
        ),
    ] {
        let answer = service.call(method.clone(), &path, body).await.is(status);
        assert_eq!(answer.header(ERROR_HEADER), code.as_str(), "{path}");
    }
}

#[tokio::test]
async fn error_names_its_request_and_is_a_problem_for_clients_that_accept_one() {
    let service = Service::start().await;
    let before = Clock::system().now_millis();
    let path = service.path("/jobs/lost%20job/cancel");
    let request = |accept: &'static str| {
        let request = service.request(Method::POST, &path);
        Answer::of(
            request
                .header("Accept", accept)
                .header("CAF-Correlation-Id", "trace-7"),
        )
    };
    let plain = request("application/json, */*").await.is(404);
    assert_eq!(plain.header("content-type"), "application/json");
    assert_eq!(
        plain.body,
        r#"{"message":"ERROR: job_id {lost job} not found"}"#
    );
    let problem = request("application/problem+json").await.is(404);
    assert_eq!(problem.header("content-type"), "application/problem+json");
    let body: ErrorBody = serde_json::from_str(&problem.body).unwrap();
    let time = body.time.unwrap();
    assert!((before..=Clock::system().now_millis()).contains(&time));
    let expected = ErrorBody {
        code: Some("JOB_NOT_FOUND".to_owned()),
        title: Some("The job does not exist".to_owned()),
        status: Some(404),
        detail: Some("ERROR: job_id {lost job} not found".to_owned()),
        remedy: Some(Code::JobNotFound.remedy().to_owned()),
        time: Some(time),
        partition_id: Some(service.partition.clone()),
        job_id: Some("lost job".to_owned()),
        correlation_id: Some("trace-7".to_owned()),
        ..ErrorBody::of_message("ERROR: job_id {lost job} not found")
    };
    assert_eq!(body, expected);
}
