//! What goes on beside the jobs: workers, as they tell of themselves, and pipes.

use contract::{JobSlots, PipeSpeed, RunningTask, SignOfLife};
use framework::broker::{Broker, Outgoing};
use harness::wait_for;
use job_service::PipeAccess;
use reqwest::Method;
use serde_json::{Value, json};
use store::EventKind;

use crate::service::{Answer, Service, new_job};

async fn get(service: &Service, path: &str) -> Answer {
    let path = format!("{}{path}", job_service::BASE_PATH);
    service.call(Method::GET, &path, None).await
}

fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    let mut entries = list.as_array().unwrap().iter();
    entries.find(|entry| entry["name"] == name)
}

pub fn sign() -> SignOfLife {
    let text = |text: &str| Some(text.to_owned());
    SignOfLife {
        id: "7".into(),
        name: "word-count".into(),
        version: "1.2".into(),
        host: "node-3".into(),
        process: 17,
        input: text("words-in"),
        output: text("words-out"),
        reject: text("words-reject"),
        invalid: text("words-invalid"),
        slots: Some(4),
        slots_in_use: Some(1),
        open: Some(2),
        jobs: Vec::new(),
        age: 60_000,
        longest: Some(RunningTask {
            task: "p:j.1".into(),
            age: 5_000,
        }),
        speeds: vec![PipeSpeed {
            pipe: "words-in".into(),
            items: 4,
        }],
        unavailable: None,
        ended: false,
    }
}

/// Sends the sign until the list of workers shows what it says.
pub async fn tell(service: &Service, sign: &SignOfLife) -> Value {
    let body = serde_json::to_vec(sign).unwrap();
    wait_for("the worker", async || {
        service.broker.tell(body.clone().into()).await.unwrap();
        let workers = get(service, "/workers").await.is(200).json();
        let found = named(&workers["workers"], &sign.name).is_some();
        (found != sign.ended)
            .then(|| workers.clone())
            .ok_or_else(|| workers.to_string())
    })
    .await
}

#[tokio::test]
async fn workers_are_listed_as_they_tell_until_they_end() {
    let service = Service::start().await;
    let workers = tell(&service, &sign()).await;
    let own = named(&workers["workers"], "job-service").unwrap();
    assert_eq!((&own["slots"], &own["input"]), (&Value::Null, &Value::Null));
    let mut worker = named(&workers["workers"], "word-count").unwrap().clone();
    let mut take = |name: &str| worker.as_object_mut().unwrap().remove(name).unwrap();
    let (started, seen) = (take("startTime"), take("lastSignTime"));
    let since = take("longest")["since"].as_i64().unwrap();
    let seen = seen.as_i64().unwrap();
    assert_eq!(
        (started.as_i64(), since),
        (Some(seen - 60_000), seen - 5_000)
    );
    assert_eq!(
        worker,
        json!({"id": "7", "name": "word-count", "version": "1.2", "host": "node-3", "process": 17,
            "input": "words-in", "output": "words-out", "slots": 4, "slotsInUse": 1, "openDeliveries": 2})
    );
    let ended = SignOfLife {
        ended: true,
        ..sign()
    };
    tell(&service, &ended).await;
}

#[tokio::test]
async fn pipes_are_those_of_the_broker_the_service_its_workers_and_its_jobs() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    tell(&service, &sign()).await;
    for (pipe, messages) in [
        ("words-in", 3),
        ("words-in.suspects", 1),
        ("words-reject", 2),
        ("elsewhere", 1),
    ] {
        for _ in 0..messages {
            let message = Outgoing::new(pipe, "{}");
            service.broker.publish(message).await.unwrap();
        }
    }
    let _consumer = service.broker.consume("words-in", 1).await.unwrap();
    let list = get(&service, "/pipes").await.is(200).json();
    assert_eq!(list["complete"], true);
    let pipes = &list["pipes"];
    assert_eq!(
        named(pipes, "words-in").unwrap(),
        &json!({"name": "words-in", "exists": true, "messages": 2, "consumers": 1, "delayed": 0, "inPerSecond": null,
            "outPerSecond": null, "quarantined": 1, "invalid": 0, "rejected": 2, "workers": ["word-count"], "items": 2, "seconds": 0.5, "aside": [
                {"name": "words-in.suspects", "kind": "quarantine", "messages": 1},
                {"name": "words-reject", "kind": "reject", "messages": 2}]})
    );
    assert_eq!(named(pipes, "elsewhere").unwrap()["messages"], 1);
    let missing = named(pipes, "words-out").unwrap();
    assert_eq!(
        (&missing["exists"], &missing["messages"]),
        (&json!(false), &json!(0))
    );
    assert_eq!(missing["invalid"], Value::Null);
    // The pipes of the service itself, and that of an unfinished job.
    for pipe in ["tracking-in", "batch-in"] {
        assert!(named(pipes, pipe).is_some(), "{pipe}: {list}");
    }
    // A quarantine is shown beside its pipe.
    assert!(named(pipes, "words-in.suspects").is_none());
    let one = get(&service, "/pipes/words-in").await.is(200).json();
    assert_eq!(&one, named(pipes, "words-in").unwrap());
    get(&service, "/pipes/nowhere")
        .await
        .refuses(404, "There is no pipe 'nowhere'.");
}

