//! A worker as the broker sees it: confirms, pauses, retries, and every byte that the worker sends.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

extern crate batchwright_framework as framework;

mod addressing;
mod attempts;
mod blocking;
mod bundles;
mod confirms;
mod discards;
mod going_on;
mod lags;
mod once;
mod outputs;
mod panics;
mod pausing;
mod quarantine;
mod repeating;
mod reporting;
mod retries;
mod signs;
mod stopping;
mod undeliverable;
mod window;
mod wire;
