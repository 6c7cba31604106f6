//! The failures of a job: all that are kept, page by page and in groups.

use std::collections::{BTreeMap, BTreeSet};

use contract::rest::Failures;
use contract::{FailedItem, ReportFailure};
use store::{EventKind, FailureCursor, Incarnation, StoreOptions, TrackingEvent};

use crate::fixture::{TestStore, acme, event, failed, id};

/// More groups than a test makes.
const GROUPS: u32 = 1000;

suite![
    failures_are_paged_each_once_beyond_the_first_hundred,
    pages_of_large_failures_are_bounded_in_bytes_and_leave_none_out,
    failures_beyond_the_limit_are_counted_and_not_kept,
    failures_are_grouped_by_kind_and_message,
    largest_groups_come_first_and_those_beyond_the_limit_are_counted,
    failures_of_one_group_share_the_beginning_of_any_text,
    failure_shows_its_item_within_bounds,
    failure_that_is_taken_back_or_deleted_is_gone,
    kinds_of_failures_are_bounded_in_number,
    failure_with_a_long_kind_is_taken_back,
];

async fn failures_are_paged_each_once_beyond_the_first_hundred(store: TestStore) {
    let incarnation = store.create_continuing("many").await;
    for batch in (1..=250).collect::<Vec<_>>().chunks(70) {
        fail(&store, &incarnation, batch, "BROKEN").await;
    }
    assert_eq!(store.job(&incarnation).await.failures.len(), 100);
    let (mut seen, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = page(&store, "many", after.as_ref(), 60).await;
        assert_eq!(page.failed_tasks, 250);
        seen.extend(page.failures.into_iter().map(|failure| failure.task_id));
        pages += 1;
        let Some(next) = page.next else { break };
        after = Some(next.parse().unwrap());
    }
    assert_eq!((pages, seen.len()), (5, 250));
    let expected: BTreeSet<String> = (1..=250).map(|number| number.to_string()).collect();
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected);
    // A page that ends with the last failure is the last page.
    assert_eq!(page(&store, "many", None, 250).await.next, None);
    let unknown = store.failures(&acme(), &id("unknown"), None, 10).await;
    assert_eq!(unknown.unwrap(), None);
}

async fn pages_of_large_failures_are_bounded_in_bytes_and_leave_none_out(store: TestStore) {
    let incarnation = store.create_continuing("large").await;
    let failure = |number: u32| ReportFailure {
        failure_id: Some("BROKEN".to_owned()),
        // Each is a group of its own.
        failure_message: Some(format!("{number} {}", "x".repeat(20_000))),
        item: Some(FailedItem {
            input: Some("y".repeat(1000)),
            ..FailedItem::default()
        }),
        ..ReportFailure::default()
    };
    let events: Vec<_> = (1..=400)
        .map(|number| {
            let failed = EventKind::Failed(failure(number));
            event(&incarnation, &number.to_string(), failed)
        })
        .collect();
    store.record(&events).await.unwrap();
    let (mut seen, mut after) = (BTreeSet::new(), None);
    loop {
        let page = page(&store, "large", after.as_ref(), 10_000).await;
        assert!((1..=140).contains(&page.failures.len()), "{page:?}");
        seen.extend(page.failures.into_iter().map(|failure| failure.task_id));
        let Some(next) = page.next else { break };
        after = Some(next.parse().unwrap());
    }
    assert_eq!(seen.len(), 400);
    // A job shows no more of them.
    let shown = store.job(&incarnation).await.failures.len();
    assert!((1..100).contains(&shown), "{shown}");
    let groups = groups(&store, "large").await;
    let shown = groups.groups.unwrap().len();
    assert!((1..=140).contains(&shown), "{shown}");
    assert_eq!(groups.ungrouped, Some(400 - i64::try_from(shown).unwrap()));
}

async fn failures_beyond_the_limit_are_counted_and_not_kept(mut store: TestStore) {
    store
        .reopen_with(StoreOptions {
            max_failures: 120,
            ..StoreOptions::default()
        })
        .await;
    let incarnation = store.create_continuing("limited").await;
    let numbers: Vec<u32> = (1..=200).collect();
    fail(&store, &incarnation, &numbers[..110], "BROKEN").await;
    fail(&store, &incarnation, &numbers[110..], "BROKEN").await;
    fail(&store, &incarnation, &numbers, "BROKEN").await;
    let page = page(&store, "limited", None, 1000).await;
    assert_eq!(
        (page.failed_tasks, page.kept, page.failures.len()),
        (200, 120, 120)
    );
    let job = store.job(&incarnation).await;
    assert_eq!(job.failure_counts["BROKEN"], 200);
    let groups = groups(&store, "limited").await;
    assert_eq!((groups.kept, groups.ungrouped), (120, Some(80)));
}

