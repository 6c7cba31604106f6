//! Bundles: many small subtasks of one split in one message. An addition to CAF's formats.
//!
//! A bundle has three parts, one after the other:
//!
//! 1. a line with the [`TaskMessage`] that all members share, as JSON: the ids in it are those of
//!    the split, and it has no task data;
//! 2. a line with the members, as JSON: for each its number in the split, the length of its task
//!    data in bytes, and its label if it has one: `[[1,14],[2,14,"page 2"]]`;
//! 3. the task data of all members, without anything between them.
//!
//! So what is equal is written and read once, and the data of a member is not encoded.
//!
//! Bundles travel only in pipes of their own ([`bundle_pipe`](crate::bundle_pipe)), which only
//! workers consume that know them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{DecodeError, TaskMessage, Tracking, subtask_id};

/// The largest number of members that a reader accepts.
pub const MAX_BUNDLE_MEMBERS: usize = 10_000;

/// The largest number of bytes that the members may have together as messages of their own: each
/// has what all of them share.
pub const MAX_UNPACKED_BYTES: usize = 64 << 20;

/// Why a body is not a bundle.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// It does not consist of two lines and the data.
    #[error("the body is not a bundle: it has no two lines")]
    NoLines,
    /// The first line is not a task message.
    #[error("the first line of the bundle is not a task message: {0}")]
    Shared(#[from] DecodeError),
    /// The second line does not list members.
    #[error("the second line of the bundle does not list its members: {0}")]
    Members(String),
    /// The members have more or fewer bytes than there are.
    #[error("the members of the bundle have {told} bytes of data together, but there are {found}")]
    Length {
        /// How many bytes the members have, as the second line tells.
        told: u64,
        /// How many bytes there are.
        found: u64,
    },
    /// It has more than [`MAX_BUNDLE_MEMBERS`].
    #[error("the bundle has {0} members; at most {MAX_BUNDLE_MEMBERS} are possible")]
    TooMany(usize),
    /// Its members would have more than [`MAX_UNPACKED_BYTES`] as messages of their own.
    #[error(
        "the members of the bundle would have {0} bytes as messages of their own; at most {MAX_UNPACKED_BYTES} are possible"
    )]
    TooLarge(usize),
}

/// A bundle that was read: what its members share, and where the data of each is.
///
/// ```
/// use batchwright_contract::{BatchTask, Bundle, BundleWriter, TaskMessage};
///
/// let shared = TaskMessage::new("T", "items-in", &BatchTask::default()).unwrap();
/// let mut writer = BundleWriter::default();
/// writer.add(1, b"{\"number\":1}", None);
/// writer.add(2, b"{\"number\":2}", Some("the second"));
/// let body = writer.encode(shared);
///
/// let bundle = Bundle::decode(&body).unwrap();
/// let second = bundle.message(1, &body).unwrap();
/// assert_eq!(second.task_id, "T.2");
/// assert_eq!(second.task_data.unwrap(), b"{\"number\":2}");
/// assert_eq!(bundle.members[1].label.as_deref(), Some("the second"));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Bundle {
    /// What the members share. Its ids are those of the split.
    pub shared: TaskMessage,
    /// The members, in the order of their data.
    pub members: Vec<BundleMember>,
}

/// A member of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleMember {
    /// Its number in the split, from 1.
    pub number: u32,
    /// Where its task data is in the body of the bundle.
    pub data: Range<usize>,
    /// What the member is about, in a few words.
    pub label: Option<String>,
}

impl Bundle {
    /// Reads a bundle.
    ///
    /// # Errors
    /// [`BundleError`] says what is wrong with the body.
    pub fn decode(body: &[u8]) -> Result<Self, BundleError> {
        let (first, rest) = line(body).ok_or(BundleError::NoLines)?;
        let (listed, data) = line(rest).ok_or(BundleError::NoLines)?;
        let shared = TaskMessage::decode(first)?;
        let members = serde_json::from_slice::<Vec<Listed<'_>>>(listed)
            .map_err(|error| BundleError::Members(error.to_string()))?;
        if members.len() > MAX_BUNDLE_MEMBERS {
            return Err(BundleError::TooMany(members.len()));
        }
        let unpacked = first.len() * members.len() + data.len();
        if unpacked > MAX_UNPACKED_BYTES {
            return Err(BundleError::TooLarge(unpacked));
        }
        let told = members
            .iter()
            .fold(0_u64, |sum, member| sum.saturating_add(member.bytes));
        let found = data.len() as u64;
        if told != found {
            return Err(BundleError::Length { told, found });
        }
        let mut end = body.len() - data.len();
        let members = members.into_iter().map(|member| {
            let begin = end;
            // It fits: together they are as long as the data.
            end += usize::try_from(member.bytes).unwrap_or_default();
            BundleMember {
                number: member.number,
                data: begin..end,
                label: member.label.map(Cow::into_owned),
            }
        });
        Ok(Self {
            members: members.collect(),
            shared,
        })
    }

