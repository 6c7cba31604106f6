//! The tree of a job's tasks: ranges, tasks alone, pages and streams of them, and their number.

use std::collections::BTreeMap;

use contract::rest::{ListedTask, SubtaskState, TaskCounts, TaskEntry, TaskRange, Tasks};
use contract::{Announced, FailedItem, ReportFailure};
use store::{CountsAnswer, EventKind, Incarnation, StoreOptions, TaskQuery, TasksAnswer};

use crate::fixture::{TestStore, acme, event, failed, id};

suite![
    tasks_of_a_completed_job_are_the_same_with_and_without_its_table,
    siblings_in_the_same_state_are_one_range,
    task_alone_shows_what_is_stored_of_it,
    subtasks_of_open_splits_are_read_at_any_depth,
    pages_of_any_limit_give_the_same_tasks,
    wide_split_with_many_tasks_alone_is_read_in_stretches,
    tasks_that_have_failed_come_first_on_request,
    job_that_is_over_says_what_is_still_known,
    tasks_are_counted_below_any_task,
    final_mark_of_a_split_is_listed_only_while_nothing_else_is_awaited,
    done_subtasks_of_a_wide_split_are_counted_without_its_final_mark,
    done_subtasks_of_many_splits_are_counted_without_their_final_marks,
];

async fn tasks_of_a_completed_job_are_the_same_with_and_without_its_table(store: TestStore) {
    let job = store.started("j").await;
    store.complete(&job, &["1", "2.1"]).await;
    store.complete(&job, &["2.2*", "3", "4*"]).await;
    let known = async || {
        let mut tasks = Vec::new();
        for path in [&[][..], &[2], &[2, 1], &[3]] {
            tasks.push(store.task(&job, path).await);
        }
        tasks
    };
    let before = known().await;
    assert_eq!(
        (before[0].subtasks, before[0].completed_subtasks),
        (Some(3), Some(3))
    );
    assert_eq!(store.sweep().await.unwrap().tables, 1);
    assert_eq!(known().await, before);
}

async fn siblings_in_the_same_state_are_one_range(store: TestStore) {
    let job = store.create_continuing("j").await;
    assert_eq!(listed(&store, "j", TaskQuery::new(10)).await, [""; 0]);
    store.report(&job, "20*", EventKind::Progress(0)).await;
    assert_eq!(
        listed(&store, "j", TaskQuery::new(10)).await,
        ["0: 1-19 waiting"]
    );
    let done: Vec<String> = (3..=9).map(|number| number.to_string()).collect();
    let done: Vec<&str> = done.iter().map(String::as_str).collect();
    store.complete(&job, &done).await;
    store.complete(&job, &["20*"]).await;
    store.report(&job, "12", retrying()).await;
    store.report(&job, "13", EventKind::Progress(40)).await;
    store.report(&job, "14", failed("BROKEN")).await;
    store.report(&job, "15", failed("BROKEN")).await;
    store.complete(&job, &["17.1"]).await;
    assert_eq!(
        listed(&store, "j", TaskQuery::new(20)).await,
        [
            "0: 1-2 waiting",
            "0: 3-9 done",
            "0: 10-11 waiting",
            "12 retrying",
            "13 running",
            "14 failed",
            "15 failed",
            "16 waiting",
            "17 running",
            "0: 18-19 waiting",
        ]
    );
    let some = TaskQuery {
        states: vec![SubtaskState::Done, SubtaskState::Failed],
        ..TaskQuery::new(20)
    };
    assert_eq!(
        listed(&store, "j", some).await,
        ["0: 3-9 done", "14 failed", "15 failed"]
    );
    let blocked = TaskQuery {
        states: vec![SubtaskState::Blocked],
        ..TaskQuery::new(20)
    };
    assert_eq!(listed(&store, "j", blocked).await, [""; 0]);
    // A task that is neither split nor done has no subtasks.
    assert_eq!(listed(&store, "j", under(&[12])).await, [""; 0]);
}

