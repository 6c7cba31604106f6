//! Who may do what: tokens, roles, and what is not shown to those who may not see it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use contract::rest::{AccessRole, ErrorCode, LetterCause};
use harness::{Backend, in_time, wait_for};
use job_service::{Authentication, Callers, ProxyOptions, TokenSecret};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use store::{Headers, LetterTask, NewLetter};

use crate::life_key::next;
use crate::service::{Answer, Service, new_job};

/// The token that the operator has chosen.
const ADMIN: &str = "the-token-of-the-operator-of-this-test";

on_both_databases![revoked_token_is_refused_and_its_streams_end];

/// A service that asks for tokens, with jobs of two partitions.
async fn guarded(backend: Option<Backend>) -> Service {
    let tokens = |options: &mut job_service::ServiceOptions| {
        let admin = Some(TokenSecret::chosen(ADMIN).unwrap().hash());
        options.authentication = Authentication::Needed(
            Callers {
                admin,
                ..Callers::default()
            }
            .into(),
        );
    };
    match backend {
        Some(backend) => Service::start_with(backend, tokens).await,
        None => Service::start_configured(tokens).await,
    }
}

impl Service {
    fn with_token(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.request(method, path).bearer_auth(token)
    }

    async fn ask(&self, method: Method, path: &str, token: &str) -> Answer {
        Answer::of(self.with_token(method, path, token)).await
    }

    async fn send(&self, method: Method, path: &str, token: &str, body: &Value) -> Answer {
        Answer::of(self.with_token(method, path, token).json(body)).await
    }

    /// Creates a token as the operator. Returns its secret.
    async fn token(&self, name: &str, roles: &[AccessRole], partitions: &[&str]) -> String {
        let new = json!({"name": name, "roles": roles, "partitions": partitions});
        let created = self.send(Method::POST, TOKENS, ADMIN, &new).await.is(201);
        created.json()["secret"].as_str().unwrap().to_owned()
    }

    async fn put_job(&self, job: &str, token: &str) -> Answer {
        let path = self.path(&format!("/jobs/{job}"));
        self.send(Method::PUT, &path, token, &new_job()).await
    }
}

const TOKENS: &str = "/job-service/v1/tokens";
const LETTERS: &str = "/job-service/v1/deadLetters";

/// Returns the operations of the API, and all that the page may answer.
fn operations() -> Vec<(Method, String)> {
    let document: Value = serde_json::from_str(&job_service::openapi().to_json().unwrap()).unwrap();
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys() {
            let method = Method::from_bytes(method.to_uppercase().as_bytes());
            operations.extend(method.ok().map(|method| (method, path.clone())));
        }
    }
    operations.push((Method::GET, "/metrics".to_owned()));
    let mut pages = Vec::new();
    routes_below(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("src"),
        &mut pages,
    );
    for page in pages {
        operations.extend([Method::GET, Method::POST].map(|method| (method, page.clone())));
    }
    operations
}

/// Finds the routes of the page in the sources.
fn routes_below(folder: &Path, found: &mut Vec<String>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            routes_below(&path, found);
        } else if path.ends_with("page.rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            let routes = text.split(".route(").skip(1);
            found.extend(routes.filter_map(|it| it.split('"').nth(1).map(str::to_owned)));
        }
    }
}

/// Returns the path with names in place of its parameters.
fn filled(path: &str, partition: &str) -> String {
    let action = match path {
        _ if path.starts_with("/conditions") => "test",
        _ if path.starts_with("/dead-letters") => "replay",
        _ => "cancel",
    };
    let names = BTreeMap::from([
        ("partitionId", partition),
        ("partition", partition),
        ("jobId", "j"),
        ("job", "j"),
        ("task", "1"),
        ("taskId", "1"),
        ("id", "1"),
        ("key", "0d3a506323d39ba742675eceb7c8cf7c"),
        ("action", action),
    ]);
    let mut filled = String::new();
    for (place, part) in path.split(['{', '}']).enumerate() {
        filled += match place % 2 {
            0 => part,
            _ => names.get(part).copied().unwrap_or("x"),
        };
    }
    filled
}

