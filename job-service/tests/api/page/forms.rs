//! The forms that create jobs, and those that act on many.

use framework::broker::Broker as _;
use job_service::JobTypes;
use serde_json::{Value, json};

use super::{OWN, encode, page, status, submit};
use crate::service::{Answer, Service, new_job};

/// A job type whose parameters need every kind of field.
const SCANS: &str = r##"
jobParametersSchema:
  description: Reads scanned pages.
  type: object
  required: [folder, language, output]
  additionalProperties: false
  properties:
    folder: {type: string, title: Folder, minLength: 2}
    language: {enum: [de, en, 7]}
    pages: {type: integer, minimum: 1}
    threshold: {type: [number, "null"]}
    fast: {type: boolean}
    tags: {type: array, items: {type: string}}
    output:
      title: Output
      type: object
      required: [format]
      properties:
        format: {type: string, enum: [pdf, text]}
        size/dpi: {$ref: "#/definitions/dpi"}
    mail:
      type: object
      required: [to]
      properties: {to: {type: string}, copy: {type: string}}
  definitions: {dpi: {type: integer}}
taskScript: |
  {taskClassifier: "W", taskApiVersion: 1, taskPipe: "in", taskData: .parameters}
"##;

/// Fields with their values, or with what is wrong with them.
type Pairs<'a> = &'a [(&'a str, &'a str)];

async fn service() -> (Service, String) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("scans.yaml"), SCANS).unwrap();
    let types = JobTypes::load(folder.path(), |_| None).unwrap();
    let service = Service::start_configured(|options| options.job_types = types).await;
    let path = format!("/partitions/{}/submit", service.partition);
    (service, path)
}

