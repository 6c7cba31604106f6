//! What crosses a wire, byte for byte, and how much of what others write is understood.
//!
//! The fixtures were not made by the code that they test: each is what CAF's own workers write, or
//! expect, in this case.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

extern crate batchwright_contract as contract;

mod java_worker;
mod messages;
mod properties;
