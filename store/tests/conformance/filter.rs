//! Filters: the jobs that a query returns.

use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
use JobStatus::{Active, Cancelled, Completed, Failed, Waiting};
use contract::JobStatus;
use store::{Comparison, EventKind, Filter, JobQuery, Pattern, Sort, SortBy, TextField, TextTest};

use crate::fixture::TestStore;
use crate::queries::{is, label, texts};

suite![
    compares_ids_names_and_labels,
    matches_lists_of_values_and_their_negation,
    star_is_the_only_wildcard,
    compares_percentages_as_shown,
    joins_and_nests_conditions,
    accepts_thousands_of_conditions,
    finds_jobs_by_the_presence_of_labels,
];

async fn compares_ids_names_and_labels(store: TestStore) {
    store.create_five_jobs().await;
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
        // A job without a name is neither equal nor unequal.
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
        (TextField::CorrelationId, Equal, "Zürich", &["Half"]),
        (
            TextField::CorrelationId,
            NotEqual,
            "Zürich",
            &["done", "fail_ed", "gone"],
        ),
        // A job without the label, or with a label without a value, is neither equal nor unequal.
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
        let found = store.accepted(is(field.clone(), comparison, value)).await;
        assert_eq!(found, expected, "{field:?} {comparison:?} {value}");
    }
}

async fn matches_lists_of_values_and_their_negation(store: TestStore) {
    store.create_five_jobs().await;
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
            store
                .accepted(Filter::Text(field.clone(), TextTest::OneOf(texts(values))))
                .await,
            one_of,
            "{field:?} {values:?}"
        );
        assert_eq!(
            store
                .accepted(Filter::Text(field.clone(), TextTest::NoneOf(texts(values))))
                .await,
            none_of,
            "{field:?} {values:?}"
        );
    }
}

async fn star_is_the_only_wildcard(store: TestStore) {
    store.create_five_jobs().await;
    let all = ["plain", "Half", "done", "fail_ed", "gone"];
    // A job without the text matches neither a pattern nor its negation.
    let named = &all[1..];
    let labelled = ["Half", "done", "gone"];
    for (field, with_text, pattern, like) in [
        (TextField::Id, &all[..], "*", &all[..]),
        (TextField::Id, &all, "*ne", &["done", "gone"]),
        (TextField::Id, &all, "h*", &[]),
        (TextField::Id, &all, "fail_*", &["fail_ed"]),
        (TextField::Id, &all, "____*", &[]),
        (TextField::Id, &all, "*[a-z]*", &[]),
        (TextField::Id, &all, "?*", &[]),
        (TextField::Name, named, "*", named),
        (TextField::Name, named, "100%_\\'\"*", &["gone"]),
        (TextField::Name, named, "*%*", &["gone"]),
        (TextField::Name, named, "*\\*", &["gone"]),
        (TextField::Name, named, "Z?rich*", &[]),
        (TextField::Name, named, "*ü*", &["Half"]),
        (label("team"), &labelled, "*earch", &["Half", "done"]),
        (label("team"), &labelled, "*", &labelled),
    ] {
        let test = Pattern::new(pattern);
        let unlike: Vec<&str> = with_text
            .iter()
            .filter(|job| !like.contains(job))
            .copied()
            .collect();
        let filter = Filter::Text(field.clone(), TextTest::Like(test.clone()));
        assert_eq!(store.accepted(filter).await, like, "{field:?} {pattern}");
        let filter = Filter::Text(field.clone(), TextTest::Unlike(test));
        assert_eq!(store.accepted(filter).await, unlike, "{field:?} {pattern}");
    }
}

async fn compares_percentages_as_shown(store: TestStore) {
    store.create_five_jobs().await;
    let thirds = store.create_labelled("thirds", None, &[]).await;
    store.report(&thirds, "3*", EventKind::Complete).await;
    let shown = store.job(&thirds).await.percentage_complete;
    assert_eq!(
        store.accepted(Filter::Percentage(Equal, shown)).await,
        ["thirds"],
        "{shown}"
    );
    let rest = ["plain", "Half", "done", "fail_ed", "gone"];
    assert_eq!(
        store.accepted(Filter::Percentage(NotEqual, shown)).await,
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
            store.accepted(Filter::Percentage(comparison, number)).await,
            expected,
            "{comparison:?} {number}"
        );
    }
}