/// The matrix of operations and roles, as the service answers: who is let through in its own
/// partition. In another one nobody is, and what may not be seen is not there.
#[tokio::test]
async fn every_route_asks_for_its_role() {
    let service = guarded(None).await;
    let own = service.partition.clone();
    service.put_job("j", ADMIN).await.is(201);
    let elsewhere = "/job-service/v1/partitions/elsewhere/jobs/j";
    service
        .send(Method::PUT, elsewhere, ADMIN, &new_job())
        .await
        .is(201);
    let mut tokens = Vec::new();
    for role in AccessRole::ALL {
        let partitions: &[&str] = if role.is_of_partitions() {
            &[&own]
        } else {
            &[]
        };
        let token = service.token(role.name(), &[role], partitions).await;
        tokens.push((role.name(), token));
    }
    let mut matrix = String::new();
    for (method, route) in operations() {
        let ask = async |partition: &str, token: Option<&str>| {
            let path = filled(&route, partition);
            let request = service.request(method.clone(), &path);
            let request = request.header("Sec-Fetch-Site", "same-origin");
            let request = match method {
                Method::PUT => request.json(&json!({"result": "1"})),
                _ => request,
            };
            let request = match token {
                Some(token) => request.bearer_auth(token),
                None => request,
            };
            // An event stream does not end.
            service.put_job("j", ADMIN).await;
            let response = request.send().await.unwrap();
            let code = response.headers().get("x-batchwright-error").cloned();
            let code = code.map(|it| it.to_str().unwrap().to_owned());
            (response.status().as_u16(), code.unwrap_or_default())
        };
        let lets = |(status, code): &(u16, String)| match (status, &**code) {
            (401, _) | (403, "ROLE_NEEDED") => false,
            // Where the job is there, this is what somebody may not see.
            (404, code) => code != "JOB_NOT_FOUND" && code != "URL_NOT_FOUND",
            _ => true,
        };
        let of_operator = ask(&own, Some(ADMIN)).await;
        if of_operator.0 == 405 || of_operator.1 == "URL_NOT_FOUND" {
            continue;
        }
        assert!(lets(&of_operator), "{method} {route}: {of_operator:?}");
        let mut line = format!("{:6} {route:80}", method.as_str());
        let without = ask(&own, None).await;
        line += if lets(&without) { " everybody" } else { "" };
        for (role, token) in &tokens {
            let answer = ask(&own, Some(token)).await;
            if lets(&answer) && !lets(&without) {
                write!(line, " {role}").unwrap();
            }
            let elsewhere = ask("elsewhere", Some(token)).await;
            if route.contains("{partition") && !lets(&without) {
                // What workers ask is answered with 404 only if it is gone.
                let is_of_workers = elsewhere.1 == "WRONG_JOB_KEY";
                let refused = if is_of_workers { 401 } else { 404 };
                assert_eq!(
                    elsewhere.0, refused,
                    "{method} {route} {role}: {elsewhere:?}"
                );
            }
        }
        writeln!(matrix, "{}", line.trim_end()).unwrap();
    }
    insta::with_settings!({omit_expression => true}, { insta::assert_snapshot!("matrix", matrix) });
}

#[tokio::test]
async fn token_that_is_not_valid_is_refused_with_what_helps_its_owner() {
    let service = guarded(None).await;
    let path = service.path("/jobs");
    let with = async |header: &[u8]| {
        let value = reqwest::header::HeaderValue::from_bytes(header).unwrap();
        Answer::of(
            service
                .request(Method::GET, &path)
                .header("authorization", value),
        )
        .await
    };
    let good = service.token("good", &[AccessRole::View], &["*"]).await;
    let other = TokenSecret::random();
    let forged = format!("{}{}", &good[..16], &other.as_text()[16..]);
    let long = format!("Bearer {}", "x".repeat(20_000));
    for header in [
        "",
        "Bearer",
        "Bearer ",
        "Basic dXNlcjpwYXNzd29yZA==",
        "Bearer nonsense",
        "Bearer a b",
        &format!("Bearer {}", other.as_text()),
        &format!("Bearer {forged}"),
        &format!("Bearer {}", good.to_uppercase()),
        &good,
        &long,
    ] {
        let refused = with(header.as_bytes()).await.is(401);
        assert_eq!(refused.header("www-authenticate"), "Bearer", "{header:.40}");
        let error = refused.error();
        assert!(!error.contains("bw_") && error.ends_with('.'), "{error}");
    }
    with(b"Bearer \xff\xfe").await.is(401);
    with(format!("bearer {good}").as_bytes()).await.is(200);
    // More than one, none, and one in the URL, where logs would keep it.
    let twice = service
        .with_token(Method::GET, &path, &good)
        .bearer_auth(&good);
    Answer::of(twice).await.is(401);
    service.get("/jobs").await.is(401);
    for name in ["token", "access_token"] {
        let refused = service.get(&format!("/jobs?{name}={good}")).await.is(401);
        assert!(
            refused.error().contains("does not belong into a URL"),
            "{refused:?}"
        );
    }
    let expired = json!({"name": "old", "roles": ["view"], "partitions": ["*"], "expireTime": 1});
    let expired = service
        .send(Method::POST, TOKENS, ADMIN, &expired)
        .await
        .is(201);
    let secret = expired.json()["secret"].as_str().unwrap().to_owned();
    let refused = with(format!("Bearer {secret}").as_bytes()).await;
    refused.refuses(401, "The token has expired.");
    // What everybody may see needs none, and a wrong one does no harm.
    let ping = service.with_token(Method::GET, "/job-service/v1/ping", "nonsense");
    Answer::of(ping).await.is(200);
}

