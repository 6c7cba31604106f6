//! Ways of a task through several workers, and what travels along.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use contract::rest::{JobTask, NewJob};
use contract::{JobStatus, RangeItem, TaskData, TaskMessage};
use framework::{Context, NoOutput, Reply, TaskError, Worker};
use harness::wait_for;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::place::Place;
use crate::workers::{Each, Gate, echo, gated};

stories![
    workers_without_output_complete_a_job_without_a_target_pipe,
    a_chain_of_workers_is_done_by_its_last_one,
    a_worker_that_splits_without_announcing_is_counted_exactly,
    the_correlation_id_and_the_notes_of_a_service_go_all_the_way,
    a_message_as_java_writes_it_is_done_and_tracked,
];

/// Done without a word.
struct Silent;

impl Worker for Silent {
    type Input = RangeItem;
    type Output = NoOutput;

    async fn run(&self, _: RangeItem, _: Context) -> Result<Reply<NoOutput>, TaskError> {
        Ok(Reply::none())
    }
}

fn without_target(new_job: NewJob) -> NewJob {
    NewJob {
        task: new_job.task.map(|task| JobTask {
            target_pipe: None,
            ..task
        }),
        ..new_job
    }
}

async fn workers_without_output_complete_a_job_without_a_target_pipe(place: Place) {
    let settings = framework::Settings {
        output: None,
        ..place.settings("items")
    };
    let system = place.start(place.stack().worker(settings, Silent)).await;
    system
        .client
        .put("j", &without_target(place.range(500)))
        .await
        .unwrap();
    system.completed("j", 500).await;
    assert_eq!(
        system
            .running
            .broker()
            .depth(&place.pipe("output"))
            .await
            .unwrap(),
        0
    );
    // Neither does it harm when there is one.
    system.client.put("k", &place.range(50)).await.unwrap();
    system.completed("k", 50).await;
    system.stop().await;
}

async fn a_chain_of_workers_is_done_by_its_last_one(place: Place) {
    let gate = Gate::closed();
    let first = framework::Settings {
        output: Some(place.pipe("second")),
        ..place.settings("items")
    };
    let stack = place
        .stack()
        .worker(first, echo())
        .worker(place.settings("second"), gated(&gate));
    let system = place.start(stack).await;
    system.client.put("j", &place.range(300)).await.unwrap();
    gate.admit(100);
    wait_for("a third of the items", async || {
        match system.job("j").await.completed_items {
            100 => Ok(()),
            items => Err(format!("{items} items")),
        }
    })
    .await;
    // The first worker has done its part of all.
    system
        .drained(&["batch", "items"].map(|pipe| place.pipe(pipe)))
        .await;
    let state = system.job("j").await;
    assert_eq!(
        (state.status, state.completed_items),
        (JobStatus::Active, 100)
    );
    gate.open();
    system.completed("j", 300).await;
    system.has_outputs(&place.pipe("output"), 1..=300).await;
    system.stop().await;
}

/// A tree of this many levels, each task split in `width`.
#[derive(Debug, Serialize, Deserialize)]
struct Tree {
    levels: u32,
    width: u32,
}

impl TaskData for Tree {
    const CLASSIFIER: &'static str = "Tree";
    const API_VERSION: i32 = 1;
}

/// Splits a tree: sends branches to itself, leaves to the pipe of the items.
struct Splitter {
    items: String,
}

impl Worker for Splitter {
    type Input = Tree;
    type Output = Tree;

    async fn run(
        &self,
        Tree { levels, width }: Tree,
        ctx: Context,
    ) -> Result<Reply<Tree>, TaskError> {
        for number in 1..=width {
            match levels {
                1 => {
                    ctx.dispatch(
                        &self.items,
                        &RangeItem {
                            number: number.into(),
                            params: BTreeMap::new(),
                        },
                    )
                    .await?;
                }
                _ => {
                    ctx.dispatch(
                        ctx.input_pipe(),
                        &Tree {
                            levels: levels - 1,
                            width,
                        },
                    )
                    .await?;
                }
            }
        }
        // Whether the split answers or not, it is no item.
        Ok(if levels % 2 == 0 {
            Reply::send(Tree { levels, width })
        } else {
            Reply::none()
        })
    }
}

async fn a_worker_that_splits_without_announcing_is_counted_exactly(place: Place) {
    let splitter = Splitter {
        items: place.pipe("items"),
    };
    let settings = framework::Settings {
        output: None,
        ..place.settings("items")
    };
    let stack = place
        .stack()
        .worker(settings, Silent)
        .worker(place.settings("trees"), splitter);
    let system = place.start(stack).await;
    system
        .client
        .put(
            "j",
            &place.job(
                "trees",
                &Tree {
                    levels: 4,
                    width: 6,
                },
            ),
        )
        .await
        .unwrap();
    system.follow("j", |_| {}).await;
    system.completed("j", 6 * 6 * 6 * 6).await;
    // Of each split with an even number of levels.
    let answers: Vec<Tree> = system.take_different(&place.pipe("output"), 1 + 36).await;
    assert_eq!(answers.iter().filter(|tree| tree.levels == 4).count(), 1);
    system.stop().await;
}

