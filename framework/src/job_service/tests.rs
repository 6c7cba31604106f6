//! Status checks against a server that answers as job services and gateways do.

use contract::{JobShare, JobStatus, RetryPolicy};

use super::status::is_due;
use super::*;
use crate::broker::Event;
use crate::steps::routing::JobKnowledge;
use crate::tls::TlsFiles;
use harness::tls::{Authority, TlsServer};
use wiremock::matchers::{method, path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

const STATUS: &str = "/job-service/v1/partitions/p/jobs/j/status";

fn client() -> JobServiceClient {
    client_with(Duration::from_secs(5), &Tls::default())
}

fn client_with(time_limit: Duration, tls: &Tls) -> JobServiceClient {
    JobServiceClient::new(time_limit, tls, Clock::system(), &TaskTracker::new())
}

fn due_at(url: String) -> Tracking {
    Tracking {
        job_task_id: Some("p:j.1".into()),
        status_check_url: Some(url.into()),
        ..Tracking::default()
    }
}

async fn ask(response: ResponseTemplate) -> (JobKnowledge, Tracking) {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .and(path(STATUS))
        .respond_with(response)
        .mount(&server)
        .await;
    let mut tracking = due_at(server.uri() + STATUS);
    let checker = client_with(Duration::from_millis(300), &Tls::default());
    (checker.check(Some(&mut tracking)).await, tracking)
}

#[test]
fn check_is_due_after_the_interval_and_for_stamps_from_the_future() {
    let at = |last, interval| Tracking {
        last_status_check_time: last,
        status_check_interval_millis: interval,
        ..Tracking::default()
    };
    for (last, interval, due) in [
        (None, 1000, true),
        (Some(9_001), 1000, false),
        (Some(9_000), 1000, true),
        (Some(10_500), 1000, false),
        (Some(11_001), 1000, true),
        (Some(10_000), 0, true),
        (Some(i64::MAX), i64::MAX, false),
    ] {
        assert_eq!(
            is_due(&at(last, interval), 10_000),
            due,
            "{last:?} {interval}"
        );
    }
}

#[tokio::test]
async fn status_is_read_with_or_without_quotes_and_valid_for_its_max_age() {
    let quoted = ResponseTemplate::new(200)
        .set_body_string("\"Cancelled\"")
        .insert_header("Cache-Control", "no-transform, max-age=7");
    let (job, tracking) = ask(quoted).await;
    assert_eq!(job, JobKnowledge::Is(JobStatus::Cancelled));
    assert_eq!(tracking.status_check_interval_millis, 7000);
    assert!(tracking.last_status_check_time.is_some());
    let (job, tracking) = ask(ResponseTemplate::new(200).set_body_string("Active\nmore")).await;
    assert_eq!(job, JobKnowledge::Is(JobStatus::Active));
    assert_eq!(tracking.status_check_interval_millis, 120_000);
}

#[tokio::test]
async fn only_a_job_service_can_say_that_a_job_is_gone() {
    let gone = "ERROR: job_id {j} not found";
    let body = |message: &str| serde_json::json!({ "message": message }).to_string();
    let java =
        format!("{gone}\n  Where: PL/pgSQL function get_status(character varying) line 7 at RAISE");
    for (marked, body, says_gone) in [
        // Our service, also behind a gateway that writes error pages of its own.
        (true, body(gone), true),
        (true, "<html>not found</html>".to_owned(), true),
        // CAF's service, on databases of any language.
        (false, body(gone), true),
        (false, body(&java), true),
        (false, body("FEHLER: job_id {j} not found"), true),
        // Gateways, the wrong address of a job service, and what a service says about another job.
        (false, body("no Route matched with those values"), false),
        (
            false,
            body("There is nothing at /v2/partitions/p/jobs/j/status."),
            false,
        ),
        (false, body("ERROR: job_id {other} not found"), false),
        (
            false,
            body("ERROR: job_id {j} not found, nor is its page"),
            false,
        ),
        (
            false,
            body("page not found\nERROR: job_id {j} not found"),
            false,
        ),
        (false, gone.to_owned(), false),
        (false, "<html>no such page</html>".to_owned(), false),
    ] {
        let mut response = ResponseTemplate::new(404).set_body_string(&body);
        if marked {
            response = response.insert_header("x-batchwright-not-found", "job");
        }
        let expected = if says_gone {
            JobKnowledge::Gone
        } else {
            JobKnowledge::Presumed
        };
        assert_eq!(ask(response).await.0, expected, "{body}");
    }
}

#[tokio::test]
async fn response_is_read_up_to_a_limit_and_valid_for_a_day_at_most() {
    let cancelled = |bytes: usize| {
        let body = format!("Cancelled\n{}", " ".repeat(bytes - "Cancelled\n".len()));
        ResponseTemplate::new(200)
            .set_body_string(body)
            .insert_header("Cache-Control", "max-age=18446744073709551615")
    };
    let (job, tracking) = ask(cancelled(MAX_RESPONSE)).await;
    assert_eq!(job, JobKnowledge::Is(JobStatus::Cancelled));
    assert_eq!(tracking.status_check_interval_millis, 86_400_000);
    let (job, _) = ask(cancelled(MAX_RESPONSE + 1)).await;
    assert_eq!(job, JobKnowledge::Presumed);
}

#[tokio::test]
async fn redirect_is_not_followed() {
    let server = MockServer::start().await;
    Mock::given(path("/elsewhere"))
        .respond_with(ResponseTemplate::new(200).set_body_string("Cancelled"))
        .expect(0)
        .mount(&server)
        .await;
    let elsewhere = format!("{}/elsewhere", server.uri());
    let redirect = ResponseTemplate::new(302).insert_header("Location", elsewhere);
    assert_eq!(ask(redirect).await.0, JobKnowledge::Presumed);
}

#[tokio::test]
async fn check_that_is_not_allowed_asks_nobody_and_does_not_stop_work() {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(200).set_body_string("Cancelled"))
        .expect(1)
        .mount(&server)
        .await;
    let own = due_at(server.uri() + STATUS);
    let foreign = Tracking {
        job_task_id: Some("p:other.1".into()),
        ..own.clone()
    };
    let (allowing, limited) = (
        client(),
        client().with_origins("http://safe".parse().unwrap(), Counter::noop()),
    );
    // The status of the own job, which is in the cache then, says nothing about another.
    for (checker, tracking, known) in [
        (&allowing, &own, JobKnowledge::Is(JobStatus::Cancelled)),
        (&allowing, &foreign, JobKnowledge::Presumed),
        (&limited, &own, JobKnowledge::Presumed),
    ] {
        assert_eq!(checker.check(Some(&mut tracking.clone())).await, known);
        let ended = known != JobKnowledge::Presumed;
        assert_eq!(checker.job_now(tracking).await.has_ended(), ended);
    }
}

