//! The table of the variables of a worker.

use super::PREFIX;
use super::caf::{self, Conversion, Reader};

/// A variable of a worker.
#[derive(Debug, Clone, Copy)]
pub struct Variable {
    /// The name without `BATCHWRIGHT_`.
    pub name: &'static str,
    /// The default value as shown in the documentation.
    pub default: &'static str,
    /// What the variable means, for the documentation.
    pub meaning: &'static str,
    /// Whether the value may be in a file that `<name>_FILE` names.
    pub secret: bool,
}

impl Variable {
    /// Returns the full name of the variable and, for a secret, the name of the variable that names
    /// its file.
    pub fn own_names(&self) -> impl Iterator<Item = String> {
        let own = format!("{PREFIX}{}", self.name);
        let file = self.secret.then(|| format!("{own}_FILE"));
        std::iter::once(own).chain(file)
    }

    /// Returns CAF's names for this variable.
    pub fn caf(&self) -> &'static [(&'static str, Conversion)] {
        caf::names_of(Reader::Worker, self.name)
    }
}

/// Defines the table of variables: the name of each, its default and its meaning.
macro_rules! variables {
    ($($name:literal = $default:literal $(($secret:ident))?: $meaning:literal;)*) => {
        /// Every variable of a worker.
        pub const VARIABLES: &[Variable] = &[$(Variable {
            name: $name,
            default: $default,
            meaning: $meaning,
            secret: variables!(@ $($secret)?),
        }),*];
    };
    (@ secret) => { true };
    (@) => { false };
}

variables! {
    "BROKER" = "amqp://guest:guest@127.0.0.1:5672/%2f" (secret):
        "the URL of RabbitMQ; amqps:// encrypts the connection";
    "TLS_CA" = "none":
        "the file (PEM) of certificate authorities to trust besides the system's, for amqps:// and https://";
    "TLS_CERTIFICATE" = "none":
        "the file (PEM) of the client certificate, followed by intermediate ones";
    "TLS_KEY" = "none": "the file (PEM) of the key of the client certificate, not encrypted";
    "NAME" = "worker": "the name in messages, logs and metrics";
    "INPUT_PIPE" = "<name>-in": "the pipe to take tasks from";
    "OUTPUT_PIPE" = "none": "the pipe for results, failures included";
    "INVALID_PIPE" = "<name>-invalid": "the pipe for bodies that are not task messages";
    "REJECT_PIPE" = "<name>-reject": "the pipe for copies of tasks that were given up";
    "PAUSED_PIPE" = "worker-paused-in":
        "the pipe for tasks of paused jobs, which the job service keeps; with none, they run";
    "ALLOWED_PIPE" = "none":
        "exact names of pipes, separated by commas, that tasks may be addressed to although such names are reserved";
    "ROUTE" = "direct": "how tracked outputs travel: direct or reroute";
    "CONCURRENCY" = "8": "the number of tasks that run at the same time";
    "PREFETCH" = "none":
        "the largest number of deliveries received and not settled; with none, it follows the time that tasks take and their size";
    "BUNDLE" = "100":
        "the largest number of subtasks in one message to workers that read such bundles; with 1, the worker neither sends nor reads any";
    "OLD_DELIVERY" = "1500":
        "the seconds after which a delivery that is still open makes the worker degraded";
    "STUCK_TASK" = "300":
        "the seconds after which the log names a task that still runs, and the metrics count it";
    "RETRY" = "exponential":
        "when failed tasks run again, unless their job says so: none, immediate, constant, exponential, stepwise or a preset, with limits, for example jobweaver,attempts=5";
    "ATTEMPTS" = "10": "the largest number of attempts of a task, whatever RETRY says";
    "CIRCUIT_BREAKER" = "none":
        "the number of attempts in a row, of tasks of two jobs or more, that fail in the same way before the worker takes no more until one ends in another way";
    "TIME_LIMIT" = "none":
        "the seconds that one attempt of a task may take; one that takes longer has failed";
    "SERVICE_PATH" = "batchwright/<name>":
        "the key of the worker's notes in the context of a message";
    "VERSION" = "UNKNOWN": "the version of the worker in messages";
    "ZERO_PROGRESS" = "false": "true: report 0 % for each output that does not end its task";
    "MAX_PRIORITY" = "0":
        "x-max-priority of classic queues, if others declare them with it; 0 to 255";
    "QUEUE_TYPE" = "quorum": "quorum or classic; all programs on a broker must agree";
    "LISTEN" = "none":
        "the address that serves health checks and metrics, for example 127.0.0.1:8081";
    "STATUS_ORIGINS" = "none":
        "the origins that status checks may ask, separated by commas, for example http://job-service:8080; with none, every origin";
    "LOG" = "info": "what is logged to standard error";
    "LOG_FORMAT" = "text": "the form of the lines of the log: text or json";
    "OTLP_ENDPOINT" = "none":
        "the collector that receives traces by OTLP over HTTP, for example http://localhost:4318";
    "OTLP_RATIO" = "1":
        "the share of the traces beginning in this process that is exported, from 0 to 1";
}
