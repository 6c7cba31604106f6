//! Job types: definitions in the folder that CAF's variable names. Scripts are written in jq
//! instead of JSLT.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::service::{Service, Store};

on_one_store![
    job_is_made_from_its_type_and_parameters,
    invalid_types_and_parameters_are_refused,
    yaml_files_of_the_folder_are_job_types,
];

/// A job type that uses everything a definition may contain.
const EXPORT: &str = r#"
configurationProperties:
  - name: exportBucket
    description: Where the pages go
  - name: task_pipe
jobParametersSchema:
  type: object
  properties:
    files: {type: array, items: {type: string}, minItems: 1}
    page: {type: integer}
  required: [files]
  additionalProperties: false
constants:
  target-pipe-2: pages-out
taskScript: |
  if .parameters.page == 0 then error("there is no page 0") else . end
  | {
      taskClassifier: "ExportPages",
      taskApiVersion: 74,
      taskPipe: .configuration.task_pipe,
      targetPipe: .constants."target-pipe-2",
      taskData: {
        configuration,
        names: (.parameters.files | join(",")),
        page: .parameters.page,
        empty: {},
        of: "\(.partitionId)/\(.jobId)"
      }
    }
"#;

/// A job type without a schema. It accepts no parameters.
const BASIC: &str = r#"
configurationProperties: [{name: task_pipe}]
taskScript: |
  {taskClassifier: "Basic", taskApiVersion: 1, taskPipe: .configuration.task_pipe, taskData: {input: .}}
"#;

/// Scripts that fail or return an invalid task, each with the id of its job type.
const NO_TASKS: [(&str, &str); 5] = [
    (
        "no-classifier",
        r#"{taskApiVersion: 1, taskPipe: "p", taskData: {}}"#,
    ),
    (
        "version-0",
        r#"{taskClassifier: "W", taskApiVersion: 0, taskPipe: "p", taskData: {}}"#,
    ),
    (
        "data-is-text",
        r#"{taskClassifier: "W", taskApiVersion: 1, taskPipe: "p", taskData: "text"}"#,
    ),
    (
        "one-field-more",
        r#"{taskClassifier: "W", taskApiVersion: 1, taskPipe: "p", taskData: {}, other: 1}"#,
    ),
    ("fails", "{taskClassifier: .jobId.name}"),
];

/// Starts a service with these definitions. Their tasks go to `pipe`.
async fn start(store: Store, folder: &Path, pipe: &str) -> Service {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("export.yaml", EXPORT);
    write("basic.yaml", BASIC);
    write("wrong-extension.yml", BASIC);
    write("notes.txt", "no definition");
    fs::create_dir(folder.join("folder.yaml")).unwrap();
    fs::create_dir(folder.join("below")).unwrap();
    write("below/nested.yaml", BASIC);
    for (id, script) in NO_TASKS {
        write(
            &format!("{id}.yaml"),
            &format!("taskScript: |\n  {script}\n"),
        );
    }
    let folder = folder.display().to_string();
    let variables = [
        ("CAF_JOB_SERVICE_JOB_TYPE_DEFINITIONS_DIR", folder.as_str()),
        ("EXPORTBUCKET", "invoices"),
        ("TASK_PIPE", pipe),
    ];
    Service::start_with(store, &variables).await
}

async fn job_is_made_from_its_type_and_parameters(store: Store) {
    let (folder, pipe) = (tempfile::tempdir().unwrap(), harness::unique("types"));
    let service = start(store, folder.path(), &pipe).await;
    let mut workers = service.consume_named(&pipe).await;
    let body = json!({"name": "Export", "type": "export", "parameters": {"files": ["a.pdf", "b.pdf"], "page": 3}});
    service.create("scan-12", &body).await;
    let (message, data) = workers.next().await;
    assert_eq!(
        (&message["taskClassifier"], &message["taskApiVersion"]),
        (&json!("ExportPages"), &json!(74))
    );
    assert_eq!(
        (&message["to"], &message["tracking"]["trackTo"]),
        (&json!(pipe), &json!("pages-out"))
    );
    assert_eq!(
        data,
        json!({
            // The property is named as in the definition; its value is that of the variable in
            // upper case.
            "configuration": {"exportBucket": "invoices", "task_pipe": pipe},
            "names": "a.pdf,b.pdf", "page": 3, "empty": {}, "of": format!("{}/scan-12", service.partition)
        })
    );
    assert_eq!(service.job("scan-12").await["name"], "Export");
    service.complete("scan-12", "").await;
    service.becomes("scan-12", "Completed", 100.0).await;

    // Requests are compared as they were sent, not by the task that the type creates.
    service.put("scan-12", &body).await.is(204);
    let other =
        json!({"name": "Export", "type": "export", "parameters": {"files": ["a.pdf"], "page": 3}});
    service
        .put("scan-12", &other)
        .await
        .refuses(403, "Job already exists");

    for (id, body) in [
        ("absent", json!({"type": "basic"})),
        ("null", json!({"type": "basic", "parameters": null})),
    ] {
        service.create(id, &body).await;
        let (message, data) = workers.next().await;
        let input = json!({
            "configuration": {"task_pipe": pipe}, "constants": {}, "partitionId": service.partition, "jobId": id, "parameters": null
        });
        assert_eq!(
            (data, &message["tracking"]["trackTo"]),
            (json!({"input": input}), &Value::Null),
            "{id}"
        );
    }
}