async fn failures_are_grouped_by_kind_and_message(store: TestStore) {
    let incarnation = store.create_continuing("grouped").await;
    fail(&store, &incarnation, &[1, 2], "TORN").await;
    fail(&store, &incarnation, &[3, 4, 5], "WET").await;
    let other = ReportFailure {
        failure_id: Some("TORN".to_owned()),
        failure_message: Some("another message".to_owned()),
        ..ReportFailure::default()
    };
    store
        .report(&incarnation, "6", EventKind::Failed(other))
        .await;
    let found = groups(&store, "grouped").await;
    assert_eq!((found.failed_tasks, found.ungrouped), (6, Some(0)));
    let groups = found.groups.unwrap();
    let kinds: Vec<_> = groups
        .iter()
        .map(|group| (group.failure_id.as_deref().unwrap(), group.count))
        .collect();
    assert_eq!(kinds, [("WET", 3), ("TORN", 2), ("TORN", 1)]);
    assert_eq!(groups[1].example.task_id, "1");
    assert!(groups[0].first_time <= groups[0].last_time);
    assert!(groups[1].last_time <= groups[0].first_time);
    assert_eq!(
        groups[2].failure_message.as_deref(),
        Some("another message")
    );
}

async fn largest_groups_come_first_and_those_beyond_the_limit_are_counted(store: TestStore) {
    let incarnation = store.create_continuing("ranked").await;
    for (number, kind) in [(1, "A"), (2, "B"), (3, "C"), (4, "C"), (5, "D"), (6, "C")] {
        fail(&store, &incarnation, &[number], kind).await;
    }
    let found = store.failure_groups(&acme(), &id("ranked"), 2).await;
    let found = found.unwrap().unwrap();
    assert_eq!((found.kept, found.ungrouped), (6, Some(2)));
    let groups = found.groups.unwrap();
    let seen: Vec<_> = groups
        .iter()
        .map(|group| (group.failure_id.as_deref().unwrap(), group.count))
        .collect();
    assert_eq!(seen, [("C", 3), ("A", 1)]);
    assert_eq!(groups[0].example.task_id, "3");
}

async fn failures_of_one_group_share_the_beginning_of_any_text(store: TestStore) {
    let incarnation = store.create_continuing("texts").await;
    let failure = |kind: Option<&str>, message: Option<String>| {
        EventKind::Failed(ReportFailure {
            failure_id: kind.map(str::to_owned),
            failure_message: message,
            ..ReportFailure::default()
        })
    };
    // After a hundred failures, messages are cut, in the middle of this one.
    let long = "\u{e4}\0\\u0000\"\u{1f600}".repeat(200);
    let mut number = 0;
    for _ in 0..30 {
        let mut events = Vec::new();
        for (kind, message) in [
            (Some("LONG"), Some(long.clone())),
            (Some("LONG"), Some(format!("{long}, and more"))),
            (None, Some("a".to_owned())),
            (Some("a"), None),
            (None, None),
        ] {
            number += 1;
            events.push(event(
                &incarnation,
                &number.to_string(),
                failure(kind, message),
            ));
        }
        store.record(&events).await.unwrap();
    }
    let groups = groups(&store, "texts").await.groups.unwrap();
    let mut seen: Vec<_> = groups
        .iter()
        .map(|group| {
            let message = group.failure_message.as_deref();
            (
                group.failure_id.as_deref(),
                message.map(|text| text.chars().take(3).collect()),
                group.count,
            )
        })
        .collect();
    // Reports of the same moment are in the order of their paths.
    seen[1..].sort();
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        seen,
        [
            (Some("LONG"), text("\u{e4}\0\\"), 60),
            (None, None, 30),
            (None, text("a"), 30),
            (Some("a"), None, 30)
        ]
    );
}

