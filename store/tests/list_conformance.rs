//! One suite for the three databases: which jobs a query finds, in which order, and that many are ended at once. What is asked
//! here in tables is asked at random in the end, of all three at the same time.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says so when something is not as it must be"
)]

#[macro_use]
mod place;

use std::collections::{BTreeMap, BTreeSet};

use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
use JobStatus::{Active, Cancelled, Completed, Failed, Waiting};
use contract::{JobId, JobStatus, JobTaskId, PartitionId, ReportFailure};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use store::{
    Comparison, Creation, EventKind, Filter, Incarnation, JobQuery, JobRequest, Pattern, Sort,
    SortBy, Store, TextField, TextTest, TrackingEvent,
};

use place::Place;

/// A store of its own for each test.
struct World {
    store: Store,
    partition: PartitionId,
    _place: Place,
}

impl World {
    async fn open(kind: &str) -> Self {
        let place = Place::of(kind).await;
        let store = Store::open(&place.url).await.unwrap();
        assert_eq!(store.kind(), kind);
        Self {
            store,
            partition: PartitionId::parse("acme").unwrap(),
            _place: place,
        }
    }

    async fn create(
        &self,
        job: &str,
        name: Option<&str>,
        labels: &[(&str, Option<&str>)],
    ) -> Incarnation {
        self.create_in(&self.partition, job, name, labels).await
    }

    async fn create_in(
        &self,
        partition: &PartitionId,
        job: &str,
        name: Option<&str>,
        labels: &[(&str, Option<&str>)],
    ) -> Incarnation {
        let request = JobRequest {
            name: name.map(str::to_owned),
            labels: labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)))
                .collect::<BTreeMap<_, _>>(),
            content_hash: [7; 32],
            ..JobRequest::new(partition.clone(), JobId::parse(job).unwrap())
        };
        match self
            .store
            .create_job(&request, |life| {
                ("start".to_owned(), life.job_task_id().into_bytes())
            })
            .await
            .unwrap()
        {
            Creation::Created(life) => life,
            other => panic!("{job}: {other:?}"),
        }
    }

    async fn report(&self, life: &Incarnation, path: &str, kind: EventKind) {
        let task = JobTaskId::parse(&format!("{}{path}", life.job_task_id())).unwrap();
        self.store
            .record(&[TrackingEvent { task, kind }])
            .await
            .unwrap();
    }

    /// The ids of the jobs that are found; the count must be the same.
    async fn find(&self, query: JobQuery) -> Vec<String> {
        let query = JobQuery {
            limit: if query.limit == 0 { 1000 } else { query.limit },
            ..query
        };
        let found: Vec<String> = self
            .store
            .jobs(&self.partition, &query)
            .await
            .unwrap()
            .into_iter()
            .map(|job| job.id)
            .collect();
        if query.limit == 1000 && query.offset == 0 {
            assert_eq!(
                self.store
                    .count_jobs(&self.partition, &query)
                    .await
                    .unwrap(),
                found.len() as u64,
                "{query:?}"
            );
        }
        found
    }

    /// The ids of the jobs that a filter accepts, in the order of their creation.
    async fn accepted(&self, filter: Filter) -> Vec<String> {
        self.find(JobQuery {
            filter: Some(filter),
            sort: Sort {
                ascending: true,
                ..Sort::default()
            },
            ..JobQuery::default()
        })
        .await
    }

    /// Jobs that differ in everything a query can ask.
    async fn create_five_jobs(&self) {
        self.create("plain", None, &[]).await;
        let half = self
            .create(
                "Half",
                Some("Zürich"),
                &[("team", Some("search")), ("tier:a.b", Some("1"))],
            )
            .await;
        let done = self
            .create(
                "done",
                Some("apple"),
                &[("team", Some("Search")), ("bare", None)],
            )
            .await;
        let failed = self
            .create(
                "fail_ed",
                Some("Äpfel"),
                &[("team", None), ("tier:a.b", Some("10"))],
            )
            .await;
        let gone = self
            .create("gone", Some("100%_\\'\"*"), &[("team", Some(""))])
            .await;
        self.report(&half, "", EventKind::Progress(47)).await;
        self.report(&done, "", EventKind::Complete).await;
        self.report(&failed, "", EventKind::Failed(ReportFailure::default()))
            .await;
        self.store
            .cancel_job(&gone.partition, &gone.job)
            .await
            .unwrap();
        let elsewhere = PartitionId::parse("elsewhere").unwrap();
        self.create_in(
            &elsewhere,
            "Half",
            Some("Zürich"),
            &[("team", Some("search"))],
        )
        .await;
    }
}