async fn invalid_types_and_parameters_are_refused(store: Store) {
    let (folder, pipe) = (tempfile::tempdir().unwrap(), harness::unique("types"));
    let service = start(store, folder.path(), &pipe).await;
    let put = async |body: Value| service.put("j", &body).await;
    let mut both = service.new_job("in");
    both["type"] = json!("export");
    put(both).await.refuses(
        400,
        "Specifying both typeId and task properties is not allowed.",
    );
    // The type is checked before the labels.
    put(json!({"type": "missing", "labels": {"a b": ""}}))
        .await
        .refuses(400, "Unknown job type ID: missing");
    put(json!({"type": "export", "parameters": {"files": ["a"], "page": 0}}))
        .await
        .refuses(400, "export: error: there is no page 0");
    // Each invalid parameter has its own line, which begins with its JSON path.
    for (parameters, paths) in [
        (json!(null), &["$"][..]),
        (json!("text"), &["$"]),
        (json!({}), &["$"]),
        (json!({"files": []}), &["$.files"]),
        (
            json!({"files": ["a", 1], "page": "one"}),
            &["$.files.1", "$.page"],
        ),
        (json!({"files": ["a"], "other": 1}), &["$"]),
    ] {
        let answer = put(json!({"type": "export", "parameters": parameters}))
            .await
            .is(400)
            .json();
        let lines: Vec<&str> = answer["message"].as_str().unwrap().lines().collect();
        assert_eq!(lines[0], "Invalid job parameters:", "{parameters}");
        let mut reported: Vec<&str> = lines[1..]
            .iter()
            .map(|line| line.split_once(": ").unwrap().0)
            .collect();
        reported.sort_unstable();
        assert_eq!(reported, paths, "{parameters}: {answer}");
    }
    // A type without a schema accepts no parameters, not even an empty object.
    let refused = put(json!({"type": "basic", "parameters": {}}))
        .await
        .is(400)
        .json();
    assert!(
        refused["message"]
            .as_str()
            .unwrap()
            .starts_with("Invalid job parameters:\n"),
        "{refused}"
    );
    // An error in a definition is the service's fault, not the client's.
    for (id, _) in NO_TASKS {
        let refused = put(json!({"type": id})).await;
        assert_eq!(
            (refused.status, refused.header("content-type")),
            (500, Some("application/json")),
            "{id}: {}",
            refused.body
        );
        assert!(
            refused.json()["message"]
                .as_str()
                .unwrap()
                .contains(&format!("'{id}'")),
            "{}",
            refused.body
        );
    }
    assert_eq!(service.get("/jobStats/count").await.is(200).json(), 0);
}

async fn yaml_files_of_the_folder_are_job_types(store: Store) {
    let (folder, pipe) = (tempfile::tempdir().unwrap(), harness::unique("types"));
    let service = start(store, folder.path(), &pipe).await;
    for id in [
        "Basic",
        "BASIC",
        "basic.yaml",
        "wrong-extension",
        "wrong-extension.yml",
        "notes",
        "folder",
        "nested",
        "below/nested",
        "",
    ] {
        service
            .put("j", &json!({"type": id}))
            .await
            .refuses(400, &format!("Unknown job type ID: {id}"));
    }
    service.create("j", &json!({"type": "basic"})).await;
    let without = Service::start(store).await;
    without
        .put("j", &json!({"type": "basic"}))
        .await
        .refuses(400, "Unknown job type ID: basic");
}
