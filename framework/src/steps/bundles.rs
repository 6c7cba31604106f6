//! Bundles: many small tasks of one split in one message ([`contract::Bundle`]).
//!
//! A split gathers its subtasks ([`gathering`]) while the pipe of bundles has readers
//! ([`readers`]). A worker takes bundles apart again ([`unpacked`](crate::pipeline::unpacked));
//! from there on each member is a delivery of its own.
//!
//! What must stay true:
//! - A bundle goes only to a pipe that somebody consumes who knows bundles. To all others, each
//!   task goes by itself.
//! - A bundle is acknowledged when each of its members is settled, or confirmed as a message of its
//!   own.
//! - A member is handled as a message of its own would be. It waits for a slot for 100 ms at most;
//!   then it is published as a message of its own.
//! - A bundle that comes back is taken apart into messages, so that a member that kills its process
//!   stands alone the next time.

pub(crate) mod gathering;
pub(crate) mod readers;
pub(crate) mod results;

use contract::headers::{FIRST_TASK, TASK_HEADER};
use smol_str::{ToSmolStr as _, format_smolstr};

use crate::broker::{HeaderValue, Headers};
use crate::steps::output::set_label;

/// Returns the headers of a member, by those that the members share. In these, the task is the
/// split.
pub(crate) fn headers_of_member(shared: &Headers, number: u32, label: Option<&str>) -> Headers {
    let mut headers = shared.clone();
    if let Some(HeaderValue::Text(split)) = shared.get(TASK_HEADER) {
        let path = if split == FIRST_TASK {
            number.to_smolstr()
        } else {
            format_smolstr!("{split}.{number}")
        };
        headers.set(TASK_HEADER, HeaderValue::Text(path));
    }
    if let Some(label) = label {
        set_label(&mut headers, label);
    }
    headers
}
