//! The filter language: operators, selectors, combination, quotes, wildcards and errors.

use reqwest::Method;
use serde_json::{Value, json};

use crate::service::{STATUSES, Service, Store, encoded};

on_both_stores![
    every_operator_works_on_every_selector,
    conditions_can_be_joined_grouped_and_quoted,
    star_is_the_only_wildcard,
];

on_one_store![invalid_filter_is_rejected_and_cancels_nothing,];

pub async fn put(service: &Service, id: &str, fields: Value) {
    let mut job = service.new_job("in");
    job.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    service.create(id, &job).await;
}

/// Creates six jobs, the oldest first: `alpha`, `Beta`, `gamma`, `delta`, `Ep_1` and `EpX1`, each
/// with a different status.
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

/// Lists and counts the jobs that match these parameters. Returns their ids, the oldest first.
pub async fn selected(service: &Service, parameters: &[(&str, &str)]) -> Vec<String> {
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

/// Checks a table of filters, each with the jobs that it matches.
async fn selects(service: &Service, table: &[(&str, &[&str])]) {
    for (filter, expected) in table {
        assert_eq!(
            selected(service, &[("filter", filter)]).await,
            *expected,
            "{filter}"
        );
    }
}

async fn every_operator_works_on_every_selector(store: Store) {
    let service = Service::start(store).await;
    six_jobs(&service).await;
    // Texts are in dictionary order: alpha, Beta, delta, Ep_1, EpX1, gamma. `{}` stands for the
    // selector.
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
        // A job without a name matches no comparison of names.
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
        // A job matches a comparison of a label only if it has the label with a value.
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
                selects(
                    &service,
                    &[(&format!("{selector}{operator}{value}"), &expected)],
                )
                .await;
            }
        }
    }
    selects(
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
        selects(&service, &[(&format!("status=={status}"), &[id])]).await;
    }
}

async fn conditions_can_be_joined_grouped_and_quoted(store: Store) {
    let service = Service::start(store).await;
    six_jobs(&service).await;
    selects(
        &service,
        &[
            ("status==Waiting;id==alpha", &["alpha"]),
            ("status==Waiting;id==Beta", &[]),
            ("status==Waiting and id==alpha", &["alpha"]),
            ("status==Waiting,id==Beta", &["alpha", "Beta"]),
            ("status==Waiting or id==Beta", &["alpha", "Beta"]),
            ("id==alpha , id==Beta , id==gamma", &["alpha", "Beta", "gamma"]),
            ("id!=alpha ; id!=Beta ; id!=gamma ; id!=delta", &["Ep_1", "EpX1"]),
            // `and` binds more tightly than `or`.
            ("id==alpha,id==Beta;status==Failed", &["alpha"]),
            ("id==Beta;status==Failed,id==alpha", &["alpha"]),
            ("id==alpha or id==Beta and status==Failed", &["alpha"]),
            ("id==alpha,id==delta;status==Failed,id==gamma;status==Failed", &["alpha", "delta"]),
            // Parentheses are evaluated first.
            ("(id==alpha,id==Beta);status==Failed", &[]),
            ("(id==alpha,id==delta);status==Failed", &["delta"]),
            ("status==Failed;(id==alpha,id==delta)", &["delta"]),
            ("( id==alpha or id==delta ) and status==Failed", &["delta"]),
            ("((id==alpha;status==Waiting),(id==Beta;(status==Active,status==Failed)));percentageComplete>0", &["Beta"]),
            ("((((id==alpha))))", &["alpha"]),
            (" id == alpha ", &["alpha"]),
            // Values that need quotes, and backslashes in quoted values.
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
    // A value never becomes part of an SQL statement.
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
            selects(
                &service,
                &[
                    (&format!("{selector}=='{quoted}'"), &[]),
                    (&format!("{selector}=='{quoted}*'"), &[]),
                ],
            )
            .await;
        }
    }
    // A client may encode a space as a plus sign.
    let path = "/jobs?filter=id==alpha+or+status==Failed&sort=jobId:asc";
    assert_eq!(service.get(path).await.ids(), ["alpha", "delta"]);
}

async fn star_is_the_only_wildcard(store: Store) {
    let service = Service::start(store).await;
    six_jobs(&service).await;
    put(
        &service,
        "brackets",
        json!({"name": "[a-z]?", "labels": {"team": "a\\b"}}),
    )
    .await;
    selects(
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
            // SQL's wildcards are plain characters in a filter.
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
            // A job without the name or label matches neither a pattern nor its negation.
            (
                "name==*",
                &["alpha", "Beta", "delta", "Ep_1", "EpX1", "brackets"],
            ),
            ("name!=*e*", &["Beta", "delta", "Ep_1", "brackets"]),
            ("labels.team==*earch", &["alpha", "Beta"]),
            ("labels.team!=s*", &["Beta", "Ep_1", "brackets"]),
            ("labels.team==*", &["alpha", "Beta", "Ep_1", "brackets"]),
            ("labels.tag:colour==*e*", &["alpha", "Beta", "gamma"]),
            // For the other operators a star is a plain character.
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

async fn invalid_filter_is_rejected_and_cancels_nothing(store: Store) {
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
        // CAF's text, followed by the position and the reason.
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
        // CAF passes these to its database and returns 500.
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
    // If the parameter were ignored, the request would end every job.
    for path in ["/jobs:cancel", "/jobs:delete"] {
        let text = "The parameter 'statusType' must be NotFinished, NotCompleted, Completed or Inactive, but is 'completed'.";
        ask(&Method::POST, path, "statusType", "completed")
            .await
            .refuses(400, text);
    }
    assert_eq!(service.state("j").await, ("Waiting".to_owned(), 0.0));
}
