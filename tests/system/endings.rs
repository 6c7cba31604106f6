//! Jobs that end before all their items are done: cancelled, deleted, failed. Their remaining tasks
//! stop by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use batchwright::Stack;
use contract::rest::{Above, NewJob, OnFailure, Tolerance};
use contract::{JobStatus, RangeItem, TaskMessage, TaskStatus};
use framework::{Context, OrFail, Reply, RetryPolicy, Settings, TaskError, Worker};
use harness::wait_for;
use serde_json::{Value, json};

use crate::fixture::{Fixture, SLACK, STATUS_INTERVAL, System};
use crate::workers::{Each, Gate};

stories![
    a_cancelled_job_stops_within_one_status_interval,
    a_job_that_fails_stops_as_soon_as_a_cancelled_one,
    each_incarnation_of_a_job_id_is_counted_separately,
    the_first_failed_item_fails_a_job_that_stops_on_failure,
    a_job_that_continues_on_failure_reports_every_failure,
    a_job_that_tolerates_its_failures_completes,
    a_task_that_always_fails_is_given_up_and_copied,
];

/// When items began, each with the number of its incarnation.
type Began = Arc<Mutex<Vec<(String, Instant)>>>;

/// When items began, the gate at which they wait, and whether the next one that passes it fails.
type Breaking = (Began, Gate, Arc<AtomicBool>);

/// Records when an item begins, then waits at the gate of its incarnation.
fn recorded(starts: &Began, gates: Vec<Gate>) -> impl Worker + use<> {
    Each(
        (Arc::clone(starts), gates),
        async |(starts, gates): (Began, Vec<Gate>), item: RangeItem, ctx: Context| {
            let incarnation = item.params.get("incarnation").cloned().unwrap_or_default();
            let gate = gates[incarnation.parse::<usize>().unwrap_or(0)].clone();
            starts.lock().unwrap().push((incarnation, Instant::now()));
            gate.pass(&ctx).await?;
            Ok(Reply::send(item))
        },
    )
}

async fn a_cancelled_job_stops_within_one_status_interval(fixture: Fixture) {
    let (starts, gate) = (Began::default(), Gate::closed());
    let system = fixture.run(recorded(&starts, vec![gate.clone()])).await;
    stops_in_the_middle(&fixture, &system, (&starts, &gate), async || {
        system.client.cancel("j").await.unwrap();
        assert_eq!(system.job("j").await.status, JobStatus::Cancelled);
    })
    .await;
    let state = system.job("j").await;
    assert_eq!(state.status, JobStatus::Cancelled);
    // What ran when it was cancelled, and was done all the same, is known for a retry.
    assert!((200..220).contains(&state.completed_items), "{state:?}");
    system.stop().await;
    // The worker has not kept any of its messages either.
    let system = fixture.start(fixture.stack()).await;
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    system.stop().await;
}

async fn a_job_that_fails_stops_as_soon_as_a_cancelled_one(fixture: Fixture) {
    let (starts, gate) = (Began::default(), Gate::closed());
    let breaks = Arc::new(AtomicBool::new(false));
    let state = (Arc::clone(&starts), gate.clone(), Arc::clone(&breaks));
    let worker = Each(
        state,
        async |(starts, gate, breaks): Breaking, item: RangeItem, ctx: Context| {
            let incarnation = item.params.get("incarnation").cloned().unwrap_or_default();
            starts.lock().unwrap().push((incarnation, Instant::now()));
            gate.pass(&ctx).await?;
            if breaks.swap(false, Ordering::Relaxed) {
                Err::<(), _>(std::io::Error::other("it breaks")).or_fail()?;
            }
            Ok::<_, TaskError>(Reply::send(item))
        },
    );
    let mut options = fixture.options();
    // Until then, a worker asks again only because of an announcement.
    options.service.status_check_interval = Duration::from_mins(10);
    let stack = Stack::new(options).worker(fixture.settings("items"), worker);
    let system = fixture.start(stack).await;
    stops_in_the_middle(&fixture, &system, (&starts, &gate), async || {
        breaks.store(true, Ordering::Relaxed);
        gate.admit(1);
        assert_eq!(system.ended("j").await.status, JobStatus::Failed);
    })
    .await;
    let state = system.job("j").await;
    assert_eq!((state.status, state.failed_tasks), (JobStatus::Failed, 1));
    system.stop().await;
}

