//! Lets `tests/instructions` measure pure code of private modules, and simulations say what only a
//! job service knows. Not part of the API: it may change at any time.

use contract::{JobStatus, TaskMessage, TaskStatus, TrackingReport};
use tokio::time::Instant;

use crate::TaskError;
use crate::broker::amqp::ack_batcher::AckBatcher;
use crate::broker::amqp::lost_deliveries::Content;
use crate::broker::{Outgoing, Settlement};
use crate::clock::Clock;
use crate::config::Route;
use crate::process_name::ProcessName;
use crate::steps::output::{OutputSpec, TaskPart, WorkerIdentity};
use crate::steps::routing::{Admission, JobKnowledge, admit, next_hop};

/// Says to which pipe a task goes that waits for a condition. Then its worker does not ask its job
/// service.
pub fn waiting_in(error: TaskError, pipe: String) -> TaskError {
    error.waiting_in(pipe)
}

/// The number of settlements after which [`Acknowledgements`] takes the commands for the broker.
const SETTLED_AT_ONCE: usize = 50;

/// The acknowledgements of one channel.
#[derive(Debug)]
pub struct Acknowledgements(AckBatcher);

impl Acknowledgements {
    /// Returns the acknowledgements of a channel with at most `window` unsettled deliveries.
    pub fn new(window: u32) -> Self {
        Self(AckBatcher::new(window))
    }

    /// Receives as many deliveries as `order` has tags, then acknowledges them in this order.
    /// Returns the number of commands for the broker.
    pub fn acknowledge(&mut self, order: &[u64], now: Instant) -> usize {
        for tag in 1..=order.len() as u64 {
            self.0.delivered(tag, Content::default());
        }
        let mut commands = 0;
        for tags in order.chunks(SETTLED_AT_ONCE) {
            for tag in tags {
                self.0.settled(*tag, Settlement::Ack, now);
            }
            commands += self.0.take(now).len();
        }
        commands
    }
}

/// Makes the outputs of a worker with the route `direct`.
#[derive(Debug)]
pub struct OutputMaker(WorkerIdentity);

impl OutputMaker {
    /// Returns the maker of the outputs of the worker with this name and version.
    pub fn new(name: &str, version: &str) -> Self {
        Self(WorkerIdentity {
            name: name.into(),
            version: version.into(),
            service_path: format!("batchwright/{name}"),
            route: Route::Direct,
            zero_progress: false,
            clock: Clock::system(),
            process: ProcessName::default(),
        })
    }

    /// Makes the message and the report of a successful output for the pipe `to`.
    pub fn output(
        &self,
        input: &TaskMessage,
        to: &str,
        data: Vec<u8>,
    ) -> (Option<Outgoing>, Option<TrackingReport>) {
        let spec = OutputSpec {
            part: TaskPart::Whole,
            to: Some(to),
            status: TaskStatus::ResultSuccess,
            classifier: "WordCount",
            api_version: 1,
            data,
            note: None,
            failure: None,
            run: None,
            label: None,
            time_limit: None,
            ends_tracking: false,
        };
        let output = self.0.output(input, spec);
        (output.message, output.report)
    }
}

/// Admits a message of a job with this status in the pipe `input`, and returns the pipe of its
/// output for the pipe `to`; `None` if the message is not admitted.
pub fn route(message: &TaskMessage, input: &str, status: JobStatus, to: &str) -> Option<String> {
    let admission = admit(JobKnowledge::Is(status), message.to.as_deref(), input, true);
    if admission != Admission::Execute {
        return None;
    }
    let tracked = message.tracking.as_ref().map(Into::into);
    let hop = next_hop(Route::Direct, Some(to), tracked, false);
    hop.pipe.map(str::to_owned)
}
