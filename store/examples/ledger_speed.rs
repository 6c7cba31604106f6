//! How fast the ledger takes reports in: `cargo run --release -p store --example ledger_speed -- URL [items] [batch]`.
//!
//! One job, splits of 1000, every task reported done once. Prints one line.

use std::collections::BTreeMap;
use std::time::Instant;

use contract::{JobId, JobTaskId, OnFailure, PartitionId, Step};
use store::{Creation, EventKind, JobRequest, Store, TrackingEvent};

const PARTS: u32 = 1000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args().skip(1);
    let url = words.next().unwrap_or_else(|| "memory:".to_owned());
    let items: u32 = words.next().map_or(Ok(1_000_000), |word| word.parse())?;
    let batch: usize = words.next().map_or(Ok(2000), |word| word.parse())?;
    let store = Store::open(&url).await?;
    let life = start(&store).await?;

    let splits = items / PARTS;
    let step = |number, of| Step { number, last: number == of };
    let mut events: Vec<TrackingEvent> = (1..=splits)
        .flat_map(|split| (1..=PARTS).map(move |part| vec![Step { number: split, last: false }, step(part, PARTS)]))
        .map(|steps| TrackingEvent { task: JobTaskId { steps, ..life.clone() }, kind: EventKind::Complete })
        .collect();
    let last = vec![Step { number: splits + 1, last: true }];
    events.push(TrackingEvent { task: JobTaskId { steps: last, ..life }, kind: EventKind::Complete });

    let begun = Instant::now();
    let (mut rows, mut bytes) = (0, 0);
    for (at, batch) in events.chunks(batch).enumerate() {
        store.record(batch).await?;
        if at % 100 == 99 {
            let size = store.task_table_size().await?;
            (rows, bytes) = (rows.max(size.rows), bytes.max(size.bytes));
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let rate = f64::from(splits * PARTS) / seconds;
    println!("{}: {} tasks in {seconds:.2} s = {rate:.0}/s; {rows} rows, {bytes} bytes at most", store.kind(), splits * PARTS);
    Ok(())
}

async fn start(store: &Store) -> Result<JobTaskId, Box<dyn std::error::Error>> {
    let request = JobRequest {
        partition: PartitionId::parse("speed")?,
        job: JobId::parse(&format!("job-{}", std::process::id()))?,
        name: None,
        description: None,
        external_data: None,
        labels: BTreeMap::new(),
        on_failure: OnFailure::Stop,
        content_hash: [0; 32],
    };
    match store.create_job(&request, |_| ("start".to_owned(), Vec::new())).await? {
        Creation::Created(life) => Ok(JobTaskId::parse(&life.job_task_id())?),
        other => Err(format!("the job is there already: {other:?}").into()),
    }
}
