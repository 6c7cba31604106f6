//! The order of listed jobs, and their pages.

use std::collections::BTreeSet;

use Comparison::Equal;
use JobStatus::{Active, Cancelled, Completed, Failed};
use contract::{JobId, JobStatus, PartitionId};
use store::{
    Comparison, Detail, EventKind, Filter, JobQuery, JobRequest, LongText, Sort, SortBy, TextField,
    TextTest,
};

use crate::fixture::{TestStore, acme, after, page_of, request};
use crate::queries::{is, label, texts};

suite![
    lists_jobs_by_time_and_filters_by_prefix_and_status,
    sorts_texts_as_a_dictionary_with_missing_values_last,
    sorts_by_every_field_in_both_directions,
    pages_neither_overlap_nor_skip_jobs,
    pages_of_jobs_with_several_of_the_labels_neither_overlap_nor_skip_jobs,
    sample_jobs_have_the_documented_distribution,
    counts_jobs_by_status,
    lists_the_partitions_that_have_jobs,
    lists_the_jobs_that_wait_for_a_job,
    reads_the_jobs_of_a_page_later_as_they_are_then,
    lists_in_brief_cut_what_may_be_long_and_name_it,
    reads_a_long_text_in_parts_at_the_boundaries_of_characters,
];

/// Of four bytes, two of them and one.
const TEXT: &str = "𝄞ä\n";

async fn create_large(store: &TestStore, job: &str) -> i64 {
    let request = JobRequest {
        description: Some(TEXT.repeat(1000)),
        external_data: Some("short".to_owned()),
        ..request(job)
    };
    store.create_with(request).await;
    let job = store.job(job).await;
    assert_eq!(job.description.as_deref(), Some(&*TEXT.repeat(1000)));
    job.incarnation
}

async fn reads_the_jobs_of_a_page_later_as_they_are_then(store: TestStore) {
    for job in ["a", "b", "c", "d"] {
        store.create(job).await;
    }
    let query = JobQuery {
        offset: 1,
        limit: 3,
        ..JobQuery::default()
    };
    let numbers = store.job_numbers(&acme(), &query).await.unwrap();
    assert_eq!(numbers.len(), 3);
    // What happens now does not move the page.
    store.create("e").await;
    store.cancel("c").await;
    store.delete("b").await;
    store.create("b").await;
    let listed = store.listed_jobs(&numbers, Detail::Whole).await.unwrap();
    let listed: Vec<_> = listed
        .into_iter()
        .map(|listed| (listed.job.id, listed.job.status))
        .collect();
    assert_eq!(
        listed,
        [
            ("c".to_owned(), Cancelled),
            ("a".to_owned(), JobStatus::Waiting)
        ]
    );
}

async fn lists_in_brief_cut_what_may_be_long_and_name_it(store: TestStore) {
    let number = create_large(&store, "large").await;
    let listed = async |detail| {
        let listed = store.listed_jobs(&[number], detail).await.unwrap();
        let [listed] = <[_; 1]>::try_from(listed).unwrap();
        listed
    };
    let brief = listed(Detail::Brief).await;
    assert!(brief.long_texts.is_empty());
    assert_eq!(brief.job.cut, ["description"]);
    assert_eq!(brief.job.description.unwrap().chars().count(), 200);
    assert_eq!(brief.job.external_data.as_deref(), Some("short"));
    let whole = listed(Detail::Whole).await;
    assert_eq!(whole.long_texts, [LongText::Description]);
    assert_eq!(whole.job.cut, [""; 0]);
    assert_eq!(whole.job.external_data.as_deref(), Some("short"));

    let wide = JobRequest {
        labels: (0..30).map(|n| (format!("l{n:02}"), None)).collect(),
        ..request("wide")
    };
    store.create_with(wide).await;
    store.create_scheduled("waits", after(&["wide"])).await;
    let all = page_of(9);
    let jobs = store.jobs(&acme(), &all).await.unwrap();
    let cut: Vec<_> = jobs.iter().map(|job| job.cut.join(" ")).collect();
    assert_eq!(cut, ["", "labels", "description"]);
    assert_eq!(jobs[1].labels.len(), 20);
}