fn is(field: TextField, comparison: Comparison, value: &str) -> Filter {
    Filter::Text(field, TextTest::Is(comparison, value.to_owned()))
}

fn label(name: &str) -> TextField {
    TextField::Label(name.to_owned())
}

fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

async fn every_comparison_of_ids_names_and_labels_finds_what_it_says(world: World) {
    world.create_five_jobs().await;
    for (field, comparison, value, expected) in [
        (TextField::Id, Equal, "Half", &["Half"][..]),
        (TextField::Id, Equal, "half", &[]),
        (
            TextField::Id,
            NotEqual,
            "Half",
            &["plain", "done", "fail_ed", "gone"],
        ),
        (TextField::Id, Less, "Half", &["done", "fail_ed", "gone"]),
        (
            TextField::Id,
            LessOrEqual,
            "Half",
            &["Half", "done", "fail_ed", "gone"],
        ),
        (TextField::Id, Greater, "Half", &["plain"]),
        (TextField::Id, GreaterOrEqual, "half", &["plain", "Half"]),
        // A job without a name is neither.
        (TextField::Name, Equal, "Zürich", &["Half"]),
        (TextField::Name, Equal, "Zu\u{308}rich", &[]),
        (
            TextField::Name,
            NotEqual,
            "Zürich",
            &["done", "fail_ed", "gone"],
        ),
        (
            TextField::Name,
            NotEqual,
            "zürich",
            &["Half", "done", "fail_ed", "gone"],
        ),
        (TextField::Name, Less, "b", &["done", "fail_ed", "gone"]),
        (TextField::Name, LessOrEqual, "Äpfel", &["fail_ed", "gone"]),
        (TextField::Name, Greater, "Äpfel", &["Half", "done"]),
        (
            TextField::Name,
            GreaterOrEqual,
            "ä",
            &["Half", "done", "fail_ed"],
        ),
        (TextField::Name, Equal, "100%_\\'\"*", &["gone"]),
        // A job without the label, or with one that has no value, is neither.
        (label("team"), Equal, "search", &["Half"]),
        (label("team"), NotEqual, "search", &["done", "gone"]),
        (label("team"), Equal, "", &["gone"]),
        (label("team"), Less, "search", &["gone"]),
        (label("team"), Greater, "search", &["done"]),
        (label("team"), GreaterOrEqual, "search", &["Half", "done"]),
        (
            label("team"),
            LessOrEqual,
            "Search",
            &["Half", "done", "gone"],
        ),
        (label("tier:a.b"), Less, "10", &["Half"]),
        (label("tier:a.b"), Greater, "1", &["fail_ed"]),
        (label("bare"), NotEqual, "x", &[]),
        (label("none"), NotEqual, "x", &[]),
        (label("Team"), Equal, "search", &[]),
    ] {
        let found = world.accepted(is(field.clone(), comparison, value)).await;
        assert_eq!(found, expected, "{field:?} {comparison:?} {value}");
    }
}

