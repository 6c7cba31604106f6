//! The web page over plain HTTP: what it shows, what it refuses, and that text of a job is never
//! markup.

mod browser;
mod forms;
mod sights;
mod waiting;

use contract::JobStatus;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use reqwest::Method;
use serde_json::json;
use store::EventKind;

use crate::service::{Answer, Service, new_job};

/// The header of a form that the page itself sends.
pub const OWN: (&str, &str) = ("Sec-Fetch-Site", "same-origin");

/// Gets a page as a browser does.
pub async fn page(service: &Service, path: &str) -> Answer {
    let request = service.request(Method::GET, path);
    Answer::of(request.header("Accept", "text/html,*/*;q=0.8")).await
}

/// Sends a form of the page.
pub async fn submit(
    service: &Service,
    path: &str,
    fields: &str,
    (name, value): (&str, &str),
) -> Answer {
    let request = service
        .request(Method::POST, path)
        .header("Accept", "text/html")
        .header("Content-Type", "application/x-www-form-urlencoded")
        .header(name, value)
        .body(fields.to_owned());
    Answer::of(request).await
}

/// Encodes a text for a URL, as the page does.
fn encode(text: &str) -> String {
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'_')
        .remove(b'.')
        .remove(b'~');
    utf8_percent_encode(text, ENCODED).to_string()
}