/// Ends a job in the middle with `end` and checks that only few more of its items begin.
async fn stops_in_the_middle(
    fixture: &Fixture,
    system: &System,
    (starts, gate): (&Began, &Gate),
    end: impl AsyncFnOnce(),
) {
    system.client.put("j", &fixture.range(1300)).await.unwrap();
    gate.admit(200);
    wait_for("the middle of the job", async || {
        match system.job("j").await.completed_items {
            200 => Ok(()),
            items => Err(format!("{items} items")),
        }
    })
    .await;
    // The job is split completely, and most items wait.
    wait_for("the other items to wait", async || {
        match system.job("j").await.items.waiting {
            Some(1000..) => Ok(()),
            waiting => Err(format!("{waiting:?} items")),
        }
    })
    .await;
    let before = starts.lock().unwrap().len();
    end().await;
    let ended = Instant::now();
    // Items that still run may finish, a few at a time.
    wait_for("the pipes to be empty", async || {
        gate.admit(4);
        system.check_drained(&[fixture.pipe("items")]).await
    })
    .await;
    // A pipe keeps its order: when a message behind the items is done, the worker has seen all of
    // them.
    let marker = RangeItem {
        number: 0,
        params: BTreeMap::from([("incarnation".into(), "marker".into())]),
    };
    system
        .publish(
            &fixture.pipe("items"),
            TaskMessage::new("marker", fixture.pipe("items"), &marker)
                .unwrap()
                .encode(),
        )
        .await;
    gate.open();
    wait_for("the marker", async || {
        let is_there = starts
            .lock()
            .unwrap()
            .iter()
            .any(|(incarnation, _)| incarnation == "marker");
        is_there.then_some(()).ok_or("no marker".to_owned())
    })
    .await;
    system
        .drained(&["batch", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    let starts = starts.lock().unwrap();
    let last = starts
        .iter()
        .filter(|(incarnation, _)| incarnation.is_empty())
        .map(|(_, at)| *at)
        .max()
        .unwrap();
    assert!(
        last <= ended + STATUS_INTERVAL + SLACK,
        "an item began {:?} after the end",
        last - ended
    );
    let after = starts.len() - before;
    assert!(after < 200, "{after} items began after the end");
}

async fn each_incarnation_of_a_job_id_is_counted_separately(fixture: Fixture) {
    const INCARNATIONS: usize = 10;
    let starts = Began::default();
    let gates: Vec<Gate> = (0..=INCARNATIONS).map(|_| Gate::closed()).collect();
    let system = fixture.run(recorded(&starts, gates.clone())).await;
    let items = |incarnation: usize| 100 + incarnation as u64;
    let mut deleted = BTreeMap::new();
    for (incarnation, gate) in gates.iter().enumerate().skip(1) {
        assert!(
            system
                .client
                .put(
                    "j",
                    &of_incarnation(&fixture, incarnation, items(incarnation))
                )
                .await
                .unwrap(),
            "incarnation {incarnation} is new"
        );
        if incarnation % 2 == 1 {
            // Deleted in the middle. Its remaining items may run among those of the next
            // incarnation.
            gate.admit(20);
            wait_for("the middle of the job", async || {
                match system.job("j").await.completed_items {
                    20 => Ok(()),
                    items => Err(format!("{items} items of incarnation {incarnation}")),
                }
            })
            .await;
        } else {
            gate.open();
            system
                .completed("j", i64::try_from(items(incarnation)).unwrap())
                .await;
        }
        system.client.delete("j").await.unwrap();
        deleted.insert(incarnation.to_string(), Instant::now());
        assert_eq!(system.get("/jobs/j").await.status, 404);
        gate.open();
    }
    // Each incarnation that was completed has all its outputs.
    let mut missing: BTreeSet<(usize, u64)> = (2..=INCARNATIONS)
        .step_by(2)
        .flat_map(|incarnation| (1..=items(incarnation)).map(move |number| (incarnation, number)))
        .collect();
    system
        .take(&fixture.pipe("output"), |delivery| {
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            let item: RangeItem = serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            missing.remove(&(item.params["incarnation"].parse().unwrap(), item.number));
            !missing.is_empty()
        })
        .await;
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    for (incarnation, at) in starts.lock().unwrap().iter() {
        let limit = deleted[incarnation] + STATUS_INTERVAL + SLACK;
        assert!(
            *at <= limit,
            "an item of incarnation {incarnation} began {:?} too late",
            *at - limit
        );
    }
    system.stop().await;
}

fn of_incarnation(fixture: &Fixture, incarnation: usize, items: u64) -> NewJob {
    let mut new_job = fixture.range(items);
    let data = new_job
        .task
        .as_mut()
        .and_then(|task| task.task_data.as_mut())
        .unwrap();
    data["taskMessageParams"] = serde_json::json!({ "incarnation": incarnation.to_string() });
    new_job
}

/// Fails every item whose number is a multiple of `divisor`.
fn fails_multiples_of(divisor: u64) -> impl Worker {
    Each(divisor, async |divisor: u64, item: RangeItem, _| {
        if item.number.is_multiple_of(divisor) {
            let unlucky = std::io::Error::other(format!("{} is an unlucky number", item.number));
            Err::<(), _>(unlucky).or_fail()?;
        }
        Ok::<_, TaskError>(Reply::send(item))
    })
}

async fn the_first_failed_item_fails_a_job_that_stops_on_failure(fixture: Fixture) {
    let system = fixture.run(fails_multiples_of(77)).await;
    system.client.put("j", &fixture.range(100)).await.unwrap();
    let state = system.ended("j").await;
    assert_eq!(
        (state.status, state.failed_tasks, state.failures.len()),
        (JobStatus::Failed, 1, 1),
        "{state:?}"
    );
    assert!(state.percentage_complete < 100.0, "{state:?}");
    let failure = &state.failures[0];
    // Parts of ten items: the seventh of the eighth part.
    assert_eq!(failure.task_id, "8.7");
    assert_eq!(failure.failure_id.as_deref(), Some("RESULT_EXCEPTION"));
    assert_eq!(failure.failure_source.as_deref(), Some("items"));
    assert_eq!(
        failure.failure_message,
        Some(fixture.failure_text("77 is an unlucky number"))
    );
    assert!(
        failure
            .failure_time
            .is_some_and(|time| time >= state.create_time),
        "{failure:?}"
    );
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| fixture.pipe(pipe)))
        .await;
    assert_eq!(system.ended("j").await.failed_tasks, 1);
    assert_eq!(
        system.history("j").await.last().map(|(status, _)| *status),
        Some(JobStatus::Failed)
    );

    // The output of the failed item has the same text.
    let mut failed = None;
    system
        .take(&fixture.pipe("output"), |delivery| {
            let message = TaskMessage::decode(&delivery.body()).unwrap();
            failed = (message.task_status == Some(TaskStatus::ResultException)).then_some(message);
            failed.is_none()
        })
        .await;
    let reason: String = serde_json::from_slice(&failed.unwrap().task_data.unwrap()).unwrap();
    assert_eq!(reason, "77 is an unlucky number");
    system.stop().await;
}