async fn lists_of_values_and_their_contraries_find_what_they_say(world: World) {
    world.create_five_jobs().await;
    for (field, values, one_of, none_of) in [
        (
            TextField::Id,
            &["Half", "gone", "x*"][..],
            &["Half", "gone"][..],
            &["plain", "done", "fail_ed"][..],
        ),
        (
            TextField::Id,
            &["Half"],
            &["Half"],
            &["plain", "done", "fail_ed", "gone"],
        ),
        (
            TextField::Name,
            &["apple", "100%_\\'\"*", "Z*"],
            &["done", "gone"],
            &["Half", "fail_ed"],
        ),
        (label("team"), &["search", ""], &["Half", "gone"], &["done"]),
        (label("none"), &["search", ""], &[], &[]),
    ] {
        assert_eq!(
            world
                .accepted(Filter::Text(field.clone(), TextTest::OneOf(texts(values))))
                .await,
            one_of,
            "{field:?} {values:?}"
        );
        assert_eq!(
            world
                .accepted(Filter::Text(field.clone(), TextTest::NoneOf(texts(values))))
                .await,
            none_of,
            "{field:?} {values:?}"
        );
    }
}

async fn a_star_is_the_only_wildcard(world: World) {
    world.create_five_jobs().await;
    for (field, pattern, like, unlike) in [
        (
            TextField::Id,
            "*",
            &["plain", "Half", "done", "fail_ed", "gone"][..],
            &[][..],
        ),
        (
            TextField::Id,
            "*ne",
            &["done", "gone"],
            &["plain", "Half", "fail_ed"],
        ),
        (
            TextField::Id,
            "h*",
            &[],
            &["plain", "Half", "done", "fail_ed", "gone"],
        ),
        (
            TextField::Id,
            "fail_*",
            &["fail_ed"],
            &["plain", "Half", "done", "gone"],
        ),
        (
            TextField::Id,
            "____*",
            &[],
            &["plain", "Half", "done", "fail_ed", "gone"],
        ),
        (
            TextField::Id,
            "*[a-z]*",
            &[],
            &["plain", "Half", "done", "fail_ed", "gone"],
        ),
        (
            TextField::Id,
            "?*",
            &[],
            &["plain", "Half", "done", "fail_ed", "gone"],
        ),
        (
            TextField::Name,
            "*",
            &["Half", "done", "fail_ed", "gone"],
            &[],
        ),
        (
            TextField::Name,
            "100%_\\'\"*",
            &["gone"],
            &["Half", "done", "fail_ed"],
        ),
        (
            TextField::Name,
            "*%*",
            &["gone"],
            &["Half", "done", "fail_ed"],
        ),
        (
            TextField::Name,
            "*\\*",
            &["gone"],
            &["Half", "done", "fail_ed"],
        ),
        (
            TextField::Name,
            "Z?rich*",
            &[],
            &["Half", "done", "fail_ed", "gone"],
        ),
        (
            TextField::Name,
            "*ü*",
            &["Half"],
            &["done", "fail_ed", "gone"],
        ),
        (label("team"), "*earch", &["Half", "done"], &["gone"]),
        (label("team"), "*", &["Half", "done", "gone"], &[]),
    ] {
        let pattern = Pattern::new(pattern);
        assert_eq!(
            world
                .accepted(Filter::Text(field.clone(), TextTest::Like(pattern.clone())))
                .await,
            like,
            "{field:?} {pattern:?}"
        );
        assert_eq!(
            world
                .accepted(Filter::Text(
                    field.clone(),
                    TextTest::Unlike(pattern.clone())
                ))
                .await,
            unlike,
            "{field:?} {pattern:?}"
        );
    }
}

async fn percentages_are_compared_as_they_are_shown(world: World) {
    world.create_five_jobs().await;
    let thirds = world.create("thirds", None, &[]).await;
    world.report(&thirds, ".3*", EventKind::Complete).await;
    let shown = world
        .store
        .job(&thirds.partition, &thirds.job)
        .await
        .unwrap()
        .unwrap()
        .percentage_complete;
    assert_eq!(
        world.accepted(Filter::Percentage(Equal, shown)).await,
        ["thirds"],
        "{shown}"
    );
    let rest = ["plain", "Half", "done", "fail_ed", "gone"];
    assert_eq!(
        world.accepted(Filter::Percentage(NotEqual, shown)).await,
        rest
    );
    for (comparison, number, expected) in [
        (Equal, 47.0, &["Half"][..]),
        (Greater, 47.0, &["done"]),
        (GreaterOrEqual, 46.999, &["Half", "done"]),
        (Less, 0.0001, &["plain", "fail_ed", "gone"]),
        (LessOrEqual, -1.0, &[]),
        (
            Less,
            f64::MAX,
            &["plain", "Half", "done", "fail_ed", "gone", "thirds"],
        ),
    ] {
        assert_eq!(
            world.accepted(Filter::Percentage(comparison, number)).await,
            expected,
            "{comparison:?} {number}"
        );
    }
}

