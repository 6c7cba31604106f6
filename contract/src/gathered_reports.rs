//! Reports in the form in which parts of ours send them to each other: a task that is complete
//! costs two or three bytes instead of 150.
//!
//! Workers end the tasks of a split in about the order in which they were sent, so their numbers
//! are few ranges. CAF's tracking workers do not know this form. It goes only to a pipe beside the
//! tracking pipe ([`reports_pipe`](crate::reports_pipe)), and only while somebody consumes that.
//!
//! What must stay true: one message stands for at most [`GatheredReports::MOST`] tasks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{JobTaskId, JobTaskIdError, ReportStatus, Step, TaskData, TrackingReport};

/// The payload of a message with gathered reports. A writer may borrow the reports.
///
/// ```
/// use batchwright_contract::{GatheredReports, ReportStatus::Complete, TrackingReport};
///
/// let reports = ["p:j.1.1", "p:j.1.2", "p:j.1.3", "p:j.2*"].map(|id| TrackingReport::new(id, Complete));
/// let gathered = GatheredReports::of(&reports.each_ref());
/// assert_eq!(
///     serde_json::to_string(&gathered).unwrap(),
///     r#"{"complete":[{"split":"p:j.1","numbers":[[1,3]]}],"others":[{"jobTaskId":"p:j.2*","status":"Complete","estimatedPercentageCompleted":0}]}"#
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GatheredReports<R = TrackingReport> {
    /// The tasks that are complete.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub complete: Vec<CompleteTasks>,
    /// All other reports. Their details travel in [`ReportDetails`](crate::ReportDetails), by their
    /// index among these.
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<R>,
}

/// Subtasks of one split that are complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompleteTasks {
    /// The job task id of the split.
    pub split: String,
    /// Their numbers: ranges, each with its first and its last number.
    pub numbers: Vec<(u32, u32)>,
}

impl TaskData for GatheredReports {
    const CLASSIFIER: &'static str = "GatheredReports";
    const API_VERSION: i32 = 1;
}

/// Why gathered reports cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatheredReportsError {
    /// A split has no valid id, or is nested too deep to have subtasks.
    #[error(transparent)]
    Split(#[from] JobTaskIdError),
    /// A range is empty, or goes beyond the numbers that tasks have.
    #[error("{first} to {last} is not a range of the numbers from 1 to 2147483647")]
    Range {
        /// The first number.
        first: u32,
        /// The last one.
        last: u32,
    },
    /// There are more than [`GatheredReports::MOST`] tasks.
    #[error("more than {} tasks are complete", GatheredReports::MOST)]
    TooMany,
}

impl GatheredReports {
    /// The largest number of complete tasks in a message. A range of a few bytes may claim to be
    /// two billion.
    pub const MOST: usize = 2000;

    /// Returns the ids of the complete tasks.
    ///
    /// # Errors
    /// Returns an error, and no id, if one of the splits or ranges is not valid, or if there are
    /// too many tasks.
    pub fn complete_tasks(&self) -> Result<Vec<JobTaskId>, GatheredReportsError> {
        let mut tasks = Vec::new();
        for CompleteTasks { split, numbers } in &self.complete {
            let split = JobTaskId::parse(split)?;
            if split.steps.len() == JobTaskId::MAX_DEPTH {
                return Err(JobTaskIdError::TooDeep.into());
            }
            for &(first, last) in numbers {
                if first == 0 || last < first || i32::try_from(last).is_err() {
                    return Err(GatheredReportsError::Range { first, last });
                }
                if (last - first) as usize >= Self::MOST - tasks.len() {
                    return Err(GatheredReportsError::TooMany);
                }
                tasks.extend((first..=last).map(|number| subtask(&split, number)));
            }
        }
        Ok(tasks)
    }
}