/// A batch of ten items that sends them to this pipe.
async fn put_ten_items(service: &Service, job: &str, pipe: &str) {
    let mut body = new_job();
    body["task"]["taskData"]["targetPipe"] = pipe.into();
    service.put(job, &body).await.is(201);
    service.report(job, ".11*", EventKind::Progress(0)).await;
}

#[tokio::test]
async fn items_that_jobs_have_announced_wait_for_their_pipe_although_it_has_no_worker_and_few_messages()
 {
    let service = Service::start().await;
    let [few, many, none] = ["few", "many", "none"].map(harness::unique);
    for pipe in [&few, &many, &none] {
        put_ten_items(&service, pipe, pipe).await;
    }
    service.report(&few, ".1", EventKind::Complete).await;
    for (pipe, messages) in [
        (few.clone(), 1),
        (format!("{few}.bundles"), 1),
        (many.clone(), 12),
    ] {
        for _ in 0..messages {
            let message = Outgoing::new(&*pipe, "{}");
            service.broker.publish(message).await.unwrap();
        }
    }
    let list = get(&service, "/pipes").await.is(200).json();
    let (metrics, waiting) = (
        service.call(Method::GET, "/metrics", None),
        [(&few, 9), (&many, 12), (&none, 10)],
    );
    let metrics = metrics.await.is(200);
    for (pipe, items) in waiting {
        assert_eq!(
            named(&list["pipes"], pipe).unwrap()["items"],
            items,
            "{list}"
        );
        metrics.contains(&format!(
            "batchwright_pipe_items{{pipe=\"{pipe}\"}} {items}\n"
        ));
    }
    let one = get(&service, &format!("/pipes/{few}")).await.is(200).json();
    assert_eq!((&one["items"], &one["messages"]), (&json!(9), &json!(1)));
    let working = SignOfLife {
        input: Some(none.clone()),
        jobs: vec![JobSlots {
            job: format!("{}:{none}", service.partition),
            tasks: 3,
        }],
        ..sign()
    };
    tell(&service, &working).await;
    let list = get(&service, "/pipes").await.is(200).json();
    assert_eq!(named(&list["pipes"], &none).unwrap()["items"], 7);
}

#[tokio::test]
async fn messages_are_shown_where_the_operator_gives_access_and_stay() {
    let closed = Service::start().await;
    closed
        .broker
        .publish(Outgoing::new("out", "{}"))
        .await
        .unwrap();
    get(&closed, "/pipes/out").await.is(200);
    get(&closed, "/pipes/out?peek=1").await.is(403);

    let service = Service::start_configured(|options| options.pipe_access = PipeAccess::On).await;
    for task in ["a", "b", "c"] {
        let body = json!({"taskId": task, "to": "out", "taskData": "eyJuIjoxfQ=="}).to_string();
        let message = Outgoing::new("out", body);
        service.broker.publish(message).await.unwrap();
    }
    for _ in 0..2 {
        let pipe = get(&service, "/pipes/out?peek=2").await.is(200).json();
        assert_eq!(pipe["messages"], 3);
        let peeked = pipe["peeked"].as_array().unwrap();
        let tasks: Vec<&Value> = peeked.iter().map(|it| &it["envelope"]["taskId"]).collect();
        assert_eq!(tasks, ["a", "b"]);
        assert_eq!(peeked[0]["taskData"], json!({"n": 1}));
    }
    get(&service, "/pipes/out?peek=101")
        .await
        .refuses(400, "The parameter 'peek' is 101; the limit is 100.");
    get(&service, "/pipes/out?peek=x").await.is(400);
}

#[tokio::test]
async fn items_in_the_slots_of_workers_run_and_do_not_wait() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    // A split into ten.
    let announced = EventKind::Progress(0);
    service.report("j", ".11*", announced).await;
    let items = async || service.get("/jobs/j").await.json()["items"].clone();
    let before = items().await;
    let working = SignOfLife {
        jobs: vec![JobSlots {
            job: format!("{}:j", service.partition),
            tasks: 3,
        }],
        ..sign()
    };
    tell(&service, &working).await;
    let (waiting, running) = (&before["waiting"], &before["running"]);
    let expected = (
        json!(running.as_i64().unwrap() + 3),
        json!(waiting.as_i64().unwrap() - 3),
    );
    let shown = |items: &Value| (items["running"].clone(), items["waiting"].clone());
    assert_eq!(shown(&items().await), expected);
    let listed = service.get("/jobs").await.json();
    assert_eq!(shown(&listed[0]["items"]), expected);
    let counts = service.get("/jobs/j/tasks/count").await.json();
    assert_eq!(shown(&counts), expected);
    service.cancel("j").await.is(204);
    assert_eq!(items().await["running"], 0);
}