    /// Returns the task message of the member at this index. `body` is that from which the bundle
    /// was read. `None` if there is no such member, or the body is another one.
    pub fn message(&self, index: usize, body: &[u8]) -> Option<TaskMessage> {
        let member = self.members.get(index)?;
        let data = body.get(member.data.clone())?;
        Some(bundle_message(&self.shared, member.number, data.to_vec()))
    }
}

/// Returns the task message of the member of a bundle with this number. The ids in `shared` are
/// those of the split.
pub fn bundle_message(shared: &TaskMessage, number: u32, data: Vec<u8>) -> TaskMessage {
    let of_member = |id: &str| subtask_id(id, number, false);
    TaskMessage {
        task_id: of_member(&shared.task_id),
        task_data: Some(data),
        tracking: shared.tracking.as_ref().map(|tracking| Tracking {
            job_task_id: tracking.job_task_id.as_deref().map(of_member),
            status_check_url: tracking.status_check_url.clone(),
            tracking_pipe: tracking.tracking_pipe.clone(),
            track_to: tracking.track_to.clone(),
            ..*tracking
        }),
        task_classifier: shared.task_classifier.clone(),
        context: shared.context.clone(),
        to: shared.to.clone(),
        source_info: shared.source_info.clone(),
        correlation_id: shared.correlation_id.clone(),
        ..*shared
    }
}

/// Returns the first line, and what follows it.
fn line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    Some((&text[..end], &text[end + 1..]))
}

/// A member as the second line lists it: its number, the length of its data, and its label if it
/// has one.
#[derive(Debug)]
struct Listed<'a> {
    number: u32,
    bytes: u64,
    label: Option<Cow<'a, str>>,
}

impl Serialize for Listed<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.label {
            None => (self.number, self.bytes).serialize(serializer),
            Some(label) => (self.number, self.bytes, label).serialize(serializer),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Listed<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ListedVisitor;
        impl<'de> Visitor<'de> for ListedVisitor {
            type Value = Listed<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("[number, bytes] or [number, bytes, label]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut values: A) -> Result<Listed<'de>, A::Error> {
                // Without the attribute, the label would be copied.
                #[derive(Deserialize)]
                struct Label<'a>(#[serde(borrow)] Cow<'a, str>);
                let missing = |given| de::Error::invalid_length(given, &ListedVisitor);
                Ok(Listed {
                    number: values.next_element()?.ok_or_else(|| missing(0))?,
                    bytes: values.next_element()?.ok_or_else(|| missing(1))?,
                    label: values.next_element()?.map(|Label(label)| label),
                })
            }
        }
        deserializer.deserialize_seq(ListedVisitor)
    }
}

/// Gathers the members of a bundle. See [`Bundle`] for an example.
#[derive(Debug, Default)]
pub struct BundleWriter {
    members: Vec<Listed<'static>>,
    data: Vec<u8>,
    /// The bytes of all labels.
    labels: usize,
}

impl BundleWriter {
    /// Adds the member with this number.
    pub fn add(&mut self, number: u32, data: &[u8], label: Option<&str>) {
        self.labels += label.map_or(0, str::len);
        self.members.push(Listed {
            number,
            bytes: data.len() as u64,
            label: label.map(|label| label.to_owned().into()),
        });
        self.data.extend_from_slice(data);
    }

    /// Returns how many members there are.
    pub const fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns whether there are no members.
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns how many bytes the labels and the task data of the members have.
    pub const fn bytes(&self) -> usize {
        self.labels + self.data.len()
    }

