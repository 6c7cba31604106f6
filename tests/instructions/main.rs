//! The cases that `tests/instructions.sh` measures under callgrind.
//!
//! Without an argument, prints each case with its number of iterations. With the name of a case,
//! runs it.
//!
//! Callgrind counts only inside the functions of [`measured`], so the preparation of inputs is not
//! counted.

mod measured;

use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use contract::{
    BundleWriter, ContextData, JobStatus, JobTaskId, OnFailure, SourceInfo, TaskData, TaskMessage,
    TaskStatus, Tracking,
};
use framework::broker::memory::Memory;
use framework::broker::{Broker as _, Outgoing};
use framework::clock::Clock;
use framework::internals::{Acknowledgements, OutputMaker};
use framework::{Context, Reply, Runtime, Settings, TaskError, Worker};
use serde::{Deserialize, Serialize};
use store::internals::LedgerState;
use store::{EventKind, TrackingEvent};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// A case: its name, the iterations, and the function that runs it. It calls one function of
/// [`measured`] per iteration.
type Case = (&'static str, u32, fn(u32));

const CASES: &[Case] = &[
    ("decode_task_message", 1000, decode_task_message),
    ("encode_bundle", 100, encode_bundle),
    ("decode_bundle", 100, decode_bundle),
    ("encode_output", 1000, encode_output),
    ("patch_tracking", 1000, patch_tracking),
    ("route", 1000, route),
    ("ledger_first_flush", 20, ledger_first_flush),
    ("ledger_repeated_flush", 20, ledger_repeated_flush),
    ("acknowledge_in_order", 100, acknowledge_in_order),
    ("acknowledge_scrambled", 100, acknowledge_scrambled),
    ("parse_job_task_id", 1000, parse_job_task_id),
    ("format_job_task_id", 1000, format_job_task_id),
    ("thousand_items", 10, thousand_items),
];

/// The reports of a flush, and the deliveries of a channel.
const THOUSAND: u32 = 1000;

fn main() -> ExitCode {
    let Some(wanted) = std::env::args().nth(1) else {
        for (name, iterations, _) in CASES {
            println!("{name} {iterations}");
        }
        return ExitCode::SUCCESS;
    };
    let Some((_, iterations, run)) = CASES.iter().find(|(name, ..)| *name == wanted) else {
        eprintln!("there is no case {wanted:?}");
        return ExitCode::FAILURE;
    };
    run(*iterations);
    ExitCode::SUCCESS
}

fn decode_task_message(iterations: u32) {
    let body = message().encode();
    for _ in 0..iterations {
        assert!(measured::decode_task_message(black_box(&body)).is_ok());
    }
}

/// Returns the data of the members of a bundle.
fn members() -> Vec<Vec<u8>> {
    let data = |number| format!("{{\"number\":{number}}}").into_bytes();
    (1..=100).map(data).collect()
}

fn encode_bundle(iterations: u32) {
    let (shared, members) = (message(), members());
    for _ in 0..iterations {
        black_box(measured::encode_bundle(shared.clone(), &members));
    }
}

fn decode_bundle(iterations: u32) {
    let mut writer = BundleWriter::default();
    for (number, data) in (1..).zip(&members()) {
        writer.add(number, data, None);
    }
    let body = writer.encode(message());
    for _ in 0..iterations {
        let messages = measured::decode_bundle(black_box(&body));
        assert!(messages.is_ok_and(|messages| messages.len() == 100));
    }
}

fn encode_output(iterations: u32) {
    let (maker, input) = (OutputMaker::new("words", "1.0.0"), message());
    for _ in 0..iterations {
        let data = payload();
        let output = measured::encode_output(black_box(&maker), black_box(&input), data);
        assert!(output.0.is_some() && output.1.is_none());
    }
}

fn patch_tracking(iterations: u32) {
    let message = message();
    let body = message.encode();
    for _ in 0..iterations {
        assert!(measured::patch_tracking(black_box(&body), message.tracking.as_ref()).is_ok());
    }
}

fn route(iterations: u32) {
    let message = message();
    for _ in 0..iterations {
        assert!(measured::route(black_box(&message), JobStatus::Active).is_some());
    }
}

fn ledger_first_flush(iterations: u32) {
    let events = events();
    for _ in 0..iterations {
        let state = LedgerState::new(OnFailure::Continue);
        black_box(measured::flush_ledger(&state, &events));
    }
}

fn ledger_repeated_flush(iterations: u32) {
    let events = events();
    let state = LedgerState::new(OnFailure::Continue).flush(&events);
    for _ in 0..iterations {
        black_box(measured::flush_ledger(&state, &events));
    }
}

fn acknowledge_in_order(iterations: u32) {
    let now = Instant::now();
    let order: Vec<u64> = (1..=u64::from(THOUSAND)).collect();
    for _ in 0..iterations {
        let mut acks = Acknowledgements::new(THOUSAND);
        assert!(measured::acknowledge(&mut acks, &order, now) > 0);
    }
}

fn acknowledge_scrambled(iterations: u32) {
    let now = Instant::now();
    // 373 has no divisor in common with 1000, so every tag occurs once.
    let tags = 0..u64::from(THOUSAND);
    let order: Vec<u64> = tags.map(|n| n * 373 % 1000 + 1).collect();
    for _ in 0..iterations {
        let mut acks = Acknowledgements::new(THOUSAND);
        assert!(measured::acknowledge(&mut acks, &order, now) > 0);
    }
}

fn parse_job_task_id(iterations: u32) {
    for _ in 0..iterations {
        assert!(measured::parse_job_task_id(black_box(TASK)).is_ok());
    }
}

fn format_job_task_id(iterations: u32) {
    let id = id(TASK);
    for _ in 0..iterations {
        assert_eq!(measured::format_job_task_id(black_box(&id)), TASK);
    }
}

/// A worker takes tracked items from its pipe, and sends an output and a report for each.
fn thousand_items(iterations: u32) {
    // The clock stands still while there is something to do, so that it does not decide how many
    // reports go in one message.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    let Ok(runtime) = runtime else {
        unreachable!("a runtime without threads starts")
    };
    for _ in 0..iterations {
        let broker = Memory::new();
        runtime.block_on(items(&broker));
        let service = Runtime::new(Settings::new("words"), Arc::new(broker.clone()))
            .with(|settings| settings.output = Some("formatter-in".to_owned()))
            .worker(Words);
        let stop = CancellationToken::new();
        let ended = measured::run_worker(&runtime, async {
            let (ended, ()) =
                tokio::join!(service.run_until(stop.clone()), outputs(&broker, &stop));
            ended
        });
        assert!(ended.is_ok());
    }
}

