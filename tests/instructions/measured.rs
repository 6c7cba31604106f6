//! The functions inside of which callgrind counts. It starts at the call and stops at the return.
//!
//! They contain no closures: a closure's name begins with that of its function, and a call of it
//! would stop the count. No two have the same body: the compiler would make one function of them,
//! but cases may share a function.

use contract::{
    Bundle, BundleError, BundleWriter, DecodeError, JobStatus, JobTaskId, JobTaskIdError,
    TaskMessage, Tracking, TrackingReport,
};
use framework::broker::Outgoing;
use framework::internals::{Acknowledgements, OutputMaker};
use store::TrackingEvent;
use store::internals::LedgerState;
use tokio::time::Instant;

/// Decodes the body of a delivery.
#[inline(never)]
pub fn decode_task_message(body: &[u8]) -> Result<TaskMessage, DecodeError> {
    TaskMessage::decode(body)
}

/// Makes a bundle of these members.
#[inline(never)]
pub fn encode_bundle(shared: TaskMessage, members: &[Vec<u8>]) -> Vec<u8> {
    let mut writer = BundleWriter::default();
    for (number, data) in (1..).zip(members) {
        writer.add(number, data, None);
    }
    writer.encode(shared)
}

/// Decodes a bundle, and makes the messages of its members.
#[inline(never)]
pub fn decode_bundle(body: &[u8]) -> Result<Vec<TaskMessage>, BundleError> {
    let bundle = Bundle::decode(body)?;
    let mut messages = Vec::with_capacity(bundle.members.len());
    for index in 0..bundle.members.len() {
        messages.extend(bundle.message(index, body));
    }
    Ok(messages)
}

/// Makes the message of an output that stays tracked.
#[inline(never)]
pub fn encode_output(
    maker: &OutputMaker,
    input: &TaskMessage,
    data: Vec<u8>,
) -> (Option<Outgoing>, Option<TrackingReport>) {
    maker.output(input, "formatter-in", data)
}

/// Replaces the tracking of a diverted message.
#[inline(never)]
pub fn patch_tracking(body: &[u8], tracking: Option<&Tracking>) -> Result<Vec<u8>, DecodeError> {
    contract::patch_tracking(body, tracking)
}

/// Admits a message and decides where its output goes.
#[inline(never)]
pub fn route(message: &TaskMessage, status: JobStatus) -> Option<String> {
    framework::internals::route(message, "words-in", status, "formatter-in")
}

/// Applies the reports of a flush to a ledger.
#[inline(never)]
pub fn flush_ledger(state: &LedgerState, events: &[TrackingEvent]) -> LedgerState {
    state.flush(events)
}

/// Receives and acknowledges deliveries, and takes the commands for the broker. Returns the number
/// of commands.
#[inline(never)]
pub fn acknowledge(acks: &mut Acknowledgements, order: &[u64], now: Instant) -> usize {
    acks.acknowledge(order, now)
}

/// Parses the id of a task of the third level.
#[inline(never)]
pub fn parse_job_task_id(text: &str) -> Result<JobTaskId, JobTaskIdError> {
    JobTaskId::parse(text)
}

/// Formats the id of a task of the third level.
#[inline(never)]
pub fn format_job_task_id(id: &JobTaskId) -> String {
    id.to_string()
}

/// Runs a worker until its items are done.
#[inline(never)]
pub fn run_worker<F: Future>(runtime: &tokio::runtime::Runtime, worker: F) -> F::Output {
    runtime.block_on(worker)
}
