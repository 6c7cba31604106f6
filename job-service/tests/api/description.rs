//! The published description of the API.

use contract::rest;
use reqwest::Method;
use serde_json::Value;

use crate::service::Service;

#[tokio::test]
async fn serves_the_swagger_ui() {
    let service = Service::start().await;
    let redirect = service.call(Method::GET, "/job-service-ui", None).await;
    assert!(redirect.status.is_redirection());
    assert_eq!(redirect.header("location"), "/job-service-ui/");
    let page = service
        .call(Method::GET, "/job-service-ui/", None)
        .await
        .is(200);
    assert!(page.header("content-type").starts_with("text/html"));
    let start = service
        .call(Method::GET, "/job-service-ui/swagger-initializer.js", None)
        .await
        .is(200);
    assert!(
        start.body.contains("/job-service-ui/api-docs/openapi.json"),
        "{}",
        start.body
    );
    let document = service
        .call(Method::GET, "/job-service-ui/api-docs/openapi.json", None)
        .await
        .is(200);
    assert_eq!(
        document.json(),
        serde_json::to_value(job_service::openapi()).unwrap()
    );
}

#[test]
fn openapi_description_matches_the_snapshot() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.bind(|| insta::assert_json_snapshot!("api__openapi", job_service::openapi()));
}

#[test]
fn page_about_the_api_lists_every_operation() {
    let document = serde_json::to_value(job_service::openapi()).unwrap();
    let mut rows = Vec::new();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let method = method.to_uppercase();
            let path = path.strip_prefix("/job-service/v1").unwrap_or(path);
            let summary = operation["summary"].as_str().unwrap();
            rows.push((
                path.to_owned(),
                format!("| `{method} {path}` | {summary} |\n"),
            ));
        }
    }
    rows.sort();
    let rows: String = rows.into_iter().map(|(_, row)| row).collect();
    let wanted = format!("| operation | |\n|---|---|\n{rows}");
    harness::check_page("docs/reference/api.md", "operations", &wanted);
}

#[test]
fn openapi_has_an_example_for_each_body_and_describes_each_error() {
    let document = serde_json::to_value(job_service::openapi()).unwrap();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            for (status, response) in responses {
                let contents = response
                    .get("content")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flat_map(|contents| contents.values());
                let shared = ["500", "503"].contains(&status.as_str());
                for content in contents.filter(|_| !shared) {
                    let has_example = content.get("example").or(content.get("examples")).is_some();
                    assert!(has_example, "{method} {path} {status} has no example");
                }
            }
            if path.contains("{partitionId}") {
                for status in ["400", "500", "503"] {
                    assert!(
                        responses.contains_key(status),
                        "{method} {path} does not say what {status} means"
                    );
                }
            }
        }
    }
}

#[tokio::test]
async fn openapi_examples_of_jobs_are_accepted_as_they_stand() {
    let service = Service::start().await;
    let document = serde_json::to_value(job_service::openapi()).unwrap();
    let example = |path: &str, method: &str| {
        let path = format!("/job-service/v1/partitions/{{partitionId}}/{path}");
        let body = &document["paths"][path][method]["requestBody"];
        body["content"]["application/json"]["example"].clone()
    };
    let put = example("jobs/{jobId}", "put");
    service.put("example", &put).await.is(201);
    let post = example("jobs", "post").to_string();
    let path = service.path("/jobs");
    service.call(Method::POST, &path, Some(post)).await.is(201);
    let get = &document["paths"]["/job-service/v1/partitions/{partitionId}/jobs/{jobId}"]["get"];
    let example = get["responses"]["200"]["content"]["application/json"]["example"].clone();
    serde_json::from_value::<rest::Job>(example).unwrap();
}
