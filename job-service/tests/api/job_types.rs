//! Jobs made from parameters, and definitions that stop the start.

use std::time::Duration;

use contract::TaskMessage;
use framework::broker::Broker;
use job_service::JobTypes;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::service::{Answer, Service};

/// Writes definitions to a new temporary folder.
fn folder(definitions: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (id, text) in definitions {
        std::fs::write(folder.path().join(format!("{id}.yaml")), text).unwrap();
    }
    folder
}

fn load(definitions: &[(&str, &str)]) -> Result<JobTypes, String> {
    let folder = folder(definitions);
    let lookup = |name: &str| (name == "EXPORTBUCKET").then(|| "invoices".to_owned());
    JobTypes::load(folder.path(), lookup).map_err(|error| {
        error
            .to_string()
            .replace(folder.path().to_str().unwrap(), "")
    })
}

async fn serve(job_types: JobTypes) -> Service {
    Service::start_configured(|options| options.job_types = job_types).await
}

/// Returns a definition whose task data is the result of this expression.
fn definition(schema: &str, expression: &str) -> String {
    let schema = if schema.is_empty() {
        String::new()
    } else {
        format!("jobParametersSchema: {schema}\n")
    };
    let task = format!(
        r#"{{taskClassifier: "W", taskApiVersion: 1, taskPipe: "in", taskData: {{made: ({expression})}}}}"#
    );
    format!("{schema}taskScript: {}\n", json!(task))
}

/// Returns the task data of the next message in a pipe.
async fn task_data(service: &Service, pipe: &str) -> Value {
    let mut consumer = service.broker.consume(pipe, 1).await.unwrap();
    let delivery = harness::in_time("a message", consumer.next())
        .await
        .unwrap();
    let message = TaskMessage::decode(&delivery.body()).unwrap();
    delivery.ack();
    serde_json::from_slice(&message.task_data.unwrap()).unwrap()
}

/// Returns the text of the first code block in this language after a mark in the guide.
fn block<'a>(guide: &'a str, mark: &str, language: &str) -> &'a str {
    let start = format!("```{language}\n");
    let after = &guide[guide.find(mark).unwrap_or_else(|| panic!("no {mark}"))..];
    let body = &after[after.find(&start).unwrap() + start.len()..];
    &body[..body.find("```").unwrap()]
}

const GUIDE: &str = include_str!("../../../docs/job-types.md");

const FROM_CAF: &str = include_str!("../../../docs/from-caf.md");

#[tokio::test]
async fn guide_example_makes_a_task() {
    let definition = block(GUIDE, "<!-- example: definition -->", "yaml");
    let service = serve(load(&[("export", definition)]).unwrap()).await;
    let request: Value =
        serde_json::from_str(block(GUIDE, "<!-- example: request -->", "json")).unwrap();
    service.put("j", &request).await.is(201);
    let expected: Value =
        serde_json::from_str(block(GUIDE, "<!-- example: task data -->", "json")).unwrap();
    assert_eq!(task_data(&service, "pages-in").await, expected);
    let absolute = json!({"type": "export", "parameters": {"files": ["/etc/passwd"]}});
    service
        .put("k", &absolute)
        .await
        .refuses(400, "export: error: a file is named by an absolute path");
}

#[tokio::test]
async fn repeated_request_is_recognised_by_its_parameters() {
    let first = load(&[("t", &definition("{}", ".parameters"))]).unwrap();
    let service = serve(first).await;
    service
        .put("j", &json!({"type": "t", "parameters": {"a": 1, "b": [2]}}))
        .await
        .is(201);
    service
        .put("j", &json!({"parameters": {"b": [2], "a": 1}, "type": "t"}))
        .await
        .is(204);
    service
        .put("j", &json!({"type": "t", "parameters": {"a": 2, "b": [2]}}))
        .await
        .refuses(403, "Job already exists");
    // A request with the task that the type creates is a different request.
    let task = json!({"taskClassifier": "W", "taskApiVersion": 1, "taskPipe": "in", "taskData": {"made": {"a": 1, "b": [2]}}});
    service
        .put("j", &json!({"task": task}))
        .await
        .refuses(403, "Job already exists");
}