async fn reads_a_long_text_in_parts_at_the_boundaries_of_characters(store: TestStore) {
    let number = create_large(&store, "large").await;
    let (mut whole, mut first) = (String::new(), 1);
    loop {
        let part = store.text_of_job(number, LongText::Description, first, 1000);
        let part = part.await.unwrap().unwrap();
        if part.is_empty() {
            break;
        }
        assert_eq!(part.chars().count(), 1000);
        whole += &part;
        first += 1000;
    }
    assert!(whole == TEXT.repeat(1000));
    store.delete("large").await;
    let gone = store.text_of_job(number, LongText::Description, 1, 10);
    assert_eq!(gone.await.unwrap(), None);
}

async fn counts_jobs_by_status(store: TestStore) {
    for job in ["a1", "a2", "a3", "b1"] {
        store.create(job).await;
    }
    store.cancel("a2").await;
    let counts = async |query: JobQuery| {
        let mut counts = store.count_jobs_by_status(&acme(), &query).await.unwrap();
        counts.sort();
        counts
    };
    let waiting = JobStatus::Waiting;
    let all = JobQuery::default();
    assert_eq!(counts(all.clone()).await, [(Cancelled, 1), (waiting, 3)]);
    let of_a = JobQuery {
        id_prefix: Some("a".to_owned()),
        ..all.clone()
    };
    assert_eq!(counts(of_a).await, [(Cancelled, 1), (waiting, 2)]);
    let filtered = JobQuery {
        filter: Some(is(TextField::Id, Equal, "b1")),
        ..all
    };
    assert_eq!(counts(filtered).await, [(waiting, 1)]);
}

async fn lists_the_partitions_that_have_jobs(store: TestStore) {
    assert!(store.partitions("", 10).await.unwrap().is_empty());
    for (partition, job) in [("b", "1"), ("a", "1"), ("a", "2"), ("A b", "1"), ("ä", "1")] {
        let partition = PartitionId::parse(partition).unwrap();
        let request = JobRequest {
            partition,
            ..request(job)
        };
        store.create_with(request).await;
    }
    let partitions = async |after, limit| store.partitions(after, limit).await.unwrap();
    assert_eq!(partitions("", 10).await, ["A b", "a", "b", "ä"]);
    assert_eq!(partitions("", 2).await, ["A b", "a"]);
    assert_eq!(partitions("a", 2).await, ["b", "ä"]);
    assert!(partitions("ä", 2).await.is_empty());
}

async fn lists_the_jobs_that_wait_for_a_job(store: TestStore) {
    store.create("first").await;
    for job in ["c", "a", "b"] {
        store.create_scheduled(job, after(&["first"])).await;
    }
    let first = JobId::parse("first").unwrap();
    let waiting = async |limit| -> Vec<String> {
        let found = store.dependents(&acme(), &first, limit).await.unwrap();
        assert!(
            found
                .iter()
                .all(|job| job.status == Some(JobStatus::Waiting))
        );
        found.into_iter().map(|job| job.job_id).collect()
    };
    assert_eq!(waiting(10).await, ["a", "b", "c"]);
    assert_eq!(waiting(2).await, ["a", "b"]);
    store.complete_jobs(&["first"]).await;
    assert!(waiting(10).await.is_empty());
}

/// What restricts a query for all jobs, and which of the jobs it finds then.
type Restricted<'a> = (&'a dyn Fn(&mut JobQuery), &'a [&'a str]);

async fn lists_jobs_by_time_and_filters_by_prefix_and_status(store: TestStore) {
    let names = ["a_1", "a_2", "A_3", "ax4", "b%5"];
    for name in names {
        store.create(name).await;
    }
    let elsewhere = JobRequest {
        partition: PartitionId::parse("elsewhere").unwrap(),
        ..request("a_1")
    };
    store.create_with(elsewhere).await;
    store.cancel("a_2").await;
    let ids = async |query: JobQuery| -> Vec<String> {
        let jobs = store.jobs(&acme(), &query).await.unwrap();
        let all = JobQuery {
            limit: 100,
            offset: 0,
            ..query.clone()
        };
        assert_eq!(
            store.count_jobs(&acme(), &query).await.unwrap(),
            store.jobs(&acme(), &all).await.unwrap().len() as u64
        );
        jobs.into_iter().map(|job| job.id).collect()
    };
    let oldest_first = || store::Sort {
        ascending: true,
        ..store::Sort::default()
    };
    let text = |text: &str| Some(text.to_owned());
    let queries: [Restricted<'_>; 7] = [
        (&|_| {}, &["b%5", "ax4", "A_3", "a_2", "a_1"]),
        (&|all| all.sort = oldest_first(), &names),
        (&|all| all.id_prefix = text("a_"), &["a_2", "a_1"]),
        (&|all| all.id_prefix = text("b%"), &["b%5"]),
        (&|all| all.statuses = vec![Cancelled, Failed], &["a_2"]),
        (
            &|all| (all.limit, all.offset, all.sort) = (2, 1, oldest_first()),
            &["a_2", "A_3"],
        ),
        (&|all| (all.limit, all.offset) = (5, 9), &[]),
    ];
    for (restrict, expected) in queries {
        let mut query = page_of(100);
        restrict(&mut query);
        assert_eq!(ids(query).await, expected);
    }
}

