//! The web page in a real browser. One browser serves all these tests, one after the other; without
//! Debian's `chromium` and `chromium-driver`, each says so and passes.
//!
//! The pictures of every page are in `target/page`.

use std::path::PathBuf;

use contract::rest::LetterCause;
use contract::{ReportFailure, RunningTask, SignOfLife};
use framework::broker::{Broker as _, Outgoing};
use harness::{Browser, Tab, wait_for};
use job_service::PipeAccess;
use serde_json::{Value, json};
use store::{EventKind, Header, LetterQuery, LetterTask, NewLetter};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use super::waiting::blocked_job;
use crate::service::{Service, new_job};
use crate::workers::{sign, tell};

static BROWSER: OnceCell<Mutex<Browser>> = OnceCell::const_new();

/// The engine that checks whether a page is accessible.
const AXE: &str = include_str!("../axe/axe-4.14.1.min.js");

/// The number of event streams that a service may have.
const STREAMS: usize = 10;

const TAB: char = '\u{E004}';
const ENTER: char = '\u{E007}';

/// Returns the browser, for one test at a time; `None` if there is none on this machine.
pub async fn browser() -> Option<MutexGuard<'static, Browser>> {
    if !Browser::is_installed() {
        harness::left_out(
            "no browser shows the web page (apt-get install chromium chromium-driver)",
        );
        return None;
    }
    let started = async || Mutex::new(Browser::start().await.unwrap());
    Some(BROWSER.get_or_init(started).await.lock().await)
}

/// Begins to send what the tab asks for to a log of its own.
pub async fn open(browser: &Browser) -> Tab {
    let tab = browser.open().await.unwrap();
    tab.log("performance").await.unwrap();
    tab.log("browser").await.unwrap();
    tab
}

/// Reports events of a job.
pub async fn report(
    service: &Service,
    job: &str,
    events: impl IntoIterator<Item = (String, EventKind)>,
) {
    for (steps, kind) in events {
        service.report(job, &steps, kind).await;
    }
}

/// Returns the events of a job of so many items, of which these are done and these have failed.
fn items(total: u32, done: u32, failed: u32) -> Vec<(String, EventKind)> {
    let failure = |number: u32| {
        let kinds = [
            ("INVALID_INPUT", "the page is empty"),
            (
                "RESULT_EXCEPTION",
                "java.io.FileNotFoundException: scans/2016/17.tif (No such file or directory)",
            ),
            ("RESULT_EXCEPTION", "connect timed out"),
        ];
        let (kind, message) = kinds[number as usize % kinds.len()];
        EventKind::Failed(ReportFailure {
            failure_id: Some(kind.to_owned()),
            failure_message: Some(message.to_owned()),
            failure_source: Some("worker-ocr".to_owned()),
            failure_time: Some(1_795_378_845_123),
            item: Some(contract::FailedItem {
                label: Some(format!("scans/2016/{number}.tif")),
                input: Some(format!(
                    "{{\"path\":\"scans/2016/{number}.tif\",\"language\":\"de\"}}"
                )),
                batch: false,
            }),
            ..ReportFailure::default()
        })
    };
    let last = |number: u32| if number == total { "*" } else { "" };
    let mut events = Vec::new();
    for number in 1..=done {
        events.push((format!(".{number}{}", last(number)), EventKind::Complete));
    }
    for number in done + 1..=done + failed {
        events.push((format!(".{number}{}", last(number)), failure(number)));
    }
    if done + failed < total {
        events.insert(0, (format!(".{total}*"), EventKind::Progress(0)));
    }
    events
}

/// Creates jobs of every kind.
async fn many_jobs(service: &Service) {
    let names = [
        ("reindex-7", "Reindex the archive", "search"),
        ("ocr-2016", "Read the scans of 2016", "scans"),
        ("thumbnails", "Thumbnails for the new gallery", "web"),
        ("export-q3", "Export of the third quarter", "finance"),
        ("cleanup", "Remove what nobody owns", "platform"),
        ("report-q3", "Report of the third quarter", "finance"),
        ("mail-4711", "Send the newsletter", "web"),
    ];
    for (id, name, team) in names {
        let mut job = new_job();
        job["name"] = json!(name);
        job["labels"] = json!({"team": team, "tier": "gold", "empty": null});
        job["onFailure"] = json!("continue");
        if id == "report-q3" {
            job["prerequisiteJobIds"] = json!(["export-q3", "audit"]);
        }
        service.put(id, &job).await.is(201);
    }
    report(service, "reindex-7", items(60, 41, 0)).await;
    report(service, "ocr-2016", items(40, 22, 5)).await;
    report(service, "thumbnails", items(12, 12, 0)).await;
    report(service, "cleanup", items(10, 7, 3)).await;
    report(service, "mail-4711", items(20, 3, 0)).await;
    service.cancel("mail-4711").await.is(204);
    report(service, "export-q3", items(30, 4, 0)).await;
    service.pause("export-q3").await.is(204);
}