impl<'r> GatheredReports<&'r TrackingReport> {
    /// Gathers reports. The order of reports does not matter to our tracking worker.
    pub fn of(reports: &[&'r TrackingReport]) -> Self {
        let mut complete: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        let mut others = Vec::new();
        for report in reports {
            match subtask_that_is_complete(report) {
                Some((split, number)) => complete.entry(split).or_default().push(number),
                None => others.push(*report),
            }
        }
        let complete = complete.into_iter().map(|(split, numbers)| CompleteTasks {
            split: split.to_owned(),
            numbers: ranges(numbers),
        });
        Self {
            complete: complete.collect(),
            others,
        }
    }
}

/// Returns the id of the split and the number of the task of a report that says only that it is
/// complete.
fn subtask_that_is_complete(report: &TrackingReport) -> Option<(&str, u32)> {
    let TrackingReport {
        job_task_id,
        status: ReportStatus::Complete,
        estimated_percentage_completed: _,
        retries: _,
        failure: None,
        announced: None,
        digest: None,
    } = report
    else {
        return None;
    };
    let task = JobTaskId::parse(job_task_id).ok()?;
    let (split, _) = job_task_id.rsplit_once('.')?;
    let step = task.steps.last().filter(|step| !step.last)?;
    Some((split, step.number))
}

/// Returns the ranges that these numbers are.
fn ranges(mut numbers: Vec<u32>) -> Vec<(u32, u32)> {
    numbers.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if number <= last.saturating_add(1) => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    ranges
}

fn subtask(split: &JobTaskId, number: u32) -> JobTaskId {
    let mut steps = Vec::with_capacity(split.steps.len() + 1);
    steps.extend_from_slice(&split.steps);
    steps.push(Step {
        number,
        last: false,
    });
    JobTaskId {
        partition: split.partition.clone(),
        job: split.job.clone(),
        steps,
        ..*split
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::ReportFailure;

    /// Returns what a reader gets: the tasks that are complete, and the other reports.
    fn sent(reports: &[TrackingReport]) -> (BTreeSet<String>, Vec<TrackingReport>) {
        let reports: Vec<_> = reports.iter().collect();
        let text = serde_json::to_string(&GatheredReports::of(&reports)).unwrap();
        let read: GatheredReports = serde_json::from_str(&text).unwrap();
        let tasks = read.complete_tasks().unwrap();
        (
            tasks.iter().map(JobTaskId::to_string).collect(),
            read.others,
        )
    }

    fn read(json: &str) -> Result<Vec<JobTaskId>, GatheredReportsError> {
        let read: GatheredReports = serde_json::from_str(json).unwrap();
        read.complete_tasks()
    }

    #[test]
    fn five_hundred_tasks_of_a_split_take_less_than_a_hundred_bytes() {
        let reports = (1..=500).map(|number| {
            TrackingReport::new(format!("acme:j!7r2.3.{number}"), ReportStatus::Complete)
        });
        let reports: Vec<_> = reports.collect();
        let gathered = GatheredReports::of(&reports.iter().collect::<Vec<_>>());
        assert!(serde_json::to_vec(&gathered).unwrap().len() < 100);
        assert_eq!(sent(&reports).0.len(), 500);
    }

    #[test]
    fn few_bytes_that_stand_for_too_many_tasks_are_refused() {
        let of = |ranges: &str| {
            read(&format!(
                r#"{{"complete":[{{"split":"p:j","numbers":{ranges}}}]}}"#
            ))
        };
        assert_eq!(of("[[1,2147483647]]"), Err(GatheredReportsError::TooMany));
        assert_eq!(
            of("[[1,1500],[1,1500]]"),
            Err(GatheredReportsError::TooMany)
        );
        for most in ["[[1,2000]]", "[[1,1999],[1,1]]"] {
            assert_eq!(of(most).unwrap().len(), GatheredReports::MOST);
        }
        for one_more in ["[[1,2001]]", "[[1,2000],[1,1]]"] {
            assert_eq!(of(one_more), Err(GatheredReportsError::TooMany));
        }
        for (first, last) in [(0, 1), (2, 1), (1, u32::MAX)] {
            let told = of(&format!("[[{first},{last}]]"));
            assert_eq!(told, Err(GatheredReportsError::Range { first, last }));
        }
        let deep = format!("p:j{}", ".1".repeat(JobTaskId::MAX_DEPTH));
        let deep = read(&format!(
            r#"{{"complete":[{{"split":"{deep}","numbers":[[1,1]]}}]}}"#
        ));
        assert_eq!(deep, Err(JobTaskIdError::TooDeep.into()));
    }

    fn report() -> impl Strategy<Value = TrackingReport> {
        let id = prop_oneof![
            "[a-c]:[jk](!2(r3)?)?(\\.[1-4]){0,3}\\*?",
            "p:j\\.0?[0-9]{1,11}",
            ".{0,12}",
        ];
        let status = prop_oneof![
            4 => Just(ReportStatus::Complete),
            1 => Just(ReportStatus::Failed),
            1 => Just(ReportStatus::Progress),
        ];
        (id, status, prop::bool::weighted(0.1)).prop_map(|(id, status, failed)| TrackingReport {
            failure: failed.then(ReportFailure::default),
            ..TrackingReport::new(id, status)
        })
    }

    proptest! {
        #[test]
        fn no_report_is_lost_and_none_is_added(reports in prop::collection::vec(report(), 0..60)) {
            let (complete, others) = sent(&reports);
            let is_gathered = |report: &&TrackingReport| !others.contains(*report);
            let gathered = reports.iter().filter(is_gathered).map(|report| {
                prop_assert_eq!(report.status, ReportStatus::Complete);
                Ok(JobTaskId::parse(&report.job_task_id).unwrap().to_string())
            });
            let gathered: BTreeSet<String> = gathered.collect::<Result<_, TestCaseError>>()?;
            prop_assert_eq!(complete, gathered);
            prop_assert!(others.iter().all(|other| reports.contains(other)));
        }

        #[test]
        fn what_is_read_is_bounded(ranges in prop::collection::vec((any::<u32>(), any::<u32>()), 0..20)) {
            let complete = vec![CompleteTasks { split: "p:j.1".to_owned(), numbers: ranges }];
            let read = GatheredReports { complete, others: Vec::new() }.complete_tasks();
            prop_assert!(read.is_err() || read.unwrap().len() <= GatheredReports::MOST);
        }
    }
}