async fn revoked_token_is_refused_and_its_streams_end(backend: Backend) {
    let service = guarded(Some(backend)).await;
    let own = service.partition.clone();
    let token = service.token("short", &[AccessRole::Submit], &[&own]).await;
    service.put_job("j", &token).await.is(201);
    let events = service.path("/jobs/j/events");
    let stream = service.with_token(Method::GET, &events, &token).send();
    let stream = stream.await.unwrap();
    assert_eq!(stream.status(), 200);
    let listed = service.ask(Method::GET, TOKENS, ADMIN).await.is(200).json();
    let shown = &listed["tokens"][0];
    assert!(
        shown["lastUseTime"].is_i64() && shown.get("hash").is_none(),
        "{shown}"
    );
    let path = format!("{TOKENS}/{}", shown["id"].as_str().unwrap());
    service.ask(Method::DELETE, &path, ADMIN).await.is(204);
    in_time("the stream to end", stream.bytes()).await.unwrap();
    wait_for("the token to be refused", async || {
        let answer = service
            .ask(Method::GET, &service.path("/jobs"), &token)
            .await;
        (answer.status == 401)
            .then_some(())
            .ok_or_else(|| format!("{answer:?}"))
    })
    .await;
    let again = service.ask(Method::DELETE, &path, ADMIN).await.is(404);
    assert_eq!(
        again.header("x-batchwright-error"),
        ErrorCode::TokenNotFound.as_str()
    );
}

#[tokio::test]
async fn address_that_shows_wrong_tokens_is_told_to_wait_and_valid_ones_go_on() {
    let service = guarded(None).await;
    service.put_job("j", ADMIN).await.is(201);
    let jobs = service.path("/jobs");
    for _ in 0..30 {
        service.ask(Method::GET, &jobs, "nonsense").await.is(401);
    }
    let refused = service.ask(Method::GET, &jobs, "nonsense").await.is(429);
    assert_eq!(refused.header("retry-after"), "60");
    service.ask(Method::GET, &jobs, ADMIN).await.is(200);
    // Workers discard tasks when they are told to come later.
    let status = service.path("/jobs/j/status");
    service.ask(Method::GET, &status, "nonsense").await.is(401);
}

#[tokio::test]
async fn whom_the_proxy_names_may_do_what_its_groups_may() {
    let groups = ["*=view@shared", "eng=submit@eng-*"];
    let groups = groups.map(|group| group.parse().unwrap()).into();
    let service = Service::start_configured(|options| {
        let proxy = Some(ProxyOptions {
            addresses: vec!["127.0.0.1".parse().unwrap()],
            secret: None,
            subject_header: "x-forwarded-user".parse().unwrap(),
            groups_header: "x-forwarded-groups".parse().unwrap(),
            groups,
        });
        options.authentication = Authentication::Needed(Callers { admin: None, proxy }.into());
    });
    let service = service.await;
    let call = async |method: Method, partition: &str, further: &str, groups: &str| {
        let path = format!("/job-service/v1/partitions/{partition}/jobs{further}");
        let request = service.request(method, &path).json(&new_job());
        let request = request.header("x-forwarded-user", "anna");
        // Many proxies pass on what clients send.
        Answer::of(
            request
                .header("x-forwarded-groups", groups)
                .bearer_auth("of-another"),
        )
        .await
    };
    call(Method::PUT, "eng-1", "/j", "ops,eng").await.is(201);
    let shown = call(Method::GET, "eng-1", "/j", "eng").await.is(200).json();
    assert_eq!(shown["owner"], "anna");
    call(Method::PUT, "eng-1", "/k", "ops").await.is(404);
    call(Method::PUT, "shared", "/k", "eng").await.is(403);
    call(Method::GET, "shared", "", "").await.is(200);
    service
        .call(Method::GET, "/job-service/v1/partitions/shared/jobs", None)
        .await
        .is(401);
}

