//! Why jobs do not go on: what they say themselves, and what waits in their pipes.

use std::collections::BTreeMap;

use batchwright::advanced::TRACKING_PIPE;
use batchwright::client::{Client, ClientError};
use contract::rest::{Job, NewJob};
use contract::{BatchTask, BesideKind, JobStatus, Pipe, PipeBeside, TaskData, is_tracking_pipe};

use super::finding::{Finding, State, messages_wait};
use crate::cli::connect::ServiceArgs;
use crate::print;
use crate::task_text::due;
use crate::text::numbered;

/// How many unfinished jobs are looked at without being asked for.
const MOST: usize = 50;

/// The tasks of a job that go to a pipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tasks {
    First,
    /// The items of a batch: how many of them wait, if that is known.
    Items(Option<i64>),
}

/// The pipes to look at, with whose tasks go there.
pub type Uses = BTreeMap<String, Vec<(String, Tasks)>>;

/// Says why a job does not go on, as far as the job itself says it. Notes in `uses` the pipes of
/// its tasks, which tell the rest.
pub async fn examine(
    client: &Client,
    id: &str,
    args: &ServiceArgs,
    uses: &mut Uses,
) -> Vec<Finding> {
    let job = match client.get(id).await {
        Ok(job) => job,
        Err(error) => return vec![Finding::new(State::Broken, id, error.to_string())],
    };
    let found = reasons(&job, print::now(), |command| args.command(command, id));
    // A remark on a job is no reason.
    if found.len() > job.notes.len() {
        return found;
    }
    let definition = client.definition(id).await.ok();
    let pipes = definition.map(|it| pipes_of(&job, &it)).unwrap_or_default();
    let what = match pipes.as_slice() {
        [] => format!("{}; nothing says why it would wait", job.status),
        [(first, _)] => format!("{}; its first task goes to the pipe {first}", job.status),
        [(first, _), (items, _), ..] => format!(
            "{}; its first task goes to the pipe {first}, and its items go to {items}",
            job.status
        ),
    };
    add(uses, &job.id, pipes);
    let finding = Finding::new(State::Ok, id, what);
    std::iter::once(finding).chain(found).collect()
}

/// Notes in `uses` the pipes of the tasks of the unfinished jobs of the partition, newest first.
/// Returns whether these are all.
pub async fn unfinished(client: &Client, uses: &mut Uses) -> Result<bool, ClientError> {
    let query = [
        ("statusType", "NotFinished".to_owned()),
        ("limit", (MOST + 1).to_string()),
        ("brief", true.to_string()),
    ];
    let jobs = client.list(&query).await?;
    for job in jobs.iter().take(MOST) {
        // What does not run leaves nothing waiting that should not.
        if !matches!(job.status, JobStatus::Active | JobStatus::Waiting) {
            continue;
        }
        // A job may end meanwhile.
        if let Ok(definition) = client.definition(&job.id).await {
            add(uses, &job.id, pipes_of(job, &definition));
        }
    }
    Ok(jobs.len() <= MOST)
}

/// Says what waits in these pipes, and whether anybody takes it. Those that are `asked` for are
/// told even if nothing waits there.
pub async fn waiting(
    client: &Client,
    uses: &Uses,
    asked: &[String],
) -> Result<Vec<Finding>, ClientError> {
    let listed = client.pipes().await?.pipes;
    let mut known: BTreeMap<String, Pipe> = listed
        .into_iter()
        .map(|pipe| (pipe.name.clone(), pipe))
        .collect();
    let mut found = Vec::new();
    for (name, jobs) in uses {
        let is_asked = asked.contains(name);
        let pipe = match known.remove(name) {
            Some(pipe) => pipe,
            // RabbitMQ does not tell which queues there are; the pipe of a batch's items is in no
            // list.
            None => match client.pipe(name, None).await {
                Ok(pipe) => pipe,
                Err(ClientError::Refused { status: 404, .. }) => {
                    found.extend(is_asked.then(|| missing(name)));
                    continue;
                }
                Err(error) => return Err(error),
            },
        };
        found.extend(about_pipe(&pipe, jobs, is_asked));
        found.extend(beside(&pipe));
    }
    found.extend(known.values().filter_map(unread_reports));
    found.extend(known.values().flat_map(beside));
    Ok(found)
}