async fn conditions_are_joined_and_nested(world: World) {
    world.create_five_jobs().await;
    let id = |value: &str| is(TextField::Id, Equal, value);
    let ended = Filter::Status(vec![Completed, Failed, Cancelled]);
    assert_eq!(world.accepted(Filter::Status(vec![Active])).await, ["Half"]);
    assert_eq!(
        world
            .accepted(Filter::Status(vec![Waiting, Completed]))
            .await,
        ["plain", "done"]
    );
    assert_eq!(world.accepted(Filter::Status(vec![])).await, [""; 0]);
    assert_eq!(
        world.accepted(ended.clone()).await,
        ["done", "fail_ed", "gone"]
    );
    assert_eq!(
        world
            .accepted(Filter::All(vec![
                ended.clone(),
                is(label("team"), GreaterOrEqual, "")
            ]))
            .await,
        ["done", "gone"]
    );
    let any = Filter::Any(vec![
        id("plain"),
        Filter::All(vec![ended.clone(), id("gone")]),
        Filter::All(vec![ended.clone(), id("Half")]),
    ]);
    assert_eq!(world.accepted(any.clone()).await, ["plain", "gone"]);
    assert_eq!(
        world.accepted(Filter::All(vec![any, id("plain")])).await,
        ["plain"]
    );
    assert_eq!(world.accepted(Filter::All(vec![])).await.len(), 5);
    assert_eq!(world.accepted(Filter::Any(vec![])).await.len(), 0);
    // A label that few jobs have, wherever it stands; and more of them than are looked at.
    let team = is(label("team"), Equal, "search");
    assert_eq!(
        world
            .accepted(Filter::All(vec![
                Filter::Status(vec![Active]),
                team.clone()
            ]))
            .await,
        ["Half"]
    );
    assert_eq!(
        world
            .accepted(Filter::Any(vec![team.clone(), id("plain")]))
            .await,
        ["plain", "Half"]
    );
    assert_eq!(
        world.accepted(Filter::All(vec![team.clone(); 20])).await,
        ["Half"]
    );
    let by_tier = Sort {
        by: SortBy::Label("tier:a.b".to_owned()),
        ascending: true,
    };
    assert_eq!(
        world
            .find(JobQuery {
                filter: Some(team),
                sort: by_tier,
                ..JobQuery::default()
            })
            .await,
        ["Half"]
    );
    // With what lies around the filter.
    let query = JobQuery {
        statuses: vec![Completed, Cancelled],
        id_prefix: Some("d".into()),
        ..JobQuery::default()
    };
    assert_eq!(
        world
            .find(JobQuery {
                filter: Some(ended),
                ..query
            })
            .await,
        ["done"]
    );
}

async fn a_long_list_of_alternatives_is_answered(world: World) {
    world.create_five_jobs().await;
    let mut many: Vec<Filter> = (0..2500)
        .map(|n| is(TextField::Id, Equal, &format!("job-{n}")))
        .collect();
    many.push(is(TextField::Id, Equal, "gone"));
    assert_eq!(world.accepted(Filter::Any(many)).await, ["gone"]);
    let many = (0..2500)
        .map(|n| is(TextField::Id, NotEqual, &format!("job-{n}")))
        .collect();
    assert_eq!(world.accepted(Filter::All(many)).await.len(), 5);
    let mut values: Vec<String> = (0..2500).map(|n| format!("job-{n}")).collect();
    values.push("gone".into());
    assert_eq!(
        world
            .accepted(Filter::Text(TextField::Id, TextTest::OneOf(values)))
            .await,
        ["gone"]
    );
}

