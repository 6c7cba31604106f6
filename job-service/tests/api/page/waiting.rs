//! Conditions that tasks wait for, and a job whose tasks wait, in a real browser.

use std::ops::RangeInclusive;

use contract::{Announced, Condition, ConditionCode, ConditionKey, RetryPolicy, Tester};
use harness::wait_for;
use serde_json::json;
use store::EventKind;

use super::browser::{browser, choose_by_keyboard, open, report, shows};
use crate::conditions;
use crate::service::{Service, new_job};

#[tokio::test]
async fn condition_is_followed_tested_and_given_up_by_keyboard() {
    let Some(browser) = browser().await else {
        return;
    };
    let service = Service::start().await;
    let tab = open(&browser).await;
    tab.go(&format!("{}/conditions", service.root))
        .await
        .unwrap();
    shows(&tab, "#live-text", "Live").await;
    shows(&tab, ".empty h2", "No task waits for a condition").await;
    let key = blocked_job(&service).await;
    shows(&tab, "table", "all 12 licences").await;
    shows(&tab, "table", "TCP orders.database").await;
    choose_by_keyboard(&tab, "DATABASE_NOT_AVAILABLE").await;
    shows(&tab, ".facts", "waits for its next test").await;
    choose_by_keyboard(&tab, "Test now").await;
    shows(&tab, ".done", "The condition is being tested.").await;
    // The operator allows no such test, so a task tests it.
    shows(&tab, ".facts", "a task tests it").await;
    choose_by_keyboard(&tab, "Fail").await;
    shows(&tab, "h1", "Fail the tasks of").await;
    choose_by_keyboard(&tab, "Fail now").await;
    shows(&tab, ".done", "The tasks are failing.").await;
    let gone = format!("/job-service/v1/conditions/{key}");
    wait_for("the condition to be gone", async || {
        let found = service.call(reqwest::Method::GET, &gone, None).await;
        let tasks = found.json()["tasks"].clone();
        if tasks == json!(0) || tasks.is_null() {
            Ok(())
        } else {
            Err(tasks.to_string())
        }
    })
    .await;
    tab.close().await.unwrap();
}

/// Creates a job of which all open tasks wait, for conditions of several kinds. Returns the key of
/// one.
pub async fn blocked_job(service: &Service) -> ConditionKey {
    let mut job = new_job();
    job["name"] = json!("Index the scans of 2016");
    service.put("index-2016", &job).await.is(201);
    let stated = EventKind::Announced {
        stated: Some(Announced {
            batches: 0,
            items: Some(40),
        }),
        digest: None,
    };
    let mut events = vec![(".41*".to_owned(), stated)];
    events.extend((1..=12).map(|number| (format!(".{number}"), EventKind::Complete)));
    events.push((".41*".to_owned(), EventKind::Complete));
    report(service, "index-2016", events).await;
    let database = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
        .parameter("database", "orders")
        .unwrap()
        .tested_by(Tester::Tcp {
            host: "orders.database.internal.example.com".to_owned(),
            port: 5432,
        })
        .unwrap()
        .because("error connecting to orders.database.internal.example.com:5432: Connection refused (os error 111)");
    // Nobody tests them before a person does.
    let policy: RetryPolicy = "constant,delay=1h,attempts=none,within=2d".parse().unwrap();
    let database = database.policy(policy.clone()).unwrap();
    let licence = Condition::new("LICENCE_IN_USE".parse().unwrap())
        .policy(policy)
        .unwrap()
        .because("all 12 licences of the recognition engine are in use");
    block(service, "index-2016", 13..=37, &database).await;
    block(service, "index-2016", 38..=40, &licence).await;
    database.key()
}

/// Lets tasks of a job wait for a condition.
async fn block(service: &Service, job: &str, tasks: RangeInclusive<u32>, condition: &Condition) {
    let tasks: Vec<u32> = tasks.collect();
    conditions::block(service, job, &tasks, 1, condition).await;
}
