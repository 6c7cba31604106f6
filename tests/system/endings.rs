//! How jobs end before all is done: cancelled, deleted, failed. What is left of them stops by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use contract::rest::{NewJob, OnFailure};
use contract::{JobStatus, RangeItem, TaskMessage, TaskStatus};
use framework::{Context, OrFail, Reply, TaskError, Worker};
use harness::wait_for;

use crate::place::{Place, SLACK, STATUS_INTERVAL, System};
use crate::workers::{Each, Gate};

stories![
    a_cancelled_job_stops_within_one_status_interval,
    a_deleted_job_stops_within_one_status_interval,
    each_life_of_a_job_id_is_counted_by_itself,
    the_first_failed_item_fails_a_job_that_stops_on_failure,
    a_job_that_goes_on_does_all_other_items_and_tells_every_failure,
];

/// When items of which life began.
type Starts = Arc<Mutex<Vec<(String, Instant)>>>;

/// Notes when an item starts, and waits to be let through.
fn noted(starts: &Starts, gates: Vec<Gate>) -> impl Worker + use<> {
    Each(
        (Arc::clone(starts), gates),
        async |(starts, gates): (Starts, Vec<Gate>), item: RangeItem, ctx: Context| {
            let life = item.params.get("life").cloned().unwrap_or_default();
            let gate = gates[life.parse::<usize>().unwrap_or(0)].clone();
            starts.lock().unwrap().push((life, Instant::now()));
            gate.pass(&ctx).await?;
            Ok(Reply::send(item))
        },
    )
}

async fn a_cancelled_job_stops_within_one_status_interval(place: Place) {
    let system = stops_in_the_middle(&place, async |system| {
        system.client.cancel("j").await.unwrap();
        assert_eq!(system.job("j").await.status, JobStatus::Cancelled);
    })
    .await;
    let state = system.job("j").await;
    assert_eq!(
        (state.status, state.completed_items),
        (JobStatus::Cancelled, 200)
    );
    system.stop().await;
    // Nothing of it was kept back by the worker either.
    let system = place.start(place.stack()).await;
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
    system.stop().await;
}

async fn a_deleted_job_stops_within_one_status_interval(place: Place) {
    let system = stops_in_the_middle(&place, async |system| {
        system.client.delete("j").await.unwrap();
        assert_eq!(system.read("/jobs/j").await.code, 404);
    })
    .await;
    assert_eq!(system.read("/jobs/j").await.code, 404);
    system.stop().await;
}

