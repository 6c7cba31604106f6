//! The log of the binary, as an operator reads it.

use contract::rest::{JobTask, NewJob};
use contract::{BatchTask, JobStatus, TaskData};
use harness::wait_for;
use serde_json::Value;

use crate::binary::Home;

#[tokio::test]
async fn failure_of_a_task_is_one_line_with_its_ids_and_the_log_is_json() {
    let home = Home::new();
    let up = home.up_with(&["--log-format", "json"]).await;
    let batch = BatchTask {
        batch_type: Some("lines".to_owned()),
        batch_definition: Some(r#"{"files":["nothing"]}"#.to_owned()),
        target_pipe: Some("items".to_owned()),
        ..BatchTask::default()
    };
    let task = JobTask {
        task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
        task_api_version: Some(BatchTask::API_VERSION),
        task_data: Some(serde_json::to_value(batch).unwrap()),
        task_pipe: Some("worker-batch-in".to_owned()),
        ..JobTask::default()
    };
    let request = NewJob {
        task: Some(task),
        // Of a job that starts at once, it would be refused.
        delay: Some(1),
        ..NewJob::default()
    };
    home.client().put("j", &request).await.unwrap();
    wait_for("the job to fail", async || {
        let job = home.client().get("j").await.unwrap();
        if job.status == JobStatus::Failed {
            Ok(())
        } else {
            Err(format!("{job:?}"))
        }
    })
    .await;
    assert_eq!(up.stop().await, Some(0));
    let log = std::fs::read_to_string(home.folder.path().join("err")).unwrap();
    let lines: Vec<Value> = log
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let started = &lines[0]["settings"];
    assert!(
        started
            .as_str()
            .unwrap()
            .contains("max-parts=50 (--max-parts)"),
        "{started}"
    );
    let failures: Vec<&Value> = lines
        .iter()
        .filter(|line| line["level"] != "INFO")
        .collect();
    let [failure] = failures[..] else {
        panic!("{failures:?}")
    };
    assert!(
        failure["reason"]
            .as_str()
            .unwrap()
            .contains("there is no file")
            && failure["job"] == "default:j"
            && failure["pipe"] == "worker-batch-in"
            && failure["attempt"] == 1
            && failure["task"].is_string()
            && failure["correlation_id"].is_string(),
        "{failure}"
    );
}