async fn jobs_are_found_by_the_labels_they_have_whatever_the_value(world: World) {
    world.create_five_jobs().await;
    for (labels, expected) in [
        (&["bare"][..], &["done"][..]),
        (&["tier:a.b", "bare"], &["fail_ed", "done", "Half"]),
        (&["team"], &["gone", "fail_ed", "done", "Half"]),
        (&["none"], &[]),
        (&["none", "BARE", "bare"], &["done"]),
    ] {
        assert_eq!(
            world
                .find(JobQuery {
                    labels: texts(labels),
                    ..JobQuery::default()
                })
                .await,
            expected,
            "{labels:?}"
        );
    }
}

async fn texts_are_sorted_as_in_a_dictionary_and_what_is_missing_comes_last(world: World) {
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
        world
            .create(
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
            world
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
        // "é" and "e\u{301}" look the same; their bytes tell them apart, and so do those of any other texts.
        let expected: Vec<usize> =
            [&(0..13).collect::<Vec<_>>()[..], &[14, 13, 15, 16, 17]].concat();
        assert_eq!(&up[..18], expected, "{by:?}");
        // Those without are in the order of their creation.
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

async fn jobs_are_sorted_by_every_field(world: World) {
    world.create_five_jobs().await;
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
            world
                .find(JobQuery {
                    sort: sort.clone(),
                    ..JobQuery::default()
                })
                .await,
            expected,
            "{sort:?}"
        );
        sort.ascending = false;
        let mut down = world
            .find(JobQuery {
                sort: sort.clone(),
                ..JobQuery::default()
            })
            .await;
        down.reverse();
        assert_eq!(down, expected, "{sort:?}");
    }
    let last = world
        .store
        .job(&world.partition, &JobId::parse("plain").unwrap())
        .await
        .unwrap()
        .unwrap();
    let life = Incarnation {
        partition: world.partition.clone(),
        job: JobId::parse("plain").unwrap(),
        number: last.incarnation,
        first: true,
    };
    // The first may come in the same millisecond as what was before.
    let mut percent = 0;
    harness::wait_for("a later update", async || {
        percent += 1;
        world.report(&life, "", EventKind::Progress(percent)).await;
        let sort = Sort {
            by: SortBy::LastUpdateTime,
            ascending: false,
        };
        let first = world
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

async fn pages_neither_overlap_nor_leave_out_a_job(world: World) {
    let mut all = BTreeSet::new();
    for n in 0..23 {
        let id = format!("job-{n}");
        world
            .create(&id, Some(["same", "other"][n % 2]), &[("k", Some("v"))])
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
                    world
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
            assert_eq!(pages, world.find(query).await, "{by:?}");
        }
    }
}

async fn many_jobs_are_cancelled_some_at_a_time_and_finished_ones_do_not_stand_in_the_way(
    world: World,
) {
    for n in 0..7 {
        let life = world
            .create(&format!("job-{n}"), None, &[("team", Some("a"))])
            .await;
        match n {
            0 => world.report(&life, "", EventKind::Complete).await,
            1 => {
                world
                    .report(&life, "", EventKind::Failed(ReportFailure::default()))
                    .await;
            }
            2 => world.report(&life, ".1", EventKind::Complete).await,
            _ => {}
        }
    }
    world.create("other", None, &[]).await;
    let query = JobQuery {
        labels: texts(&["team"]),
        ..JobQuery::default()
    };
    let mut cancelled = Vec::new();
    for expected in [3, 2, 0] {
        let some = world
            .store
            .cancel_some_jobs(&world.partition, &query, 3)
            .await
            .unwrap();
        assert_eq!(some.len(), expected);
        cancelled.extend(some.into_iter().map(|life| life.job.to_string()));
    }
    cancelled.sort();
    assert_eq!(cancelled, ["job-2", "job-3", "job-4", "job-5", "job-6"]);
    assert_eq!(
        world.accepted(Filter::Status(vec![Cancelled])).await,
        cancelled
    );
    assert_eq!(
        world.accepted(Filter::Status(vec![Waiting])).await,
        ["other"]
    );
    let history = world
        .store
        .history(&world.partition, &JobId::parse("job-2").unwrap())
        .await
        .unwrap();
    assert_eq!(
        history.iter().map(|step| step.to).collect::<Vec<_>>(),
        [Waiting, Active, Cancelled]
    );
    // Their start messages are not sent; that of the other is.
    let bodies = world
        .store
        .outbox(100)
        .await
        .unwrap()
        .into_iter()
        .map(|message| message.body);
    assert!(
        bodies
            .into_iter()
            .all(|body| !String::from_utf8(body).unwrap().contains("job-4"))
    );
    let finished = JobQuery {
        statuses: vec![Completed],
        ..JobQuery::default()
    };
    assert_eq!(
        world
            .store
            .cancel_some_jobs(&world.partition, &finished, 3)
            .await
            .unwrap(),
        []
    );
}

async fn many_jobs_are_deleted_some_at_a_time_whatever_their_status(world: World) {
    world.create_five_jobs().await;
    let query = JobQuery {
        filter: Some(is(TextField::Id, NotEqual, "plain")),
        ..JobQuery::default()
    };
    let mut deleted = 0;
    for expected in [3, 1, 0] {
        let some = world
            .store
            .delete_some_jobs(&world.partition, &query, 3)
            .await
            .unwrap();
        assert_eq!(some.len(), expected);
        deleted += some.len();
    }
    assert_eq!(deleted, 4);
    assert_eq!(world.find(JobQuery::default()).await, ["plain"]);
    assert!(
        !world.create("gone", None, &[]).await.first,
        "its past life is remembered"
    );
    let elsewhere = PartitionId::parse("elsewhere").unwrap();
    assert_eq!(
        world
            .store
            .count_jobs(&elsewhere, &JobQuery::default())
            .await
            .unwrap(),
        1
    );
}

async fn many_at_once_end_each_job_once(world: World) {
    for n in 0..20 {
        world.create(&format!("job-{n}"), None, &[]).await;
    }
    let query = JobQuery::default();
    let ended = async |delete: bool| {
        let mut jobs = Vec::new();
        loop {
            let some = if delete {
                world
                    .store
                    .delete_some_jobs(&world.partition, &query, 3)
                    .await
                    .unwrap()
            } else {
                world
                    .store
                    .cancel_some_jobs(&world.partition, &query, 3)
                    .await
                    .unwrap()
            };
            if some.is_empty() {
                return jobs.len();
            }
            jobs.extend(some);
        }
    };
    let (a, b, c) = tokio::join!(ended(false), ended(false), ended(false));
    assert_eq!(a + b + c, 20);
    let (a, b, c) = tokio::join!(ended(true), ended(true), ended(true));
    assert_eq!(a + b + c, 20);
}

async fn sample_jobs_are_as_they_are_said_to_be(world: World) {
    world.create("mine", None, &[]).await;
    world
        .store
        .add_sample_jobs(&world.partition, 200)
        .await
        .unwrap();
    assert_eq!(
        world
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
            world
                .store
                .count_jobs(&world.partition, &query)
                .await
                .unwrap(),
            count,
            "{query:?}"
        );
    }
}

suite! {
    every_comparison_of_ids_names_and_labels_finds_what_it_says,
    lists_of_values_and_their_contraries_find_what_they_say,
    a_star_is_the_only_wildcard,
    percentages_are_compared_as_they_are_shown,
    conditions_are_joined_and_nested,
    a_long_list_of_alternatives_is_answered,
    jobs_are_found_by_the_labels_they_have_whatever_the_value,
    texts_are_sorted_as_in_a_dictionary_and_what_is_missing_comes_last,
    jobs_are_sorted_by_every_field,
    pages_neither_overlap_nor_leave_out_a_job,
    many_jobs_are_cancelled_some_at_a_time_and_finished_ones_do_not_stand_in_the_way,
    many_jobs_are_deleted_some_at_a_time_whatever_their_status,
    many_at_once_end_each_job_once,
    sample_jobs_are_as_they_are_said_to_be,
}

// The three stores against each other.

fn values() -> impl Strategy<Value = String> {
    prop::string::string_regex("[abAäÄz%_*?\\[\\]\\\\'\" 1-3-]{0,4}").unwrap()
}

fn comparisons() -> impl Strategy<Value = Comparison> {
    prop::sample::select(vec![
        Equal,
        NotEqual,
        Less,
        LessOrEqual,
        Greater,
        GreaterOrEqual,
    ])
}

fn filters() -> impl Strategy<Value = Filter> {
    let field = prop_oneof![
        Just(TextField::Id),
        Just(TextField::Name),
        prop::sample::select(vec!["a", "b", "c"])
            .prop_map(|name| TextField::Label(name.to_owned())),
    ];
    let test = prop_oneof![
        3 => (comparisons(), values()).prop_map(|(comparison, value)| TextTest::Is(comparison, value)),
        2 => (values(), values()).prop_map(|(a, b)| TextTest::Like(Pattern::new(&format!("{a}*{b}")))),
        2 => (values(), values()).prop_map(|(a, b)| TextTest::Unlike(Pattern::new(&format!("{a}*{b}")))),
        1 => prop::collection::vec(values(), 1..4).prop_map(TextTest::OneOf),
        1 => prop::collection::vec(values(), 1..4).prop_map(TextTest::NoneOf),
    ];
    let one = prop_oneof![
        6 => (field, test).prop_map(|(field, test)| Filter::Text(field, test)),
        1 => (comparisons(), 0..100u8).prop_map(|(comparison, number)| Filter::Percentage(comparison, f64::from(number))),
        1 => prop::sample::subsequence(vec![Waiting, Active, Completed], 0..=3).prop_map(Filter::Status),
    ];
    one.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Filter::All),
            prop::collection::vec(inner, 0..4).prop_map(Filter::Any),
        ]
    })
}