async fn joins_and_nests_conditions(store: TestStore) {
    store.create_five_jobs().await;
    let id = |value: &str| is(TextField::Id, Equal, value);
    let ended = Filter::Status(vec![Completed, Failed, Cancelled]);
    assert_eq!(store.accepted(Filter::Status(vec![Active])).await, ["Half"]);
    assert_eq!(
        store
            .accepted(Filter::Status(vec![Waiting, Completed]))
            .await,
        ["plain", "done"]
    );
    assert_eq!(store.accepted(Filter::Status(vec![])).await, [""; 0]);
    assert_eq!(
        store.accepted(ended.clone()).await,
        ["done", "fail_ed", "gone"]
    );
    assert_eq!(
        store
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
    assert_eq!(store.accepted(any.clone()).await, ["plain", "gone"]);
    assert_eq!(
        store.accepted(Filter::All(vec![any, id("plain")])).await,
        ["plain"]
    );
    assert_eq!(store.accepted(Filter::All(vec![])).await.len(), 5);
    assert_eq!(store.accepted(Filter::Any(vec![])).await.len(), 0);
    // A condition on a label that few jobs have: at each position, and repeated more often than the
    // store inspects.
    let team = is(label("team"), Equal, "search");
    assert_eq!(
        store
            .accepted(Filter::All(vec![
                Filter::Status(vec![Active]),
                team.clone()
            ]))
            .await,
        ["Half"]
    );
    assert_eq!(
        store
            .accepted(Filter::Any(vec![team.clone(), id("plain")]))
            .await,
        ["plain", "Half"]
    );
    assert_eq!(
        store.accepted(Filter::All(vec![team.clone(); 20])).await,
        ["Half"]
    );
    let by_tier = Sort {
        by: SortBy::Label("tier:a.b".to_owned()),
        ascending: true,
    };
    assert_eq!(
        store
            .find(JobQuery {
                filter: Some(team),
                sort: by_tier,
                ..JobQuery::default()
            })
            .await,
        ["Half"]
    );
    // The filter combines with the other conditions of the query.
    let query = JobQuery {
        statuses: vec![Completed, Cancelled],
        id_prefix: Some("d".into()),
        ..JobQuery::default()
    };
    assert_eq!(
        store
            .find(JobQuery {
                filter: Some(ended),
                ..query
            })
            .await,
        ["done"]
    );
}

async fn accepts_thousands_of_conditions(store: TestStore) {
    store.create_five_jobs().await;
    let mut many: Vec<Filter> = (0..2500)
        .map(|n| is(TextField::Id, Equal, &format!("job-{n}")))
        .collect();
    many.push(is(TextField::Id, Equal, "gone"));
    assert_eq!(store.accepted(Filter::Any(many)).await, ["gone"]);
    let many = (0..2500)
        .map(|n| is(TextField::Id, NotEqual, &format!("job-{n}")))
        .collect();
    assert_eq!(store.accepted(Filter::All(many)).await.len(), 5);
    let mut values: Vec<String> = (0..2500).map(|n| format!("job-{n}")).collect();
    values.push("gone".into());
    assert_eq!(
        store
            .accepted(Filter::Text(TextField::Id, TextTest::OneOf(values)))
            .await,
        ["gone"]
    );
}

async fn finds_jobs_by_the_presence_of_labels(store: TestStore) {
    store.create_five_jobs().await;
    for (labels, expected) in [
        (&["bare"][..], &["done"][..]),
        (&["tier:a.b", "bare"], &["fail_ed", "done", "Half"]),
        (&["team"], &["gone", "fail_ed", "done", "Half"]),
        (&["none"], &[]),
        (&["none", "BARE", "bare"], &["done"]),
    ] {
        assert_eq!(
            store
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