/// Ends a job in the middle, and watches that its items stop.
async fn stops_in_the_middle(place: &Place, end: impl AsyncFnOnce(&System)) -> System {
    let (starts, gate) = (Starts::default(), Gate::closed());
    let system = place.run(noted(&starts, vec![gate.clone()])).await;
    system.client.put("j", &place.range(2000)).await.unwrap();
    gate.admit(200);
    wait_for("the middle of the job", async || {
        match system.job("j").await.completed_items {
            200 => Ok(()),
            items => Err(format!("{items} items")),
        }
    })
    .await;
    // All of it is on its way, and most of it waits.
    wait_for("the other items to wait", async || {
        match system
            .running
            .broker()
            .depth(&place.pipe("items"))
            .await
            .unwrap()
        {
            1000.. => Ok(()),
            depth => Err(format!("{depth} items")),
        }
    })
    .await;
    end(&system).await;
    let ended = Instant::now();
    // More items could be done, but very slowly.
    wait_for("the pipes to be empty", async || {
        gate.admit(4);
        let depth = system
            .running
            .broker()
            .depth(&place.pipe("items"))
            .await
            .unwrap();
        if depth == 0 {
            Ok(())
        } else {
            Err(format!("{depth} items"))
        }
    })
    .await;
    // The pipe keeps its order: what stands behind the job's items tells when the worker has seen them all.
    let marker = RangeItem {
        number: 0,
        params: BTreeMap::from([("life".into(), "marker".into())]),
    };
    system
        .publish(
            &place.pipe("items"),
            TaskMessage::new("marker", place.pipe("items"), &marker)
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
            .any(|(life, _)| life == "marker");
        is_there.then_some(()).ok_or("no marker".to_owned())
    })
    .await;
    system
        .drained(&["batch", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
    let starts = starts.lock().unwrap();
    let last = starts
        .iter()
        .filter(|(life, _)| life.is_empty())
        .map(|(_, at)| *at)
        .max()
        .unwrap();
    assert!(
        last <= ended + STATUS_INTERVAL + SLACK,
        "an item began {:?} after the end",
        last - ended
    );
    assert!(starts.len() < 1000, "{} items began", starts.len());
    system
}

async fn each_life_of_a_job_id_is_counted_by_itself(place: Place) {
    const LIVES: usize = 10;
    let starts = Starts::default();
    let gates: Vec<Gate> = (0..=LIVES).map(|_| Gate::closed()).collect();
    let system = place.run(noted(&starts, gates.clone())).await;
    let items = |life: usize| 100 + life as u64;
    let mut deleted = BTreeMap::new();
    for (life, gate) in gates.iter().enumerate().skip(1) {
        assert!(
            system
                .client
                .put("j", &of_life(&place, life, items(life)))
                .await
                .unwrap(),
            "life {life} is a new one"
        );
        if life % 2 == 1 {
            // Deleted in the middle; then all that is left of it may run on, among the items of the next life.
            gate.admit(20);
            wait_for("the middle of the job", async || {
                match system.job("j").await.completed_items {
                    20 => Ok(()),
                    items => Err(format!("{items} items in life {life}")),
                }
            })
            .await;
        } else {
            gate.open();
            system
                .completed("j", i64::try_from(items(life)).unwrap())
                .await;
        }
        system.client.delete("j").await.unwrap();
        deleted.insert(life.to_string(), Instant::now());
        assert_eq!(system.read("/jobs/j").await.code, 404);
        gate.open();
    }
    // Every output of a life that was completed is there.
    let mut missing: BTreeSet<(usize, u64)> = (2..=LIVES)
        .step_by(2)
        .flat_map(|life| (1..=items(life)).map(move |number| (life, number)))
        .collect();
    system
        .take(&place.pipe("output"), |delivery| {
            let message = TaskMessage::decode(&delivery.body).unwrap();
            let item: RangeItem = serde_json::from_slice(&message.task_data.unwrap()).unwrap();
            missing.remove(&(item.params["life"].parse().unwrap(), item.number));
            !missing.is_empty()
        })
        .await;
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
    for (life, at) in starts.lock().unwrap().iter() {
        let limit = deleted[life] + STATUS_INTERVAL + SLACK;
        assert!(
            *at <= limit,
            "an item of life {life} began {:?} too late",
            *at - limit
        );
    }
    system.stop().await;
}

fn of_life(place: &Place, life: usize, items: u64) -> NewJob {
    let mut new_job = place.range(items);
    let data = new_job
        .task
        .as_mut()
        .and_then(|task| task.task_data.as_mut())
        .unwrap();
    data["taskMessageParams"] = serde_json::json!({ "life": life.to_string() });
    new_job
}

/// Fails every item whose number can be divided by this one.
fn fails_multiples_of(divisor: u64) -> impl Worker {
    Each(divisor, async |divisor: u64, item: RangeItem, _| {
        if item.number.is_multiple_of(divisor) {
            let unlucky = std::io::Error::other(format!("{} is an unlucky number", item.number));
            Err::<(), _>(unlucky).or_fail()?;
        }
        Ok::<_, TaskError>(Reply::send(item))
    })
}

async fn the_first_failed_item_fails_a_job_that_stops_on_failure(place: Place) {
    let system = place.run(fails_multiples_of(77)).await;
    system.client.put("j", &place.range(100)).await.unwrap();
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
        failure.failure_message.as_deref(),
        Some("77 is an unlucky number")
    );
    assert!(
        failure
            .failure_time
            .is_some_and(|time| time >= state.create_time),
        "{failure:?}"
    );
    system
        .drained(&["batch", "items", "tracking"].map(|pipe| place.pipe(pipe)))
        .await;
    assert_eq!(system.ended("j").await.failed_tasks, 1);
    assert_eq!(
        system.history("j").await.last().map(|(status, _)| *status),
        Some(JobStatus::Failed)
    );

    // The result says so, too.
    let mut failed = None;
    system
        .take(&place.pipe("output"), |delivery| {
            let message = TaskMessage::decode(&delivery.body).unwrap();
            failed = (message.task_status == Some(TaskStatus::ResultException)).then_some(message);
            failed.is_none()
        })
        .await;
    let reason: String = serde_json::from_slice(&failed.unwrap().task_data.unwrap()).unwrap();
    assert_eq!(reason, "77 is an unlucky number");
    system.stop().await;
}

async fn a_job_that_goes_on_does_all_other_items_and_tells_every_failure(place: Place) {
    let system = place.run(fails_multiples_of(30)).await;
    system
        .client
        .put(
            "j",
            &NewJob {
                on_failure: OnFailure::Continue,
                ..place.range(200)
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
    assert_eq!(
        state.failure_counts,
        BTreeMap::from([("RESULT_EXCEPTION".to_owned(), 6)])
    );
    let told: BTreeSet<&str> = state
        .failures
        .iter()
        .filter_map(|failure| failure.failure_message.as_deref())
        .collect();
    let expected: Vec<String> = (30..=180)
        .step_by(30)
        .map(|number| format!("{number} is an unlucky number"))
        .collect();
    assert_eq!(told, expected.iter().map(String::as_str).collect());
    system.stop().await;
}
