//! The binary as a user runs it: its commands, its configuration, its exit codes.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod binary;

mod closed_outputs;
mod command_worker;
mod commands;
mod conditions;
mod events;
mod explain;
mod laboratory;
mod log;
mod looking;
mod metrics;
mod outputs;
mod page;
mod panics;
mod pipes;
mod readme;
mod resubmit;
mod showcase;
mod sight;
mod startup;
mod stuck;
mod tokens;
mod tolerated;
mod trace;
mod watching;
