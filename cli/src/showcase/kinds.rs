//! The kinds of jobs of the demo: what each looks like, how often there is a new one, and how many
//! are kept.

use batchwright::advanced::{BATCH_PIPE, SIMULATION_PIPE};
use contract::rest::{Above, FailureLimit, JobTask, NewJob, OnFailure, Outputs, Tolerance};
use contract::{BatchTask, TaskData};
use serde_json::{Value, json};
use simulation_worker::{Fail, Simulation, Step};

/// The kind for whose newest job another one waits.
pub const AWAITED: &str = "import-products";
const MINUTE: i64 = 60_000;

/// A kind of jobs.
#[derive(Debug)]
pub struct Kind {
    /// With a number behind it, the id of its jobs.
    pub name: &'static str,
    description: &'static str,
    team: &'static str,
    /// The age of a job that has ended at which the next one is created, in milliseconds.
    pub every_ms: i64,
    /// How many jobs are kept.
    pub kept: usize,
    pub treatment: Treatment,
    work: fn() -> Work,
    special: Special,
}

/// What happens to a job when it has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    None,
    Pause,
    Cancel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Special {
    None,
    /// It waits for the newest job of [`AWAITED`].
    Waits,
    /// It goes on when items fail, and fails at its end.
    GoesOn,
    /// It tolerates that items fail.
    Tolerates,
    KeepsOutputs,
}

/// The items of a job.
enum Work {
    /// So many items with the same steps.
    Range(u32, Vec<Step>),
    /// Items with a name and steps each.
    List(Vec<(String, Vec<Step>)>),
}

/// What the demo shows: together they are in every status at almost any time.
pub const KINDS: [Kind; 9] = [
    Kind {
        name: "send-invoices",
        description: "Some invoices cannot be sent. See why under Failures, then retry the job: only these are sent again, and it completes.",
        team: "billing",
        every_ms: 5 * MINUTE,
        kept: 3,
        treatment: Treatment::None,
        work: invoices,
        special: Special::GoesOn,
    },
    Kind {
        name: AWAITED,
        description: "Runs for more than a minute. Another job waits for it.",
        team: "shop",
        every_ms: 0,
        kept: 3,
        treatment: Treatment::None,
        work: || Work::Range(30, vec![sleep(2_000, 75_000)]),
        special: Special::None,
    },
    Kind {
        name: "report-sales",
        description: "Waits until the products are imported.",
        team: "shop",
        every_ms: 0,
        kept: 3,
        treatment: Treatment::None,
        work: || Work::Range(20, vec![sleep(50, 300)]),
        special: Special::Waits,
    },
    Kind {
        name: "reindex-search",
        description: "Is paused soon after its start. Resume it, and it goes on.",
        team: "search",
        every_ms: 5 * MINUTE,
        kept: 2,
        treatment: Treatment::Pause,
        work: || Work::Range(300, vec![sleep(500, 1_000)]),
        special: Special::None,
    },
    Kind {
        name: "clean-archive",
        description: "Is cancelled soon after its start. Retry it, and it goes on.",
        team: "operations",
        every_ms: 5 * MINUTE,
        kept: 2,
        treatment: Treatment::Cancel,
        work: || Work::Range(300, vec![sleep(500, 1_000)]),
        special: Special::None,
    },
    Kind {
        name: "resize-images",
        description: "Completes. The first attempt of some images fails.",
        team: "shop",
        every_ms: MINUTE,
        kept: 3,
        treatment: Treatment::None,
        work: images,
        special: Special::None,
    },
    Kind {
        name: "convert-scans",
        description: "Completes although some scans cannot be read: it tolerates five of them.",
        team: "archive",
        every_ms: 3 * MINUTE,
        kept: 2,
        treatment: Treatment::None,
        work: scans,
        special: Special::Tolerates,
    },
    Kind {
        name: "extract-text",
        description: "Keeps what its tasks send: see Outputs.",
        team: "archive",
        every_ms: 3 * MINUTE,
        kept: 2,
        treatment: Treatment::None,
        work: || Work::Range(40, vec![sleep(20, 200), Step::Output { bytes: 60 }]),
        special: Special::KeepsOutputs,
    },
    Kind {
        name: "crawl-site",
        description: "A tree: the batch is split into batches, and these into items.",
        team: "search",
        every_ms: 4 * MINUTE,
        kept: 2,
        treatment: Treatment::None,
        work: || Work::Range(1_200, vec![sleep(50, 250)]),
        special: Special::None,
    },
];