async fn sorts_texts_as_a_dictionary_with_missing_values_last(store: TestStore) {
    let in_order = [
        "", " x", "-", "1", "10", "2", "a", "A", "ä", "Ä", "ab", "b", "C", "é", "e\u{301}", "f",
        "z", "日",
    ];
    let mut shuffled: Vec<(usize, Option<&str>)> = in_order
        .iter()
        .map(|text| Some(*text))
        .chain([None, None])
        .enumerate()
        .collect();
    shuffled.sort_by_key(|(n, _)| (n * 7) % 20);
    for (n, text) in &shuffled {
        let labels = [("k:1", *text)];
        store
            .create_labelled(
                &format!("j{n}"),
                *text,
                if text.is_some() || *n == 18 {
                    &labels
                } else {
                    &[]
                },
            )
            .await;
    }
    let name = |id: &String| id[1..].parse::<usize>().unwrap();
    for by in [SortBy::Name, SortBy::Label("k:1".to_owned())] {
        let sorted = async |ascending: bool| -> Vec<usize> {
            let sort = Sort {
                by: by.clone(),
                ascending,
            };
            store
                .find(JobQuery {
                    sort,
                    ..JobQuery::default()
                })
                .await
                .iter()
                .map(name)
                .collect()
        };
        let up = sorted(true).await;
        // "é" and "e\u{301}" look the same but differ in their bytes, which decide the order of
        // such texts.
        let expected: Vec<usize> =
            [&(0..13).collect::<Vec<_>>()[..], &[14, 13, 15, 16, 17]].concat();
        assert_eq!(&up[..18], expected, "{by:?}");
        // Jobs without the label are in the order of their creation.
        let without: Vec<usize> = shuffled
            .iter()
            .filter(|(_, text)| text.is_none())
            .map(|(n, _)| *n)
            .collect();
        assert_eq!(&up[18..], without, "{by:?}");
        let mut down = sorted(false).await;
        down.reverse();
        assert_eq!(down, up, "{by:?}");
    }
}

async fn sorts_by_every_field_in_both_directions(store: TestStore) {
    store.create_five_jobs().await;
    for (by, expected) in [
        (SortBy::Id, ["done", "fail_ed", "gone", "Half", "plain"]),
        (SortBy::Name, ["gone", "fail_ed", "done", "Half", "plain"]),
        (
            SortBy::CreateTime,
            ["plain", "Half", "done", "fail_ed", "gone"],
        ),
        (SortBy::Status, ["Half", "gone", "done", "fail_ed", "plain"]),
        (
            SortBy::Percentage,
            ["plain", "fail_ed", "gone", "Half", "done"],
        ),
        (
            SortBy::Description,
            ["plain", "Half", "done", "fail_ed", "gone"],
        ),
        (
            SortBy::ExternalData,
            ["plain", "Half", "done", "fail_ed", "gone"],
        ),
        (
            SortBy::Label("team".to_owned()),
            ["gone", "Half", "done", "plain", "fail_ed"],
        ),
        (
            SortBy::Label("none".to_owned()),
            ["plain", "Half", "done", "fail_ed", "gone"],
        ),
    ] {
        let mut sort = Sort {
            by,
            ascending: true,
        };
        assert_eq!(
            store
                .find(JobQuery {
                    sort: sort.clone(),
                    ..JobQuery::default()
                })
                .await,
            expected,
            "{sort:?}"
        );
        sort.ascending = false;
        let mut down = store
            .find(JobQuery {
                sort: sort.clone(),
                ..JobQuery::default()
            })
            .await;
        down.reverse();
        assert_eq!(down, expected, "{sort:?}");
    }
    // The first update may fall into the same millisecond as the updates before.
    let mut percent = 0;
    harness::wait_for("a later update", async || {
        percent += 1;
        store
            .report("plain", "", EventKind::Progress(percent))
            .await;
        let sort = Sort {
            by: SortBy::LastUpdateTime,
            ascending: false,
        };
        let first = store
            .find(JobQuery {
                sort,
                limit: 1,
                ..JobQuery::default()
            })
            .await;
        if first == ["plain"] {
            Ok(())
        } else {
            Err(format!("{first:?}"))
        }
    })
    .await;
}