async fn status(service: &Service, job: &str) -> String {
    let job = service.get(&format!("/jobs/{job}")).await.is(200).json();
    job["status"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn first_page_lists_the_partitions_and_leads_to_the_only_one() {
    let service = Service::start().await;
    let empty = page(&service, "/").await.is(200);
    empty.contains("There are no jobs yet");
    empty.contains("batchwright submit");
    service.put("j", &new_job()).await.is(201);
    let partition = service.partition.clone();
    let only = page(&service, "/").await.is(303);
    assert_eq!(
        only.header("location"),
        format!("/partitions/{partition}/jobs")
    );
    let other = "/job-service/v1/partitions/other%20one/jobs/j";
    let created = service
        .call(Method::PUT, other, Some(new_job().to_string()))
        .await;
    created.is(201);
    let both = page(&service, "/").await.is(200);
    both.contains(&partition);
    both.contains(r#"<a href="/partitions/other%20one/jobs">other one</a>"#);
}

#[tokio::test]
async fn every_page_forbids_scripts_and_styles_that_are_not_its_own() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let job = format!("/partitions/{}/jobs/j", service.partition);
    for path in [
        "/nothing".to_owned(),
        format!("/partitions/{}/jobs", service.partition),
        format!("/partitions/{}/jobs?filter=nonsense", service.partition),
        format!("{job}/failures"),
        format!("{job}/tasks/0"),
        format!("{job}/tasks/nonsense"),
        format!("{job}/definition"),
        format!("{job}/outputs"),
        format!("{job}/confirm?action=delete"),
        format!("{job}/confirm?action=nonsense"),
        format!("/partitions/{}/jobs/unknown", service.partition),
        job,
    ] {
        let page = page(&service, &path).await;
        let policy = page.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';")
                && !policy.contains("unsafe"),
            "{path}: {policy}"
        );
        assert_eq!(page.header("content-type"), "text/html; charset=utf-8");
        assert_eq!(page.header("x-content-type-options"), "nosniff");
        let body = &page.body;
        for inline in [" style=", "<style", " onclick=", "<script>", "javascript:"] {
            assert!(!body.contains(inline), "{path} has {inline}: {body}");
        }
        for own in body.split("src=\"").skip(1) {
            assert!(own.starts_with("/assets/"), "{path}: {own:.60}");
        }
    }
}

#[tokio::test]
async fn assets_are_kept_for_ever_under_a_url_that_changes_with_them() {
    let service = Service::start().await;
    let first = page(&service, "/").await.is(200);
    let urls = first
        .body
        .split('"')
        .filter(|text| text.starts_with("/assets/"));
    let mut count = 0;
    for url in urls {
        let asset = page(&service, url).await.is(200);
        assert_eq!(
            asset.header("cache-control"),
            "public, max-age=31536000, immutable"
        );
        assert!(!asset.body.is_empty());
        let (_, name) = url.rsplit_once('/').unwrap();
        page(&service, &format!("/assets/0000000000000000/{name}"))
            .await
            .is(404);
        count += 1;
    }
    assert_eq!(count, 5, "{}", first.body);
}

#[tokio::test]
async fn errors_are_pages_for_browsers_and_json_for_programs() {
    let service = Service::start().await;
    let path = format!("/partitions/{}/jobs/unknown", service.partition);
    let shown = page(&service, &path).await.is(404);
    shown.contains("<h1>");
    shown.contains("ERROR: job_id {unknown} not found");
    shown.contains("correlation id");
    let program = service.call(Method::GET, &path, None).await;
    program.refuses(404, "ERROR: job_id {unknown} not found");
    let api = page(&service, &service.path("/jobs/unknown")).await;
    api.refuses(404, "ERROR: job_id {unknown} not found");
    let list = format!("/partitions/{}/jobs", service.partition);
    let invalid = page(&service, &format!("{list}?filter=colour%3D%3Dred")).await;
    invalid.contains("Unsupported filter key specified: colour");
    invalid.contains(r#"value="colour==red""#);
    assert_eq!(invalid.status, 400);
    for wrong in ["status=Nonsense", "sort=up", "limit=x"] {
        let invalid = page(&service, &format!("{list}?{wrong}")).await.is(400);
        invalid.contains(r#"role="alert""#);
    }
}

#[tokio::test]
async fn list_is_filtered_sorted_counted_and_paged_by_its_url() {
    let service = Service::start().await;
    for number in 1..=5 {
        service.put(&format!("j{number}"), &new_job()).await.is(201);
    }
    service.cancel("j2").await.is(204);
    let list = format!("/partitions/{}/jobs", service.partition);
    let first = page(&service, &format!("{list}?limit=2&sort=jobId:asc"))
        .await
        .is(200);
    first.contains("j1</a>");
    first.contains("1–2 of 5");
    assert!(!first.body.contains("j3</a>"));
    let next = first.body.split(r#"rel="next" href=""#).nth(1).unwrap();
    let next = next.split('"').next().unwrap().replace("&#38;", "&");
    let second = page(&service, &next).await.is(200);
    second.contains("j3</a>");
    second.contains("3–4 of 5");
    let cancelled = page(&service, &format!("{list}?status=Cancelled")).await;
    cancelled.contains("j2</a>");
    assert!(!cancelled.body.contains("j1</a>"));
    let filtered = page(&service, &format!("{list}?filter=id%3D%3Dj3")).await;
    filtered.contains("1–1 of 1");
    let none = page(&service, &format!("{list}?filter=id%3D%3Dx")).await;
    none.contains("No job matches");
    let behind = page(&service, &format!("{list}?offset=100&sort=jobId:asc")).await;
    behind.contains("There are no further jobs");
    behind.contains(r#"/jobs?sort=jobId%3Aasc">The first page</a>"#);
}

#[tokio::test]
async fn form_that_does_not_come_from_the_page_itself_changes_nothing() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let job = format!("/partitions/{}/jobs/j", service.partition);
    let bulk = format!("/partitions/{}/bulk", service.partition);
    for header in [
        ("Sec-Fetch-Site", "cross-site"),
        ("Sec-Fetch-Site", "same-site"),
        ("Sec-Fetch-Site", "none"),
        ("Origin", "https://evil.example"),
        ("Origin", "null"),
        ("X-Nothing", "of the kind"),
    ] {
        for path in [format!("{job}/cancel"), format!("{job}/delete")] {
            let refused = submit(&service, &path, "", header).await.is(403);
            refused.contains("<h1>");
        }
        let fields = "action=delete&of=all";
        submit(&service, &bulk, fields, header).await.is(403);
    }
    assert_eq!(status(&service, "j").await, JobStatus::Waiting.to_string());
    let foreign = service.request(Method::POST, &service.path("/jobs/j/cancel"));
    let foreign = foreign.header("Sec-Fetch-Site", "cross-site");
    Answer::of(foreign).await.is(403);
    assert_eq!(status(&service, "j").await, JobStatus::Waiting.to_string());
    let root = service.root.clone();
    submit(&service, &format!("{job}/cancel"), "", ("Origin", &root))
        .await
        .is(303);
    assert_eq!(
        status(&service, "j").await,
        JobStatus::Cancelled.to_string()
    );
}

#[tokio::test]
async fn actions_do_what_the_api_does_and_lead_back_to_the_job() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let job = format!("/partitions/{}/jobs/j", service.partition);
    for (action, after, words) in [
        ("pause", "Paused", "The job was paused."),
        ("resume", "Active", "The job was resumed."),
        ("cancel", "Cancelled", "The job was cancelled."),
        ("retry", "Waiting", "The job was taken up again."),
    ] {
        let done = submit(&service, &format!("{job}/{action}"), "", OWN)
            .await
            .is(303);
        let next = done.header("location").to_owned();
        page(&service, &next).await.is(200).contains(words);
        let seen = status(&service, "j").await;
        assert!(seen == after || seen == "Active", "{action}: {seen}");
    }
    let refused = submit(&service, &format!("{job}/retry"), "", OWN).await;
    refused.is(409).contains("cannot be retried");
    submit(&service, &format!("{job}/nonsense"), "", OWN)
        .await
        .is(404);
    page(&service, &format!("{job}/confirm?action=delete"))
        .await
        .is(200)
        .contains("Delete the job j?");
    submit(&service, &format!("{job}/delete"), "", OWN)
        .await
        .is(303);
    service.get("/jobs/j").await.is(404);
}

#[tokio::test]
async fn job_that_is_completed_although_items_have_failed_can_be_retried() {
    let service = Service::start().await;
    let mut job = new_job();
    job["onFailure"] = json!({"continue": {"tolerate": 1}});
    service.put("j", &job).await.is(201);
    let failed = EventKind::Failed(contract::ReportFailure::default());
    service.report("j", ".1", failed).await;
    service.report("j", ".2*", EventKind::Complete).await;
    assert_eq!(status(&service, "j").await, "Completed");
    let path = format!("/partitions/{}/jobs/j", service.partition);
    let retry = format!(r#"action="{path}/retry""#);
    page(&service, &path).await.contains(&retry);
    submit(&service, &format!("{path}/retry"), "", OWN)
        .await
        .is(303);
    let retried = page(&service, &path).await;
    assert!(!retried.body.contains(&retry));
}

#[tokio::test]
async fn retry_of_all_jobs_counts_and_takes_up_those_with_tolerated_failures() {
    let service = Service::start().await;
    let mut job = new_job();
    job["onFailure"] = json!({"continue": {"tolerate": 1}});
    for id in ["done", "tolerated"] {
        service.put(id, &job).await.is(201);
        let end = if id == "done" {
            EventKind::Complete
        } else {
            EventKind::Failed(contract::ReportFailure::default())
        };
        service.report(id, ".1", end).await;
        service.report(id, ".2*", EventKind::Complete).await;
        assert_eq!(status(&service, id).await, "Completed");
    }
    let bulk = format!("/partitions/{}/bulk", service.partition);
    let all = "of=all&status=Completed&action=retry";
    let asked = page(&service, &format!("{bulk}?{all}")).await.is(200);
    asked.contains("Retry 1 job?");
    asked.contains("2 match; 1 of them can be taken up again");
    submit(&service, &bulk, all, OWN).await.is(303);
    assert_eq!(status(&service, "tolerated").await, "Active");
    assert_eq!(status(&service, "done").await, "Completed");
}

#[tokio::test]
async fn several_jobs_are_asked_about_with_their_number_and_then_changed() {
    let service = Service::start().await;
    for job in ["a1", "a2", "a3", "b1"] {
        service.put(job, &new_job()).await.is(201);
    }
    service.cancel("a3").await.is(204);
    let bulk = format!("/partitions/{}/bulk", service.partition);
    let all = "of=all&filter=id%3D%3Da*";
    let asked = page(&service, &format!("{bulk}?{all}&action=cancel"))
        .await
        .is(200);
    asked.contains("Cancel 2 jobs?");
    asked.contains("3 match; 2 of them can be cancelled");
    let none = format!("{bulk}?{all}&status=Cancelled&action=pause");
    let nothing = page(&service, &none).await.is(200);
    nothing.contains("No job can be paused");
    // A tab whose jobs do not allow the action must not widen the query to every status.
    submit(
        &service,
        &bulk,
        &format!("{all}&status=Cancelled&action=pause"),
        OWN,
    )
    .await
    .is(303);
    assert_eq!(status(&service, "a1").await, "Waiting");
    for (action, after) in [
        ("pause", "Paused"),
        ("resume", "Active"),
        ("cancel", "Cancelled"),
        ("retry", "Active"),
    ] {
        submit(&service, &bulk, &format!("{all}&action={action}"), OWN)
            .await
            .is(303);
        for job in ["a1", "a2"] {
            assert_eq!(status(&service, job).await, after, "{action} {job}");
        }
        assert_eq!(status(&service, "b1").await, "Waiting", "{action}");
    }
    let chosen = "of=selected&job=a1&job=b1";
    let asked = page(&service, &format!("{bulk}?{chosen}&action=delete")).await;
    asked.contains("Delete 2 jobs?");
    submit(&service, &bulk, &format!("{chosen}&action=delete"), OWN)
        .await
        .is(303);
    service.get("/jobs/a1").await.is(404);
    service.get("/jobs/b1").await.is(404);
    let partly = "of=selected&job=a1&job=a2&action=cancel";
    let outcome = submit(&service, &bulk, partly, OWN).await.is(200);
    outcome.contains("1 job was cancelled.");
    outcome.contains("ERROR: job_id {a1} not found");
    let nothing = page(&service, &format!("{bulk}?of=selected&action=delete")).await;
    nothing.contains("No job is selected");
}

#[tokio::test]
async fn page_can_be_switched_off() {
    let service = Service::start_configured(|options| options.page = false).await;
    let path = format!("/partitions/{}/jobs", service.partition);
    page(&service, &path).await.is(404);
    page(&service, "/").await.is(404);
    service.put("j", &new_job()).await.is(201);
}

/// Text that would be markup if it were not escaped.
fn hostile() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "<x-evil>",
        "</",
        "<!--",
        "-->",
        "\"",
        "'",
        "&",
        "&lt;",
        "`",
        "{{",
        "}}",
        "=",
        ">",
        "<",
        "q\" onload=",
        "<script>",
        "</textarea>",
        "]]>",
        "ä",
        "\u{202e}",
        "\u{0}",
        "\n",
        " ",
    ]);
    prop::collection::vec(pieces, 1..6).prop_map(|pieces| pieces.concat())
}

#[tokio::test]
async fn text_of_a_job_is_never_markup() {
    let service = Service::start().await;
    let mut runner = TestRunner::new(ProptestConfig::with_cases(12));
    let partition = service.partition.clone();
    for case in 0..12 {
        let tree = hostile().new_tree(&mut runner).unwrap();
        let text = tree.current().replace('\0', "");
        let id: String = format!("{case}{text}")
            .chars()
            .filter(|c| !".,:;*?!|()".contains(*c) && !c.is_control())
            .take(40)
            .collect();
        let mut job = new_job();
        for field in ["name", "description", "externalData"] {
            job[field] = json!(text);
        }
        job["labels"] = json!({"key": text});
        let path = format!("/partitions/{partition}/jobs/{}", encode(&id));
        let api = format!("/job-service/v1{path}");
        service
            .call(Method::PUT, &api, Some(job.to_string()))
            .await
            .is(201);
        let failure = contract::ReportFailure {
            failure_id: Some(text.clone()),
            failure_message: Some(text.clone()),
            failure_source: Some(text.clone()),
            ..contract::ReportFailure::default()
        };
        let task = contract::JobTaskId::parse(&format!("{partition}:{id}")).unwrap();
        let kind = EventKind::Failed(failure);
        let failed = store::TrackingEvent { task, kind };
        service.store.record(&[failed]).await.unwrap();
        let query = match encode(&text) {
            none if none.is_empty() => none,
            text => format!("?filter={text}&labelExist={text}"),
        };
        for path in [
            path.clone(),
            format!("{path}/failures"),
            format!("{path}/definition"),
            format!("{path}/tasks/0"),
            format!("{path}/confirm?action=delete"),
            format!("/partitions/{partition}/jobs"),
            format!("/partitions/{partition}/jobs{query}"),
            format!("{path}x"),
        ] {
            let shown = page(&service, &path).await;
            let body = &shown.body;
            for markup in ["<x-evil", "<!--", "q\" onload", "<script>", "</textarea"] {
                assert!(!body.contains(markup), "{path}: {text:?}: {body}");
            }
        }
    }
}

#[tokio::test]
async fn job_is_submitted_by_a_form_that_shows_the_same_request_for_other_clients() {
    let service = Service::start_configured(|options| {
        options.page_pipes.batch = "batch-in".to_owned();
    })
    .await;
    let submit_url = format!("/partitions/{}/submit", service.partition);
    let form = page(&service, &submit_url).await.is(200);
    form.contains(r#"name="definition""#);
    form.contains(r#"value="batch-in""#);
    let fields = "kind=range&id=r1&definition=1-7&itemPipe=items-in&outputs=pipe&targetPipe=out&taskPipe=batch-in&\
                  params=region%3Deu%0D%0A&labels=team%3Dsearch&onFailure=continue&name=Numbers&itemType=";
    let shown = submit(&service, &submit_url, &format!("{fields}&do=show"), OWN)
        .await
        .is(200);
    shown.contains("curl -X PUT ");
    shown.contains("batchwright submit r1 ");
    shown.contains(r#"value="items-in""#);
    service.get("/jobs/r1").await.is(404);
    let created = submit(&service, &submit_url, fields, OWN).await.is(303);
    assert_eq!(
        created.header("location"),
        format!("/partitions/{}/jobs/r1", service.partition)
    );
    let definition = service.get("/jobs/r1/definition").await.is(200).json();
    assert_eq!(
        definition,
        json!({
            "name": "Numbers", "labels": {"team": "search"}, "onFailure": "continue",
            "task": {
                "taskClassifier": "BatchWorker", "taskApiVersion": 1, "taskPipe": "batch-in", "targetPipe": "out",
                "taskData": {
                    "batchDefinition": "1-7", "batchType": "range", "targetPipe": "items-in", "taskMessageParams": {"region": "eu"}
                }
            }
        })
    );
    let without_pipe = fields.replace("taskPipe=batch-in", "taskPipe=");
    let without_pipe = without_pipe.replace("id=r1", "id=r2");
    let refused = submit(&service, &submit_url, &without_pipe, OWN)
        .await
        .is(400);
    refused.contains("Correct what you entered: Pipe of the batch worker.");
    refused.contains("region=eu");
    let label = fields.replace("team%3Dsearch", "team");
    let refused = submit(&service, &submit_url, &label, OWN).await.is(400);
    refused.contains("is not NAME=VALUE");
    let json = "kind=json&id=raw&json=%7B";
    let refused = submit(&service, &submit_url, json, OWN).await.is(400);
    refused.contains("This is not JSON");
    page(&service, &format!("{submit_url}?kind=nonsense"))
        .await
        .is(400)
        .contains("There is no kind of job");
    submit(&service, &submit_url, fields, ("X-Nothing", "x"))
        .await
        .is(403);
}

#[tokio::test]
async fn tree_of_a_job_is_shown_level_by_level_with_ranges_and_what_has_failed_first() {
    let service = Service::start().await;
    let mut job = new_job();
    job["onFailure"] = json!("continue");
    service.put("j", &job).await.is(201);
    service.report("j", ".9*", EventKind::Progress(0)).await;
    for done in 1..=6 {
        let task = format!(".{done}");
        service.report("j", &task, EventKind::Complete).await;
    }
    let failure = contract::ReportFailure {
        failure_message: Some("no such file".to_owned()),
        ..contract::ReportFailure::default()
    };
    service.report("j", ".8", EventKind::Failed(failure)).await;
    let tasks = format!("/partitions/{}/jobs/j/tasks", service.partition);
    let all = page(&service, &format!("{tasks}/0")).await.is(200);
    all.contains("1 – 6");
    all.contains("6 tasks");
    let at = |text: &str| all.body.find(text).unwrap();
    assert!(at("no such file") < at("1 – 6"), "{}", all.body);
    let failed = page(&service, &format!("{tasks}/0?state=failed")).await;
    failed.contains(&format!(r#"<a href="{tasks}/8">8</a>"#));
    assert!(!failed.body.contains("1 – 6"), "{}", failed.body);
    page(&service, &format!("{tasks}/8"))
        .await
        .is(200)
        .contains("no such file");
    page(&service, &format!("{tasks}/77")).await.is(404);
    page(&service, &format!("{tasks}/0?state=nonsense"))
        .await
        .is(400);
    page(&service, &format!("{tasks}/0?after=nonsense"))
        .await
        .is(400);
}