/// Fills the worker's pipe.
async fn items(broker: &Memory) {
    for number in 1..=THOUSAND {
        let id = format!("acme:reindex-documents.1.{number}");
        let mut item = message();
        item.tracking = item.tracking.map(|tracking| Tracking {
            job_task_id: Some(id),
            // The worker asks nobody about the job.
            last_status_check_time: Some(Clock::system().now_millis()),
            status_check_url: None,
            ..tracking
        });
        let sent = broker.publish(Outgoing::new("words-in", item.encode()));
        assert!(sent.await.is_ok());
    }
}

/// Takes the outputs, and stops the worker after the last one.
async fn outputs(broker: &Memory, stop: &CancellationToken) {
    let Ok(mut outputs) = broker.consume("formatter-in", THOUSAND).await else {
        unreachable!("every pipe of the memory can be consumed")
    };
    for _ in 0..THOUSAND {
        if let Some(output) = outputs.next().await {
            output.ack();
        }
    }
    stop.cancel();
}

/// The task data of [`payload`].
#[derive(Serialize, Deserialize)]
struct Document {
    path: String,
    text: String,
}

impl TaskData for Document {
    const CLASSIFIER: &'static str = "CountWords";
    const API_VERSION: i32 = 1;
}

/// Sends each document on unchanged.
struct Words;

impl Worker for Words {
    type Input = Document;
    type Output = Document;

    async fn run(&self, task: Self::Input, _: Context) -> Result<Reply<Self::Output>, TaskError> {
        Ok(Reply::send(task))
    }
}

const TASK: &str = "acme:reindex-documents!42.3.17.250*";

/// A tracked item of a batch, as a worker receives it.
fn message() -> TaskMessage {
    TaskMessage {
        version: 3,
        task_id: "reindex-documents.3.17.250*".to_owned(),
        task_classifier: Some("CountWords".into()),
        task_api_version: 1,
        task_data: Some(payload()),
        task_status: Some(TaskStatus::NewTask),
        context: [(
            "acme/splitter".to_owned(),
            ContextData(b"{\"part\":17}".to_vec()),
        )]
        .into(),
        to: Some("words-in".into()),
        tracking: Some(Tracking {
            job_task_id: Some(TASK.to_owned()),
            last_status_check_time: Some(1_700_000_000_000),
            status_check_interval_millis: 120_000,
            status_check_url: Some(
                "http://jobs.example/partitions/acme/jobs/reindex-documents/status".into(),
            ),
            tracking_pipe: Some("tracking-in".into()),
            track_to: Some("results-in".into()),
        }),
        source_info: Some(SourceInfo {
            name: Some("batch-worker".into()),
            version: Some("1.0.0".into()),
        }),
        priority: None,
        correlation_id: Some("reindex-documents".into()),
    }
}

/// Task data of about 1 KiB.
fn payload() -> Vec<u8> {
    format!(
        "{{\"path\":\"/documents/17/250\",\"text\":\"{}\"}}",
        "word ".repeat(200)
    )
    .into_bytes()
}

/// Reports in the order of their tasks: ten sub-batches of a hundred items each, of a split whose
/// size is not known yet.
fn events() -> Vec<TrackingEvent> {
    let task = |n: u32| format!("acme:reindex-documents.{}.{}", n / 100 + 1, n % 100 + 1);
    (0..THOUSAND)
        .map(|n| TrackingEvent {
            task: id(&task(n)),
            kind: EventKind::Complete,
        })
        .collect()
}

fn id(text: &str) -> JobTaskId {
    match JobTaskId::parse(text) {
        Ok(id) => id,
        Err(error) => unreachable!("{error}"),
    }
}