#[tokio::test]
async fn each_invalid_parameter_is_reported() {
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer", "maximum": 9, "exclusiveMaximum": true}}, "required": ["n", "m"]}"#;
    let newer = schema.replace(
        r#""maximum": 9, "exclusiveMaximum": true"#,
        r#""exclusiveMaximum": 9"#,
    );
    let newer = newer.replacen(
        '{',
        r#"{"$schema": "http://json-schema.org/draft-07/schema#", "#,
        1,
    );
    let types = load(&[
        ("four", &definition(schema, ".parameters.n")),
        ("seven", &definition(&newer, ".parameters.n")),
    ])
    .unwrap();
    let service = serve(types).await;
    for id in ["four", "seven"] {
        service
            .put(id, &json!({"type": id, "parameters": {"n": 8, "m": 0}}))
            .await
            .is(201);
        let refusal = service
            .put("j", &json!({"type": id, "parameters": {"n": 9}}))
            .await
            .is(400)
            .error();
        let lines: Vec<&str> = refusal.lines().collect();
        assert_eq!(
            (lines.len(), lines[0]),
            (3, "Invalid job parameters:"),
            "{refusal}"
        );
        assert!(
            lines.iter().any(|line| line.starts_with("$.n: 9"))
                && lines
                    .iter()
                    .any(|line| line.contains("\"m\" is a required")),
            "{refusal}"
        );
    }
    service
        .put("j", &json!({"type": "Four"}))
        .await
        .refuses(400, "Unknown job type ID: Four");
    let both = json!({"type": "four", "task": {}});
    service.put("j", &both).await.refuses(
        400,
        "Specifying both typeId and task properties is not allowed.",
    );
}

#[tokio::test]
async fn type_without_schema_takes_no_parameters() {
    let service =
        serve(load(&[("t", &definition("", "[.parameters, .jobId, .partitionId]"))]).unwrap())
            .await;
    service.put("j", &json!({"type": "t"})).await.is(201);
    assert_eq!(
        task_data(&service, "in").await,
        json!({"made": [null, "j", service.partition]})
    );
    service
        .put("k", &json!({"type": "t", "parameters": null}))
        .await
        .is(201);
    assert!(
        service
            .put("l", &json!({"type": "t", "parameters": {}}))
            .await
            .is(400)
            .error()
            .starts_with("Invalid job parameters:\n$: ")
    );
}

#[tokio::test]
async fn client_mistakes_are_400_and_definition_mistakes_are_500() {
    let script = |text: &str| format!("taskScript: {}\n", json!(text));
    let task = |change: &str| {
        script(&format!(
            r#"{{taskClassifier: "W", taskApiVersion: 1, taskPipe: "in", taskData: {{}}}} | {change}"#
        ))
    };
    let flawed = [
        ("fails", script(".jobId.name")),
        ("nothing", script("empty")),
        ("two", script("1, 2")),
        ("text", script("\"task\"")),
        ("more", task(".extra = 1")),
        ("less", task("del(.taskPipe)")),
        ("version", task(".taskApiVersion = 0")),
        ("fraction", task(".taskApiVersion = 1.5")),
        ("data", task(".taskData = \"x\"")),
        ("blank", task(".targetPipe = \"\"")),
        ("circle", task(".targetPipe = \"IN\"")),
        ("endless", script("last(range(3000000))")),
    ];
    let mut definitions: Vec<(&str, &str)> = flawed
        .iter()
        .map(|(id, text)| (*id, text.as_str()))
        .collect();
    let refusing = script("error(\"not \\(.jobId)\")");
    definitions.push(("refusing", &refusing));
    let service = serve(
        load(&definitions)
            .unwrap()
            .with_time_limit(Duration::from_millis(200)),
    )
    .await;
    service
        .put("j", &json!({"type": "refusing"}))
        .await
        .refuses(400, "refusing: error: not j");
    for (id, _) in &flawed {
        let answer: Answer = service.put("j", &json!({"type": id})).await.is(500);
        assert!(
            answer.error().starts_with(&format!(
                "The definition of the job type '{id}' did not build a valid task"
            )),
            "{answer:?}"
        );
    }
    service.get("/jobs/j").await.is(404);
}

