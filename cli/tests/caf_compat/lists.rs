//! Listing and counting jobs: filters, order and pages.

use serde_json::json;

use crate::filters::{put, selected};
use crate::service::{STATUSES, Service, Store, encoded};

on_both_stores![
    status_is_found_as_soon_as_it_is_true,
    prefix_status_type_and_labels_narrow_the_result,
    page_size_follows_the_variable_and_limit_and_offset_apply,
    jobs_can_be_sorted_by_every_field_in_both_directions,
];

async fn status_is_found_as_soon_as_it_is_true(store: Store) {
    let service = Service::start(store).await;
    for id in ["done", "half", "broken", "last"] {
        service.create(id, &service.new_job("in")).await;
    }
    service.complete("done", ".1").await;
    service.complete("done", ".2*").await;
    service.complete("half", ".1").await;
    service.fail("broken", ".1", "broken").await;
    service.complete("last", "").await;
    service.becomes("last", "Completed", 100.0).await;
    // No request has read the other jobs since the reports; queries still see their current status.
    for (name, value, expected) in [
        ("statusType", "Completed", &["done", "last"][..]),
        ("statusType", "NotFinished", &["half"]),
        ("statusType", "Inactive", &["done", "broken", "last"]),
        ("filter", "status==Failed", &["broken"]),
        ("filter", "percentageComplete==50", &["half"]),
        ("filter", "percentageComplete==100", &["done", "last"]),
    ] {
        assert_eq!(
            selected(&service, &[(name, value)]).await,
            expected,
            "{name}={value}"
        );
    }
    // A job that has ended, but was not read since, does not stop the cancellation of the others.
    assert_eq!(
        service.post("/jobs:cancel", &[]).await.is(200).json(),
        json!({"jobsCanceled": 1})
    );
    assert_eq!(service.state("half").await.0, "Cancelled");
    assert_eq!(service.state("done").await, ("Completed".to_owned(), 100.0));
}

async fn prefix_status_type_and_labels_narrow_the_result(store: Store) {
    let service = Service::start(store).await;
    service.create_in_every_status().await;
    let all = &STATUSES[..];
    for (status_type, expected) in [
        (
            "NotCompleted",
            &["Active", "Cancelled", "Failed", "Paused", "Waiting"][..],
        ),
        ("Completed", &["Completed"]),
        ("Inactive", &["Cancelled", "Completed", "Failed"]),
        ("NotFinished", &["Active", "Paused", "Waiting"]),
        ("All", all),
        ("completed", all),
        ("Failed", all),
        ("", all),
    ] {
        assert_eq!(
            selected(&service, &[("statusType", status_type)]).await,
            expected,
            "{status_type}"
        );
    }
    for (prefix, expected) in [
        ("C", &["Cancelled", "Completed"][..]),
        ("Comp", &["Completed"]),
        ("c", &[]),
        ("", all),
        ("_", &[]),
        ("%", &[]),
        ("*", &[]),
    ] {
        assert_eq!(
            selected(&service, &[("jobIdStartsWith", prefix)]).await,
            expected,
            "{prefix}"
        );
    }
    service.post("/jobs:delete", &[]).await.is(200);
    for (id, labels) in [
        ("a_1", json!({"team": "search", "tag:1": "x"})),
        ("aX1", json!({"tag:1": null})),
        ("a%1", json!({"owner": ""})),
        ("a[1]", json!({"Team": "x", "ow": "y"})),
    ] {
        put(&service, &encoded(id), json!({"labels": labels})).await;
    }
    for (parameters, expected) in [
        (&[("jobIdStartsWith", "a_")][..], &["a_1"][..]),
        (&[("jobIdStartsWith", "a%")], &["a%1"]),
        (&[("jobIdStartsWith", "a[")], &["a[1]"]),
        (&[("jobIdStartsWith", "a*")], &[]),
        (&[("labelExist", "team")], &["a_1"]),
        (&[("labelExist", "tag:1")], &["a_1", "aX1"]),
        (&[("labelExist", "owner,team")], &["a_1", "a%1"]),
        (&[("labelExist", "tag:1,team,none")], &["a_1", "aX1"]),
        (&[("labelExist", "none")], &[]),
        (
            &[("labelExist", "tag:1"), ("jobIdStartsWith", "aX")],
            &["aX1"],
        ),
        (
            &[("labelExist", "tag:1"), ("filter", "labels.team==search")],
            &["a_1"],
        ),
        (
            &[
                ("statusType", "NotFinished"),
                ("filter", "id!=a_1"),
                ("jobIdStartsWith", "a"),
                ("labelExist", "Team,owner"),
            ],
            &["a%1", "a[1]"],
        ),
        (
            &[("statusType", "Completed"), ("jobIdStartsWith", "a")],
            &[],
        ),
    ] {
        let ids = service
            .ask(
                "/jobs",
                &[parameters, &[("sort", "createTime:asc")]].concat(),
            )
            .await
            .ids();
        assert_eq!(ids, expected, "{parameters:?}");
    }
    // A listed job shows all its labels, not only the one in the query.
    let listed = service.ask("/jobs", &[("labelExist", "team")]).await.json();
    assert_eq!(listed[0]["labels"], json!({"team": "search", "tag:1": "x"}));
}