async fn the_correlation_id_and_the_notes_of_a_service_go_all_the_way(place: Place) {
    type Seen = Arc<Mutex<BTreeSet<String>>>;
    let seen = Seen::default();
    let state = (Arc::clone(&seen), place.pipe("other"));
    // To another worker with a note, and done when it comes back.
    let asks = Each(
        state,
        async |(seen, other): (Seen, String), item: RangeItem, ctx: Context| {
            seen.lock()
                .unwrap()
                .insert(ctx.correlation_id().unwrap_or("none").to_owned());
            match ctx
                .note()
                .map(|note| String::from_utf8_lossy(note).into_owned())
            {
                None => Ok(Reply::send(item.clone())
                    .to(other)
                    .with_note(format!("asked about {}", item.number))),
                Some(note) if note == format!("asked about {}", item.number) => {
                    Ok(Reply::send(item))
                }
                Some(note) => Err(TaskError::failed(format!("a note of another task: {note}"))),
            }
        },
    );
    let answers = Each(
        (Arc::clone(&seen), place.pipe("items")),
        async |(seen, back): (Seen, String), item, ctx: Context| {
            seen.lock()
                .unwrap()
                .insert(ctx.correlation_id().unwrap_or("none").to_owned());
            match ctx.note() {
                None => Ok(Reply::send(item).to(back)),
                Some(_) => Err(TaskError::failed("a note of another service")),
            }
        },
    );
    let system = place
        .start(
            place
                .stack()
                .worker(place.settings("items"), asks)
                .worker(place.settings("other"), answers),
        )
        .await;
    let body = serde_json::to_vec(&place.range(40)).unwrap();
    assert_eq!(
        system
            .put("/jobs/j", body, &[("CAF-Correlation-Id", "corr-42")])
            .await
            .code,
        201
    );
    system.completed("j", 40).await;
    assert_eq!(
        *seen.lock().unwrap(),
        BTreeSet::from(["corr-42".to_owned()])
    );
    let (output, _) = system.take_one(&place.pipe("output")).await;
    assert_eq!(output.correlation_id.as_deref(), Some("corr-42"));
    let note = output
        .context
        .get(&place.settings("items").service_path)
        .map(|note| String::from_utf8_lossy(&note.0).into_owned());
    assert!(
        note.is_some_and(|note| note.starts_with("asked about ")),
        "{:?}",
        output.context
    );
    system.stop().await;
}

async fn a_message_as_java_writes_it_is_done_and_tracked(place: Place) {
    let executed: Arc<Mutex<Vec<u64>>> = Arc::default();
    let worker = Each(
        Arc::clone(&executed),
        async |executed: Arc<Mutex<Vec<u64>>>, item: RangeItem, _| {
            executed.lock().unwrap().push(item.number);
            Ok(Reply::send(item))
        },
    );
    // One at a time, so that what is done tells what is before it.
    let settings = framework::Settings {
        concurrency: 1,
        ..place.settings("items")
    };
    let system = place.start(place.stack().worker(settings, worker)).await;
    let nobody = RangeItem {
        number: 0,
        params: BTreeMap::new(),
    };
    system
        .client
        .put("j", &place.job("nobody", &nobody))
        .await
        .unwrap();
    let (start, _) = system.take_one(&place.pipe("nobody")).await;
    let tracking = start.tracking.unwrap();
    // Of 2016: the time of the next check, which is long past.
    let java = |task: &str, data: &str| {
        json!({
            "version": 3, "taskId": format!("5f0d8f53-1c2a-4c49-9f0e-0d1c5a3b7e11.{task}"), "taskClassifier": "RangeItem",
            "taskApiVersion": 1, "taskData": data, "taskStatus": "NEW_TASK",
            "context": {"caf/worker": "a2VlcA=="}, "to": place.pipe("items"),
            "tracking": {
                "jobTaskId": format!("{}.{task}", tracking.job_task_id.as_deref().unwrap()),
                "statusCheckTime": 1_467_225_600_000_i64, "statusCheckUrl": tracking.status_check_url,
                "trackingPipe": tracking.tracking_pipe, "trackTo": tracking.track_to
            },
            "sourceInfo": {"name": "worker-batch", "version": "3.7.0"}, "priority": null, "correlationId": "corr-42"
        })
        .to_string()
    };
    let (seven, eight) = (
        java("1", "eyJudW1iZXIiOjd9"),
        java("2*", "eyJudW1iZXIiOjh9"),
    );
    system.publish(&place.pipe("items"), seven).await;
    let (output, _) = system.take_one(&place.pipe("output")).await;
    assert_eq!(
        (output.tracking, output.correlation_id.as_deref()),
        (None, Some("corr-42"))
    );
    assert_eq!(output.context["caf/worker"].0, b"keep");
    system.publish(&place.pipe("items"), eight.clone()).await;
    // The second is the final task of the split, and no item.
    system.completed("j", 1).await;

    // The check is made: once the job has ended, and the last answer is too old, nobody wants its messages any more.
    let times = |number| {
        executed
            .lock()
            .unwrap()
            .iter()
            .filter(|executed| **executed == number)
            .count()
    };
    wait_for("a message of the job to be discarded", async || {
        let (eights, markers) = (times(8), times(9));
        system.publish(&place.pipe("items"), eight.clone()).await;
        let marker = RangeItem {
            number: 9,
            params: BTreeMap::new(),
        };
        system
            .publish(
                &place.pipe("items"),
                TaskMessage::new("marker", place.pipe("items"), &marker)
                    .unwrap()
                    .encode(),
            )
            .await;
        wait_for("what stands behind it", async || {
            if times(9) > markers {
                Ok(())
            } else {
                Err("nothing".to_owned())
            }
        })
        .await;
        if times(8) == eights {
            Ok(())
        } else {
            Err(format!("executed {} times", times(8)))
        }
    })
    .await;
    system.stop().await;
}