/// Keeps a dead letter of a job. Returns its number.
async fn dead_letter(service: &Service) -> i64 {
    let body = json!({"taskId": "t", "taskClassifier": "Ocr", "taskData": "e30="}).to_string();
    let letter = NewLetter {
        identity: vec![1],
        cause: LetterCause::Poison,
        reason: "worker-ocr could not process the item.".to_owned(),
        pipe: "worker-ocr-reject".to_owned(),
        origin: Some("pages-in".to_owned()),
        worker: Some("worker-ocr".to_owned()),
        attempts: Some(3),
        task: Some(LetterTask {
            partition: service.partition.clone(),
            job: "ocr-2016".to_owned(),
            incarnation: None,
            path: "3.17".to_owned(),
        }),
        label: Some("scans/2016/17.tif".to_owned()),
        headers: [(
            "x-batchwright-cause".to_owned(),
            Header::Text("poison".to_owned()),
        )]
        .into(),
        body_bytes: body.len() as u64,
        body: body.into_bytes(),
    };
    service.store.keep_letters(&[letter]).await.unwrap();
    let query = LetterQuery {
        limit: 1,
        ..LetterQuery::default()
    };
    service.store.letters(&query).await.unwrap()[0].id
}

/// Lets workers tell of themselves, and messages wait for them.
async fn workers_and_pipes(service: &Service) {
    service.put("import-q3", &new_job()).await.is(201);
    let waiting = json!({"task": new_job()["task"], "prerequisiteJobIds": ["import-q3"]});
    service.put("publish-q3", &waiting).await.is(201);
    service.cancel("import-q3").await.is(204);
    for (name, host, input, used) in [
        ("worker-ocr", "node-3", "pages-in", 4),
        ("worker-ocr", "node-4", "pages-in", 1),
        ("worker-mail", "node-3", "mail-in", 0),
    ] {
        let worker = SignOfLife {
            id: harness::unique("w"),
            name: name.to_owned(),
            host: host.to_owned(),
            input: Some(input.to_owned()),
            slots_in_use: Some(used),
            longest: (used > 0).then(|| RunningTask {
                task: format!("{}:ocr-2016.30", service.partition),
                age: 42_000,
            }),
            ..sign()
        };
        tell(service, &worker).await;
    }
    for (pipe, count) in [
        ("pages-in", 14),
        ("pages-in.suspects", 1),
        ("words-reject", 3),
        ("thumbnails-in", 250),
    ] {
        for number in 0..count {
            let body = json!({
                "taskId": format!("page-{number}"), "taskClassifier": "Page", "taskApiVersion": 1, "to": pipe,
                "taskData": "eyJwYXRoIjoic2NhbnMvMjAxNi8xNy50aWYifQ==",
                "tracking": {"jobTaskId": format!("{}:ocr-2016.{}", service.partition, number + 1)}
            });
            let message = Outgoing::new(pipe, body.to_string());
            service.broker.publish(message).await.unwrap();
        }
    }
}

/// Writes a picture of the page.
async fn picture(tab: &Tab, name: &str) {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../page");
    std::fs::create_dir_all(&folder).unwrap();
    let picture = tab.picture().await.unwrap();
    std::fs::write(folder.join(format!("{name}.png")), picture).unwrap();
}

/// Checks that the page is accessible.
async fn is_accessible(tab: &Tab, what: &str) {
    tab.script(AXE).await.unwrap();
    let violations = tab
        .script(
            "return axe.run({resultTypes: ['violations']}).then(({violations}) => violations.map(({id, nodes}) => \
             id + ': ' + nodes.map(({html, failureSummary}) => html.slice(0, 200) + ' ' + failureSummary).join('; ')))",
        )
        .await
        .unwrap();
    assert_eq!(violations, json!([]), "{what}");
}

