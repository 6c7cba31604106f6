//! The metrics of every process: their names, types, labels and meanings.
//! `docs/reference/metrics.md` documents exactly these.
//!
//! What must stay true: the values of a label are few and known beforehand. No label is the id of a
//! job or of a task. A pipe that only a job names is the label of one metric, which shows a bounded
//! number of them.

/// A metric that a process shows at `/metrics`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// The name, as Prometheus shows it.
    pub name: &'static str,
    /// The type.
    pub kind: MetricKind,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The meaning, as the help text of `/metrics` and the documentation show it.
    pub meaning: &'static str,
}

/// The type of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MetricKind {
    /// A number that only rises until the process ends.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// A distribution, with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

impl MetricKind {
    /// Returns the name of the type in Prometheus' format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// Times of tasks, in seconds: from no-ops to hours.
const TASK_TIMES: MetricKind = MetricKind::Histogram(&[
    0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0,
]);
/// Times of messages in pipes, in whole seconds: from none to a day.
const PIPE_TIMES: MetricKind =
    MetricKind::Histogram(&[0.0, 1.0, 5.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 86_400.0]);
/// Times of requests and transactions, in seconds.
const TIMES: MetricKind = MetricKind::Histogram(&[0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 30.0]);
/// Numbers of events in a flush.
const SIZES: MetricKind =
    MetricKind::Histogram(&[1.0, 10.0, 100.0, 500.0, 1000.0, 5000.0, 20_000.0]);
const COUNTER: MetricKind = MetricKind::Counter;
const GAUGE: MetricKind = MetricKind::Gauge;

/// Defines a constant with the name of each metric, and the table of all.
macro_rules! metrics {
    ($($constant:ident = $name:literal, $kind:expr, [$($label:literal),*], $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $constant: &str = $name;)*

        /// Every metric.
        pub const METRICS: &[Metric] = &[$(Metric {
            name: $name,
            kind: $kind,
            labels: &[$($label),*],
            meaning: $meaning,
        }),*];
    };
}

metrics! {
    TASKS_RECEIVED = "batchwright_tasks_received_total", COUNTER, ["worker"],
        "Deliveries that the worker began to process, repeated ones included.";
    TASKS_DONE = "batchwright_tasks_done_total", COUNTER, ["worker"],
        "Deliveries that the worker handled. Their outcome is a result, a failure or a further attempt.";
    TASKS_FAILED = "batchwright_tasks_failed_total", COUNTER, ["worker"],
        "Tasks that ended with a failure. They count as done, too.";
    TASKS_RETRIED = "batchwright_tasks_retried_total", COUNTER, ["worker"],
        "Attempts that failed and are followed by another one.";
    TASKS_GIVEN_UP = "batchwright_tasks_given_up_total", COUNTER, ["worker"],
        "Tasks of which a copy went to the reject pipe, because every attempt failed or processes crashed on them.";
    TASKS_FORWARDED = "batchwright_tasks_forwarded_total", COUNTER, ["worker"],
        "Deliveries addressed to another pipe, or to none, that the worker sent on.";
    TASKS_PAUSED = "batchwright_tasks_paused_total", COUNTER, ["worker"],
        "Deliveries of paused jobs that went to the paused pipe.";
    TASKS_BLOCKED = "batchwright_tasks_blocked_total", COUNTER, ["worker"],
        "Deliveries that wait for a condition and went to the blocked pipe.";
    TASKS_DISCARDED = "batchwright_tasks_discarded_total", COUNTER, ["worker", "reason"],
        "Deliveries that the worker dropped, by reason.";
    TASKS_REJECTED = "batchwright_tasks_rejected_total", COUNTER, ["worker"],
        "Messages that went to the invalid pipe, because they can never be handled.";
    TASKS_QUARANTINED = "batchwright_tasks_quarantined_total", COUNTER, ["worker"],
        "Deliveries that went to the quarantine, because several processes crashed while they held them.";
    TASKS_SNOOZED = "batchwright_tasks_snoozed_total", COUNTER, ["worker"],
        "Deliveries that the worker put off for some time.";
    TASKS_REDELIVERED = "batchwright_tasks_redelivered_total", COUNTER, ["worker"],
        "Deliveries that could not be processed and come again.";
    STATUS_CHECKS_REFUSED = "batchwright_status_checks_refused_total", COUNTER, ["worker"],
        "Status checks that the worker does not make, because their URL is not allowed.";
    TIME_IN_PIPE = "batchwright_time_in_pipe_seconds", PIPE_TIMES, ["worker"],
        "Time from when a message was sent, or its delay was over, until the worker began to process it, to the second.";
    TASK_SECONDS = "batchwright_task_seconds", TASK_TIMES, ["worker"],
        "Time in which the worker handled a delivery, or a batch of deliveries, without publishing and reporting.";
    OPEN_DELIVERIES = "batchwright_open_deliveries", GAUGE, ["worker"],
        "Deliveries that the worker has received and not settled.";
    OLDEST_OPEN_DELIVERY = "batchwright_oldest_open_delivery_seconds", GAUGE, ["worker"],
        "Time since the worker began to process the oldest of these; 0 if there is none.";
    STUCK_TASKS = "batchwright_stuck_tasks", GAUGE, ["worker"],
        "Tasks that have been running for five minutes (`--stuck-task`) or longer.";
    CIRCUIT_OPEN = "batchwright_circuit_open", GAUGE, ["worker"],
        "1 while the circuit breaker of the worker is open, else 0.";
    CIRCUIT_TRIPS = "batchwright_circuit_trips_total", COUNTER, ["worker"],
        "How often the circuit breaker has tripped.";
    SLOTS = "batchwright_slots", GAUGE, ["worker"],
        "Deliveries, or batches of deliveries, that the worker can handle at the same time.";
    SLOTS_IN_USE = "batchwright_slots_in_use", GAUGE, ["worker"],
        "How many of these slots are in use.";
    PIPE_MESSAGES = "batchwright_pipe_messages", GAUGE, ["pipe"],
        "Messages that wait in the input pipe of a worker, read at most every 15 s; NaN if the broker does not say.";
    PIPE_ITEMS = "batchwright_pipe_items", GAUGE, ["pipe"],
        "Items that wait for a pipe of unfinished jobs or of workers, also if no worker takes them, as the job service shows them; read at most every 15 s, of at most 500 pipes; NaN if the broker or the database does not say.";
    PIPE_SECONDS = "batchwright_pipe_seconds", GAUGE, ["pipe"],
        "Seconds of work that these items are for the workers of the pipe, as fast as they are now; NaN if nobody who dispatches to it has told.";
    MESSAGES_PUBLISHED = "batchwright_messages_published_total", COUNTER, [],
        "Messages that the process handed to the broker.";
    MESSAGES_CONFIRMED = "batchwright_messages_confirmed_total", COUNTER, ["outcome"],
        "Responses of the broker to them: `confirmed`, or why a message was not taken.";
    CONFIRM_SECONDS = "batchwright_confirm_seconds", TIMES, [],
        "Time until the broker responded.";
    BROKER_STATE = "batchwright_broker_state", GAUGE, ["state"],
        "1 for the present state of the broker: `connected`, `impaired`, `blocked`, `refusing`, `connecting` or `closed`; 0 for the others.";
    BROKER_RECONNECTS = "batchwright_broker_reconnects_total", COUNTER, ["connection"],
        "Connections to RabbitMQ that replaced a lost one.";
    EMBEDDED_MESSAGES = "batchwright_embedded_broker_messages", GAUGE, [],
        "Messages that wait in all pipes of the embedded broker.";
    EMBEDDED_MEMORY = "batchwright_embedded_broker_memory_bytes", GAUGE, [],
        "Memory in which the embedded broker holds messages.";
    EMBEDDED_UNREAD = "batchwright_embedded_broker_unread_bytes", GAUGE, [],
        "Results that wait in pipes that nobody reads, when they were last counted.";
    EMBEDDED_UNREAD_DROPPED = "batchwright_embedded_broker_unread_dropped_total", COUNTER, [],
        "Results that were dropped because nobody reads their pipe.";
    EMBEDDED_FILE = "batchwright_embedded_broker_file_bytes", GAUGE, [],
        "Size of the file of the embedded broker, with its log.";
    EMBEDDED_DISK_FREE = "batchwright_embedded_broker_disk_free_bytes", GAUGE, [],
        "Free space on the file system of the embedded broker.";
    EMBEDDED_DISK_RESERVE = "batchwright_embedded_broker_disk_reserve_bytes", GAUGE, [],
        "Free space below which the embedded broker takes no more messages.";
    TRANSACTION_SECONDS = "batchwright_store_transaction_seconds", TIMES, ["transaction"],
        "Time of a transaction of the store, with its repetitions.";
    TRANSACTION_RETRIES = "batchwright_store_transaction_retries_total", COUNTER, ["transaction"],
        "Repetitions of transactions, because of contention or because they needed further locks.";
    TRANSACTION_ERRORS = "batchwright_store_transaction_errors_total", COUNTER, ["transaction"],
        "Transactions that ended with an error.";
    FLUSH_SECONDS = "batchwright_ledger_flush_seconds", TIMES, [],
        "Time of a flush, which counts the reports of many tasks in the ledger.";
    FLUSH_EVENTS = "batchwright_ledger_flush_events", SIZES, [],
        "Reports in a flush.";
    OUTPUTS_KEPT = "batchwright_outputs_total", COUNTER, ["outcome"],
        "Outputs that the output worker took: `done` and `failed` are kept, `left-out` are over a limit, `repeated` were kept before.";
    OUTPUT_BYTES = "batchwright_output_bytes_total", COUNTER, [],
        "Bytes of the outputs that it kept.";
    BLOBS_WRITTEN = "batchwright_output_blobs_total", COUNTER, [],
        "Blobs that it wrote them to.";
    BLOBS_MERGED = "batchwright_output_blobs_merged_total", COUNTER, [],
        "Small blobs of a job that were joined with others.";
    BLOB_SECONDS = "batchwright_output_write_seconds", TIMES, [],
        "Time until the blobs of a batch of outputs were safe, with the time for which they waited for room.";
    JOBS = "batchwright_jobs", GAUGE, ["status"],
        "Jobs in the store by the status that people are shown, read at most every 15 s; NaN if the database is not available.";
    STUCK_JOBS = "batchwright_stuck_jobs", GAUGE, [],
        "Jobs that have not ended and of which nothing has been reported for an hour (`--stuck-job`), at most 1000; read every few minutes.";
    LETTERS_KEPT = "batchwright_dead_letters_kept_total", COUNTER, ["cause"],
        "Dead letters that this process has kept, by cause: givenUp, poison, notUnderstood or unroutable.";
    LETTERS_REPLAYED = "batchwright_dead_letters_replayed_total", COUNTER, [],
        "Dead letters that this process has replayed.";
    LETTERS_OVERFLOWED = "batchwright_dead_letters_overflowed_total", COUNTER, [],
        "Dead letters above the bound of their job, which this process has moved to overflow pipes.";
    LETTERS_EXPIRED = "batchwright_dead_letters_expired_total", COUNTER, [],
        "Dead letters that this process has deleted because they were too old.";
    LETTERS = "batchwright_dead_letters", GAUGE, [],
        "Dead letters in the store, read at most every 15 s.";
    LETTER_BYTES = "batchwright_dead_letters_bytes", GAUGE, [],
        "Bytes of the dead letters in the store, read at most every 15 s.";
    CONDITIONS = "batchwright_conditions", GAUGE, ["state"],
        "Conditions that tasks wait for, at most 1000, by state: waiting, canary, releasing or failing; read at most every 15 s.";
    BLOCKED_TASKS = "batchwright_blocked_tasks", GAUGE, [],
        "Tasks that wait for these conditions, read at most every 15 s.";
    CONDITION_AGE = "batchwright_oldest_condition_seconds", GAUGE, [],
        "For how long tasks have waited for the oldest of these conditions, read at most every 15 s; 0 if none waits.";
    CONDITION_TESTS = "batchwright_condition_tests_total", COUNTER, ["result"],
        "Tests of conditions by this process, by result: passed, notPassed, or canary if a task is let go to test.";
    TASKS_RELEASED = "batchwright_blocked_tasks_released_total", COUNTER, [],
        "Tasks that waited for a condition and that this process has sent again, canaries included.";
    TASKS_EXPIRED = "batchwright_blocked_tasks_failed_total", COUNTER, [],
        "Tasks that failed because their condition was given up by this process.";
    PARKED_TASKS = "batchwright_parked_tasks", GAUGE, [],
        "Tasks of paused jobs in the store, read at most every 15 s.";
    OUTBOX_MESSAGES = "batchwright_outbox_messages", GAUGE, [],
        "Messages in the outbox that are due and not sent, read at most every 15 s.";
    OUTBOX_AGE = "batchwright_outbox_oldest_seconds", GAUGE, [],
        "How long the oldest of these is due; 0 if there is none.";
    HTTP_REQUESTS = "batchwright_http_requests_total", COUNTER, ["route", "method", "status"],
        "Requests to the job service. A URL that does not exist counts under the route `other`.";
    HTTP_SECONDS = "batchwright_http_request_seconds", TIMES, ["route", "method"],
        "Time until the response to a request began.";
    EVENT_STREAMS = "batchwright_event_streams", GAUGE, [],
        "Clients that watch a job, or what happens to all, by server-sent events.";
    READY = "batchwright_ready", GAUGE, [],
        "1 if the health check READY of the process passes, else 0.";
    DEGRADED = "batchwright_degraded", GAUGE, ["reason"],
        "What grows or lags while the process works: how many parts of it say so, by reason.";
    LOOP_PANICS = "batchwright_loop_panics_total", COUNTER, ["loop"],
        "Panics of a loop of the process, which begins again after each.";
    BUILD_INFO = "batchwright_build_info", GAUGE, ["version"],
        "Always 1. The label is the version of the framework.";
    PROCESS_CPU = "process_cpu_seconds_total", COUNTER, [],
        "Processor time of the process, user and system.";
    PROCESS_MEMORY = "process_resident_memory_bytes", GAUGE, [],
        "Memory of the process.";
    PROCESS_THREADS = "process_threads", GAUGE, [],
        "Threads of the process.";
    PROCESS_OPEN_FILES = "process_open_fds", GAUGE, [],
        "Open files and sockets of the process.";
    PROCESS_MAX_FILES = "process_max_fds", GAUGE, [],
        "The limit of open files and sockets.";
    PROCESS_START = "process_start_time_seconds", GAUGE, [],
        "When the process started, in seconds since 1970.";
}
