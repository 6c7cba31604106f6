//! The history of a job: every change of its status, with who made it and why.

use contract::rest::{History, StatusChange};
use contract::{JobStatus, OnFailure};
use store::{Creation, JobRequest, Retry};

use crate::fixture::{TestStore, acme, after, create, failed, id, request};

suite![
    history_names_requests_rounds_and_prerequisites,
    history_is_paged_each_change_once,
    history_is_bounded_and_says_what_it_leaves_out,
    history_goes_with_its_job,
];

async fn history_names_requests_rounds_and_prerequisites(store: TestStore) {
    let request = JobRequest {
        correlation_id: Some("create-it".to_owned()),
        on_failure: OnFailure::Stop,
        ..request("first")
    };
    let Creation::Created(first) = create(&store, &request).await else {
        panic!("the job exists");
    };
    store.create_scheduled("second", after(&["first"])).await;
    store.complete(&first, &["2"]).await;
    store.report(&first, "1", failed("BROKEN")).await;
    let again = store.for_request(Some("retry-it"));
    let start = |_: &_, _: &_| Ok(Vec::new());
    let begun = again.retry_job(&acme(), &id("first"), true, start).await;
    let Retry::Begun(begun) = begun.unwrap() else {
        panic!("no round begins");
    };
    let cancelling = store.for_request(Some("cancel-it"));
    cancelling.cancel_job(&acme(), &id("first")).await.unwrap();
    assert_eq!(begun.revived.len(), 1);

    let seen = |change: &StatusChange| {
        let StatusChange {
            to,
            actor,
            round,
            correlation_id,
            prerequisite,
            ..
        } = change.clone();
        (
            *to.name().as_bytes().first().unwrap() as char,
            actor,
            round,
            correlation_id,
            prerequisite,
        )
    };
    let shown = |history: &[StatusChange]| -> Vec<String> {
        let line = |change| {
            let (to, actor, round, correlation_id, prerequisite) = seen(change);
            let of = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
            format!(
                "{to} {actor} {round} {} {}",
                of(correlation_id),
                of(prerequisite)
            )
        };
        history.iter().map(line).collect()
    };
    let history = page(&store, "first", None, 100).await.history;
    assert_eq!(
        shown(&history),
        [
            "W client 1 create-it -",
            "A tracking 1 - -",
            "F tracking 1 - -",
            "A client 2 retry-it -",
            "C client 2 cancel-it -",
        ]
    );
    assert_eq!(
        (history[0].from, history[1].from),
        (None, Some(JobStatus::Waiting))
    );
    assert!(history[2].reason.contains("BROKEN"), "{:?}", history[2]);
    let history = page(&store, "second", None, 100).await.history;
    assert_eq!(
        shown(&history),
        [
            "W client 1 - -",
            "F prerequisite 1 - first",
            "W client 2 retry-it -",
            "C prerequisite 2 cancel-it first",
        ]
    );
}

async fn history_is_paged_each_change_once(store: TestStore) {
    let job = store.started("j").await;
    for _ in 0..4 {
        store.pause(&job).await;
        store.resume(&job).await;
    }
    let all = page(&store, "j", None, 9).await;
    assert_eq!((all.history.len(), all.next.as_deref()), (9, None));
    for limit in 1..9 {
        let (mut seen, mut after) = (Vec::new(), None);
        loop {
            let page = page(&store, "j", after, limit).await;
            assert!(page.history.len() <= limit as usize);
            seen.extend(page.history);
            let Some(next) = page.next else { break };
            after = Some(next.parse().unwrap());
        }
        assert_eq!(seen, all.history, "{limit}");
    }
    let unknown = store.history_page(&acme(), &id("unknown"), None, 10).await;
    assert_eq!(unknown.unwrap(), None);
}

async fn history_is_bounded_and_says_what_it_leaves_out(store: TestStore) {
    let job = store.started("j").await;
    for _ in 0..260 {
        store.pause(&job).await;
        store.resume(&job).await;
    }
    let all = page(&store, "j", None, 1000).await;
    // The last resumption was added after the history was shortened.
    assert_eq!((all.history.len(), all.left_out), (502, 19));
    assert_eq!(all.history[0].reason, "created");
    assert_eq!(all.history[501].reason, "resumed");
    assert!(all.history.is_sorted_by_key(|change| change.time));
    let last = page(&store, "j", Some(i64::MAX), 10).await;
    assert_eq!(last, History::default());
}

async fn history_goes_with_its_job(store: TestStore) {
    let job = store.started("j").await;
    store.pause(&job).await;
    store.delete("j").await;
    store.create("j").await;
    let page = page(&store, "j", None, 10).await;
    assert_eq!((page.history.len(), page.left_out), (1, 0));
}

async fn page(store: &TestStore, job: &str, after: Option<i64>, limit: u32) -> History {
    let page = store.history_page(&acme(), &id(job), after, limit).await;
    page.unwrap().unwrap()
}
