//! What a batch worker says of a batch before there is a job. The tests are the batch worker.

use contract::rest::ERROR_HEADER;
use framework::broker::{Broker as _, Queries};
use reqwest::Method;
use serde_json::{Value, json};
use store::EventKind;

use crate::service::{Answer, Service, new_job};

/// Returns a batch job with this definition.
fn batch(definition: &str) -> Value {
    let mut job = new_job();
    job["task"]["taskData"] =
        json!({"batchType": "range", "batchDefinition": definition, "targetPipe": "i"});
    job
}

/// Answers questions for ever: each definition says what is answered.
pub async fn answer(mut queries: Queries) {
    while let Some(query) = queries.next().await {
        let asked: Value = serde_json::from_slice(&query.body).unwrap();
        let refusal = |missing: bool| json!({"refusal": {"message": "batch definition of range: oh", "missing": missing}});
        let answer = match asked["task"]["batchDefinition"].as_str().unwrap_or("none") {
            "bad" => refusal(false),
            "missing" => refusal(true),
            "doubt" => json!({"doubt": "the disk is away"}),
            // As one does that ends meanwhile.
            "drop" => continue,
            _ if asked["question"] == "explain" => json!({"explanation": {
                "batchType": "range", "exact": true, "items": 7, "splits": 1, "messages": 7, "bytes": 91, "levels": 1,
                "first": [{"label": "number 1"}], "targetPipe": "i", "later": {"versions": "know more"}
            }}),
            _ => json!({}),
        };
        query.answer(answer.to_string().into());
    }
}

#[tokio::test]
async fn a_batch_is_refused_with_the_reason_of_the_batch_worker_and_only_for_a_job_that_is_not_there()
 {
    let service = Service::start().await;
    // Nobody answers questions about this pipe, as a batch worker of another make does.
    assert_eq!(service.put("unasked", &batch("bad")).await.is(201).body, "");
    let answering = answer(service.broker.queries("batch-in").await.unwrap());
    let story = async {
        let bad = service.put("bad", &batch("bad")).await;
        assert_eq!(bad.header(ERROR_HEADER), "INVALID_BATCH");
        bad.refuses(400, "Batch definition of range: oh.");
        service.get("/jobs/bad").await.is(404);
        // What is there already is not refused, and neither created again.
        service.put("unasked", &batch("bad")).await.is(204);
        service.put("unasked", &batch("missing")).await.is(403);
        let mut waiting = batch("bad");
        waiting["prerequisiteJobIds"] = json!(["none"]);
        service
            .put("w", &waiting)
            .await
            .refuses(400, "Batch definition of range: oh.");

        assert_eq!(service.put("fine", &batch("1-2")).await.is(201).body, "");
        let mut other = batch("bad");
        other["task"]["taskClassifier"] = json!("Reindex");
        assert_eq!(service.put("other", &other).await.is(201).body, "");

        service
            .put("m", &batch("missing"))
            .await
            .refuses(400, "Batch definition of range: oh.");
        let mut later = batch("missing");
        later["delay"] = json!(600);
        let note = "The batch cannot be split yet, and the job fails if it still cannot be when it starts: batch definition of range: oh.";
        assert_eq!(
            service.put("later", &later).await.is(201).json(),
            json!({"notes": [note]})
        );
        let history = service.get("/jobs/later/history").await.is(200).json();
        assert_eq!(history["history"][0]["reason"], format!("created. {note}"));

        for (definition, why) in [
            ("doubt", "the disk is away"),
            (
                "drop",
                "a worker of the pipe 'batch-in' was asked and gave no answer",
            ),
        ] {
            let note = format!("The batch was not checked before the job was created: {why}.");
            let created = service.put(definition, &batch(definition)).await.is(201);
            assert_eq!(created.json(), json!({"notes": [note]}));
        }

        let explain = async |job: Value| -> Answer {
            let path = service.path("/jobs:explain");
            service
                .call(Method::POST, &path, Some(job.to_string()))
                .await
        };
        let mut odd = batch("1-7");
        odd["prioirty"] = json!(1);
        let explained = explain(odd).await.is(200).json();
        let seen = json!([
            explained["items"],
            explained["exact"],
            explained["first"][0]["label"],
            explained["notes"]
        ]);
        let note = "The field 'prioirty' is unknown and was ignored.";
        assert_eq!(seen, json!([7, true, "number 1", [note]]));
        service.put("user", &batch("1-7")).await.is(201);
        service.report("user", ".1", EventKind::Complete).await;
        let explained = explain(batch("1-7")).await.is(200).json();
        let note = "The job will share the pipe 'i' with 1 other job of 1 partition.";
        assert_eq!(explained["notes"], json!([note]));
        explain(batch("bad"))
            .await
            .refuses(400, "Batch definition of range: oh.");
        explain(other).await.refuses(
            400,
            "The task of the job is not split: its taskClassifier is 'Reindex', and that of a batch is 'BatchWorker'.",
        );
        let mut nowhere = batch("1-7");
        nowhere["task"]["taskPipe"] = json!("nowhere-in");
        explain(nowhere).await.refuses(
            503,
            "The batch cannot be explained now: no running worker of the pipe 'nowhere-in' answers questions. Start a batch worker that takes messages from the task pipe, or try again later.",
        );
        explain(json!({}))
            .await
            .refuses(400, "The task has not been specified.");
    };
    tokio::select! {
        () = answering => panic!("the broker is closed"),
        () = story => {}
    }
}