async fn task_alone_shows_what_is_stored_of_it(store: TestStore) {
    let job = store.create_continuing("j").await;
    store.report(&job, "9*", EventKind::Progress(0)).await;
    let torn = ReportFailure {
        failure_id: Some("TORN".to_owned()),
        item: Some(FailedItem::new(Some("page 1"), b"{}")),
        ..ReportFailure::default()
    };
    store
        .report(&job, "1", EventKind::Failed(torn.clone()))
        .await;
    let retry = EventKind::Retry {
        attempts: Some(2),
        failure: Some(torn),
    };
    store.report(&job, "2", retry).await;
    store.report(&job, "3", EventKind::Progress(40)).await;
    store.report(&job, "4.5*", EventKind::Progress(0)).await;
    store.complete(&job, &["4.1", "4.2"]).await;
    store.report(&job, "4.3", failed("BROKEN")).await;
    let tasks = page(&store, "j", TaskQuery::new(10)).await;
    assert_eq!(
        (tasks.task.id.as_str(), tasks.task.subtasks, tasks.remark),
        ("0", Some(8), None)
    );
    let alone: Vec<&ListedTask> = tasks
        .tasks
        .iter()
        .filter_map(|entry| match entry {
            TaskEntry::Task(task) => Some(&**task),
            TaskEntry::Range(_) => None,
        })
        .collect();
    let [first, second, third, split] = alone.as_slice() else {
        panic!("{alone:?}");
    };
    for (task, attempts) in [(first, None), (second, Some(2))] {
        assert_eq!(task.label.as_deref(), Some("page 1"));
        let failure = task.failure.as_ref().unwrap();
        assert_eq!(failure.failure_id.as_deref(), Some("TORN"));
        assert_eq!(failure.task_id, task.id);
        assert!(task.since.is_some());
        assert_eq!(task.attempts, attempts);
    }
    assert_eq!(third.progress, Some(40.0));
    assert_eq!(
        (split.id.as_str(), split.subtasks, split.completed_subtasks),
        ("4", Some(4), Some(2))
    );
    assert_eq!((split.failures_below, &split.failure), (1, &None));
}

async fn subtasks_of_open_splits_are_read_at_any_depth(store: TestStore) {
    let job = store.create_continuing("j").await;
    nested(&store, &job).await;
    assert_eq!(
        listed(&store, "j", under(&[2, 3])).await,
        ["2.3.1 done", "2.3.2 failed", "2.3.3 waiting"]
    );
    let deep = TaskQuery {
        deep: true,
        ..TaskQuery::new(100)
    };
    assert_eq!(
        listed(&store, "j", deep.clone()).await,
        [
            "1 done",
            "2 running",
            "2: 1-2 done",
            "2.3 running",
            "2.3.1 done",
            "2.3.2 failed",
            "2.3.3 waiting",
            "3 running",
            "3.1 waiting",
            "3.2 done",
            "4 waiting",
        ]
    );
    let failed = TaskQuery {
        states: vec![SubtaskState::Failed],
        ..deep.clone()
    };
    assert_eq!(listed(&store, "j", failed).await, ["2.3.2 failed"]);
    let below = TaskQuery {
        under: vec![3],
        ..deep
    };
    assert_eq!(
        listed(&store, "j", below).await,
        ["3.1 waiting", "3.2 done"]
    );
    assert_eq!(answer(&store, "j", under(&[6])).await, TasksAnswer::NoTask);
    assert_eq!(
        answer(&store, "unknown", under(&[])).await,
        TasksAnswer::NoJob
    );
}

async fn pages_of_any_limit_give_the_same_tasks(store: TestStore) {
    let job = store.create_continuing("j").await;
    nested(&store, &job).await;
    let queries = [
        TaskQuery::new(1),
        TaskQuery {
            deep: true,
            ..TaskQuery::new(1)
        },
        TaskQuery {
            failed_first: true,
            ..TaskQuery::new(1)
        },
        TaskQuery {
            deep: true,
            states: vec![SubtaskState::Waiting, SubtaskState::Done],
            ..TaskQuery::new(1)
        },
    ];
    for query in queries {
        let whole = page(&store, "j", with_limit(&query, 100)).await;
        assert_eq!(whole.next, None);
        for limit in 1..=whole.tasks.len() {
            let query = with_limit(&query, limit);
            let (entries, longest) = all_pages(&store, "j", query.clone()).await;
            assert_eq!(entries, whole.tasks, "{query:?}");
            assert!(longest <= limit);
        }
    }
}