/// Returns the fields of a form as its browser sends them.
fn fields(parameters: &[(&str, &str)]) -> String {
    let pairs = parameters
        .iter()
        .map(|(name, value)| format!("{}={}", encode(name), encode(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// Returns the value of a hidden field of a page.
fn hidden<'a>(page: &'a Answer, name: &str) -> &'a str {
    let field = format!(r#"type="hidden" name="{name}" value=""#);
    let (_, behind) = page.body.split_once(&field).unwrap();
    behind.split('"').next().unwrap()
}

/// Returns what a page says is wrong with a field.
fn problem<'a>(page: &'a Answer, field: &str) -> &'a str {
    let id = format!(r#"id="problem-{}">"#, encode(field));
    let Some((_, behind)) = page.body.split_once(&id) else {
        return "";
    };
    behind.split('<').next().unwrap()
}

#[tokio::test]
async fn double_click_on_submit_creates_one_job() {
    let (service, path) = service().await;
    let form = page(&service, &format!("{path}?kind=json")).await.is(200);
    let json = new_job().to_string();
    let key = hidden(&form, "key");
    let sent = fields(&[("kind", "json"), ("key", key), ("json", &json)]);
    let (first, second) = tokio::join!(
        submit(&service, &path, &sent, OWN),
        submit(&service, &path, &sent, OWN),
    );
    let first = first.is(303);
    assert_eq!(
        first.header("location"),
        second.is(303).header("location"),
        "both lead to the job"
    );
    let jobs = service.get("/jobs").await.job_ids();
    assert_eq!(jobs.len(), 1);
    // The form is opened again with the browser's button, changed and sent.
    let other = new_job().to_string().replace("Reindex", "Index");
    let changed = fields(&[("kind", "json"), ("key", key), ("json", &other)]);
    let refused = submit(&service, &path, &changed, OWN).await.is(422);
    refused.contains(&format!(
        "This form has created the job &#39;{}&#39; already.",
        jobs[0]
    ));
    let key = hidden(&refused, "key");
    let again = fields(&[("kind", "json"), ("key", key), ("json", &other)]);
    submit(&service, &path, &again, OWN).await.is(303);
    assert_eq!(service.get("/jobs").await.job_ids().len(), 2);
}

#[tokio::test]
async fn form_of_a_job_type_follows_its_schema() {
    let (service, path) = service().await;
    let form = page(&service, &format!("{path}?kind=type:scans"))
        .await
        .is(200);
    for part in [
        r#"<input type="text" name="parameter:/folder""#,
        "<option selected></option><option>de</option><option>en</option><option>7</option>",
        r#"<input type="number" name="parameter:/pages" value="" step="1""#,
        r#"<input type="number" name="parameter:/threshold" value="" step="any""#,
        "<option selected></option><option>true</option><option>false</option>",
        r#"<textarea name="parameter:/tags""#,
        "Output › format",
        r#"<input type="number" name="parameter:/output/size~1dpi" value="" step="1""#,
        r#"<input type="text" name="parameter:/mail/to""#,
    ] {
        form.contains(part);
    }
    let sent = fields(&[
        ("kind", "type:scans"),
        ("id", "s1"),
        ("parameter:/folder", "10"),
        ("parameter:/language", "7"),
        ("parameter:/pages", "3"),
        ("parameter:/threshold", "0.5"),
        ("parameter:/fast", "false"),
        ("parameter:/tags", r#"["a"]"#),
        ("parameter:/output/format", "pdf"),
        ("parameter:/output/size~1dpi", "300"),
    ]);
    submit(&service, &path, &sent, OWN).await.is(303);
    let definition = service.get("/jobs/s1/definition").await.is(200).json();
    assert_eq!(
        definition["parameters"],
        json!({"folder": "10", "language": 7, "pages": 3, "threshold": 0.5, "fast": false, "tags": ["a"],
            "output": {"format": "pdf", "size/dpi": 300}})
    );
}

#[tokio::test]
async fn what_is_wrong_with_a_form_stands_at_its_fields() {
    let (service, path) = service().await;
    let required = "This is required.";
    let cases: [(Pairs<'_>, Pairs<'_>); 6] = [
        (
            &[("kind", "type:scans"), ("parameter:/mail/copy", "me")],
            &[
                ("parameter:/folder", required),
                ("parameter:/language", required),
                ("parameter:/output/format", required),
                ("parameter:/mail/to", required),
                ("parameter:/mail/copy", ""),
                ("parameter:/pages", ""),
            ],
        ),
        (
            &[
                ("kind", "type:scans"),
                ("parameter:/folder", "x"),
                ("parameter:/language", "fr"),
                ("parameter:/pages", "0"),
                ("parameter:/tags", "[1]"),
                ("parameter:/output/format", "pdf"),
            ],
            &[
                ("parameter:/folder", "is shorter than 2 characters."),
                ("parameter:/language", "&#39;fr&#39; is none of de, en, 7."),
            ],
        ),
        (
            &[
                ("kind", "type:scans"),
                ("parameter:/folder", "xy"),
                ("parameter:/language", "de"),
                ("parameter:/pages", "0"),
                ("parameter:/tags", "[1]"),
                ("parameter:/output/format", "pdf"),
            ],
            &[
                ("parameter:/pages", "0 is less than the minimum of 1."),
                ("parameter:/tags", "1 is not of type"),
            ],
        ),
        (
            &[
                ("kind", "type:scans"),
                ("parameter:/pages", "many"),
                ("parameter:/tags", "["),
            ],
            &[
                ("parameter:/pages", "&#39;many&#39; is not a number."),
                ("parameter:/tags", "This is not JSON"),
            ],
        ),
        (
            &[
                ("kind", "range"),
                ("id", "a:b"),
                ("outputs", "pipe"),
                ("labels", "team"),
                ("do", "show"),
            ],
            &[
                ("definition", required),
                ("itemPipe", required),
                ("taskPipe", required),
                ("targetPipe", "Name the pipe, or choose another place"),
                ("id", "invalid characters"),
                ("labels", "The line &#39;team&#39; is not NAME=VALUE."),
                ("params", ""),
            ],
        ),
        (
            &[("kind", "json"), ("json", "{")],
            &[("json", "This is not JSON: EOF")],
        ),
    ];
    for (sent, expected) in cases {
        let answer = submit(&service, &path, &fields(sent), OWN).await.is(400);
        for (field, text) in expected {
            let shown = problem(&answer, field);
            let fits = if text.is_empty() {
                shown.is_empty()
            } else {
                shown.contains(text)
            };
            assert!(fits, "{sent:?}: {field}: {shown:?}");
        }
        answer.contains("Nothing was created. Correct what you entered");
        for (_, value) in sent
            .iter()
            .filter(|(name, _)| name.starts_with("parameter"))
        {
            answer.contains(&value.replace('"', "&#34;"));
        }
    }
    assert_eq!(service.get("/jobs").await.job_ids(), [""; 0]);
}

#[tokio::test]
async fn secret_parameter_is_not_quoted_when_it_is_refused() {
    let definition = r#"
jobParametersSchema:
  type: object
  oneOf: [{required: [user]}, {required: [mail]}]
  properties:
    password: {type: string, writeOnly: true, minLength: 12}
    pin: {type: integer, writeOnly: true}
    level: {enum: [low], writeOnly: true}
    user: {type: string, maxLength: 3}
taskScript: '{taskClassifier: "W", taskApiVersion: 1, taskPipe: "in", taskData: .parameters}'
"#;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("login.yaml"), definition).unwrap();
    let types = JobTypes::load(folder.path(), |_| None).unwrap();
    let service = Service::start_configured(|options| options.job_types = types).await;
    let secret = ["s3cret-a", "s3cret-b", "s3cret-c"];
    let parameters =
        json!({"password": secret[0], "pin": secret[1], "level": secret[2], "user": "anna"});
    let request = json!({"type": "login", "parameters": parameters});
    let refused = service.put("j", &request).await.is(400).error();
    for text in [
        "$.password: *** is shorter than 12 characters",
        "$.pin: *** is not of type",
        "$.level: *** is not one of",
        "$.user: \"anna\" is longer than 3 characters",
    ] {
        assert!(refused.contains(text), "{text}: {refused}");
    }
    assert!(!refused.contains("s3cret"), "{refused}");
    let path = format!("/partitions/{}/submit", service.partition);
    let sent = [
        ("kind", "type:login"),
        ("parameter:/password", secret[0]),
        ("parameter:/pin", secret[1]),
        ("parameter:/level", secret[2]),
    ];
    let shown = submit(&service, &path, &fields(&sent), OWN).await.is(400);
    for (field, text) in [
        ("parameter:/password", "*** is shorter than 12 characters."),
        ("parameter:/pin", "This is not a number."),
        ("parameter:/level", "This is none of low."),
    ] {
        assert_eq!(problem(&shown, field), text);
    }
    shown.contains("*** is not valid under any of the schemas");
    assert!(!shown.body.contains("s3cret"), "{}", shown.body);
}

#[tokio::test]
async fn job_is_run_again_under_another_id_once_for_each_form() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    service.cancel("j").await.is(204);
    let job = format!("/partitions/{}/jobs/j", service.partition);
    page(&service, &job)
        .await
        .contains(&format!(r#"href="{job}/resubmit">Run again"#));
    let form = page(&service, &format!("{job}/resubmit")).await.is(200);
    form.contains("Run the job j again?");
    let key = hidden(&form, "key").to_owned();
    let path = format!("{job}/resubmit");
    for header in [("Sec-Fetch-Site", "cross-site"), ("X-Nothing", "x")] {
        submit(&service, &path, "id=k", header).await.is(403);
    }
    service.get("/jobs/k").await.is(404);
    let named = fields(&[("key", &key), ("id", "k")]);
    let created = submit(&service, &path, &named, OWN).await.is(303);
    let other = format!("/partitions/{}/jobs/k", service.partition);
    assert_eq!(created.header("location"), other);
    let [first, second] = ["j", "k"].map(|job| format!("/jobs/{job}/definition"));
    let first: Value = service.get(&first).await.is(200).json();
    assert_eq!(service.get(&second).await.is(200).json(), first);
    assert_eq!(status(&service, "j").await, "Cancelled");
    let unnamed = fields(&[("key", "one"), ("id", "")]);
    let (first, second) = tokio::join!(
        submit(&service, &path, &unnamed, OWN),
        submit(&service, &path, &unnamed, OWN),
    );
    assert_eq!(
        first.is(303).header("location"),
        second.is(303).header("location")
    );
    assert_eq!(service.get("/jobs").await.job_ids().len(), 3);
    for (id, status, text) in [
        ("a:b", 400, "invalid characters"),
        ("j", 400, "This is the id of the job itself."),
    ] {
        let refused = submit(&service, &path, &fields(&[("id", id)]), OWN).await;
        let refused = refused.is(status);
        refused.contains(text);
        refused.contains(&format!(r#"value="{id}""#));
    }
    let unknown = format!("/partitions/{}/jobs/x/resubmit", service.partition);
    page(&service, &unknown).await.is(404);
    submit(&service, &unknown, "", OWN).await.is(404);
}

#[tokio::test]
async fn jobs_that_ended_with_a_job_are_named_and_taken_up_with_it() {
    let service = Service::start().await;
    service.put("root", &new_job()).await.is(201);
    let waiting = json!({"task": new_job()["task"], "prerequisiteJobIds": ["root"]});
    for job in ["w1", "w2"] {
        service.put(job, &waiting).await.is(201);
    }
    service.cancel("root").await.is(204);
    assert_eq!(status(&service, "w1").await, "Cancelled");
    let root = format!("/partitions/{}/jobs/root", service.partition);
    let shown = page(&service, &root).await.is(200);
    shown.contains("Jobs that ended with this one");
    shown.contains("Retry with these jobs");
    for job in ["w1", "w2"] {
        shown.contains(&format!("/jobs/{job}\">{job}</a>"));
    }
    let path = format!("{root}/retry");
    submit(&service, &path, "dependents=x", OWN).await.is(400);
    let cross = ("Sec-Fetch-Site", "cross-site");
    submit(&service, &path, "dependents=true", cross)
        .await
        .is(403);
    assert_eq!(status(&service, "root").await, "Cancelled");
    let done = submit(&service, &path, "dependents=true", OWN)
        .await
        .is(303);
    let next = done.header("location").to_owned();
    let after = page(&service, &next).await.is(200);
    after.contains("The job was taken up again, with 2 jobs that ended with it.");
    assert!(!after.body.contains("Jobs that ended with this one"));
    for job in ["w1", "w2"] {
        assert_eq!(status(&service, job).await, "Waiting", "{job}");
    }
    // Without them, they stay as they are.
    service.cancel("root").await.is(204);
    submit(&service, &path, "", OWN).await.is(303);
    assert_eq!(status(&service, "w2").await, "Cancelled");
}

/// Sends the form that goes on with the jobs that are left.
async fn go_on(service: &Service, bulk: &str, page: &Answer) -> Answer {
    let names = [
        "action",
        "of",
        "before",
        "after",
        "status",
        "filter",
        "jobIdStartsWith",
        "labelExist",
    ];
    let sent: Vec<(&str, &str)> = names.map(|name| (name, hidden(page, name))).into();
    submit(service, bulk, &fields(&sent), OWN).await
}

#[tokio::test]
async fn action_on_all_that_match_does_a_bounded_part_and_offers_the_rest() {
    let service = Service::start_configured(|options| {
        options.cancel_batch = 1;
        options.delete_batch = 1;
    })
    .await;
    for number in 0..12 {
        service.put(&format!("a{number}"), &new_job()).await.is(201);
    }
    service.put("b", &new_job()).await.is(201);
    let bulk = format!("/partitions/{}/bulk", service.partition);
    for (action, words, button) in [
        ("pause", "10 jobs were paused.", "Pause the other 2"),
        ("resume", "10 jobs were resumed.", "Resume the other 2"),
        ("cancel", "10 jobs were cancelled.", "Cancel the other 2"),
        ("retry", "10 jobs were taken up again.", "Retry the other 2"),
        ("delete", "10 jobs were deleted.", "Delete the other 2"),
    ] {
        let sent = format!("of=all&jobIdStartsWith=a&action={action}");
        let part = submit(&service, &bulk, &sent, OWN).await.is(200);
        part.contains(words);
        part.contains("2 more jobs can be.");
        part.contains(button);
        let rest = go_on(&service, &bulk, &part).await.is(303);
        assert!(rest.header("location").ends_with("&n=12"), "{rest:?}");
    }
    assert_eq!(service.get("/jobs").await.job_ids(), ["b"]);
}

#[tokio::test]
async fn selection_of_more_jobs_than_one_request_acts_on_is_refused_and_changes_nothing() {
    let service = Service::start().await;
    service.put("j", &new_job()).await.is(201);
    let bulk = format!("/partitions/{}/bulk", service.partition);
    let sent = format!("of=selected&action=cancel{}", "&job=j".repeat(1001));
    let refused = submit(&service, &bulk, &sent, OWN).await.is(400);
    refused.contains("1001 jobs are selected, and one request acts on at most 1000.");
    assert_eq!(status(&service, "j").await, "Waiting");
}

#[tokio::test]
async fn refused_jobs_are_passed_over_when_an_action_goes_on() {
    let service = Service::start_configured(|options| options.cancel_batch = 1).await;
    service.put("root", &new_job()).await.is(201);
    let waiting = json!({"task": new_job()["task"], "prerequisiteJobIds": ["root"]});
    for number in 0..11 {
        service.put(&format!("w{number}"), &waiting).await.is(201);
    }
    service.cancel("root").await.is(204);
    let bulk = format!("/partitions/{}/bulk", service.partition);
    let sent = "of=all&filter=id%3D%3Dw*&action=retry";
    let part = submit(&service, &bulk, sent, OWN).await.is(200);
    part.contains("No job was taken up again.");
    part.contains("Retry the other 1");
    assert_eq!(part.body.matches("have been cancelled").count(), 10);
    let rest = go_on(&service, &bulk, &part).await.is(200);
    assert_eq!(rest.body.matches("have been cancelled").count(), 1);
    assert!(!rest.body.contains(r#"id="again""#), "{}", rest.body);
}

#[tokio::test]
async fn form_says_what_would_happen_and_creates_nothing() {
    let (service, path) = service().await;
    let sent = |definition: &str, action: &str| {
        fields(&[
            ("kind", "range"),
            ("definition", definition),
            ("itemPipe", "i"),
            ("outputs", "none"),
            ("taskPipe", "batch-in"),
            ("do", action),
        ])
    };
    let nobody = submit(&service, &path, &sent("1-7", "explain"), OWN)
        .await
        .is(503);
    nobody.contains("no running worker of the pipe &#39;batch-in&#39; answers questions");
    let answering = crate::batches::answer(service.broker.queries("batch-in").await.unwrap());
    let story = async {
        let explained = submit(&service, &path, &sent("1-7", "explain"), OWN)
            .await
            .is(200);
        explained.contains("This would become 7 items for the pipe i.");
        // What was entered is still there.
        explained.contains("1-7</textarea>");
        for action in ["explain", "submit"] {
            let refused = submit(&service, &path, &sent("bad", action), OWN)
                .await
                .is(400);
            refused.contains("Batch definition of range: oh.");
            refused.contains("bad</textarea>");
        }
        assert_eq!(service.get("/jobs").await.job_ids(), [""; 0]);
        let foreign = ("Sec-Fetch-Site", "cross-site");
        submit(&service, &path, &sent("1-7", "explain"), foreign)
            .await
            .is(403);
    };
    tokio::select! {
        () = answering => panic!("the broker is closed"),
        () = story => {}
    }
}