#[tokio::test]
async fn every_script_of_the_guide_returns_the_documented_result() {
    let input: Value =
        serde_json::from_str(block(FROM_CAF, "<!-- example: input -->", "json")).unwrap();
    let scripts = &FROM_CAF[FROM_CAF.find("## Job types").unwrap()..];
    let sections: Vec<&str> = scripts.split("\n### ").skip(1).collect();
    assert_eq!(sections.len(), 14);
    let mut definitions = Vec::new();
    for (at, section) in sections.iter().enumerate() {
        let text = format!(
            "{}constants: {}\n",
            definition("{}", block(section, "", "jq").trim()),
            input["constants"]
        );
        definitions.push((format!("t{at}"), text));
    }
    let named: Vec<(&str, &str)> = definitions
        .iter()
        .map(|(id, text)| (id.as_str(), text.as_str()))
        .collect();
    let mut service = serve(load(&named).unwrap()).await;
    service.partition = input["partitionId"].as_str().unwrap().to_owned();
    let job = input["jobId"].as_str().unwrap();
    for (at, section) in sections.iter().enumerate() {
        let answer = service
            .put(
                job,
                &json!({"type": format!("t{at}"), "parameters": input["parameters"]}),
            )
            .await;
        if section.contains("```text") {
            answer.refuses(
                400,
                &format!("t{at}: error: {}", block(section, "", "text").trim()),
            );
        } else {
            answer.is(201);
            let expected: Value = serde_json::from_str(block(section, "", "json")).unwrap();
            assert_eq!(
                task_data(&service, "in").await["made"],
                expected,
                "{section}"
            );
            service.delete(job).await.is(204);
        }
    }
}

#[test]
fn invalid_definition_is_reported_with_file_and_reason() {
    for (text, reason) in [
        (
            "taskScript: '{a: .b'\n",
            "taskScript:1:7: expected closing brace, found the end",
        ),
        (
            "taskScript: |\n  {\n    a: nosuch\n  }\n",
            "taskScript:2:6: there is no function nosuch/0",
        ),
        ("constants: {}\n", "missing field `taskScript`"),
        ("taskScript: .\nscript: .\n", "unknown field `script`"),
        ("taskScript: [\n", ""),
        (
            "taskScript: .\nconfigurationProperties: [{name: nowhere}]\n",
            "the configuration property nowhere has no value: the variable NOWHERE is not set",
        ),
        (
            "taskScript: .\nconfigurationProperties: [{title: x}]\n",
            "unknown field `title`",
        ),
        (
            "taskScript: .\njobParametersSchema: {type: 7}\n",
            "jobParametersSchema: ",
        ),
        (
            "taskScript: .\njobParametersSchema: {$ref: 'http://127.0.0.1:1/x'}\n",
            "jobParametersSchema: ",
        ),
        (
            "taskScript: .\njobParametersSchema: {$schema: 'http://127.0.0.1:1/x'}\n",
            "jobParametersSchema: ",
        ),
    ] {
        let refusal = load(&[("flawed", text)]).expect_err(text);
        assert!(
            refusal.starts_with("the job type definition /flawed.yaml is not valid: ")
                && refusal.contains(reason),
            "{text}: {refusal}"
        );
    }
    let nowhere = JobTypes::load("/no/such/folder".as_ref(), |_| None)
        .unwrap_err()
        .to_string();
    assert!(
        nowhere.starts_with("the folder /no/such/folder of job type definitions cannot be read"),
        "{nowhere}"
    );
}

#[test]
fn only_yaml_files_of_the_folder_itself_are_job_types() {
    let folder = folder(&[("b.2", "taskScript: .\n"), ("a", "taskScript: .\n")]);
    std::fs::write(folder.path().join("notes.yml"), "no definition").unwrap();
    std::fs::create_dir_all(folder.path().join("old.yaml")).unwrap();
    let types = JobTypes::load(folder.path(), |_| None).unwrap();
    assert_eq!(types.ids().collect::<Vec<_>>(), ["a", "b.2"]);
}
