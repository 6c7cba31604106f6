//! What a worker does with messages, from the broker's side: confirms, pauses, retries, and every byte that it sends.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

mod confirms;
mod pausing;
mod retries;
mod wire;
