//! A job as it is stored: what transactions lock, change and save.

use std::fmt;
use std::str::FromStr;

use contract::rest::Expiry;
use contract::{JobId, JobShare, JobStatus, LifeKey, PartitionId, TaskTimeLimit, rest};

use crate::curve::CurveState;
use crate::ledger::JobTotals;
use crate::model::Incarnation;
use crate::pace::Pace;

/// A job as it is stored. Times are milliseconds since 1970.
#[expect(clippy::struct_excessive_bools, reason = "each is a column")]
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct JobRow {
    pub partition: PartitionId,
    pub job: JobId,
    pub incarnation: i64,
    pub first_life: bool,
    /// The number of the round, from 1.
    pub round: u32,
    pub name: Option<String>,
    /// Whether it has a [`JobTexts`]. They are read only where they are shown.
    pub has_texts: bool,
    pub content_hash: Vec<u8>,
    pub status: JobStatus,
    pub totals: JobTotals,
    /// The number of failed attempts that another attempt follows, in all rounds.
    pub failed_attempts: i64,
    /// Seconds from the creation, or from the completion of the last prerequisite, to the start.
    pub delay: i64,
    /// Whether the job has, or has had, a table of its tasks.
    pub task_table: bool,
    pub create_time: i64,
    pub last_update_time: i64,
    pub finish_time: Option<i64>,
    pub expiry: Expiry,
    /// When the job is deleted; known once it has ended.
    pub expiry_time: Option<i64>,
    /// Whether the request named no target pipe.
    pub without_target: bool,
    /// The correlation id of the request that created the job.
    pub correlation_id: Option<String>,
    /// When its items ended.
    pub pace: Pace,
    /// Where its curve stands.
    pub curve: CurveState,
    /// The pipe of the outputs that the service keeps; `None` if the job does not keep its outputs.
    pub output_pipe: Option<String>,
    /// The pipe to which its batch sends its items; `None` if its first task is no batch.
    pub items_pipe: Option<String>,
    /// The text of the retry policy; `None` leaves retries to the workers.
    pub retry: Option<String>,
    /// How long one attempt of a task may take, by the request.
    pub task_time_limit: Option<TaskTimeLimit>,
    /// The weight beside the other jobs of the partition.
    pub share: JobShare,
    /// The subject that created it.
    pub owner: Option<String>,
    /// The number of its tasks that wait for a condition, or were let go and have not ended since.
    pub blocked_tasks: i64,
    /// The key in its status URL; `None` if it was created before there were keys.
    pub life_key: Option<LifeKey>,
}

impl JobRow {
    pub fn to_incarnation(&self) -> Incarnation {
        Incarnation {
            partition: self.partition.clone(),
            job: self.job.clone(),
            number: self.incarnation,
            first: self.first_life,
            round: self.round,
            key: self.life_key.clone(),
        }
    }

    /// Returns whether no report about the job has been counted.
    pub fn has_no_reports(&self) -> bool {
        let JobTotals {
            percentage,
            completed_items,
            failed_tasks,
            own_task,
            ..
        } = &self.totals;
        let counted = i64::from(*percentage) + completed_items + failed_tasks;
        !self.task_table && counted == 0 && own_task.is_none()
    }

    /// Returns whether a task may wait for another attempt.
    pub fn is_retrying(&self) -> bool {
        let counts = self.totals.counts.as_ref();
        let own = self.totals.own_task.as_ref();
        let retrying = counts.is_none_or(|counts| counts.retrying > 0);
        let is_any = retrying || own.is_some_and(|own| own.retrying);
        self.failed_attempts > 0 && !self.status.is_finished() && is_any
    }

    /// Returns whether the job has ended and can begin another round, because something of it is
    /// not done.
    pub fn can_go_on(&self) -> bool {
        match self.status {
            JobStatus::Failed | JobStatus::Cancelled => true,
            JobStatus::Completed => self.totals.failed_tasks > 0,
            _ => false,
        }
    }

    /// Returns the place of the job in the order of creation.
    pub const fn place(&self) -> JobPlace {
        JobPlace {
            create_time: self.create_time,
            incarnation: self.incarnation,
        }
    }

    /// Returns the name of the job in announcements and, without an incarnation, in job task ids.
    pub fn qualified_id(&self) -> String {
        format!("{}:{}", self.partition, self.job)
    }

    /// Returns the key by which the job is locked.
    pub fn key(&self) -> (String, String) {
        (self.partition.to_string(), self.job.to_string())
    }

    /// Returns whether this is the present incarnation and round of the job, as far as they are
    /// named.
    pub fn is_in(&self, incarnation: Option<i64>, round: Option<u32>) -> bool {
        incarnation.is_none_or(|n| n == self.incarnation) && round.is_none_or(|n| n == self.round)
    }

    /// Returns whether a job task id with this incarnation number belongs to this incarnation of
    /// the job. Only the ids of a first incarnation may leave the number out.
    pub fn matches(&self, incarnation: Option<i64>) -> bool {
        incarnation.map_or(self.first_life, |n| n == self.incarnation)
    }
}

/// The texts of a job that may be long. They never change while the job exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JobTexts {
    pub description: Option<String>,
    pub external_data: Option<String>,
}

impl JobTexts {
    pub const fn is_empty(&self) -> bool {
        self.description.is_none() && self.external_data.is_none()
    }

    /// Takes one of the texts.
    pub fn take(&mut self, which: LongText) -> Option<String> {
        match which {
            LongText::Description => self.description.take(),
            LongText::ExternalData => self.external_data.take(),
        }
    }
}

/// One of the texts of a job that may be long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongText {
    /// The description from the request.
    Description,
    /// The client's own data from the request.
    ExternalData,
}

impl LongText {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Description, Self::ExternalData];

    /// Returns the name of the field in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Description => "description",
            Self::ExternalData => "externalData",
        }
    }
}

/// A part of a text: so many characters from this one on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// The number of the first character, from 1.
    pub first: u32,
    pub chars: u32,
}

impl Part {
    /// A text of any length. It is not larger because databases multiply it by the bytes of a
    /// character.
    pub const WHOLE: Self = Self::beginning(1 << 28);

    pub const fn beginning(chars: u32) -> Self {
        Self { first: 1, chars }
    }
}

/// The place of a job in the order of creation. It stays where it is, whatever becomes of the jobs
/// around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobPlace {
    pub(crate) create_time: i64,
    pub(crate) incarnation: i64,
}

impl JobPlace {
    /// Returns the place of a job.
    pub const fn of(job: &rest::Job) -> Self {
        Self {
            create_time: job.create_time,
            incarnation: job.incarnation,
        }
    }
}

impl fmt::Display for JobPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.create_time, self.incarnation)
    }
}

impl FromStr for JobPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = text.split_once('-').and_then(|(time, incarnation)| {
            Some(Self {
                create_time: time.parse().ok()?,
                incarnation: incarnation.parse().ok()?,
            })
        });
        place.ok_or_else(|| format!("'{text}' is no place among the jobs"))
    }
}