#[tokio::test]
async fn failed_check_does_not_stop_work() {
    assert_eq!(
        ask(ResponseTemplate::new(500)).await.0,
        JobKnowledge::Presumed
    );
    assert_eq!(
        ask(ResponseTemplate::new(200).set_body_string("Bored"))
            .await
            .0,
        JobKnowledge::Presumed
    );
    assert_eq!(
        ask(ResponseTemplate::new(200).set_delay(Duration::from_secs(5)))
            .await
            .0,
        JobKnowledge::Presumed
    );
    let checker = client();
    for url in [&format!("http://127.0.0.1:1{STATUS}"), "no url at all"] {
        assert_eq!(
            checker.check(Some(&mut due_at(url.into()))).await,
            JobKnowledge::Presumed,
            "{url}"
        );
    }
}

#[tokio::test]
async fn wrong_key_of_one_message_stops_no_work_and_spoils_no_answer_for_its_job() {
    let server = MockServer::start().await;
    let with_key = |key: &str, status, body: &str| {
        Mock::given(method("GET"))
            .and(path(STATUS))
            .and(query_param("n", "42"))
            .and(query_param("k", key))
            .respond_with(ResponseTemplate::new(status).set_body_string(body))
            .expect(1)
            .mount(&server)
    };
    with_key("00f1", 200, "\"Cancelled\"").await;
    with_key("00f2", 401, r#"{"message": "The key is wrong."}"#).await;
    let (checker, url) = (client(), format!("{}{STATUS}?n=42&k=", server.uri()));
    let cancelled = JobKnowledge::Is(JobStatus::Cancelled);
    for _ in 0..2 {
        for (key, known) in [("00f2", JobKnowledge::Presumed), ("00f1", cancelled)] {
            let mut tracking = due_at(format!("{url}{key}"));
            assert_eq!(checker.check(Some(&mut tracking)).await, known);
        }
    }
}

#[tokio::test]
async fn splits_and_memos_are_asked_with_the_key_and_no_error_shows_it() {
    let server = MockServer::start().await;
    let base = STATUS.trim_end_matches("status");
    for segment in ["splits/1", "memos/1/part"] {
        Mock::given(path(format!("{base}{segment}")))
            .and(query_param("n", "42"))
            .and(query_param("r", "2"))
            .and(query_param("k", "00f1"))
            .respond_with(ResponseTemplate::new(500).set_body_string("at /x?n=42&amp;k=00f1"))
            .expect(1)
            .mount(&server)
            .await;
    }
    let tracking = due_at(format!("{}{STATUS}?n=42&r=2&k=00f1", server.uri()));
    let checker = client();
    let part = "part".parse().unwrap();
    let foreign = Tracking {
        job_task_id: Some("p:other.1".to_owned()),
        ..tracking.clone()
    };
    for error in [
        format!("{:?}", checker.split_state(&tracking, 0).await.unwrap_err()),
        format!("{:?}", checker.memo(&tracking, &part).await.unwrap_err()),
        format!("{:?}", checker.memo(&foreign, &part).await.unwrap_err()),
        format!("{tracking:?}"),
    ] {
        assert!(error.contains("?n=42&r=2&k=***"), "{error}");
        assert!(!error.contains("00f1"), "{error}");
    }
}

#[tokio::test]
async fn job_service_at_https_is_asked_if_its_authority_is_trusted() {
    const RESPONSE: &[u8] =
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 8\r\n\r\n\"Active\"";
    let authority = Authority::new().unwrap();
    let certificate = authority.issue("localhost").unwrap();
    let server = TlsServer::start(&certificate, None).await.unwrap();
    let url = format!(
        "https://localhost:{}{STATUS}",
        server.address().unwrap().port()
    );
    let trusting = Tls::load(&TlsFiles {
        ca: Some(authority.file()),
        ..TlsFiles::default()
    });
    for (tls, expected) in [
        (Tls::default(), JobKnowledge::Presumed),
        (trusting.unwrap(), JobKnowledge::Is(JobStatus::Active)),
    ] {
        let checker = client_with(Duration::from_secs(5), &tls);
        let mut tracking = due_at(url.clone());
        let known = tokio::select! {
            never = server.serve(RESPONSE) => match never {},
            known = checker.check(Some(&mut tracking)) => known,
        };
        assert_eq!(known, expected);
    }
}

#[tokio::test]
async fn announcement_makes_every_message_of_its_job_due_until_the_next_check() {
    let server = MockServer::start().await;
    let response = |word: &str| {
        ResponseTemplate::new(200)
            .set_body_string(word)
            .insert_header("Cache-Control", "max-age=60")
    };
    Mock::given(method("GET"))
        .respond_with(response("Active"))
        .up_to_n_times(1)
        .expect(1)
        .mount(&server)
        .await;
    Mock::given(method("GET"))
        .respond_with(response("Cancelled"))
        .expect(1)
        .mount(&server)
        .await;
    let checker = client();
    let fresh = |job: &str| Tracking {
        job_task_id: Some(format!("{job}.1.2*")),
        last_status_check_time: Some(Clock::system().now_millis() + 1000),
        status_check_interval_millis: 60_000,
        ..due_at(format!(
            "{}/partitions/p/jobs/{}/status",
            server.uri(),
            &job[2..]
        ))
    };
    let mut due = Tracking {
        last_status_check_time: None,
        ..fresh("p:j")
    };
    assert_eq!(
        checker.check(Some(&mut due)).await,
        JobKnowledge::Is(JobStatus::Active)
    );
    assert_eq!(
        checker.check(Some(&mut fresh("p:j"))).await,
        JobKnowledge::Presumed
    );
    let body = bytes::Bytes::from_static(br#"{"jobs":["p:j"]}"#);
    checker.changed.note(Event::Message(body));
    for _ in 0..3 {
        assert_eq!(
            checker.check(Some(&mut fresh("p:j"))).await,
            JobKnowledge::Is(JobStatus::Cancelled)
        );
    }
    assert_eq!(
        checker.check(Some(&mut fresh("p:j2"))).await,
        JobKnowledge::Presumed
    );
}

#[tokio::test]
async fn missed_announcements_invalidate_every_earlier_stamp() {
    let server = MockServer::start().await;
    Mock::given(method("GET"))
        .respond_with(ResponseTemplate::new(200).set_body_string("Active"))
        .expect(1)
        .mount(&server)
        .await;
    let checker = client();
    let stamped = |last| Tracking {
        job_task_id: Some("p:j".into()),
        last_status_check_time: Some(last),
        status_check_interval_millis: 600_000,
        ..due_at(server.uri() + STATUS)
    };
    checker.changed.note(Event::Missed);
    assert_eq!(
        checker
            .check(Some(&mut stamped(Clock::system().now_millis() - 5000)))
            .await,
        JobKnowledge::Is(JobStatus::Active)
    );
    assert_eq!(
        checker
            .check(Some(&mut stamped(Clock::system().now_millis() + 5000)))
            .await,
        JobKnowledge::Presumed
    );
}

#[tokio::test]
async fn one_request_serves_all_waiting_messages_of_a_job() {
    let server = MockServer::start().await;
    let response = ResponseTemplate::new(200)
        .set_body_string("Active")
        .insert_header("Cache-Control", "max-age=60");
    Mock::given(method("GET"))
        .respond_with(response.set_delay(Duration::from_millis(50)))
        .expect(1)
        .mount(&server)
        .await;
    let checker = client();
    let checks = (0..50).map(|_| async {
        let mut tracking = due_at(format!("{}{STATUS}?n=7", server.uri()));
        checker.check(Some(&mut tracking)).await
    });
    let known = futures_util::future::join_all(checks).await;
    assert!(
        known
            .iter()
            .all(|job| *job == JobKnowledge::Is(JobStatus::Active))
    );
}

#[tokio::test]
async fn jobs_that_are_gone_degrade_the_worker_unless_their_deletion_was_announced() {
    let server = MockServer::start().await;
    let gone = ResponseTemplate::new(404).insert_header("x-batchwright-not-found", "job");
    Mock::given(method("GET"))
        .respond_with(gone)
        .mount(&server)
        .await;
    let health = Health::default();
    let checker = client().with_health(health.clone(), "w");
    let check = async |job: &str| {
        let url = format!("{}/partitions/p/jobs/{job}/status", server.uri());
        let mut tracking = Tracking {
            job_task_id: Some(format!("p:{job}.1")),
            ..due_at(url)
        };
        assert_eq!(checker.check(Some(&mut tracking)).await, JobKnowledge::Gone);
    };
    let deleted = br#"{"jobs":["p:a","p:b","p:c","p:d","p:e","p:f"]}"#;
    checker
        .changed
        .note(Event::Message(bytes::Bytes::from_static(deleted)));
    for job in ["a", "b", "c", "d", "e", "f"] {
        check(job).await;
    }
    assert_eq!(health.degradations(), []);
    for job in ["1", "2", "3", "4", "5"] {
        check(job).await;
    }
    assert_eq!(health.degradations().len(), 1);
}

#[tokio::test]
async fn nobody_waits_for_the_share_of_a_job_and_one_that_is_not_said_is_unknown() {
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(200)
        .set_body_string("Active")
        .insert_header("X-Batchwright-Share", "300");
    let asked = Mock::given(path(STATUS)).respond_with(answer).expect(1);
    asked.mount(&server).await;
    let (checker, tracking) = (client(), due_at(server.uri() + STATUS));
    assert_eq!(checker.share(Some(&tracking)).await, None);
    checker.tasks.close();
    checker.tasks.wait().await;
    for _ in 0..2 {
        assert_eq!(checker.share(Some(&tracking)).await, JobShare::of(300));
    }
    assert_eq!(checker.share(None).await, None);
}

#[tokio::test]
async fn the_retry_policy_of_a_job_is_asked_for_once_and_an_unknown_one_leaves_the_workers_own() {
    let answers = |header: Option<&str>| {
        let answer = ResponseTemplate::new(200)
            .set_body_string("Active")
            .insert_header("Cache-Control", "max-age=0");
        match header {
            Some(policy) => answer.insert_header("X-Batchwright-Retry", policy),
            None => answer,
        }
    };
    let long = "9".repeat(10_000);
    for (answer, policy, asked) in [
        (
            answers(Some("jobweaver,attempts=3")),
            Some("jobweaver,attempts=3"),
            1,
        ),
        (answers(None), None, 1),
        (answers(Some("weekly,on=Monday")), None, 1),
        (answers(Some(&long)), None, 1),
        // Nobody has answered. The next check is valid for some seconds, and here it is the only
        // one.
        (ResponseTemplate::new(500), None, 1),
    ] {
        let server = MockServer::start().await;
        Mock::given(path(STATUS))
            .respond_with(answer)
            .expect(asked)
            .mount(&server)
            .await;
        let (checker, tracking) = (client(), due_at(server.uri() + STATUS));
        let policy = policy.map(|text| text.parse::<RetryPolicy>().unwrap().coarse());
        for _ in 0..3 {
            let known = checker.job_policy(Some(&tracking)).await;
            assert_eq!(known.as_deref(), policy.as_ref());
        }
    }
    assert_eq!(client().job_policy(None).await, None);
    assert_eq!(client().job_policy(Some(&Tracking::default())).await, None);
}