async fn pages_neither_overlap_nor_skip_jobs(store: TestStore) {
    let mut all = BTreeSet::new();
    for n in 0..23 {
        let id = format!("job-{n}");
        store
            .create_labelled(&id, Some(["same", "other"][n % 2]), &[("k", Some("v"))])
            .await;
        all.insert(id);
    }
    for by in [
        SortBy::CreateTime,
        SortBy::Name,
        SortBy::Status,
        SortBy::LastUpdateTime,
        SortBy::Label("k".to_owned()),
    ] {
        for ascending in [true, false] {
            let query = JobQuery {
                sort: Sort {
                    by: by.clone(),
                    ascending,
                },
                ..JobQuery::default()
            };
            let mut pages = Vec::new();
            for page in 0..6 {
                pages.extend(
                    store
                        .find(JobQuery {
                            limit: 4,
                            offset: page * 4,
                            ..query.clone()
                        })
                        .await,
                );
            }
            assert_eq!(
                pages.iter().cloned().collect::<BTreeSet<_>>(),
                all,
                "{by:?}"
            );
            assert_eq!(pages, store.find(query).await, "{by:?}");
        }
    }
}

async fn pages_of_jobs_with_several_of_the_labels_neither_overlap_nor_skip_jobs(store: TestStore) {
    let mut in_order = Vec::new();
    for n in 0..9 {
        let id = format!("job-{n}");
        let labels = [("a", Some("v")), ("b", None), ("c", Some("w"))];
        // None, one, two or three of them.
        store.create_labelled(&id, None, &labels[..n % 4]).await;
        if n % 4 > 0 {
            in_order.push(id);
        }
    }
    let labels = [
        JobQuery {
            labels: texts(&["a", "b", "c"]),
            ..JobQuery::default()
        },
        JobQuery {
            filter: Some(Filter::Any(vec![
                is(label("a"), Equal, "v"),
                Filter::Text(label("c"), TextTest::OneOf(texts(&["v", "w"]))),
            ])),
            ..JobQuery::default()
        },
    ];
    for query in labels {
        let mut pages = Vec::new();
        for page in 0..4 {
            let query = JobQuery {
                sort: Sort {
                    ascending: true,
                    ..Sort::default()
                },
                limit: 2,
                offset: page * 2,
                ..query.clone()
            };
            pages.extend(store.find(query).await);
        }
        assert_eq!(pages, in_order, "{query:?}");
    }
}

async fn sample_jobs_have_the_documented_distribution(store: TestStore) {
    store.create_labelled("mine", None, &[]).await;
    store.add_sample_jobs(&acme(), 200).await.unwrap();
    assert_eq!(
        store
            .find(JobQuery {
                limit: 2,
                offset: 1,
                ..JobQuery::default()
            })
            .await,
        ["sample-200", "sample-199"]
    );
    for (filter, count) in [
        (Filter::Status(vec![Completed]), 140),
        (Filter::Status(vec![Failed, Cancelled, Active]), 60),
        (is(label("team"), Equal, "team-3"), 20),
        (is(label("ticket"), Equal, "T-sample-7"), 1),
        (is(TextField::Name, Equal, "Sample 919"), 1),
    ] {
        let query = JobQuery {
            filter: Some(filter),
            ..JobQuery::default()
        };
        assert_eq!(
            store.count_jobs(&acme(), &query).await.unwrap(),
            count,
            "{query:?}"
        );
    }
}