/// Says that a pipe that was asked for does not exist.
fn missing(pipe: &str) -> Finding {
    let what = "the pipe does not exist: nobody has read it or put anything into it";
    Finding::new(State::Note, pipe, what).remedy("start the worker of this pipe, or correct --pipe")
}

/// Says what waits in a pipe, if anything does or it was asked for.
fn about_pipe(pipe: &Pipe, jobs: &[(String, Tasks)], is_asked: bool) -> Option<Finding> {
    if !pipe.exists {
        return is_asked.then(|| missing(&pipe.name));
    }
    if pipe.messages == 0 && !is_asked {
        return None;
    }
    let whose = match whose(jobs) {
        Some(whose) if pipe.messages > 0 => format!("; {whose}"),
        _ => String::new(),
    };
    let count = messages_wait(pipe.messages);
    Some(match pipe.consumers {
        Some(0) => Finding::new(
            State::Note,
            &pipe.name,
            format!("nobody reads this pipe: {count}{whose}"),
        )
        .remedy("start the worker of this pipe, or cancel the jobs if its name is wrong"),
        Some(consumers) => Finding::new(
            State::Ok,
            &pipe.name,
            format!("{count} for {}{whose}", numbered(consumers, "consumer")),
        ),
        None => Finding::new(State::Ok, &pipe.name, format!("{count}{whose}")),
    })
}

/// Says that nobody reads a tracking pipe, of whatever shard, in which reports wait. Of tracking
/// pipes with other names, the notes of the jobs say it.
fn unread_reports(pipe: &Pipe) -> Option<Finding> {
    let is_unread = pipe.messages > 0 && pipe.consumers == Some(0);
    (is_unread && is_tracking_pipe(TRACKING_PIPE, &pipe.name)).then(|| {
        let count = messages_wait(pipe.messages);
        let what = format!("nobody reads this tracking pipe: {count}, and the jobs that are tracked there do not go on");
        Finding::new(State::Note, &pipe.name, what)
            .remedy("start a tracking worker that reads it (--shard)")
    })
}

/// Says whose tasks go to a pipe, if that is known.
fn whose(jobs: &[(String, Tasks)]) -> Option<String> {
    let tasks = |(job, tasks): &(String, Tasks)| match tasks {
        Tasks::First => format!("the first task of {job}"),
        Tasks::Items(Some(count)) => format!("{count} items of {job}"),
        Tasks::Items(None) => format!("items of {job}"),
    };
    let some: Vec<String> = jobs.iter().take(3).map(tasks).collect();
    let more = match jobs.len().saturating_sub(3) {
        0 => String::new(),
        more => format!(", and tasks of {}", numbered(more as u64, "other job")),
    };
    (!some.is_empty()).then(|| format!("{}{more}", some.join(", ")))
}

/// Says what was put aside from a pipe.
fn beside(pipe: &Pipe) -> Vec<Finding> {
    let finding = |beside: &PipeBeside| {
        let PipeBeside { name, messages, .. } = beside;
        let (whose, why) = match beside.kind {
            BesideKind::Quarantine => (
                "its quarantine",
                "where each runs alone because a process died with it",
            ),
            BesideKind::Invalid => (
                "its invalid pipe",
                "because its workers did not understand them",
            ),
            BesideKind::Reject => ("its reject pipe", "because its workers gave them up"),
        };
        let what = format!(
            "messages put aside, of these or of other jobs: {messages} in {whose} {name}, {why}"
        );
        Finding::new(State::Note, &pipe.name, what)
            .remedy("batchwright pipes shows the pipes, take reads them")
    };
    pipe.aside.iter().map(finding).collect()
}

fn add(uses: &mut Uses, job: &str, pipes: Vec<(String, Tasks)>) {
    for (pipe, tasks) in pipes {
        let known = uses.entry(pipe).or_default();
        let new = (job.to_owned(), tasks);
        if !known.contains(&new) {
            known.push(new);
        }
    }
}

/// Returns the pipes to which a job sends tasks, the one of its first task first.
fn pipes_of(job: &Job, definition: &NewJob) -> Vec<(String, Tasks)> {
    let Some(task) = &definition.task else {
        return Vec::new();
    };
    let first = task.task_pipe.clone().map(|pipe| (pipe, Tasks::First));
    let is_batch = task.task_classifier.as_deref() == Some(BatchTask::CLASSIFIER);
    let batch = task.task_data.as_ref().filter(|_| is_batch);
    let items = batch
        .and_then(|data| serde_json::from_value::<BatchTask>(data.clone()).ok())
        .and_then(|batch| batch.target_pipe)
        .map(|pipe| (pipe, Tasks::Items(job.items.waiting)));
    first.into_iter().chain(items).collect()
}

