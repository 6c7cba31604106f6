//! The bundle that a split gathers: the subtasks that follow one another quickly, to the same pipe
//! and of the same type.

use std::sync::Arc;
use std::time::Duration;

use contract::{BundleWriter, MAX_UNPACKED_BYTES, TaskMessage};
use tokio::time::Instant;

use crate::broker::{Headers, Outgoing};
use crate::steps::output::cut_label;

/// The longest time that a member waits for others.
pub(crate) const MAX_DELAY: Duration = Duration::from_millis(20);
/// A subtask that comes later than this after the one before does not wait for another.
pub(crate) const QUICK: Duration = Duration::from_millis(1);
/// How many bytes of labels and task data a bundle has at the most.
const MAX_BYTES: usize = 128 * 1024;
/// How many bytes the members have as messages of their own at the most. What they share may be
/// large.
const MAX_UNPACKED: usize = MAX_UNPACKED_BYTES / 4;
/// Task data of more bytes goes by itself: what a bundle saves is little beside it.
pub(crate) const MAX_MEMBER_BYTES: usize = 16 * 1024;

/// A bundle that is being gathered.
#[derive(Debug)]
pub(crate) struct Gathering {
    /// The pipe that the subtasks are for, and that of their bundles.
    pub pipe: String,
    bundles: Arc<str>,
    /// What the members share; with the ids of the split.
    shared: TaskMessage,
    shared_bytes: usize,
    headers: Headers,
    members: BundleWriter,
    /// When the first member was added.
    pub begun: Instant,
}

impl Gathering {
    /// Begins a bundle for the subtasks of a split in `pipe`, which goes to the pipe `bundles`.
    pub fn new(
        pipe: String,
        bundles: impl Into<Arc<str>>,
        shared: TaskMessage,
        headers: Headers,
    ) -> Self {
        Self {
            pipe,
            bundles: bundles.into(),
            shared_bytes: shared.encode().len(),
            shared,
            headers,
            members: BundleWriter::default(),
            begun: Instant::now(),
        }
    }

    /// Returns whether a subtask with this pipe and type can be added.
    pub fn takes(&self, pipe: &str, classifier: &str, api_version: i32) -> bool {
        let Self { shared, .. } = self;
        self.pipe == pipe
            && shared.task_classifier.as_deref() == Some(classifier)
            && shared.task_api_version == api_version
    }

    /// Returns whether a result can be added that shares this with others.
    pub fn takes_result(&self, pipe: &str, shared: &TaskMessage, headers: &Headers) -> bool {
        self.pipe == pipe && self.headers == *headers && self.shared == *shared
    }

    /// Adds the subtask with this number. Returns whether the bundle is full now, with `most`
    /// members or as many bytes as it may have.
    pub fn add(&mut self, number: u32, data: &[u8], label: Option<&str>, most: u32) -> bool {
        self.members.add(number, data, label.map(cut_label));
        self.len() >= most
            || self.members.bytes() + MAX_MEMBER_BYTES > MAX_BYTES
            || (self.members.len() + 1) * self.shared_bytes > MAX_UNPACKED
    }

    /// Returns how many members there are.
    pub fn len(&self) -> u32 {
        u32::try_from(self.members.len()).unwrap_or(u32::MAX)
    }

    /// Returns the message with all members.
    pub fn message(self) -> Outgoing {
        Outgoing {
            headers: self.headers,
            ..Outgoing::new(self.bundles, self.members.encode(self.shared))
        }
    }
}

#[cfg(test)]
mod tests {
    use contract::{BatchTask, Bundle, ContextData};

    use super::*;

    #[test]
    fn what_members_share_fills_a_bundle_too() {
        let shared = TaskMessage {
            context: [("s".to_owned(), ContextData(vec![0; 3 << 20]))].into(),
            ..TaskMessage::new("T", "in", &BatchTask::default()).unwrap()
        };
        let mut gathering = Gathering::new("in".into(), "in.bundles", shared, Headers::default());
        let full = (1..=100).find(|number| gathering.add(*number, b"", None, 100));
        assert_eq!(full, Some(3), "three times 4 MiB of Base64");
    }

    #[test]
    fn labels_are_cut_and_fill_a_bundle_as_data_does() {
        let shared = TaskMessage::new("T", "in", &BatchTask::default()).unwrap();
        let mut gathering = Gathering::new("in".into(), "in.bundles", shared, Headers::default());
        let label = "é".repeat(200);
        let full = (1..=10_000).find(|number| gathering.add(*number, b"", Some(&label), 10_000));
        assert_eq!(
            full,
            Some(449),
            "the first label of 256 bytes beyond 112 KiB"
        );
        let bundle = Bundle::decode(&gathering.message().body).unwrap();
        let labels = bundle.members.iter().map(|member| member.label.as_deref());
        assert!(labels.into_iter().all(|it| it == Some(&label[..256])));
    }
}