async fn a_job_that_continues_on_failure_reports_every_failure(fixture: Fixture) {
    let system = fixture.run(fails_multiples_of(30)).await;
    system
        .client
        .put(
            "j",
            &NewJob {
                on_failure: OnFailure::Continue,
                ..fixture.range(200)
            },
        )
        .await
        .unwrap();
    let (state, _) = system.follow("j", |_| {}).await;
    assert_eq!(
        (state.status, state.completed_items, state.failed_tasks),
        (JobStatus::Failed, 194, 6),
        "{state:?}"
    );
    let items = &state.items;
    assert_eq!((items.total, items.done, items.failed), (Some(200), 194, 6));
    assert_eq!(
        state.failure_counts,
        BTreeMap::from([("RESULT_EXCEPTION".to_owned(), 6)])
    );
    for failure in &state.failures {
        let label = failure.label.as_deref().unwrap();
        let number = label.strip_prefix("number ").unwrap();
        let input = failure.input.as_deref().unwrap();
        assert_eq!(input, format!("{{\"number\":{number}}}"));
        let message = fixture.failure_text(&format!("{number} is an unlucky number"));
        assert_eq!(failure.failure_message.as_ref(), Some(&message));
    }
    let reported: BTreeSet<String> = state
        .failures
        .into_iter()
        .filter_map(|failure| failure.failure_message)
        .collect();
    let expected = (30..=180)
        .step_by(30)
        .map(|number| fixture.failure_text(&format!("{number} is an unlucky number")));
    assert_eq!(reported, expected.collect());
    system.stop().await;
}