fn sorts() -> impl Strategy<Value = Sort> {
    let label = SortBy::Label("a".to_owned());
    let by = vec![
        SortBy::CreateTime,
        SortBy::Id,
        SortBy::Name,
        SortBy::Status,
        SortBy::Percentage,
        label,
    ];
    (prop::sample::select(by), any::<bool>()).prop_map(|(by, ascending)| Sort { by, ascending })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_three_stores_answer_every_question_alike() {
    let mut runner = TestRunner::deterministic();
    let mut draw_text = || {
        prop::option::weighted(0.8, values())
            .new_tree(&mut runner)
            .unwrap()
            .current()
    };
    let jobs: Vec<_> = (0..60)
        .map(|n| {
            (
                format!("{}{n}", ["a", "B", "ä_", "%", "[x] "][n % 5]),
                [(); 3].map(|()| draw_text()),
            )
        })
        .collect();
    let mut worlds = Vec::new();
    for kind in ["memory", "sqlite", "postgres"] {
        let world = World::open(kind).await;
        for (n, (id, [name, a, b])) in jobs.iter().enumerate() {
            let labels = [("a", a.as_deref()), ("b", b.as_deref())];
            let life = world
                .create(id, name.as_deref(), if n % 4 == 0 { &[] } else { &labels })
                .await;
            match n % 3 {
                0 => {
                    world
                        .report(&life, "", EventKind::Progress(u8::try_from(n).unwrap()))
                        .await;
                }
                1 => world.report(&life, "", EventKind::Complete).await,
                _ => {}
            }
        }
        worlds.push(world);
    }
    let mut runner = TestRunner::deterministic();
    let mut found = 0;
    for _ in 0..300 {
        let (filter, sort) = (filters(), sorts())
            .new_tree(&mut runner)
            .unwrap()
            .current();
        let query = JobQuery {
            filter: Some(filter),
            sort,
            ..JobQuery::default()
        };
        let expected = worlds[0].find(query.clone()).await;
        for world in &worlds[1..] {
            assert_eq!(
                world.find(query.clone()).await,
                expected,
                "{}: {query:?}",
                world.store.kind()
            );
        }
        found += expected.len();
    }
    assert!(found > 1000, "the questions are no good: {found}");
}
