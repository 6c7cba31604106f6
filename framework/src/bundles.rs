//! Bundles: many small subtasks of one split in one message ([`contract::Bundle`]).
//!
//! A split gathers its subtasks ([`gathering`]) while the pipe of bundles has readers ([`readers`]). A worker takes bundles apart again
//! ([`unpacked`]); from there on each member is a delivery of its own.
//!
//! What must stay true:
//! - A bundle goes only to a pipe that somebody consumes who knows bundles. To all others, each subtask goes by itself.
//! - A bundle is acknowledged when each of its members is settled, or confirmed as a message of its own.
//! - A bundle that comes back is taken apart into messages, so that a member that kills its process stands alone the next time.

pub(crate) mod gathering;
pub(crate) mod readers;
pub(crate) mod unpacked;

/// The default of the largest number of members.
pub const DEFAULT_MEMBERS: u32 = 100;
/// The largest number of members that a split sends in one message, whatever the settings.
pub const MOST_MEMBERS: u32 = 1000;