async fn a_job_that_tolerates_its_failures_completes(fixture: Fixture) {
    let system = fixture.run(fails_multiples_of(30)).await;
    for (id, limit, status) in [
        ("enough", "3%", JobStatus::Completed),
        ("too-few", "2.9999%", JobStatus::Failed),
    ] {
        let on_failure = OnFailure::Tolerate(Tolerance {
            limit: limit.parse().unwrap(),
            above: Above::Continue,
        });
        let job = NewJob {
            on_failure,
            ..fixture.range(200)
        };
        system.client.put(id, &job).await.unwrap();
        let state = system.ended(id).await;
        assert_eq!(
            (state.status, state.completed_items, state.failed_tasks),
            (status, 194, 6),
            "{state:?}"
        );
    }
    // A batch that cannot be split is no item.
    let mut job = fixture.range(200);
    job.on_failure = OnFailure::Tolerate(Tolerance {
        limit: "100%".parse().unwrap(),
        above: Above::Stop,
    });
    let task = job.task.as_mut().and_then(|task| task.task_data.as_mut());
    let task = task.unwrap();
    task["batchType"] = json!("lines");
    task["batchDefinition"] = json!(r#"{"files":["nothing"]}"#);
    // Of a job that starts at once, it would be refused.
    job.delay = Some(1);
    system.client.put("unsplit", &job).await.unwrap();
    assert_eq!(system.ended("unsplit").await.status, JobStatus::Failed);
    system.stop().await;
}

/// Settings with a short and constant retry delay.
fn impatient(fixture: &Fixture) -> Settings {
    Settings {
        retry: RetryPolicy::constant(Duration::from_millis(50)).attempts(4),
        ..fixture.settings("items")
    }
}

async fn a_task_that_always_fails_is_given_up_and_copied(fixture: Fixture) {
    let worker = Each((), async |(), item: RangeItem, _| match item.number {
        3 => Err(TaskError::retry("no reply from the warehouse")),
        _ => Ok(Reply::send(item)),
    });
    let system = fixture
        .start(fixture.stack().worker(impatient(&fixture), worker))
        .await;
    system.client.put("j", &fixture.range(5)).await.unwrap();
    let state = system.ended("j").await;
    assert_eq!(
        (state.status, state.failed_tasks),
        (JobStatus::Failed, 1),
        "{state:?}"
    );
    let text = fixture.failure_text("no reply from the warehouse (given up after 4 attempts)");
    assert_eq!(state.failures[0].failure_message.as_ref(), Some(&text));
    assert_eq!(state.failures[0].task_id, "3");
    let task = system.get("/jobs/j/tasks/3").await.json();
    assert_eq!(
        (&task["status"], &task["failure"]["failureMessage"]),
        (&Value::from("Failed"), &Value::from(text))
    );
    assert_eq!(task["attempts"], 4);

    let (copy, _) = system.take_one(&fixture.pipe("items-reject")).await;
    assert_eq!(copy.task_status, Some(TaskStatus::ResultException));
    assert!(copy.job_task_id().unwrap().ends_with(":j.3"), "{copy:?}");
    let item: RangeItem = serde_json::from_slice(&copy.task_data.unwrap()).unwrap();
    assert_eq!(item.number, 3);
    system.stop().await;
}
