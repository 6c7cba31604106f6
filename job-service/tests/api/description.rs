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

/// Texts and examples are read where they stand, in the code of the operations.
#[test]
fn operations_and_types_of_the_api_match_the_snapshot() {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("../snapshots");
    settings.set_prepend_module_to_snapshot(false);
    let document = serde_json::to_value(job_service::openapi()).unwrap();
    settings.bind(|| insta::assert_snapshot!("api__openapi", outline(&document)));
}

/// Returns the operations with their parameters, bodies and responses, and the fields of all types.
fn outline(document: &Value) -> String {
    let mut lines = Vec::new();
    for (path, operations) in entries(&document["paths"]) {
        for (method, operation) in entries(operations) {
            lines.push(format!("{} {path}", method.to_uppercase()));
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let (name, place) = (&parameter["name"], &parameter["in"]);
                let (name, place) = (name.as_str().unwrap(), place.as_str().unwrap());
                let optional = if parameter["required"] == true {
                    ""
                } else {
                    "?"
                };
                let kind = type_of(&parameter["schema"]);
                lines.push(format!("    {place} {name}{optional}: {kind}"));
            }
            let body = contents(&operation["requestBody"]);
            lines.extend((!body.is_empty()).then(|| format!("    body{body}")));
            for (status, response) in entries(&operation["responses"]) {
                let headers: Vec<&str> = entries(&response["headers"]).map(|it| it.0).collect();
                let line = format!("    {status}{} {}", contents(response), headers.join(", "));
                lines.push(line.trim_end().to_owned());
            }
        }
    }
    let types = entries(&document["components"]["schemas"]);
    lines.extend(types.map(|(name, schema)| format!("{name}: {}", type_of(schema))));
    lines.join("\n")
}

fn entries(object: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let entries = object.as_object().into_iter().flatten();
    entries.map(|(name, value)| (name.as_str(), value))
}

/// Returns the media types of a body, each with its type.
fn contents(body: &Value) -> String {
    let content = entries(&body["content"]);
    let content = content.map(|(media, it)| [" ", media, " ", &type_of(&it["schema"])].concat());
    content.collect()
}

/// Returns what a value is: the name of a type, or its fields with `?` behind those that can be
/// absent, and its constraints.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        return name.rsplit('/').next().unwrap().to_owned();
    }
    for several in ["oneOf", "anyOf", "allOf"] {
        if let Some(types) = schema[several].as_array() {
            let types: Vec<String> = types.iter().map(type_of).collect();
            return types.join(if several == "allOf" { " & " } else { " | " });
        }
    }
    let is_required = |name: &str| {
        let mut required = schema["required"].as_array().into_iter().flatten();
        required.any(|field| field == name)
    };
    let fields = entries(&schema["properties"]).map(|(name, field)| {
        let optional = if is_required(name) { "" } else { "?" };
        let field = type_of(field).replace('\n', "\n    ");
        ["\n    ", name, optional, ": ", &field].concat()
    });
    let fields: String = fields.collect();
    let constraints = entries(schema).filter(|(name, _)| {
        ![
            "type",
            "description",
            "example",
            "examples",
            "properties",
            "required",
            "items",
        ]
        .contains(name)
    });
    let constraints = constraints.map(|(name, value)| match value {
        Value::Object(_) => [" ", name, "=", &type_of(value)].concat(),
        value => [" ", name, "=", &value.to_string()].concat(),
    });
    let constraints: String = constraints.collect();
    let kind = match &schema["type"] {
        Value::String(kind) if kind == "array" => format!("[{}]", type_of(&schema["items"])),
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => {
            let kinds: Vec<&str> = kinds.iter().filter_map(Value::as_str).collect();
            kinds.join("|")
        }
        _ => "any".to_owned(),
    };
    format!("{kind}{constraints}{fields}")
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