/// Returns the hosts that the pages have asked, other than this one.
async fn other_hosts(tab: &Tab, root: &str) -> Vec<String> {
    let mut others = Vec::new();
    for entry in tab.log("performance").await.unwrap() {
        let message: Value = serde_json::from_str(entry["message"].as_str().unwrap()).unwrap();
        let message = &message["message"];
        if message["method"] == "Network.requestWillBeSent" {
            let url = message["params"]["request"]["url"].as_str().unwrap();
            let own = url.starts_with(&format!("{root}/")) || url.starts_with("data:");
            if !own && !url.starts_with("about:") && !url.starts_with("chrome:") {
                others.push(url.to_owned());
            }
        }
    }
    others
}

#[tokio::test]
async fn every_page_is_accessible_in_both_themes_and_asks_no_other_host() {
    let Some(browser) = browser().await else {
        return;
    };
    let mut service =
        Service::start_configured(|options| options.pipe_access = PipeAccess::On).await;
    // The pictures are in the documentation.
    service.partition = "archive".to_owned();
    let tab = open(&browser).await;
    tab.go(&format!("{}/", service.root)).await.unwrap();
    picture(&tab, "empty-light").await;
    tab.go(&format!("{}/workers", service.root)).await.unwrap();
    is_accessible(&tab, "no workers").await;
    picture(&tab, "no-workers-light").await;
    many_jobs(&service).await;
    workers_and_pipes(&service).await;
    let letter = dead_letter(&service).await;
    let condition = blocked_job(&service).await;
    let list = format!("{}/partitions/{}/jobs", service.root, service.partition);
    // The address of the form for a new job, from that of the list.
    let form = "/../submit?kind=glob".to_owned();
    let pages = [
        ("submit", form),
        ("pipes", "/../../../pipes".to_owned()),
        ("pipe", "/../../../pipes/pages-in".to_owned()),
        ("workers", "/../../../workers".to_owned()),
        ("conditions", "/../../../conditions".to_owned()),
        ("condition", format!("/../../../conditions/{condition}")),
        (
            "condition-confirm",
            format!("/../../../conditions/{condition}/confirm"),
        ),
        ("blocked-job", "/index-2016".to_owned()),
        ("dead-letters", "/../../../dead-letters".to_owned()),
        ("dead-letter", format!("/../../../dead-letters/{letter}")),
        (
            "dead-letters-confirm",
            "/../../../dead-letters/confirm?action=delete".to_owned(),
        ),
        ("again", "/ocr-2016/resubmit".to_owned()),
        ("fallen", "/import-q3".to_owned()),
        ("list", String::new()),
        ("wrong-filter", "?filter=colour%3D%3Dred".to_owned()),
        ("no-match", "?filter=id%3D%3Dnothing".to_owned()),
        ("job", "/ocr-2016".to_owned()),
        ("waiting-job", "/report-q3".to_owned()),
        ("failed-job", "/cleanup".to_owned()),
        ("failures", "/ocr-2016/failures".to_owned()),
        ("task", "/ocr-2016/tasks/23".to_owned()),
        ("tasks", "/ocr-2016/tasks/0".to_owned()),
        ("definition", "/reindex-7/definition".to_owned()),
        ("confirm", "/ocr-2016/confirm?action=delete".to_owned()),
        ("not-found", "/nothing".to_owned()),
    ];
    for (name, path) in pages {
        for theme in ["light", "dark"] {
            let script = format!("localStorage.setItem('theme', '{theme}')");
            tab.script(&script).await.unwrap();
            tab.go(&format!("{list}{path}")).await.unwrap();
            is_accessible(&tab, &format!("{name} in {theme}")).await;
            picture(&tab, &format!("{name}-{theme}")).await;
        }
        tab.resize(390, 844).await.unwrap();
        tab.script("localStorage.setItem('theme', 'light')")
            .await
            .unwrap();
        tab.go(&format!("{list}{path}")).await.unwrap();
        let wider = tab
            .script("return document.documentElement.scrollWidth > innerWidth")
            .await
            .unwrap();
        picture(&tab, &format!("{name}-narrow")).await;
        assert_eq!(wider, false, "{name} is wider than a narrow screen");
        tab.resize(1280, 900).await.unwrap();
    }
    assert_eq!(other_hosts(&tab, &service.root).await, [""; 0]);
    let complaints = tab.log("browser").await.unwrap();
    let complaints: Vec<_> = complaints
        .iter()
        .map(|entry| entry["message"].to_string())
        // The statuses of the pages of errors.
        .filter(|message| !message.contains("400") && !message.contains("404"))
        .collect();
    assert_eq!(complaints, [""; 0]);
    tab.script("localStorage.clear()").await.unwrap();
    tab.close().await.unwrap();
}