    /// Returns the body of the bundle. The ids in `shared` are those of the split; its task data is
    /// left out.
    pub fn encode(&self, shared: TaskMessage) -> Vec<u8> {
        let shared = TaskMessage {
            task_data: None,
            ..shared
        };
        let mut body = shared.encode();
        body.reserve(self.members.len() * 12 + self.bytes());
        body.push(b'\n');
        // Cannot fail: numbers and texts can always be written.
        let _ = serde_json::to_writer(&mut body, &self.members);
        body.push(b'\n');
        body.extend_from_slice(&self.data);
        body
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{BatchTask, Tracking};

    fn shared() -> TaskMessage {
        TaskMessage {
            tracking: Some(Tracking {
                job_task_id: Some("p:j.1".into()),
                ..Tracking::default()
            }),
            correlation_id: Some("two\nlines".into()),
            ..TaskMessage::new("T.1", "items-in", &BatchTask::default()).unwrap()
        }
    }

    #[test]
    fn body_is_two_lines_and_the_data() {
        let mut writer = BundleWriter::default();
        writer.add(7, b"seven", None);
        writer.add(9, b"\n", Some("n\ni"));
        let body = String::from_utf8(writer.encode(shared())).unwrap();
        let (first, rest) = body.split_once('\n').unwrap();
        assert_eq!(rest, "[[7,5],[9,1,\"n\\ni\"]]\nseven\n");
        let first = TaskMessage::decode(first.as_bytes()).unwrap();
        assert_eq!((first.task_id.as_str(), first.task_data), ("T.1", None));
    }

    #[test]
    fn what_is_no_bundle_is_refused_with_the_reason() {
        let first = String::from_utf8(BundleWriter::default().encode(shared())).unwrap();
        let first = first.split_once('\n').unwrap().0;
        for (body, reason) in [
            (
                String::new(),
                "the body is not a bundle: it has no two lines",
            ),
            (
                first.to_owned(),
                "the body is not a bundle: it has no two lines",
            ),
            (
                "[]\n[]\n".to_owned(),
                "the first line of the bundle is not a task message: the body is a JSON array, not an object",
            ),
            (
                format!("{first}\n[[1]]\n"),
                "the second line of the bundle does not list its members: invalid length 1, expected [number, bytes] or \
                 [number, bytes, label] at line 1 column 4",
            ),
            (
                format!("{first}\n[[1,2],[2,18446744073709551615]]\nab"),
                "the members of the bundle have 18446744073709551615 bytes of data together, but there are 2",
            ),
            (
                format!("{first}\n[[1,1],[2,1]]\nabc"),
                "the members of the bundle have 2 bytes of data together, but there are 3",
            ),
            (
                format!(
                    "{first}\n{}\n",
                    serde_json::to_string(&vec![(1, 0); 10_001]).unwrap()
                ),
                "the bundle has 10001 members; at most 10000 are possible",
            ),
            (
                format!(
                    "{first}{}\n{}\n",
                    " ".repeat(10_000),
                    serde_json::to_string(&vec![(1, 0); 10_000]).unwrap()
                ),
                "the members of the bundle would have 103570000 bytes as messages of their own; at most 67108864 are possible",
            ),
        ] {
            let error = Bundle::decode(body.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }

    proptest! {
        #[test]
        fn members_come_out_as_the_messages_that_they_would_be_alone(
            members in prop::collection::vec(
                (any::<u32>(), prop::collection::vec(any::<u8>(), 0..40), any::<Option<String>>()),
                0..30,
            ),
        ) {
            let mut writer = BundleWriter::default();
            for (number, data, label) in &members {
                writer.add(*number, data, label.as_deref());
            }
            let body = writer.encode(shared());
            let bundle = Bundle::decode(&body).unwrap();
            prop_assert_eq!(bundle.members.len(), members.len());
            for (index, (number, data, label)) in members.iter().enumerate() {
                let message = bundle.message(index, &body).unwrap();
                let alone = TaskMessage {
                    task_id: subtask_id("T.1", *number, false),
                    task_data: Some(data.clone()),
                    tracking: Some(Tracking {
                        job_task_id: Some(subtask_id("p:j.1", *number, false)),
                        ..Tracking::default()
                    }),
                    ..shared()
                };
                prop_assert_eq!(message, alone);
                prop_assert_eq!(&bundle.members[index].label, label);
            }
            prop_assert_eq!(bundle.message(members.len(), &body), None);
        }

        #[test]
        fn no_body_makes_the_reader_fail_otherwise(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Bundle::decode(&body);
        }

        #[test]
        fn no_list_of_members_leads_outside_of_the_body(listed in "\\[(\\[[0-9]{1,4},[0-9]{1,3}\\],?){0,4}\\]", data in "[a-z]{0,30}") {
            let mut body = shared().encode();
            body.extend_from_slice(format!("\n{listed}\n{data}").as_bytes());
            if let Ok(bundle) = Bundle::decode(&body) {
                for index in 0..bundle.members.len() {
                    prop_assert!(bundle.message(index, &body).is_some());
                }
            }
        }
    }
}