#[tokio::test]
async fn service_that_is_open_to_everybody_says_so() {
    let open = |authentication| {
        Service::start_configured(|options| options.authentication = authentication)
    };
    for (authentication, says) in [
        (Authentication::None, true),
        (Authentication::Undecided, false),
    ] {
        let service = open(authentication).await;
        let health = service
            .call(Method::GET, "/health-check?name=all", None)
            .await
            .is(200);
        let page = service.call(Method::GET, "/", None).await.is(200);
        for told in [health, page] {
            assert_eq!(
                told.body.contains("may do everything (--auth none)"),
                says,
                "{told:?}"
            );
        }
    }
}

#[tokio::test]
async fn whoever_submits_steers_only_its_own_jobs() {
    let service = guarded(None).await;
    let own = service.partition.clone();
    let anna = service.token("anna", &[AccessRole::Submit], &[&own]).await;
    let ben = service.token("ben", &[AccessRole::Submit], &[&own]).await;
    let carl = service.token("carl", &[AccessRole::Operate], &[&own]).await;
    for (job, token) in [("a", &anna), ("b", &ben), ("c", &ben)] {
        service.put_job(job, token).await.is(201);
    }
    let cancel = async |job: &str, token: &str| {
        let path = service.path(&format!("/jobs/{job}/cancel"));
        service.ask(Method::POST, &path, token).await
    };
    let refused = cancel("b", &anna).await.is(403);
    assert!(
        refused.error().contains("the role 'operate'"),
        "{refused:?}"
    );
    cancel("a", &anna).await.is(204);
    cancel("b", &carl).await.is(204);
    cancel("none", &anna).await.is(404);
    // Resubmitted with its id, it would be deleted and created anew as a job of somebody else.
    let same = async |job: &str, token: &str| {
        let path = service.path(&format!("/jobs/{job}/resubmit"));
        service
            .send(Method::POST, &path, token, &json!({"sameId": true}))
            .await
    };
    same("b", &anna).await.is(403);
    same("a", &anna).await.is(201);
    let retry = service.path("/jobs/b/retry?dependents=true");
    service.ask(Method::POST, &retry, &ben).await.is(403);
    let listed = async |filter: &str, token: &str| {
        let path = service.path(&format!("/jobs?filter={filter}"));
        service.ask(Method::GET, &path, token).await.is(200)
    };
    assert_eq!(listed("owner==me", &ben).await.job_ids(), ["c", "b"]);
    let of_anna = listed("owner==anna", &carl).await.json();
    assert_eq!(
        (&of_anna[0]["id"], &of_anna[0]["owner"]),
        (&json!("a"), &json!("anna"))
    );
}

#[tokio::test]
async fn administrator_gives_sees_and_revokes_no_more_than_it_may_do() {
    let service = guarded(None).await;
    let admin = service
        .token("team", &[AccessRole::Admin], &["team-*"])
        .await;
    let other = service.token("other", &[AccessRole::View], &["*"]).await;
    let create = async |token: &str, roles: &[&str], partitions: &[&str]| {
        let new = json!({"name": "new", "roles": roles, "partitions": partitions});
        service.send(Method::POST, TOKENS, token, &new).await
    };
    create(&admin, &["operate"], &["team-a"]).await.is(201);
    for (roles, partitions) in [
        (&["view"][..], &["*"][..]),
        (&["view"], &["team-a", "else"]),
        (&["view", "operator"], &["team-a"]),
        (&["metrics"], &[]),
    ] {
        let refused = create(&admin, roles, partitions).await.is(403);
        assert_eq!(refused.header("x-batchwright-error"), "ROLE_NEEDED");
    }
    create(&other, &["view"], &["*"]).await.is(403);
    for (roles, partitions, problem) in [
        (&[][..], &["a"][..], "A role is missing"),
        (&["view"], &[], "none are named"),
        (&["metrics"], &["a"], "no role that holds there"),
        (&["boss"], &["a"], "unknown variant"),
        (&["view"], &["*a"], "does not name partitions"),
    ] {
        let refused = create(ADMIN, roles, partitions).await.is(400);
        assert!(refused.error().contains(problem), "{refused:?}");
    }
    let seen = service
        .ask(Method::GET, TOKENS, &admin)
        .await
        .is(200)
        .json();
    let names = seen["tokens"].as_array().unwrap().iter();
    let names: Vec<_> = names.map(|token| token["name"].clone()).collect();
    assert_eq!(names, ["team", "new"]);
    let id = &other[..15];
    let path = format!("{TOKENS}/{id}");
    service.ask(Method::DELETE, &path, &admin).await.is(404);
    service.ask(Method::GET, TOKENS, &other).await.is(403);
}