/// Waits until the page shows a text.
pub async fn shows(tab: &Tab, css: &str, text: &str) {
    wait_for(&format!("{css} to show {text}"), async || {
        match tab.text(css).await {
            Ok(seen) if seen.contains(text) => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
}

/// Presses the tabulator until the focus is on an element with this text, and then Enter.
pub async fn choose_by_keyboard(tab: &Tab, text: &str) {
    for _ in 0..60 {
        tab.press(TAB).await.unwrap();
        let focused = "return document.activeElement.innerText.trim()";
        if tab.script(focused).await.unwrap() == text {
            tab.press(ENTER).await.unwrap();
            return;
        }
    }
    panic!("the tabulator does not reach {text}");
}

#[tokio::test]
async fn job_is_found_cancelled_and_retried_by_keyboard_alone() {
    let Some(browser) = browser().await else {
        return;
    };
    let service = Service::start().await;
    service.put("only", &new_job()).await.is(201);
    let tab = open(&browser).await;
    tab.go(&service.root).await.unwrap();
    choose_by_keyboard(&tab, "only").await;
    shows(&tab, "h1", "only").await;
    choose_by_keyboard(&tab, "Cancel").await;
    shows(&tab, "h1", "Cancel the job only?").await;
    choose_by_keyboard(&tab, "Cancel now").await;
    shows(&tab, ".done", "The job was cancelled.").await;
    let job = service.get("/jobs/only").await.json();
    assert_eq!(job["status"], "Cancelled");
    choose_by_keyboard(&tab, "Retry").await;
    shows(&tab, ".done", "The job was taken up again.").await;
    let job = service.get("/jobs/only").await.json();
    assert_eq!(
        (&job["status"], &job["round"]),
        (&json!("Active"), &json!(2))
    );
    tab.close().await.unwrap();
}

#[tokio::test]
async fn jobs_are_run_again_and_retried_together_by_keyboard_and_submitted_once() {
    let Some(browser) = browser().await else {
        return;
    };
    let service = Service::start().await;
    let list = format!("{}/partitions/{}", service.root, service.partition);
    service.put("root", &new_job()).await.is(201);
    let waiting = json!({"task": new_job()["task"], "prerequisiteJobIds": ["root"]});
    service.put("follower", &waiting).await.is(201);
    service.cancel("root").await.is(204);
    let tab = open(&browser).await;
    tab.go(&format!("{list}/jobs/root")).await.unwrap();
    choose_by_keyboard(&tab, "Retry with these jobs").await;
    shows(&tab, ".done", "with 1 job that ended with it").await;
    let follower = service.get("/jobs/follower").await.json();
    assert_eq!(
        (&follower["status"], &follower["round"]),
        (&json!("Waiting"), &json!(2))
    );
    choose_by_keyboard(&tab, "Run again").await;
    shows(&tab, "h1", "Run the job root again?").await;
    choose_by_keyboard(&tab, "Run again now").await;
    wait_for("the page of the new job", async || {
        match tab.text(".job-title h1").await {
            Ok(title) if !title.contains("root") => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    assert_eq!(service.get("/jobs").await.job_ids().len(), 3);
    // A double click.
    tab.go(&format!("{list}/submit?kind=json")).await.unwrap();
    let request = new_job().to_string();
    tab.type_into("textarea[name=json]", &request)
        .await
        .unwrap();
    tab.script("for (const _ of [1, 2]) document.querySelector('button[value=submit]').click()")
        .await
        .unwrap();
    shows(&tab, ".job-title .status", "").await;
    assert_eq!(service.get("/jobs").await.job_ids().len(), 4);
    // What is missing is said at its field, also for who cannot see.
    tab.go(&format!("{list}/submit?kind=range")).await.unwrap();
    tab.click("button[value=show]").await.unwrap();
    shows(&tab, "#problem-definition", "This is required.").await;
    is_accessible(&tab, "a form with missing fields").await;
    picture(&tab, "submit-problems-light").await;
    // What would happen is said before.
    for (field, text) in [
        ("textarea[name=definition]", "1-7"),
        ("input[name=itemPipe]", "i"),
        ("input[name=targetPipe]", "o"),
        ("input[name=taskPipe]", "batch-in"),
    ] {
        tab.type_into(field, text).await.unwrap();
    }
    let explained = async {
        tab.click("button[value=explain]").await.unwrap();
        shows(
            &tab,
            "#explained",
            "This would become 7 items for the pipe i.",
        )
        .await;
    };
    let queries = service.broker.queries("batch-in").await.unwrap();
    tokio::select! {
        () = explained => {}
        () = crate::batches::answer(queries) => panic!("the broker is closed"),
    }
    is_accessible(&tab, "an explanation").await;
    picture(&tab, "submit-explained-light").await;
    // Pipes are live.
    tab.go(&format!("{}/pipes", service.root)).await.unwrap();
    let message = Outgoing::new("fresh-in", "{}");
    service.broker.publish(message).await.unwrap();
    shows(&tab, "table", "fresh-in").await;
    tab.close().await.unwrap();
}

#[tokio::test]
async fn page_follows_its_job_can_be_paused_and_is_right_again_after_a_restart() {
    let Some(browser) = browser().await else {
        return;
    };
    let mut service = Service::start_configured(|options| {
        options.limits.connections = 2 * STREAMS;
    })
    .await;
    let mut job = new_job();
    job["onFailure"] = json!("continue");
    service.put("j", &job).await.is(201);
    let tab = open(&browser).await;
    let url = format!("{}/partitions/{}/jobs/j", service.root, service.partition);
    tab.go(&url).await.unwrap();
    shows(&tab, "#live-text", "Live").await;
    report(&service, "j", items(10, 4, 1)).await;
    shows(&tab, ".summary", "4 of").await;
    shows(&tab, ".job-title .status", "Active").await;
    shows(&tab, ".group", "connect timed out").await;
    tab.click("#live").await.unwrap();
    shows(&tab, "#live-text", "Paused").await;
    has_no_stream(&service).await;
    service.report("j", ".5", EventKind::Complete).await;
    assert!(tab.text(".summary").await.unwrap().contains("4 of"));
    tab.click("#live").await.unwrap();
    shows(&tab, ".summary", "5 of").await;
    // A tab that nobody sees asks for nothing.
    let hide = "Object.defineProperty(document, 'hidden', {value: HIDDEN, configurable: true}); \
                document.dispatchEvent(new Event('visibilitychange'))";
    tab.script(&hide.replace("HIDDEN", "true")).await.unwrap();
    has_no_stream(&service).await;
    tab.script(&hide.replace("HIDDEN", "false")).await.unwrap();
    shows(&tab, "#live-text", "Live").await;
    service.stop().await;
    shows(&tab, "#live-text", "Reconnecting").await;
    picture(&tab, "reconnecting-light").await;
    service.report("j", ".6", EventKind::Complete).await;
    service = service.start_again().await;
    shows(&tab, ".summary", "6 of").await;
    shows(&tab, "#live-text", "Live").await;
    // The page is reading the job while the job is deleted and the stream ends.
    let hold = "const text = document.getElementById('live-text'), fetched = window.fetch; \
                const away = new Promise((is_away) => new MutationObserver(() => \
                  text.textContent.startsWith('Reconnecting') && is_away()).observe(text, {childList: true})); \
                window.fetch = async (...request) => { \
                  window.fetch = fetched; \
                  const response = await fetched(...request); \
                  document.body.dataset.held = 'true'; \
                  await away; \
                  return response; }";
    tab.script(hold).await.unwrap();
    service.report("j", ".7", EventKind::Complete).await;
    wait_for("a read of the page that is held", async || {
        match tab.script("return document.body.dataset.held").await {
            Ok(answer) if answer == "true" => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await;
    service.delete("j").await.is(204);
    shows(&tab, "h1", "not").await;
    tab.close().await.unwrap();
}

#[tokio::test]
async fn list_follows_its_partition_without_asking_again_and_again() {
    let Some(browser) = browser().await else {
        return;
    };
    let service = Service::start().await;
    service.put("old", &new_job()).await.is(201);
    let tab = open(&browser).await;
    let url = format!("{}/partitions/{}/jobs", service.root, service.partition);
    tab.go(&url).await.unwrap();
    shows(&tab, "#live-text", "Live").await;
    // Were it to ask every few seconds, it would not notice in time.
    tab.script("document.body.dataset.every = 100000")
        .await
        .unwrap();
    service.put("new", &new_job()).await.is(201);
    shows(&tab, "#row-new", "new").await;
    service.report("new", ".1", EventKind::Complete).await;
    shows(&tab, "#row-new .status", "Active").await;
    service.delete("old").await.is(204);
    shows(&tab, ".pages", "1–1 of 1").await;
    tab.close().await.unwrap();
}

/// Waits until the service has no event stream: as many as it may have can be opened.
async fn has_no_stream(service: &Service) {
    let path = service.path("/jobs/j/events");
    let mut open = Vec::new();
    wait_for("the stream of the page to end", async || {
        while open.len() < STREAMS {
            let request = service.request(reqwest::Method::GET, &path);
            let stream = request.send().await.unwrap();
            if stream.status() != 200 {
                return Err(format!("{} streams are left", open.len()));
            }
            open.push(stream);
        }
        Ok(())
    })
    .await;
}

#[tokio::test]
async fn selected_jobs_are_deleted_after_a_question_and_a_selection_outlives_what_is_read_anew() {
    let Some(browser) = browser().await else {
        return;
    };
    let service = Service::start().await;
    for job in ["a", "b", "c"] {
        service.put(job, &new_job()).await.is(201);
    }
    let tab = open(&browser).await;
    let url = format!("{}/partitions/{}/jobs", service.root, service.partition);
    tab.go(&url).await.unwrap();
    tab.click("input[value=a]").await.unwrap();
    tab.click("input[value=c]").await.unwrap();
    shows(&tab, "#selected", "2 selected").await;
    tab.click("input[value=all]").await.unwrap();
    service.put("d", &new_job()).await.is(201);
    shows(&tab, "table", "d").await;
    wait_for("the new job", async || {
        match tab
            .script("return document.querySelectorAll('input[name=job]').length")
            .await
        {
            Ok(count) if count == 4 => Ok(()),
            seen => Err(format!("{seen:?}")),
        }
    })
    .await;
    shows(&tab, "#selected", "2 selected").await;
    let chosen = "return document.querySelector('input[name=of]:checked').value";
    assert_eq!(tab.script(chosen).await.unwrap(), "all");
    tab.click("input[value=selected]").await.unwrap();
    picture(&tab, "selected-light").await;
    tab.click("button[value=delete]").await.unwrap();
    shows(&tab, "h1", "Delete 2 jobs?").await;
    tab.click("#confirm").await.unwrap();
    shows(&tab, ".done", "2 jobs were deleted.").await;
    let left = service.get("/jobs?sort=jobId:asc").await.job_ids();
    assert_eq!(left, ["b", "d"]);
    tab.close().await.unwrap();
}

#[tokio::test]
async fn everything_works_without_a_script() {
    let Some(browser) = browser().await else {
        return;
    };
    let service = Service::start().await;
    many_jobs(&service).await;
    let tab = open(&browser).await;
    let off = json!({"value": true});
    tab.devtools("Emulation.setScriptExecutionDisabled", off)
        .await
        .unwrap();
    let url = format!("{}/partitions/{}/jobs", service.root, service.partition);
    tab.go(&url).await.unwrap();
    picture(&tab, "list-without-script").await;
    tab.type_into("input[name=filter]", "id==export*")
        .await
        .unwrap();
    tab.click(".filters button").await.unwrap();
    shows(&tab, ".pages", "1–1 of 1").await;
    tab.click("th[scope=row] a").await.unwrap();
    shows(&tab, "h1", "export-q3").await;
    tab.click(".actions button").await.unwrap();
    shows(&tab, ".done", "The job was resumed.").await;
    let job = service.get("/jobs/export-q3").await.json();
    assert_eq!(job["status"], "Active");
    let on = json!({"value": false});
    tab.devtools("Emulation.setScriptExecutionDisabled", on)
        .await
        .unwrap();
    tab.close().await.unwrap();
}