async fn wide_split_with_many_tasks_alone_is_read_in_stretches(store: TestStore) {
    let job = store.create_continuing("j").await;
    let mut expected: BTreeMap<u32, SubtaskState> = BTreeMap::new();
    let mut events = vec![event(&job, "300000*", EventKind::Progress(0))];
    let mut report = |number: u32, kind: EventKind, state| {
        events.push(event(&job, &number.to_string(), kind));
        expected.insert(number, state);
    };
    for at in 0..1200 {
        report(1 + at * 3, retrying(), SubtaskState::Retrying);
        report(2 + at * 3, EventKind::Complete, SubtaskState::Done);
        report(200_000 + at, failed("BROKEN"), SubtaskState::Failed);
    }
    for number in 8193..=12_288 {
        report(number, EventKind::Complete, SubtaskState::Done);
    }
    report(299_999, EventKind::Progress(3), SubtaskState::Running);
    store.record(&events).await.unwrap();
    for limit in [700, 5000] {
        let (entries, _) = all_pages(&store, "j", TaskQuery::new(limit)).await;
        let mut next = 1;
        for entry in &entries {
            let (first, last, state) = numbers(entry);
            assert_eq!(first, next);
            for number in first..=last {
                let state_of = expected.get(&number);
                assert_eq!(
                    state,
                    *state_of.unwrap_or(&SubtaskState::Waiting),
                    "{number}"
                );
            }
            next = last + 1;
        }
        assert_eq!(next, 300_000);
    }
}

async fn tasks_that_have_failed_come_first_on_request(mut store: TestStore) {
    let options = StoreOptions {
        max_failures: 3,
        ..StoreOptions::default()
    };
    store.reopen_with(options).await;
    let job = store.create_continuing("j").await;
    nested(&store, &job).await;
    for path in ["3.1", "4", "5"] {
        // The last one of these failures is not kept any more.
        store.report(&job, path, failed("BROKEN")).await;
    }
    let first = TaskQuery {
        failed_first: true,
        ..TaskQuery::new(10)
    };
    assert_eq!(
        listed(&store, "j", first).await,
        ["2 running", "3 running", "4 failed", "5 failed", "1 done"]
    );
}

async fn job_that_is_over_says_what_is_still_known(mut store: TestStore) {
    let job = store.create("done").await;
    store.report(&job, "4*", EventKind::Progress(0)).await;
    store.complete(&job, &["1", "2.1"]).await;
    store.complete(&job, &["2.2*", "3", "4*"]).await;
    let done = page(&store, "done", TaskQuery::new(10)).await;
    assert_eq!(shown(&done.tasks), ["0: 1-3 done"]);
    let below = page(&store, "done", under(&[2])).await;
    assert_eq!((below.tasks.len(), below.remark.is_some()), (0, true));
    assert_eq!(
        answer(&store, "done", under(&[5])).await,
        TasksAnswer::NoTask
    );
    let only_failed = TaskQuery {
        states: vec![SubtaskState::Failed],
        ..TaskQuery::new(10)
    };
    assert_eq!(listed(&store, "done", only_failed).await, [""; 0]);

    let options = StoreOptions {
        most_failed_tables: 0,
        ..StoreOptions::default()
    };
    store.reopen_with(options).await;
    let job = store.create_continuing("cancelled").await;
    nested(&store, &job).await;
    store.report(&job, "4", EventKind::Progress(3)).await;
    store.cancel("cancelled").await;
    // Nobody works on it any more.
    assert_eq!(
        listed(&store, "cancelled", TaskQuery::new(10)).await,
        ["1 done", "2 waiting", "3 waiting", "4 waiting"]
    );
    store.sweep().await.unwrap();
    for path in [vec![], vec![2]] {
        assert_eq!(
            answer(&store, "cancelled", under(&path)).await,
            TasksAnswer::NotKept
        );
    }
}

