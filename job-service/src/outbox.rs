//! What the store has for the broker: the messages of the outbox, and the announcements of changed
//! jobs.

pub mod announcements;
pub mod relay;
mod rooms;