async fn page_size_follows_the_variable_and_limit_and_offset_apply(store: Store) {
    let service = Service::start_with(store, &[("CAF_JOB_SERVICE_PAGE_SIZE", "3")]).await;
    let usual = Service::start(store).await;
    for n in 0..27 {
        usual
            .create(&format!("j{n:02}"), &usual.new_job("in"))
            .await;
        if n < 7 {
            service
                .create(&format!("j{n}"), &service.new_job("in"))
                .await;
        }
    }
    let page =
        |numbers: std::ops::Range<u8>| numbers.rev().map(|n| format!("j{n}")).collect::<Vec<_>>();
    for (parameters, expected) in [
        (&[][..], page(4..7)),
        (&[("limit", "")], page(4..7)),
        (&[("limit", "0")], page(4..7)),
        (&[("limit", "-1")], page(4..7)),
        (&[("limit", "1")], page(6..7)),
        (&[("limit", "5")], page(2..7)),
        (&[("limit", "2147483647")], page(0..7)),
        (&[("offset", "0")], page(4..7)),
        (&[("offset", "-4")], page(4..7)),
        (&[("offset", "3")], page(1..4)),
        (&[("offset", "6")], page(0..1)),
        (&[("offset", "7")], vec![]),
        (&[("offset", "2147483647")], vec![]),
        (&[("limit", "2"), ("offset", "3")], page(2..4)),
        (
            &[("limit", "2"), ("offset", "2"), ("filter", "id!=j6")],
            page(2..4),
        ),
        (
            &[
                ("limit", "2"),
                ("offset", "1"),
                ("jobIdStartsWith", "j"),
                ("sort", "jobId:asc"),
            ],
            vec!["j1".into(), "j2".into()],
        ),
    ] {
        assert_eq!(
            service.ask("/jobs", parameters).await.ids(),
            expected,
            "{parameters:?}"
        );
    }
    // A count covers all pages.
    assert_eq!(
        service
            .ask("/jobStats/count", &[("limit", "2"), ("offset", "3")])
            .await
            .is(200)
            .json(),
        7
    );
    assert_eq!(usual.get("/jobs").await.ids().len(), 25);
    assert_eq!(usual.ask("/jobs", &[("limit", "26")]).await.ids().len(), 26);
}

async fn jobs_can_be_sorted_by_every_field_in_both_directions(store: Store) {
    let service = Service::start(store).await;
    for (id, fields) in [
        (
            "b",
            json!({"name": "C", "description": "same", "externalData": "10", "labels": {"team": "Zeta", "tag:1": "2"}}),
        ),
        (
            "C",
            json!({"description": "Äpfel", "externalData": "9", "labels": {"team": null, "tag:1": "1"}}),
        ),
        (
            "A",
            json!({"name": "A", "description": "same", "externalData": "_", "labels": {"team": "alpha"}}),
        ),
        (
            "d",
            json!({"name": "b", "description": "apfel", "labels": {"team": "Beta"}}),
        ),
        (
            "ä",
            json!({"name": "B", "description": "Birne", "externalData": "a", "labels": {"tag:1": "3"}}),
        ),
    ] {
        put(&service, &encoded(id), fields).await;
    }
    service.complete("C", "").await;
    service.fail("A", "", "broken").await;
    service.progress("d", "", 40).await;
    service.becomes("d", "Active", 40.0).await;
    for (sort, expected) in [
        ("jobId", ["A", "ä", "b", "C", "d"]),
        // Jobs without a name are last; an upper-case letter follows the same letter in lower case.
        ("name", ["A", "d", "ä", "b", "C"]),
        ("description", ["d", "C", "ä", "b", "A"]),
        ("externalData", ["A", "b", "C", "ä", "d"]),
        ("createTime", ["b", "C", "A", "d", "ä"]),
        ("status", ["d", "C", "A", "b", "ä"]),
        ("percentageComplete", ["b", "A", "ä", "d", "C"]),
        // Jobs without the label, or with a label without a value, are last.
        ("labels.team", ["A", "d", "b", "C", "ä"]),
        ("labels.tag:1", ["C", "b", "ä", "A", "d"]),
        ("labels.none", ["b", "C", "A", "d", "ä"]),
    ] {
        let ask = async |way: &str| {
            service
                .ask("/jobs", &[("sort", &format!("{sort}:{way}"))])
                .await
                .ids()
        };
        assert_eq!(ask("asc").await, expected, "{sort}");
        let backwards: Vec<&str> = expected.into_iter().rev().collect();
        assert_eq!(ask("desc").await, backwards, "{sort}");
    }
    for (way, newest_first) in [("asc", false), ("desc", true)] {
        let sort = format!("lastUpdateTime:{way}");
        let jobs = service
            .ask("/jobs", &[("sort", &sort)])
            .await
            .is(200)
            .json();
        let mut times: Vec<i64> = jobs
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["lastUpdateTime"].as_i64().unwrap())
            .collect();
        if newest_first {
            times.reverse();
        }
        assert!(times.len() == 5 && times.is_sorted(), "{sort}: {jobs}");
    }
    assert_eq!(service.get("/jobs").await.ids(), ["ä", "d", "A", "C", "b"]);
}