impl Kind {
    /// Returns a job of this kind. `awaited` is the newest job of [`AWAITED`].
    pub fn new_job(&self, awaited: Option<&str>) -> NewJob {
        let (batch_type, definition, params) = match (self.work)() {
            Work::Range(items, steps) => {
                let steps = json!(steps).to_string();
                let params = [("steps".to_owned(), steps)].into();
                ("range", format!("1-{items}"), Some(params))
            }
            Work::List(items) => {
                let value = |(name, steps)| json!({ "name": name, "steps": steps });
                let values: Vec<Value> = items.into_iter().map(value).collect();
                ("list", json!(values).to_string(), None)
            }
        };
        let batch = BatchTask {
            batch_type: Some(batch_type.to_owned()),
            batch_definition: Some(definition),
            task_message_type: Some(Simulation::CLASSIFIER.to_owned()),
            task_message_params: params,
            target_pipe: Some(SIMULATION_PIPE.to_owned()),
        };
        let labels = [("team", self.team), ("kind", self.name)];
        let label = |(key, value): (&str, &str)| (key.to_owned(), Some(value.to_owned()));
        NewJob {
            name: Some(self.name.replace('-', " ")),
            description: Some(self.description.to_owned()),
            labels: Some(labels.into_iter().map(label).collect()),
            on_failure: match self.special {
                Special::GoesOn => OnFailure::Continue,
                Special::Tolerates => OnFailure::Tolerate(Tolerance {
                    limit: FailureLimit::Items(5),
                    above: Above::Continue,
                }),
                _ => OnFailure::Stop,
            },
            outputs: (self.special == Special::KeepsOutputs).then_some(Outputs::Keep),
            prerequisite_job_ids: (self.special == Special::Waits)
                .then(|| awaited.map(|id| Some(id.to_owned())).into_iter().collect()),
            task: Some(JobTask {
                task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
                task_api_version: Some(BatchTask::API_VERSION),
                task_data: Some(json!(batch)),
                task_pipe: Some(BATCH_PIPE.to_owned()),
                ..JobTask::default()
            }),
            ..NewJob::default()
        }
    }
}

const fn sleep(from: u64, to: u64) -> Step {
    Step::Sleep {
        duration_ms: from,
        up_to_ms: Some(to),
    }
}

/// Fails for good, until the job is retried.
fn fail_until_retried(message: &str) -> Step {
    Step::Fail(Fail {
        message: Some(message.to_owned()),
        until_round: Some(2),
        permanent: true,
        ..Fail::default()
    })
}

/// Thirty invoices, nine of which fail for three reasons.
fn invoices() -> Work {
    const REASONS: [&str; 3] = [
        "the customer has no e-mail address",
        "the tax rate of the country is unknown",
        "the mail server refuses the message: mailbox full",
    ];
    let invoice = |number: usize| {
        let mut steps = vec![sleep(50, 400)];
        let reason = match number % 10 {
            3 => Some(REASONS[0]),
            6 => Some(REASONS[number / 10 % 2]),
            9 => Some(REASONS[2]),
            _ => None,
        };
        steps.extend(reason.map(fail_until_retried));
        (format!("invoice {}", 4000 + number), steps)
    };
    Work::List((0..30).map(invoice).collect())
}

/// Images, of which one in ten fails at first.
fn images() -> Work {
    let unsteady = Step::Fail(Fail {
        message: Some("the image server does not respond".to_owned()),
        probability: Some(0.1),
        until_attempt: Some(2),
        ..Fail::default()
    });
    let compute = Step::Compute { duration_ms: 2 };
    Work::Range(100, vec![sleep(20, 200), unsteady, compute])
}

/// Two dozen scans, three of which cannot be read.
fn scans() -> Work {
    let scan = |number: usize| {
        let mut steps = vec![sleep(50, 400)];
        if number % 8 == 5 {
            steps.push(Step::Fail(Fail {
                message: Some("the page is torn".to_owned()),
                permanent: true,
                ..Fail::default()
            }));
        }
        (format!("scans/2016/{number:02}.tif"), steps)
    };
    Work::List((1..=24).map(scan).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_simulation_worker_understands_all_steps_of_the_demo() {
        for kind in &KINDS {
            let items = match (kind.work)() {
                Work::Range(_, steps) => vec![("item".to_owned(), steps)],
                Work::List(items) => items,
            };
            for (name, steps) in items {
                assert_eq!(Simulation::new(name, &steps).steps(), Ok(steps));
            }
        }
    }
}
