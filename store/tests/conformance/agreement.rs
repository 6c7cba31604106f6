//! Both stores return the same jobs for the same random queries: those that the filter accepts.

use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
use JobStatus::{Active, Completed, Waiting};
use contract::JobStatus;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use store::{Comparison, EventKind, Filter, JobQuery, Pattern, Sort, SortBy, TextField, TextTest};

use crate::fixture::{TestStore, acme};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_stores_return_the_jobs_that_random_queries_accept() {
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
    let mut stores = Vec::new();
    for kind in ["sqlite", "postgres"] {
        let store = TestStore::open(kind).await;
        for (n, (id, [name, a, b])) in jobs.iter().enumerate() {
            let labels = [("a", a.as_deref()), ("b", b.as_deref())];
            let incarnation = store
                .create_labelled(id, name.as_deref(), if n % 4 == 0 { &[] } else { &labels })
                .await;
            let progress = EventKind::Progress(u8::try_from(n).unwrap());
            match n % 3 {
                0 => drop(store.report(&incarnation, "", progress).await),
                1 => drop(store.report(&incarnation, "", EventKind::Complete).await),
                _ if n % 2 == 0 => drop(store.cancel(&incarnation).await),
                _ => {}
            }
        }
        stores.push(store);
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
        let expected = stores[0].find(query.clone()).await;
        assert_eq!(stores[1].find(query.clone()).await, expected, "{query:?}");
        let mut selected = expected.clone();
        selected.sort();
        for store in &stores {
            let accepted = store::internals::accepted(store, &acme(), &query).await;
            assert_eq!(accepted.unwrap(), selected, "{}: {query:?}", store.kind());
        }
        found += expected.len();
    }
    assert!(found > 1000, "the queries find too few jobs: {found}");
}

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
        Just(TextField::CorrelationId),
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
        1 => (comparisons(), 0..3u8).prop_map(|(comparison, number)| Filter::BlockedTasks(comparison, f64::from(number))),
        1 => prop::sample::subsequence(vec![Waiting, Active, Completed], 0..=3).prop_map(Filter::Status),
        1 => Just(Filter::CanGoOn),
        1 => any::<bool>().prop_map(Filter::ShownAsBlocked),
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