#[tokio::test]
async fn lists_over_all_partitions_show_only_what_may_be_seen() {
    let service = guarded(None).await;
    let own = service.partition.clone();
    service.put_job("j", ADMIN).await.is(201);
    let path = "/job-service/v1/partitions/secluded/jobs/j";
    service
        .send(Method::PUT, path, ADMIN, &new_job())
        .await
        .is(201);
    let token = service.token("anna", &[AccessRole::Operate], &[&own]).await;
    let letters = async |query: &str| {
        let path = format!("/job-service/v1/deadLetters{query}");
        service.ask(Method::GET, &path, &token).await
    };
    let refused = letters("").await.is(403);
    assert!(
        refused.error().contains("parameter 'partition'"),
        "{refused:?}"
    );
    letters("?partition=secluded").await.is(404);
    letters(&format!("?partition={own}")).await.is(200);
    service
        .ask(Method::GET, "/job-service/v1/events", &token)
        .await
        .is(403);
    for path in ["/", &format!("/partitions/{own}/jobs")] {
        let page = service.ask(Method::GET, path, &token).await;
        let page = format!("{}{:?}", page.body, page.headers);
        assert!(page.contains(&own) && !page.contains("secluded"), "{page}");
    }
    let hidden = service.ask(Method::GET, path, &token).await.is(404);
    let gone = service
        .ask(Method::GET, &service.path("/jobs/gone"), &token)
        .await
        .is(404);
    assert_eq!(hidden.error().replace("{j}", "{gone}"), gone.error());
}

#[tokio::test]
async fn person_signs_in_to_the_page_and_out_of_it() {
    let service = guarded(None).await;
    let own = service.partition.clone();
    service.put_job("j", ADMIN).await.is(201);
    let token = service.token("Anna", &[AccessRole::View], &[&own]).await;
    let jobs = format!("/partitions/{own}/jobs");
    let page = |cookie: &str| {
        let request = service
            .request(Method::GET, &jobs)
            .header("accept", "text/html");
        Answer::of(request.header("cookie", cookie.to_owned()))
    };
    let asked = page("").await.is(303);
    assert!(
        asked.header("location").starts_with("/sign-in?to="),
        "{asked:?}"
    );
    let sign_in = async |token: &str| {
        let form = format!("to={jobs}&token={token}");
        let request = service.request(Method::POST, "/sign-in").body(form);
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        Answer::of(request.header("sec-fetch-site", "same-origin")).await
    };
    sign_in("nonsense")
        .await
        .is(401)
        .contains("The token is not valid.");
    let signed_in = sign_in(&token).await.is(303);
    assert_eq!(signed_in.header("location"), jobs);
    let cookie = signed_in.header("set-cookie");
    assert!(cookie.contains("HttpOnly; SameSite=Lax"), "{cookie}");
    let (cookie, _) = cookie.split_once(';').unwrap();
    let shown = page(cookie).await.is(200);
    shown.contains("Signed in as Anna");
    assert!(!shown.body.contains("href=\"/workers\""), "{shown:?}");
    // The API takes no cookie, because a page of somebody else could make the browser send it.
    let api = service.request(Method::GET, &service.path("/jobs"));
    Answer::of(api.header("cookie", cookie.to_owned()))
        .await
        .is(401);
    let out = service.request(Method::POST, "/sign-out");
    let out = Answer::of(out.header("sec-fetch-site", "same-origin"))
        .await
        .is(303);
    assert!(
        out.header("set-cookie")
            .contains("batchwright-session=; Path=/; Max-Age=0")
    );
}