async fn tasks_are_counted_below_any_task(store: TestStore) {
    let job = store.create_continuing("j").await;
    let announced = EventKind::Announced {
        stated: Some(Announced {
            batches: 0,
            items: None,
        }),
        digest: None,
    };
    store.report(&job, "5*", announced.clone()).await;
    store.report(&job, "2.6*", announced).await;
    store.complete(&job, &["1", "2.1", "2.2"]).await;
    store.report(&job, "2.3", failed("BROKEN")).await;
    store.report(&job, "2.4", retrying()).await;
    let all = counts(&store, "j", &[]).await;
    let of = |total, failed, retrying, waiting, done| TaskCounts {
        under: all.under.clone(),
        total: Some(total),
        total_is_final: true,
        failed: Some(failed),
        retrying: Some(retrying),
        running: Some(0),
        waiting: Some(waiting),
        blocked: Some(0),
        done: Some(done),
    };
    assert_eq!(all, of(8, 1, 1, 3, 3));
    let below = counts(&store, "j", &[2]).await;
    assert_eq!(below.under, "2");
    let expected = TaskCounts {
        under: "2".to_owned(),
        ..of(5, 1, 1, 1, 2)
    };
    assert_eq!(below, expected);
    let one = counts(&store, "j", &[2, 4]).await;
    assert_eq!((one.total, one.retrying), (Some(1), Some(1)));
    let done = counts(&store, "j", &[1]).await;
    assert_eq!((done.total, done.failed), (None, Some(0)));
    let missing = store.task_counts(&acme(), &id("j"), &[6]).await;
    assert_eq!(missing.unwrap(), CountsAnswer::NoTask);
}

async fn final_mark_of_a_split_is_listed_only_while_nothing_else_is_awaited(store: TestStore) {
    let job = store.create_continuing("j").await;
    // As the batch worker reports a list of two items: their number, then the items, and at the end
    // itself.
    store.report(&job, "3*", EventKind::Progress(0)).await;
    assert_eq!(
        listed(&store, "j", TaskQuery::new(10)).await,
        ["0: 1-2 waiting"]
    );
    store.complete(&job, &["1", "2"]).await;
    assert_eq!(
        listed(&store, "j", TaskQuery::new(10)).await,
        ["0: 1-2 done", "3 waiting"]
    );
    store.complete(&job, &["3*"]).await;
    assert_eq!(
        listed(&store, "j", TaskQuery::new(10)).await,
        ["0: 1-2 done"]
    );
    let counted = counts(&store, "j", &[]).await;
    assert_eq!((counted.total, counted.done), (Some(2), Some(2)));

    let failing = store.create_continuing("failing").await;
    store.complete(&failing, &["1"]).await;
    store.report(&failing, "2*", failed("BROKEN")).await;
    assert_eq!(
        listed(&store, "failing", TaskQuery::new(10)).await,
        ["1 done", "2 failed"]
    );
    let empty = store.create_continuing("empty").await;
    store.complete(&empty, &["1*"]).await;
    assert_eq!(listed(&store, "empty", TaskQuery::new(10)).await, [""; 0]);
}

async fn done_subtasks_of_a_wide_split_are_counted_without_its_final_mark(store: TestStore) {
    let job = store.create_continuing("j").await;
    store.complete(&job, &["1.1", "1.2", "1.10001*"]).await;
    store.complete(&job, &["2.1", "2.5*"]).await;
    store.report(&job, "3*", EventKind::Progress(0)).await;
    let tasks = page(&store, "j", TaskQuery::new(10)).await;
    let split = |entry: &TaskEntry| match entry {
        TaskEntry::Task(task) => (task.subtasks, task.completed_subtasks, task.progress),
        TaskEntry::Range(range) => panic!("{range:?}"),
    };
    let splits: Vec<_> = tasks.tasks.iter().map(split).collect();
    assert_eq!(
        splits,
        [
            (Some(10_000), Some(2), Some(0.02)),
            (Some(4), Some(1), Some(25.0)),
        ]
    );
    let whole = page(&store, "j", under(&[1])).await.task;
    assert_eq!(
        (whole.subtasks, whole.completed_subtasks),
        (Some(10_000), Some(2))
    );
}

