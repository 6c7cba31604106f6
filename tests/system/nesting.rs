//! Jobs whose tasks pass through several workers, or are split several times.

use std::collections::BTreeMap;

use contract::rest::{JobTask, NewJob};
use contract::{JobStatus, RangeItem, TaskData};
use framework::{Context, NoOutput, Reply, TaskError, Worker};
use harness::wait_for;
use serde::{Deserialize, Serialize};

use crate::fixture::Fixture;
use crate::workers::{Gate, echo, gated};

stories![
    workers_without_output_complete_a_job_without_a_target_pipe,
    a_task_completes_at_its_last_worker,
    a_worker_that_splits_without_announcing_is_counted_exactly,
];

/// Completes each item without an output.
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

async fn workers_without_output_complete_a_job_without_a_target_pipe(fixture: Fixture) {
    let settings = framework::Settings {
        output: None,
        ..fixture.settings("items")
    };
    let system = fixture
        .start(fixture.stack().worker(settings, Silent))
        .await;
    system
        .client
        .put("j", &without_target(fixture.range(500)))
        .await
        .unwrap();
    system.completed("j", 500).await;
    assert_eq!(
        system
            .running
            .broker()
            .depth(&fixture.pipe("output"))
            .await
            .unwrap(),
        0
    );
    // A target pipe does no harm.
    system.client.put("k", &fixture.range(50)).await.unwrap();
    system.completed("k", 50).await;
    system.stop().await;
}

async fn a_task_completes_at_its_last_worker(fixture: Fixture) {
    let gate = Gate::closed();
    let first = framework::Settings {
        output: Some(fixture.pipe("second")),
        ..fixture.settings("items")
    };
    let stack = fixture
        .stack()
        .worker(first, echo())
        .worker(fixture.settings("second"), gated(&gate));
    let system = fixture.start(stack).await;
    system.client.put("j", &fixture.range(300)).await.unwrap();
    gate.admit(100);
    wait_for("a third of the items", async || {
        match system.job("j").await.completed_items {
            100 => Ok(()),
            items => Err(format!("{items} items")),
        }
    })
    .await;
    // The first worker has finished with all items.
    system
        .drained(&["batch", "items"].map(|pipe| fixture.pipe(pipe)))
        .await;
    let state = system.job("j").await;
    assert_eq!(
        (state.status, state.completed_items),
        (JobStatus::Active, 100)
    );
    gate.open();
    system.completed("j", 300).await;
    system.has_outputs(&fixture.pipe("output"), 1..=300).await;
    system.stop().await;
}

/// A tree of `levels` levels. Each task is split into `width` tasks.
#[derive(Debug, Serialize, Deserialize)]
struct Tree {
    levels: u32,
    width: u32,
}

impl TaskData for Tree {
    const CLASSIFIER: &'static str = "Tree";
    const API_VERSION: i32 = 1;
}

/// Splits a tree: dispatches branches to its own pipe and leaves to the pipe `items`.
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
        // A split is not an item, with or without an output.
        Ok(if levels % 2 == 0 {
            Reply::send(Tree { levels, width })
        } else {
            Reply::none()
        })
    }
}

async fn a_worker_that_splits_without_announcing_is_counted_exactly(fixture: Fixture) {
    let splitter = Splitter {
        items: fixture.pipe("items"),
    };
    let settings = framework::Settings {
        output: None,
        ..fixture.settings("items")
    };
    let stack = fixture
        .stack()
        .worker(settings, Silent)
        .worker(fixture.settings("trees"), splitter);
    let system = fixture.start(stack).await;
    system
        .client
        .put(
            "j",
            &fixture.job(
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
    // One output of each split with an even number of levels.
    let answers: Vec<Tree> = system.take_different(&fixture.pipe("output"), 1 + 36).await;
    assert_eq!(answers.iter().filter(|tree| tree.levels == 4).count(), 1);
    system.stop().await;
}