/// Returns what keeps a job from going on, as far as the job itself says it. `command` makes the
/// command line of a command about it.
fn reasons(job: &Job, now: i64, command: impl Fn(&str) -> String) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut note = |what: String, remedy: Option<String>| {
        let finding = Finding::new(State::Note, &job.id, what);
        found.push(Finding { remedy, ..finding });
    };
    match job.status {
        JobStatus::Completed if job.failed_tasks == 0 => {
            note("Completed: there is nothing left to do".to_owned(), None);
        }
        JobStatus::Completed | JobStatus::Failed | JobStatus::Cancelled => note(
            format!("{}; failed tasks: {}", job.status, job.failed_tasks),
            Some(format!("{}; {}", command("failures"), command("retry"))),
        ),
        JobStatus::Paused => note(
            "Paused: running tasks finish, and no further task starts".to_owned(),
            Some(command("resume")),
        ),
        JobStatus::Active | JobStatus::Blocked | JobStatus::Waiting => {}
    }
    for awaited in &job.waiting_for {
        let status = awaited.status.map_or("does not exist yet", |it| it.name());
        note(
            format!("waits for the job {}: {status}", awaited.job_id),
            None,
        );
    }
    if let Some(time) = job.due_time {
        note(format!("is delayed until {}", due(time, now)), None);
    }
    if job.suspended {
        let remedy = "POST …/partitions/{id}/dispatch";
        note(
            "waits until its partition is dispatched".to_owned(),
            Some(remedy.to_owned()),
        );
    }
    if let Some(retrying) = job.items.retrying.filter(|number| *number > 0)
        && !job.status.is_finished()
    {
        let next = job
            .next_attempt_time
            .map(|time| format!("; the next is due {}", due(time, now)));
        note(
            format!(
                "{} for another attempt{}",
                if retrying == 1 {
                    "1 task waits".to_owned()
                } else {
                    format!("{retrying} tasks wait")
                },
                next.unwrap_or_default()
            ),
            Some(format!("{} --state retrying", command("tasks"))),
        );
    }
    for text in &job.notes {
        note(text.clone(), None);
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::doctor::finding::{COLUMNS, rows};
    use crate::text::table;

    const NOW: i64 = 1_795_368_003_000;

    fn found(fields: &Value) -> Vec<String> {
        let mut job = json!({
            "id": "words", "status": "Active", "createTime": NOW, "lastUpdateTime": NOW, "percentageComplete": 0, "failures": [],
            "labels": {},
        });
        job.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        let job: Job = serde_json::from_value(job).unwrap();
        let found = reasons(&job, NOW, |command| format!("batchwright {command} words"));
        let rows: Vec<_> = found.iter().flat_map(rows).collect();
        table(COLUMNS, &rows, None, NOW).split_off(1)
    }

    #[test]
    fn job_that_waits_says_for_what_and_what_to_do() {
        assert_eq!(found(&json!({})), [""; 0]);
        assert_eq!(
            found(&json!({
                "status": "Waiting", "waitingFor": [{"jobId": "a", "status": "Active"}, {"jobId": "b", "status": null}],
                "dueTime": NOW + 90_000, "suspended": true,
            })),
            [
                "note   words  waits for the job a: Active",
                "note   words  waits for the job b: does not exist yet",
                "note   words  is delayed until 2026-11-22 17:21:33 UTC (in 1m30s)",
                "note   words  waits until its partition is dispatched",
                "              → POST …/partitions/{id}/dispatch",
            ]
        );
        assert_eq!(
            found(
                &json!({"status": "Paused", "items": {"done": 0, "failed": 0, "retrying": 3}, "nextAttemptTime": NOW + 5000})
            )[..4],
            [
                "note   words  Paused: running tasks finish, and no further task starts",
                "              → batchwright resume words",
                "note   words  3 tasks wait for another attempt; the next is due 2026-11-22 17:20:08 UTC (in 5s)",
                "              → batchwright tasks words --state retrying",
            ]
        );
        assert_eq!(
            found(&json!({"status": "Failed", "failedTasks": 2})),
            [
                "note   words  Failed; failed tasks: 2",
                "              → batchwright failures words; batchwright retry words",
            ]
        );
        assert_eq!(
            found(&json!({"status": "Completed", "failedTasks": 2})),
            [
                "note   words  Completed; failed tasks: 2",
                "              → batchwright failures words; batchwright retry words",
            ]
        );
    }

    fn pipe(fields: &Value) -> Pipe {
        let mut pipe = json!({"name": "in", "exists": true, "messages": 3, "consumers": 0});
        let fields = fields.as_object().unwrap().clone();
        pipe.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(pipe).unwrap()
    }

    #[test]
    fn pipe_that_nobody_reads_is_named_with_the_tasks_that_wait_there() {
        let jobs = [
            ("a".to_owned(), Tasks::First),
            ("b".to_owned(), Tasks::Items(Some(12))),
            ("c".to_owned(), Tasks::Items(None)),
            ("d".to_owned(), Tasks::First),
        ];
        let about =
            |fields: &Value| about_pipe(&pipe(fields), &jobs, false).map(|it| (it.state, it.what));
        let whose = "the first task of a, 12 items of b, items of c, and tasks of 1 other job";
        assert_eq!(
            about(&json!({})),
            Some((
                State::Note,
                format!("nobody reads this pipe: 3 messages wait; {whose}")
            ))
        );
        assert_eq!(
            about(&json!({"consumers": 2, "messages": 1})),
            Some((
                State::Ok,
                format!("1 message waits for 2 consumers; {whose}")
            ))
        );
        assert_eq!(about(&json!({"messages": 0})), None);
        assert_eq!(about(&json!({"exists": false})), None);
        let asked = |fields: &Value| {
            about_pipe(&pipe(fields), &jobs[..1], true).map(|it| (it.state, it.what))
        };
        assert_eq!(
            asked(&json!({"consumers": 1, "messages": 0})),
            Some((State::Ok, "0 messages wait for 1 consumer".to_owned()))
        );
        let (state, what) = asked(&json!({"exists": false})).unwrap();
        assert!(state == State::Note && what.starts_with("the pipe does not exist"));
        let rejected = json!([{"name": "w-reject", "kind": "reject", "messages": 2}]);
        let aside = beside(&pipe(
            &json!({"quarantined": 0, "rejected": 2, "aside": rejected}),
        ));
        assert_eq!(aside.len(), 1);
        assert_eq!(
            aside[0].what,
            "messages put aside, of these or of other jobs: 2 in its reject pipe w-reject, because its workers gave them up"
        );
    }

    #[test]
    fn tracking_pipe_that_nobody_reads_is_named_whichever_shard_it_is() {
        let of = |name: &str, consumers: u64| {
            unread_reports(&pipe(&json!({"name": name, "consumers": consumers})))
        };
        for name in ["worker-jobtracking-in", "worker-jobtracking-in-2.rounds"] {
            let finding = of(name, 0).unwrap();
            assert_eq!((finding.state, finding.of.as_str()), (State::Note, name));
            assert!(of(name, 1).is_none());
        }
        assert!(of("orders-out", 0).is_none());
    }

    #[test]
    fn pipes_of_a_job_are_those_of_its_first_task_and_of_the_items_of_its_batch() {
        let job: Job = serde_json::from_value(json!({
            "id": "j", "status": "Active", "createTime": 0, "lastUpdateTime": 0, "percentageComplete": 0, "failures": [], "labels": {},
            "items": {"done": 0, "failed": 0, "waiting": 7},
        }))
        .unwrap();
        let of = |task: &Value| {
            let definition: NewJob = serde_json::from_value(json!({ "task": task })).unwrap();
            pipes_of(&job, &definition)
        };
        let first = ("first".to_owned(), Tasks::First);
        let data = json!({"targetPipe": "items"});
        assert_eq!(
            of(&json!({"taskClassifier": "BatchWorker", "taskPipe": "first", "taskData": data})),
            [first.clone(), ("items".to_owned(), Tasks::Items(Some(7)))]
        );
        assert_eq!(
            of(&json!({"taskClassifier": "Own", "taskPipe": "first", "taskData": data})),
            [first]
        );
        assert_eq!(
            of(&json!({"taskClassifier": "BatchWorker", "taskData": "text"})),
            []
        );
    }
}