/// So many open splits are searched instead of looked up one by one.
async fn done_subtasks_of_many_splits_are_counted_without_their_final_marks(store: TestStore) {
    const SPLITS: usize = 300;
    let job = store.create_continuing("j").await;
    let events = (1..=SPLITS).flat_map(|split| {
        let part = |part, kind| event(&job, &format!("{split}.{part}"), kind);
        [
            part("1", EventKind::Complete),
            part("2", failed("BROKEN")),
            part("3*", EventKind::Complete),
        ]
    });
    store.record(&events.collect::<Vec<_>>()).await.unwrap();
    let tasks = page(&store, "j", TaskQuery::new(2 * SPLITS)).await.tasks;
    let counted = |entry: &TaskEntry| match entry {
        TaskEntry::Task(task) => (task.subtasks, task.completed_subtasks),
        TaskEntry::Range(range) => panic!("{range:?}"),
    };
    let counted: Vec<_> = tasks.iter().map(counted).collect();
    assert_eq!(counted.len(), SPLITS);
    assert!(
        counted.iter().all(|it| *it == (Some(2), Some(1))),
        "{counted:?}"
    );
}

/// Reports a tree of three levels.
async fn nested(store: &TestStore, job: &Incarnation) {
    let sizes = ["5*", "2.4*", "2.3.4*", "3.3*"];
    let sizes = sizes.map(|path| event(job, path, EventKind::Progress(0)));
    store.record(&sizes).await.unwrap();
    store
        .complete(job, &["1", "2.1", "2.2", "2.3.1", "3.2"])
        .await;
    store.report(job, "2.3.2", failed("BROKEN")).await;
}

fn retrying() -> EventKind {
    EventKind::Retry {
        attempts: Some(1),
        failure: None,
    }
}

fn under(path: &[u32]) -> TaskQuery {
    TaskQuery {
        under: path.to_vec(),
        ..TaskQuery::new(100)
    }
}

fn with_limit(query: &TaskQuery, limit: usize) -> TaskQuery {
    TaskQuery {
        limit,
        ..query.clone()
    }
}

async fn answer(store: &TestStore, job: &str, query: TaskQuery) -> TasksAnswer {
    store.tasks(&acme(), &id(job), &query).await.unwrap()
}

async fn page(store: &TestStore, job: &str, query: TaskQuery) -> Tasks {
    match answer(store, job, query).await {
        TasksAnswer::Tasks(tasks) => *tasks,
        other => panic!("{other:?}"),
    }
}

async fn listed(store: &TestStore, job: &str, query: TaskQuery) -> Vec<String> {
    let page = page(store, job, query).await;
    assert_eq!(page.next, None);
    shown(&page.tasks)
}

/// Returns the entries of all pages, and the size of the largest one.
async fn all_pages(store: &TestStore, job: &str, mut query: TaskQuery) -> (Vec<TaskEntry>, usize) {
    let (mut entries, mut longest) = (Vec::new(), 0);
    loop {
        let page = page(store, job, query.clone()).await;
        longest = longest.max(page.tasks.len());
        entries.extend(page.tasks);
        let Some(next) = page.next else {
            return (entries, longest);
        };
        let next = next.parse().unwrap();
        assert!(query.can_go_on(&next), "{next:?}");
        query.after = Some(next);
    }
}

fn shown(entries: &[TaskEntry]) -> Vec<String> {
    let show = |entry: &TaskEntry| match entry {
        TaskEntry::Range(TaskRange {
            under,
            first,
            last,
            state,
        }) => format!("{under}: {first}-{last} {}", state.name()),
        TaskEntry::Task(task) => format!("{} {}", task.id, task.state.name()),
    };
    entries.iter().map(show).collect()
}

fn numbers(entry: &TaskEntry) -> (u32, u32, SubtaskState) {
    match entry {
        TaskEntry::Range(range) => (range.first, range.last, range.state),
        TaskEntry::Task(task) => {
            let number = task.id.parse().unwrap();
            (number, number, task.state)
        }
    }
}

async fn counts(store: &TestStore, job: &str, path: &[u32]) -> TaskCounts {
    let counts = store.task_counts(&acme(), &id(job), path).await;
    match counts.unwrap() {
        CountsAnswer::Counts(counts) => counts,
        other => panic!("{other:?}"),
    }
}
