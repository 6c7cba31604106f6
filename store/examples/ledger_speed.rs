//! Measures how fast the store records reports: `cargo run --release -p batchwright-store --example
//! ledger_speed -- URL [items] [batch] [window] [failing]`.
//!
//! The job has splits of 1000 tasks. Every task is reported once; `window` reports at a time are
//! shuffled. Every `failing`th item fails, 0 for none. Prints one line: tasks per second, and the
//! largest number of rows and bytes in the task table.

extern crate batchwright_store as store;

use std::time::Instant;

use contract::{FailedItem, JobId, JobTaskId, OnFailure, PartitionId, ReportFailure, Step};
use store::{Creation, EventKind, JobRequest, Store, TrackingEvent};

const PARTS: u32 = 1000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let url = words.next().ok_or("the URL of the database is missing")?;
    let items: u32 = words.next().map_or(Ok(1_000_000), |word| word.parse())?;
    let batch_size: usize = words.next().map_or(Ok(2000), |word| word.parse())?;
    let window: usize = words.next().map_or(Ok(20_000), |word| word.parse())?;
    let failing: u32 = words.next().map_or(Ok(0), |word| word.parse())?;
    let store = Store::open(&url).await?;
    let job = start(&store, failing > 0).await?;

    let splits = items / PARTS;
    let step = |number, of| Step {
        number,
        last: number == of,
    };
    let mut events: Vec<TrackingEvent> = (1..=splits)
        .flat_map(|split| {
            (1..=PARTS).map(move |part| {
                vec![
                    Step {
                        number: split,
                        last: false,
                    },
                    step(part, PARTS),
                ]
            })
        })
        .enumerate()
        .map(|(at, steps)| TrackingEvent {
            kind: end(at, failing, steps.iter().any(|step| step.last)),
            task: JobTaskId {
                steps,
                ..job.clone()
            },
        })
        .collect();
    let last = vec![Step {
        number: splits + 1,
        last: true,
    }];
    events.push(TrackingEvent {
        task: JobTaskId { steps: last, ..job },
        kind: EventKind::Complete,
    });

    for window in events.chunks_mut(window.max(1)) {
        shuffle(window);
    }

    let begun = Instant::now();
    let (mut rows, mut bytes) = (0, 0);
    for (at, batch) in events.chunks(batch_size).enumerate() {
        store.record(batch).await?;
        if at % 50 == 20 {
            let size = store.task_table_size().await?;
            (rows, bytes) = (rows.max(size.rows), bytes.max(size.bytes));
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let rate = f64::from(splits * PARTS) / seconds;
    println!(
        "{}: window {window}, batches of {batch_size}: {} tasks in {seconds:.2} s = {rate:.0}/s; at most {rows} rows, {bytes} bytes",
        store.kind(),
        splits * PARTS
    );
    Ok(())
}

/// Returns how the item at this place ends. A final task is no item.
fn end(at: usize, failing: u32, is_final: bool) -> EventKind {
    let fails = failing > 0 && !is_final && (at + 1).is_multiple_of(failing as usize);
    if !fails {
        return EventKind::Complete;
    }
    EventKind::Failed(ReportFailure {
        failure_id: Some("RESULT_EXCEPTION".to_owned()),
        failure_message: Some(format!("item {at} is broken: {}", "x".repeat(200))),
        item: Some(FailedItem::new(Some("an item"), &[b'x'; 1000])),
        ..ReportFailure::default()
    })
}

/// Shuffles in the same way on every run.
fn shuffle<T>(items: &mut [T]) {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    for at in (1..items.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        items.swap(
            at,
            usize::try_from(state >> 16).unwrap_or_default() % (at + 1),
        );
    }
}

async fn start(store: &Store, continues: bool) -> Result<JobTaskId, Box<dyn std::error::Error>> {
    let partition = PartitionId::parse("speed")?;
    let job = JobId::parse(&format!("job-{}", std::process::id()))?;
    let request = JobRequest {
        on_failure: if continues {
            OnFailure::Continue
        } else {
            OnFailure::Stop
        },
        ..JobRequest::new(partition, job)
    };
    match store
        .create_job(&request, |_| ("start".to_owned(), Vec::new()))
        .await?
    {
        Creation::Created(job) => Ok(JobTaskId::parse(&job.job_task_id())?),
        other => Err(format!("the job was not created: {other:?}").into()),
    }
}