#[tokio::test]
async fn worker_needs_the_key_of_its_job_and_no_token() {
    let service = guarded(None).await;
    let own = service.partition.clone();
    service.put_job("j", ADMIN).await.is(201);
    let sees = service.token("sees", &[AccessRole::View], &[&own]).await;
    let elsewhere = service
        .token("elsewhere", &[AccessRole::Admin], &["else*"])
        .await;
    let tracking = next(&service, "batch-in").await.tracking.unwrap();
    let url = (*tracking.status_check_url.unwrap()).to_owned();
    let (plain, key) = url.split_once("&k=").unwrap();
    let asked = async |url: &str, token: Option<&str>| {
        let path = url.strip_prefix(&*service.root).unwrap();
        let request = service.request(Method::GET, path);
        let request = match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        Answer::of(request).await
    };
    asked(&url, None).await.is(200);
    // Whatever a proxy adds.
    asked(&url, Some("nonsense")).await.is(200);
    asked(&url, Some(&elsewhere)).await.is(200);
    asked(plain, Some(&sees)).await.is(200);
    for (url, token) in [
        (plain.to_owned(), None),
        (plain.to_owned(), Some(&*elsewhere)),
        (format!("{plain}&k={}", key.replace(&key[..1], "x")), None),
    ] {
        let refused = asked(&url, token).await.is(401);
        assert_eq!(refused.header("x-batchwright-error"), "WRONG_JOB_KEY");
    }
    // It opens nothing else.
    let job = url.replace("/status?", "?");
    asked(&job, None).await.is(401);
    // Whoever only sees the job writes no memos.
    let memo = plain.replace("/status?", "/memos/0/part?");
    let path = memo.strip_prefix(&*service.root).unwrap();
    let written = service
        .send(Method::PUT, path, &sees, &json!({"result": "1"}))
        .await;
    assert_eq!(written.status, 401, "{written:?}");
    // What is gone is gone for everybody, because leftovers must be discarded.
    service
        .ask(Method::DELETE, &service.path("/jobs/j"), ADMIN)
        .await
        .is(204);
    for url in [&*url, plain] {
        asked(url, None).await.is(404);
    }
}

#[tokio::test]
async fn dead_letter_is_seen_and_changed_only_by_whoever_may_in_its_partition() {
    let service = guarded(None).await;
    let own = service.partition.clone();
    let letter = |number: u8, partition: Option<&str>| NewLetter {
        identity: vec![number],
        cause: LetterCause::Poison,
        reason: "it is broken".to_owned(),
        pipe: "rejected".to_owned(),
        origin: None,
        worker: None,
        attempts: None,
        label: None,
        headers: Headers::new(),
        body: vec![number],
        body_bytes: 1,
        task: partition.map(|partition| LetterTask {
            partition: partition.to_owned(),
            job: "j".to_owned(),
            incarnation: None,
            path: String::new(),
        }),
    };
    let letters = [
        letter(1, Some(&own)),
        letter(2, Some("elsewhere")),
        letter(3, None),
    ];
    service.store.keep_letters(&letters).await.unwrap();
    let listed = service
        .ask(Method::GET, LETTERS, ADMIN)
        .await
        .is(200)
        .json();
    let ids = listed["deadLetters"].as_array().unwrap().iter();
    let mut ids: Vec<i64> = ids.map(|letter| letter["id"].as_i64().unwrap()).collect();
    ids.sort_unstable();
    let sees = service.token("sees", &[AccessRole::Submit], &[&own]).await;
    let operates = service
        .token("operates", &[AccessRole::Operate], &[&own])
        .await;
    let api = async |method: Method, id: i64, token: &str| {
        let answer = service.ask(method, &format!("{LETTERS}/{id}"), token).await;
        answer.status.as_u16()
    };
    let page = async |id: i64, token: &str| {
        let path = format!("/dead-letters/{id}/delete");
        let request = service.with_token(Method::POST, &path, token);
        let answer = Answer::of(request.header("sec-fetch-site", "same-origin")).await;
        answer.status.as_u16()
    };
    for id in &ids[1..] {
        assert_eq!(api(Method::GET, *id, &operates).await, 404);
        assert_eq!(api(Method::DELETE, *id, &operates).await, 404);
        assert_eq!(page(*id, &operates).await, 404);
    }
    assert_eq!(api(Method::GET, ids[0], &sees).await, 200);
    assert_eq!(api(Method::DELETE, ids[0], &sees).await, 403);
    assert_eq!(page(ids[0], &sees).await, 403);
    assert_eq!(page(ids[0], &operates).await, 303);
    assert_eq!(page(ids[0], &operates).await, 404);
    assert_eq!(api(Method::DELETE, ids[2], ADMIN).await, 200);
}
