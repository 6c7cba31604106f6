//! What a worker does with messages, from the broker's side: pauses, retries, and every byte that it sends.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

mod pausing;
mod retries;
mod wire;