async fn failure_shows_its_item_within_bounds(mut store: TestStore) {
    let incarnation = store.create_continuing("items").await;
    let long = ReportFailure {
        failure_id: Some("BROKEN".to_owned()),
        failure_message: Some("\u{e4}\0".repeat(5000)),
        item: Some(FailedItem::new(Some("page 7 of a.txt"), b"{\"page\": 7}\0")),
        ..ReportFailure::default()
    };
    let events: Vec<TrackingEvent> = (1..=101)
        .map(|number| {
            let kind = EventKind::Failed(long.clone());
            event(&incarnation, &number.to_string(), kind)
        })
        .collect();
    store.record(&events[..100]).await.unwrap();
    store.record(&events[100..]).await.unwrap();
    store.reopen().await;
    let (mut failures, mut after) = (Vec::new(), None);
    loop {
        let page = page(&store, "items", after.as_ref(), 200).await;
        failures.extend(page.failures);
        let Some(next) = page.next else { break };
        after = Some(next.parse().unwrap());
    }
    for failure in &failures {
        assert_eq!(failure.label.as_deref(), Some("page 7 of a.txt"));
        assert_eq!(failure.input.as_deref(), Some("{\"page\": 7}\0"));
    }
    let size = |at: usize| failures[at].failure_message.as_ref().unwrap().len();
    assert_eq!(size(0), 15_000, "the first hundred are kept in full");
    let cut = failures.iter().find(|failure| failure.task_id == "101");
    let message = cut.unwrap().failure_message.as_ref().unwrap();
    assert!(message.len() < 1100 && message.ends_with(" …"), "{message}");
    let task = store.task(&incarnation, &[101]).await;
    assert_eq!(
        task.failure.unwrap().label.as_deref(),
        Some("page 7 of a.txt")
    );
}

async fn failure_that_is_taken_back_or_deleted_is_gone(store: TestStore) {
    let incarnation = store.create_continuing("back").await;
    let numbers: Vec<u32> = (1..=150).collect();
    fail(&store, &incarnation, &numbers, "BROKEN").await;
    store.complete(&incarnation, &["7", "149"]).await;
    let failures = page(&store, "back", None, 1000).await;
    assert_eq!((failures.failed_tasks, failures.failures.len()), (148, 148));
    let job = store.job(&incarnation).await;
    assert_eq!(job.failure_counts["BROKEN"], 148);
    store.delete("back").await;
    let deleted = store.failures(&acme(), &id("back"), None, 10).await;
    assert_eq!(deleted.unwrap(), None);
    store.create("back").await;
    assert_eq!(page(&store, "back", None, 1000).await, Failures::default());
}

async fn kinds_of_failures_are_bounded_in_number(store: TestStore) {
    let incarnation = store.create_continuing("kinds").await;
    let numbers: Vec<u32> = (1..=2000).collect();
    for numbers in numbers.chunks(500) {
        let events: Vec<TrackingEvent> = numbers
            .iter()
            .map(|n| event(&incarnation, &n.to_string(), failed(&format!("item {n}"))))
            .collect();
        store.record(&events).await.unwrap();
    }
    let counts = async || store.job(&incarnation).await.failure_counts;
    let sum = |counts: &BTreeMap<String, i64>| counts.values().sum::<i64>();
    let now = counts().await;
    assert_eq!((now.len(), now["Other"], sum(&now)), (1001, 1000, 2000));
    // One that has a count of its own is done after all, and one that has none.
    store.complete(&incarnation, &["3", "1700"]).await;
    let now = counts().await;
    assert_eq!((now.len(), now["Other"], sum(&now)), (1000, 999, 1998));
    assert_eq!(store.job(&incarnation).await.failed_tasks, 1998);
}

async fn failure_with_a_long_kind_is_taken_back(store: TestStore) {
    let incarnation = store.create_continuing("long").await;
    let numbers: Vec<u32> = (1..=149).collect();
    fail(&store, &incarnation, &numbers, "BROKEN").await;
    // As long as the tracking worker leaves it, and longer.
    let cut = format!("{} …", "k".repeat(255));
    for (path, kind) in [("150", cut), ("151", "k".repeat(300))] {
        store.report(&incarnation, path, failed(&kind)).await;
        store.complete(&incarnation, &[path]).await;
        let job = store.job(&incarnation).await;
        assert_eq!(job.failed_tasks, 149);
        assert_eq!(job.failure_counts, [("BROKEN".to_owned(), 149)].into());
    }
}

/// Reports that these tasks have failed, in one transaction.
async fn fail(store: &TestStore, incarnation: &Incarnation, numbers: &[u32], kind: &str) {
    let events: Vec<_> = numbers
        .iter()
        .map(|number| event(incarnation, &number.to_string(), failed(kind)))
        .collect();
    store.record(&events).await.unwrap();
}

async fn page(
    store: &TestStore,
    job: &str,
    after: Option<&FailureCursor>,
    limit: usize,
) -> Failures {
    let page = store.failures(&acme(), &id(job), after, limit).await;
    page.unwrap().unwrap()
}

async fn groups(store: &TestStore, job: &str) -> Failures {
    let groups = store.failure_groups(&acme(), &id(job), GROUPS).await;
    groups.unwrap().unwrap()
}
