//! The variables that only other programs of the system read, so that programs can share a file of variables.
//!
//! What must stay true: the list has every variable that the program `batchwright` reads and a worker does not (a test of that
//! program compares both).

use super::PREFIX;

/// The names without `BATCHWRIGHT_`.
const NAMES: &[&str] = &[
    "ALLOWED_HOST",
    "ALLOWED_ORIGIN",
    "BATCH_OUTPUT",
    "BATCH_RESULTS",
    "CANCEL_BATCH",
    "COMMANDS",
    "CONTEXT",
    "CONTEXTS",
    "DATA",
    "DATABASE",
    "DATABASE_FILE",
    "DEAD_LETTERS_PER_JOB",
    "DEAD_LETTERS_SIZE",
    "DEAD_LETTERS_SIZE_PER_JOB",
    "DEAD_LETTER_PIPES",
    "DELETE_BATCH",
    "DISK_RESERVE",
    "EXPORT_STORE",
    "JOB_TYPES",
    "KEEP_CANCELLED",
    "KEEP_COMPLETED",
    "KEEP_DEAD_LETTERS",
    "KEEP_EVENTS",
    "KEEP_FAILED",
    "KEEP_FAILED_TASKS",
    "KEEP_IDEMPOTENCY_KEYS",
    "KEEP_OUTPUTS",
    "MANAGEMENT",
    "MAX_BODY_MEMORY",
    "MAX_CONNECTIONS",
    "MAX_DEAD_LETTERS",
    "MAX_DEAD_LETTER_BYTES",
    "MAX_DEPTH",
    "MAX_EVENTS",
    "MAX_FAILED_TABLES",
    "MAX_FAILURES",
    "MAX_ITEMS",
    "MAX_LABELS",
    "MAX_PAGE_SIZE",
    "MAX_PARTS",
    "MAX_TEXT",
    "MAX_UNREAD",
    "MAX_UNREAD_AGE",
    "OUTPUTS_FOLDER",
    "OUTPUTS_PER_JOB",
    "OUTPUTS_PIPE",
    "OUTPUTS_SIZE",
    "OUTPUTS_SIZE_PER_JOB",
    "PAGE",
    "PAGE_SIZE",
    "PARTITION",
    "PIPE_ACCESS",
    "PUBLIC_URL",
    "ROOT",
    "S3_ENDPOINT",
    "S3_REGION",
    "SIMULATION_HTTP",
    "SIMULATION_HTTP_PRIVATE",
    "STATUS_INTERVAL",
    "STUCK_JOB",
    "SUSPENDED_PARTITIONS",
    "TRACKING_PIPE",
    "URL",
];

/// Returns the full names of the variables that only other programs read. A worker ignores them.
pub fn names() -> impl Iterator<Item = String> {
    NAMES.iter().map(|name| format!("{PREFIX}{name}"))
}
