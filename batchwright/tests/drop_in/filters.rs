//! Which jobs are meant: the language of filters on all that it can be asked of, the other parameters of lists and counts,
//! the order and the pages of lists, and what `jobs:cancel` and `jobs:delete` do to the jobs that are meant.
//!
//! Each question is put to the list and to the count, which must agree.

use harness::unique;
use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{STATUSES, Service, Store, encoded};

on_both_stores![
    every_operator_compares_every_selector,
    conditions_are_joined_grouped_and_quoted,
    a_star_stands_for_any_run_of_characters_and_nothing_else_does,
    what_is_wrong_with_a_question_is_said_and_nothing_is_ended_by_it,
    a_status_is_found_as_soon_as_it_is_true,
    prefix_status_type_and_labels_narrow_down,
    a_page_is_as_long_as_the_variable_says_and_begins_where_it_is_told,
    jobs_are_sorted_by_every_field_both_ways,
    jobs_are_cancelled_in_batches,
    jobs_are_deleted_in_batches,
];

async fn put(service: &Service, id: &str, fields: Value) {
    let mut job = service.new_job("in");
    job.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    service.create(id, &job).await;
}

/// Six jobs, the oldest first: `alpha`, `Beta`, `gamma`, `delta`, `Ep_1` and `EpX1`, each in another status.
async fn six_jobs(service: &Service) {
    put(
        service,
        "alpha",
        json!({"name": "Alpha one", "labels": {"team": "search", "tag:colour": "blue"}}),
    )
    .await;
    put(
        service,
        "Beta",
        json!({"name": "100% of_it", "labels": {"team": "Search", "tag:colour": "red"}}),
    )
    .await;
    put(
        service,
        "gamma",
        json!({"labels": {"team": null, "tag:colour": "Amber"}}),
    )
    .await;
    put(
        service,
        "delta",
        json!({"name": r#"it's "so"; (a,b)\"#, "labels": {"owner": "it's \"me\""}}),
    )
    .await;
    put(service, "Ep_1", json!({"name": "", "labels": {"team": ""}})).await;
    put(service, "EpX1", json!({"name": "épée"})).await;
    service.progress("Beta", ".2", 40).await;
    service.complete("Beta", ".1").await;
    service.complete("gamma", "").await;
    service.fail("delta", "", "broken").await;
    service.post("/jobs/Ep_1/pause", &[]).await.is(204);
    service.post("/jobs/EpX1/cancel", &[]).await.is(204);
    service.becomes("Beta", "Active", 46.67).await;
    service.becomes("gamma", "Completed", 100.0).await;
    service.becomes("delta", "Failed", 0.0).await;
}

/// The jobs that are meant, the oldest first.
async fn meant(service: &Service, parameters: &[(&str, &str)]) -> Vec<String> {
    let count = service
        .ask("/jobStats/count", parameters)
        .await
        .is(200)
        .json();
    let with_order = [parameters, &[("sort", "createTime:asc")]].concat();
    let ids = service.ask("/jobs", &with_order).await.ids();
    assert_eq!(
        count,
        ids.len(),
        "list and count of {parameters:?} differ: {ids:?}"
    );
    ids
}

/// The table of filters, each with the jobs that it means.
async fn mean(service: &Service, table: &[(&str, &[&str])]) {
    for (filter, expected) in table {
        assert_eq!(
            meant(service, &[("filter", filter)]).await,
            *expected,
            "{filter}"
        );
    }
}

async fn every_operator_compares_every_selector(store: Store) {
    let service = Service::start(store).await;
    six_jobs(&service).await;
    // The order of texts is that of a dictionary: alpha, Beta, delta, Ep_1, EpX1, gamma. `{}` is the selector.
    for (selector, value, equal, less, greater) in [
        (
            "id",
            "delta",
            &["delta"][..],
            &["alpha", "Beta"][..],
            &["gamma", "Ep_1", "EpX1"][..],
        ),
        (
            "id",
            "Delta",
            &[],
            &["alpha", "Beta", "delta"],
            &["gamma", "Ep_1", "EpX1"],
        ),
        // A job without a name is not compared.
        (
            "name",
            "'Alpha one'",
            &["alpha"],
            &["Beta", "Ep_1"],
            &["delta", "EpX1"],
        ),
        (
            "name",
            "''",
            &["Ep_1"],
            &[],
            &["alpha", "Beta", "delta", "EpX1"],
        ),
        (
            "name",
            "épée",
            &["EpX1"],
            &["alpha", "Beta", "Ep_1"],
            &["delta"],
        ),
        (
            "status",
            "Completed",
            &["gamma"],
            &["Beta", "EpX1"],
            &["alpha", "delta", "Ep_1"],
        ),
        (
            "percentageComplete",
            "46.67",
            &["Beta"],
            &["alpha", "delta", "Ep_1", "EpX1"],
            &["gamma"],
        ),
        (
            "percentageComplete",
            "-1e1",
            &[],
            &[],
            &["alpha", "Beta", "gamma", "delta", "Ep_1", "EpX1"],
        ),
        // A job is compared by a label only where it has the label, and the label a value.
        ("labels.team", "search", &["alpha"], &["Ep_1"], &["Beta"]),
        (
            "labels.tag:colour",
            "blue",
            &["alpha"],
            &["gamma"],
            &["Beta"],
        ),
        ("labels.none", "x", &[], &[], &[]),
    ] {
        let with = |parts: &[&[&str]]| {
            let all = ["alpha", "Beta", "gamma", "delta", "Ep_1", "EpX1"];
            all.into_iter()
                .filter(|id| parts.iter().any(|part| part.contains(id)))
                .collect::<Vec<_>>()
        };
        for (operators, expected) in [
            (&["=="][..], with(&[equal])),
            (&["!="], with(&[less, greater])),
            (&["=lt=", "<"], with(&[less])),
            (&["=le=", "<="], with(&[less, equal])),
            (&["=gt=", ">"], with(&[greater])),
            (&["=ge=", ">="], with(&[greater, equal])),
        ] {
            for operator in operators {
                mean(
                    &service,
                    &[(&format!("{selector}{operator}{value}"), &expected)],
                )
                .await;
            }
        }
    }
    mean(
        &service,
        &[
            ("id=in=(alpha,gamma,nobody)", &["alpha", "gamma"]),
            ("id=in=(Alpha)", &[]),
            ("id=in=alpha", &["alpha"]),
            (
                "id=out=(alpha,gamma,nobody)",
                &["Beta", "delta", "Ep_1", "EpX1"],
            ),
            ("name=in=('Alpha one',épée)", &["alpha", "EpX1"]),
            ("name=out=('Alpha one', 'épée')", &["Beta", "delta", "Ep_1"]),
            ("status=in=(Waiting,Active)", &["alpha", "Beta"]),
            ("status=in=( Failed , Paused )", &["delta", "Ep_1"]),
            (
                "status=out=(Failed,Completed)",
                &["alpha", "Beta", "Ep_1", "EpX1"],
            ),
            (
                "percentageComplete=in=(0,100)",
                &["alpha", "gamma", "delta", "Ep_1", "EpX1"],
            ),
            ("percentageComplete=out=(0,100.0)", &["Beta"]),
            ("labels.team=in=(search,Search)", &["alpha", "Beta"]),
            ("labels.team=out=(search)", &["Beta", "Ep_1"]),
            ("labels.tag:colour=in=(red,Amber,green)", &["Beta", "gamma"]),
            ("labels.none=out=(x)", &[]),
        ],
    )
    .await;
    for (status, id) in STATUSES
        .into_iter()
        .zip(["Beta", "EpX1", "gamma", "delta", "Ep_1", "alpha"])
    {
        mean(&service, &[(&format!("status=={status}"), &[id])]).await;
    }
}

async fn conditions_are_joined_grouped_and_quoted(store: Store) {
    let service = Service::start(store).await;
    six_jobs(&service).await;
    mean(
        &service,
        &[
            ("status==Waiting;id==alpha", &["alpha"]),
            ("status==Waiting;id==Beta", &[]),
            ("status==Waiting and id==alpha", &["alpha"]),
            ("status==Waiting,id==Beta", &["alpha", "Beta"]),
            ("status==Waiting or id==Beta", &["alpha", "Beta"]),
            ("id==alpha , id==Beta , id==gamma", &["alpha", "Beta", "gamma"]),
            ("id!=alpha ; id!=Beta ; id!=gamma ; id!=delta", &["Ep_1", "EpX1"]),
            // And goes before or.
            ("id==alpha,id==Beta;status==Failed", &["alpha"]),
            ("id==Beta;status==Failed,id==alpha", &["alpha"]),
            ("id==alpha or id==Beta and status==Failed", &["alpha"]),
            ("id==alpha,id==delta;status==Failed,id==gamma;status==Failed", &["alpha", "delta"]),
            // What is in parentheses goes first.
            ("(id==alpha,id==Beta);status==Failed", &[]),
            ("(id==alpha,id==delta);status==Failed", &["delta"]),
            ("status==Failed;(id==alpha,id==delta)", &["delta"]),
            ("( id==alpha or id==delta ) and status==Failed", &["delta"]),
            ("((id==alpha;status==Waiting),(id==Beta;(status==Active,status==Failed)));percentageComplete>0", &["Beta"]),
            ("((((id==alpha))))", &["alpha"]),
            (" id == alpha ", &["alpha"]),
            // Values that need quotes, and what a backslash does in them.
            ("name=='Alpha one'", &["alpha"]),
            ("name==\"Alpha one\"", &["alpha"]),
            (r#"name=='it\'s "so"; (a,b)\\'"#, &["delta"]),
            (r#"name=="it's \"so\"; (a,b)\\""#, &["delta"]),
            (r#"name=='\i\t\'s "so"; (a,b)\\'"#, &["delta"]),
            (r#"labels.owner=='it\'s "me"'"#, &["delta"]),
            (r#"labels.owner=in=("it's \"me\"")"#, &["delta"]),
            ("name=='100% of_it'", &["Beta"]),
            ("id=='alpha'", &["alpha"]),
            ("status=='Failed'", &["delta"]),
            ("percentageComplete=='100'", &["gamma"]),
        ],
    )
    .await;
    // Values are never part of the language of the database.
    for hostile in [
        "x' or '1'='1",
        "x'; drop table job; --",
        "x\\' or 1=1 --",
        "$1",
        "{}",
        "%s",
    ] {
        let quoted = hostile.replace('\\', "\\\\").replace('\'', "\\'");
        for selector in ["id", "name", "labels.team"] {
            mean(
                &service,
                &[
                    (&format!("{selector}=='{quoted}'"), &[]),
                    (&format!("{selector}=='{quoted}*'"), &[]),
                ],
            )
            .await;
        }
    }
    // A blank may come as a plus.
    let path = "/jobs?filter=id==alpha+or+status==Failed&sort=jobId:asc";
    assert_eq!(service.get(path).await.ids(), ["alpha", "delta"]);
}

async fn a_star_stands_for_any_run_of_characters_and_nothing_else_does(store: Store) {
    let service = Service::start(store).await;
    six_jobs(&service).await;
    put(
        &service,
        "brackets",
        json!({"name": "[a-z]?", "labels": {"team": "a\\b"}}),
    )
    .await;
    mean(
        &service,
        &[
            (
                "id==*",
                &[
                    "alpha", "Beta", "gamma", "delta", "Ep_1", "EpX1", "brackets",
                ],
            ),
            ("id==*a", &["alpha", "Beta", "gamma", "delta"]),
            ("id==al*", &["alpha"]),
            ("id==*lp*", &["alpha"]),
            ("id==*a*m*a*", &["gamma"]),
            ("id==alpha*", &["alpha"]),
            ("id==**alpha**", &["alpha"]),
            ("id==AL*", &[]),
            ("id==b*", &["brackets"]),
            ("id!=*a", &["Ep_1", "EpX1", "brackets"]),
            ("id!=*", &[]),
            // What are wildcards to a database are plain characters here.
            ("id==Ep_*", &["Ep_1"]),
            ("id==Ep_1", &["Ep_1"]),
            ("name==100%*", &["Beta"]),
            ("name=='%*'", &[]),
            ("name==*_it", &["Beta"]),
            ("name=='[a-z]*'", &["brackets"]),
            ("name=='*?'", &["brackets"]),
            ("name=='*]?'", &["brackets"]),
            (r"name=='*\\'", &["delta"]),
            (r"labels.team=='a\\*'", &["brackets"]),
            ("name=='* *'", &["alpha", "Beta", "delta"]),
            ("name=='Alpha*'", &["alpha"]),
            ("name==*é*", &["EpX1"]),
            // No name, no match, either way.
            (
                "name==*",
                &["alpha", "Beta", "delta", "Ep_1", "EpX1", "brackets"],
            ),
            ("name!=*e*", &["Beta", "delta", "Ep_1", "brackets"]),
            ("labels.team==*earch", &["alpha", "Beta"]),
            ("labels.team!=s*", &["Beta", "Ep_1", "brackets"]),
            ("labels.team==*", &["alpha", "Beta", "Ep_1", "brackets"]),
            ("labels.tag:colour==*e*", &["alpha", "Beta", "gamma"]),
            // To the other operators it is a character like others.
            ("id=in=(al*,Beta)", &["Beta"]),
            (
                "id=out=(*)",
                &[
                    "alpha", "Beta", "gamma", "delta", "Ep_1", "EpX1", "brackets",
                ],
            ),
            (
                "id>=*",
                &[
                    "alpha", "Beta", "gamma", "delta", "Ep_1", "EpX1", "brackets",
                ],
            ),
        ],
    )
    .await;
}

async fn what_is_wrong_with_a_question_is_said_and_nothing_is_ended_by_it(store: Store) {
    let service = Service::start(store).await;
    service.create("j", &service.new_job("in")).await;
    let everywhere = [
        (Method::GET, "/jobs"),
        (Method::GET, "/jobStats/count"),
        (Method::POST, "/jobs:cancel"),
        (Method::POST, "/jobs:delete"),
    ];
    let ask = async |method: &Method, path: &str, name: &str, value: &str| {
        let path = service.path(&format!("{path}?{name}={}", encoded(value)));
        service.call(method.clone(), &path, None, &[]).await
    };
    for (method, path) in &everywhere {
        for key in [
            "colour",
            "Id",
            "ID",
            "Name",
            "jobId",
            "description",
            "createTime",
            "labels",
            "label.team",
            "Labels.team",
        ] {
            for filter in [format!("{key}==x"), format!("id==j;({key}=in=(x),id==j)")] {
                ask(method, path, "filter", &filter)
                    .await
                    .refuses(400, &format!("Unsupported filter key specified: {key}"));
            }
        }
        // CAF's text, and then where and what.
        for filter in [
            "id",
            "id=",
            "id==",
            "==j",
            "id=j",
            "id~j",
            "id=eq=j",
            "id==j;",
            ";id==j",
            "id==j,,id==j",
            "id==j and",
            "and id==j",
            "(id==j",
            "id==j)",
            "()",
            "id=in=()",
            "id=in=(j",
            "id=in=(j,)",
            "id==(j,k)",
            "id==j k",
            "id=='j",
            "id==\"j",
            "id=='j\\'",
            "id==j;;id==j",
            "id==j!",
            "id===j",
            "id==j or",
            "!id==j",
            "id==a\0",
        ] {
            let answer = ask(method, path, "filter", filter).await;
            assert_eq!(
                (answer.status, answer.header("content-type")),
                (400, Some("application/json")),
                "{path} {filter}: {answer:?}"
            );
            let text = answer.json()["message"].as_str().unwrap().to_owned();
            assert!(
                text.starts_with("Unable to parse filter"),
                "{path} {filter}: {text}"
            );
        }
        // What CAF passes to its database, which answers 500.
        for (filter, text) in [
            (
                "percentageComplete==ten",
                "Invalid value for percentageComplete in filter: ten. It must be a number.",
            ),
            (
                "percentageComplete=in=(1,5*)",
                "Invalid value for percentageComplete in filter: 5*. It must be a number.",
            ),
            (
                "percentageComplete==*",
                "Invalid value for percentageComplete in filter: *. It must be a number.",
            ),
            (
                "percentageComplete<NaN",
                "Invalid value for percentageComplete in filter: NaN. It must be a number.",
            ),
            (
                "status==active",
                "Invalid value for status in filter: active. \
                 It must be one of Active, Blocked, Cancelled, Completed, Failed, Paused, Waiting.",
            ),
            (
                "status!=Act*",
                "Invalid value for status in filter: Act*. \
                 It must be one of Active, Blocked, Cancelled, Completed, Failed, Paused, Waiting.",
            ),
        ] {
            ask(method, path, "filter", filter).await.refuses(400, text);
        }
    }
    for (sort, text) in [
        ("name", "Invalid format for sort: name"),
        ("asc", "Invalid format for sort: asc"),
        ("labels.team", "Invalid format for sort: labels.team"),
        ("labels.:asc", "Invalid format for label sort specified"),
        ("labels.:up", "Invalid format for label sort specified"),
        ("labels:asc", "Invalid value for sort field: labels:asc"),
        ("colour:asc", "Invalid value for sort field: colour:asc"),
        ("id:up", "Invalid value for sort field: id:up"),
        ("Name:asc", "Invalid value for sort field: Name:asc"),
        (":asc", "Invalid value for sort field: :asc"),
        ("name:up", "Invalid value for sort direction: up"),
        ("name:ASC", "Invalid value for sort direction: ASC"),
        ("name:", "Invalid value for sort direction: "),
        ("labels.team:up", "Invalid value for sort direction: up"),
    ] {
        ask(&Method::GET, "/jobs", "sort", sort)
            .await
            .refuses(400, text);
    }
    for (name, value) in [
        ("limit", "ten"),
        ("limit", "1.5"),
        ("offset", "x"),
        ("offset", "1e3"),
    ] {
        let text = format!("The parameter '{name}' must be a whole number, but is '{value}'.");
        ask(&Method::GET, "/jobs", name, value)
            .await
            .refuses(400, &text);
    }
    // To ignore it would be to end every job.
    for path in ["/jobs:cancel", "/jobs:delete"] {
        let text = "The parameter 'statusType' must be NotFinished, NotCompleted, Completed or Inactive, but is 'completed'.";
        ask(&Method::POST, path, "statusType", "completed")
            .await
            .refuses(400, text);
    }
    assert_eq!(service.state("j").await, ("Waiting".to_owned(), 0.0));
}

async fn a_status_is_found_as_soon_as_it_is_true(store: Store) {
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
    // Nobody has looked at the other jobs, and questions are answered by what they are.
    for (name, value, expected) in [
        ("statusType", "Completed", &["done", "last"][..]),
        ("statusType", "NotFinished", &["half"]),
        ("statusType", "Inactive", &["done", "broken", "last"]),
        ("filter", "status==Failed", &["broken"]),
        ("filter", "percentageComplete==50", &["half"]),
        ("filter", "percentageComplete==100", &["done", "last"]),
    ] {
        assert_eq!(
            meant(&service, &[(name, value)]).await,
            expected,
            "{name}={value}"
        );
    }
    // A job that has ended unseen does not stand in the way of the others.
    assert_eq!(
        service.post("/jobs:cancel", &[]).await.is(200).json(),
        json!({"jobsCanceled": 1})
    );
    assert_eq!(service.state("half").await.0, "Cancelled");
    assert_eq!(service.state("done").await, ("Completed".to_owned(), 100.0));
}

async fn prefix_status_type_and_labels_narrow_down(store: Store) {
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
            meant(&service, &[("statusType", status_type)]).await,
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
            meant(&service, &[("jobIdStartsWith", prefix)]).await,
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
    // All labels of a job are told, whichever was asked for.
    let listed = service.ask("/jobs", &[("labelExist", "team")]).await.json();
    assert_eq!(listed[0]["labels"], json!({"team": "search", "tag:1": "x"}));
}

async fn a_page_is_as_long_as_the_variable_says_and_begins_where_it_is_told(store: Store) {
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
    // A count is of all pages.
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

async fn jobs_are_sorted_by_every_field_both_ways(store: Store) {
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
        // Without a name last; upper case after lower case of the same letter.
        ("name", ["A", "d", "ä", "b", "C"]),
        ("description", ["d", "C", "ä", "b", "A"]),
        ("externalData", ["A", "b", "C", "ä", "d"]),
        ("createTime", ["b", "C", "A", "d", "ä"]),
        ("status", ["d", "C", "A", "b", "ä"]),
        ("percentageComplete", ["b", "A", "ä", "d", "C"]),
        // Without the label, or without a value of it, last.
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

/// Twelve jobs: those of even number are `even-…`; 1 to 3 are labelled, 10 is cancelled and 11 is completed.
async fn twelve_jobs(service: &Service) {
    for n in 0..12 {
        let labels = if (1..=3).contains(&n) {
            json!({"few": n.to_string()})
        } else {
            json!({})
        };
        put(
            service,
            &format!("{}-{n}", if n % 2 == 0 { "even" } else { "odd" }),
            json!({"labels": labels}),
        )
        .await;
    }
    service.post("/jobs/even-10/cancel", &[]).await.is(204);
    service.complete("odd-11", "").await;
    service.becomes("odd-11", "Completed", 100.0).await;
}

async fn jobs_are_cancelled_in_batches(store: Store) {
    let service = Service::start_with(store, &[("CAF_CANCEL_JOBS_BATCH_LIMIT", "3")]).await;
    twelve_jobs(&service).await;
    let elsewhere = format!(
        "/job-service/v1/partitions/{}/jobs/even-0",
        unique("elsewhere")
    );
    service
        .call(
            Method::PUT,
            &elsewhere,
            Some(&service.new_job("in").to_string()),
            &[],
        )
        .await
        .is(201);
    for (parameters, count, unfinished) in [
        (&[("filter", "id==nobody")][..], 0, 10),
        (&[("labelExist", "few"), ("filter", "labels.few>=2")], 2, 8),
        (&[("jobIdStartsWith", "odd-"), ("labelExist", "few")], 1, 7),
        (&[("filter", "id=in=(even-0, even-2, even-4)")], 2, 5),
        // Those that have ended are not cancelled again, and not counted.
        (&[("filter", "status=in=(Cancelled,Completed)")], 0, 5),
        (&[], 5, 0),
        (&[], 0, 0),
    ] {
        let answer = service.post("/jobs:cancel", parameters).await.is(200);
        assert_eq!(
            answer.json(),
            json!({"jobsCanceled": count}),
            "{parameters:?}"
        );
        assert_eq!(
            service
                .ask("/jobStats/count", &[("statusType", "NotFinished")])
                .await
                .json(),
            unfinished,
            "{parameters:?}"
        );
    }
    assert_eq!(service.state("odd-11").await.0, "Completed");
    assert_eq!(
        service
            .call(Method::GET, &elsewhere, None, &[])
            .await
            .json()["status"],
        "Waiting"
    );

    // More batches than one, whatever the filter.
    for n in 0..20 {
        service
            .create(&format!("more-{n}"), &service.new_job("in"))
            .await;
    }
    let filter = [("filter", "id==more-*;id!=more-7")];
    assert_eq!(
        service.post("/jobs:cancel", &filter).await.is(200).json(),
        json!({"jobsCanceled": 19})
    );
    assert_eq!(
        meant(&service, &[("statusType", "NotFinished")]).await,
        ["more-7"]
    );
}

async fn jobs_are_deleted_in_batches(store: Store) {
    let service = Service::start_with(store, &[("CAF_DELETE_JOBS_BATCH_LIMIT", "3")]).await;
    twelve_jobs(&service).await;
    let elsewhere = format!(
        "/job-service/v1/partitions/{}/jobs/even-0",
        unique("elsewhere")
    );
    service
        .call(
            Method::PUT,
            &elsewhere,
            Some(&service.new_job("in").to_string()),
            &[],
        )
        .await
        .is(201);
    for (parameters, count, left) in [
        (&[("filter", "id==nobody")][..], 0, 12),
        (&[("labelExist", "few"), ("filter", "labels.few>=2")], 2, 10),
        (&[("filter", "status==Completed")], 1, 9),
        (&[("jobIdStartsWith", "even-")], 5, 4),
        (&[], 4, 0),
        (&[], 0, 0),
    ] {
        let answer = service.post("/jobs:delete", parameters).await.is(200);
        assert_eq!(
            answer.json(),
            json!({"jobsDeleted": count}),
            "{parameters:?}"
        );
        assert_eq!(
            service.get("/jobStats/count").await.json(),
            left,
            "{parameters:?}"
        );
    }
    service
        .call(Method::GET, &elsewhere, None, &[])
        .await
        .is(200);

    // More batches than one; and what has been deleted may be created again.
    for n in 0..20 {
        service
            .create(&format!("even-{n}"), &service.new_job("in"))
            .await;
    }
    assert_eq!(
        service
            .ask("/jobStats/count", &[("jobIdStartsWith", "even-")])
            .await
            .json(),
        20
    );
    assert_eq!(
        service
            .post("/jobs:delete", &[("filter", "id!=even-7")])
            .await
            .is(200)
            .json(),
        json!({"jobsDeleted": 19})
    );
    assert_eq!(service.get("/jobs").await.ids(), ["even-7"]);
}
