use proptest::prelude::*;

use super::*;

fn database() -> Condition {
    Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE)
        .parameter("database", "orders")
        .and_then(|condition| condition.parameter("schema", "public"))
        .unwrap()
}

fn tcp() -> Tester {
    Tester::Tcp {
        host: "db.example.com".to_owned(),
        port: 5432,
    }
}

#[test]
fn a_condition_is_one_line_of_json() {
    let condition = database()
        .tested_by(tcp())
        .unwrap()
        .because("refused:\nno route");
    let json = condition.to_json();
    assert_eq!(
        json,
        r#"{"code":"DATABASE_NOT_AVAILABLE","parameters":{"database":"orders","schema":"public"},"tester":{"kind":"tcp","host":"db.example.com","port":5432},"policy":"stepwise,steps=2x10s/10x20s/10x1m/100x2m/5m,attempts=none,within=2d","reason":"refused: no route"}"#
    );
    assert_eq!(Condition::from_json(&json), Ok(condition));
}

#[test]
fn what_a_condition_leaves_out_is_that_of_its_code() {
    let short = r#"{"code":"QUOTA_EXCEEDED","tester":{"kind":"a later one","to":[1]},"later":{}}"#;
    let condition = Condition::from_json(short).unwrap();
    assert_eq!(condition.tester(), &Tester::Canary);
    assert_eq!(condition.parameters().len(), 0);
    assert_eq!(
        condition.test_policy().to_string(),
        "constant,delay=1m,attempts=none,within=2d"
    );
}

#[test]
fn conditions_differ_by_code_tester_and_parameters_only() {
    let condition = database().tested_by(tcp()).unwrap();
    // Never changes: the key is stored.
    assert_eq!(condition.key().as_str(), "0d3a506323d39ba742675eceb7c8cf7c");
    let policy = RetryPolicy::constant(Duration::from_secs(7));
    let same = condition.clone().because("away").policy(policy).unwrap();
    assert_eq!(same.key(), condition.key());
    let others = [
        database(),
        condition.clone().parameter("schema", "other").unwrap(),
        Condition {
            code: ConditionCode::TRANSMISSION_FAILURE,
            ..condition.clone()
        },
    ];
    for other in others {
        assert_ne!(other.key(), condition.key(), "{other:?}");
    }
}

#[test]
fn the_codes_of_aloe_are_tested_at_its_times() {
    use ConditionCode as Code;
    let expected = [
        (Code::SYSTEM_NOT_AVAILABLE, "system-not-available"),
        (Code::APPLICATION_NOT_AVAILABLE, "application-not-available"),
        (
            Code::SERVICE_CONNECTION_FAILURE,
            "service-connection-failure",
        ),
        (Code::TRANSMISSION_FAILURE, "aloe-stepwise"),
        (Code::DATABASE_NOT_AVAILABLE, "aloe-stepwise"),
        (Code::QUOTA_EXCEEDED, "quota-exceeded"),
        (Code::JOB_SUSPENDED, "aloe-stepwise"),
        (Code::SSH_CONNECTION_FAILURE, "ssh-connection-failure"),
        (Code::SSH_CONNECTION_TIMEOUT, "ssh-connection-timeout"),
        (Code::SSH_AUTHENTICATION_FAILED, "ssh-authentication-failed"),
        (
            Code::FIRST_SSH_AUTHENTICATION_FAILED,
            "first-ssh-authentication-failed",
        ),
        ("LICENCE_IN_USE".parse().unwrap(), "aloe-stepwise"),
    ];
    for (code, preset) in expected {
        assert_eq!(code.as_str().parse(), Ok(code.clone()));
        assert_eq!(
            Some(code.policy()),
            Preset::named(preset).map(Preset::policy),
            "{code}"
        );
    }
}

#[test]
fn a_condition_is_tested_after_each_delay_of_its_policy_and_expires_behind_the_last() {
    let condition = Condition::new(ConditionCode::FIRST_SSH_AUTHENTICATION_FAILED);
    let minute = Duration::from_mins(1);
    let delays: Vec<_> = (0..4u32)
        .map(|tests| condition.delay_before_test(tests, minute * tests))
        .collect();
    assert_eq!(delays, [Some(minute), Some(minute), Some(minute), None]);
    let condition = Condition::new(ConditionCode::SYSTEM_NOT_AVAILABLE);
    assert_eq!(
        condition.delay_before_test(9, Duration::from_hours(48)),
        None
    );
    assert_eq!(condition.delay_before_test(u32::MAX, minute), None);
}

#[test]
fn an_invalid_condition_says_what_is_wrong() {
    let json = |rest: &str| format!(r#"{{"code":"X",{rest}}}"#);
    let long = "x".repeat(4000);
    let many: Vec<String> = (0..17).map(|n| format!(r#""{n}":"""#)).collect();
    let cases = [
        (
            r#"{"code":"away","tester":{"kind":"canary"}}"#.to_owned(),
            r#""away" is not the code of a condition"#,
        ),
        (
            json(r#""tester":{"kind":"http","url":"file:///etc"}"#),
            "is not a URL to test",
        ),
        (
            json(r#""tester":{"kind":"http","url":"http://user:word@host/"}"#),
            "no user and no password",
        ),
        (
            json(r#""tester":{"kind":"tcp","host":"a b","port":1}"#),
            r#""a b", port 1, cannot be tested"#,
        ),
        (
            json(r#""tester":{"kind":"tcp","host":"db","port":0}"#),
            "a port from 1",
        ),
        (
            json(r#""tester":{"kind":"postgresql","database":""}"#),
            "the operator's name for a database",
        ),
        (
            json(r#""tester":{"kind":"quota","partition":"p"}"#),
            "a number of jobs or of tasks",
        ),
        (
            json(r#""tester":{"kind":"quota","partition":"p","jobs":0}"#),
            "at least 1",
        ),
        (
            json(r#""tester":{"kind":"canary"},"policy":"none""#),
            "allows no test",
        ),
        (
            json(r#""tester":{"kind":"canary"},"parameters":{"a":"\u0000"}"#),
            "control characters",
        ),
        (
            json(r#""tester":{"kind":"canary"},"parameters":{"":"b"}"#),
            "the name of a parameter",
        ),
        (
            json(&format!(
                r#""tester":{{"kind":"canary"}},"parameters":{{"a":"{long}"}}"#
            )),
            "without its reason",
        ),
        (
            json(&format!(
                r#""tester":{{"kind":"canary"}},"parameters":{{{}}}"#,
                many.join(",")
            )),
            "more than 16 parameters",
        ),
        (" ".repeat(5000), "more than 4096 bytes"),
        ("{}".to_owned(), "missing field `code`"),
    ];
    for (text, expected) in cases {
        let error = Condition::from_json(&text).expect_err(&text).to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn a_policy_that_nobody_could_read_again_is_refused() {
    let condition = Condition::new(ConditionCode::QUOTA_EXCEEDED);
    let busy = condition.policy(RetryPolicy::immediate().forever());
    let problem = busy.unwrap_err().to_string();
    assert!(problem.contains("would keep workers busy"), "{problem}");
}

#[test]
fn a_key_is_read_as_it_is_written() {
    let key = database().key();
    assert_eq!(key.as_str().parse(), Ok(key));
    for no_key in [
        "",
        "abc",
        "G1234567890123456789012345678901",
        &"a".repeat(33),
    ] {
        assert!(no_key.parse::<ConditionKey>().is_err(), "{no_key}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn whatever_a_condition_says_it_is_bounded_and_read_again(
        code in "[A-Z][A-Z0-9_]{0,63}",
        parameters in proptest::collection::vec(("\\PC{1,12}", "\\PC{0,200}"), 0..20),
        reason in "(?s).{0,700}",
    ) {
        let mut condition = Condition::new(code.parse().unwrap()).because(reason);
        for (name, value) in parameters {
            condition = condition.clone().parameter(name, value).unwrap_or(condition);
        }
        let json = condition.to_json();
        prop_assert!(json.len() <= Condition::MAX_BYTES, "{} bytes", json.len());
        prop_assert!(!json.contains(char::is_control));
        let again = Condition::from_json(&json).unwrap();
        prop_assert_eq!(again.key(), condition.key());
        prop_assert_eq!(again, condition);
    }

    #[test]
    fn no_text_that_is_read_as_a_condition_panics(text in "(?s).{0,300}") {
        let _ = Condition::from_json(&text);
        let _ = Condition::from_json(&format!(r#"{{"code":"X","tester":{{"kind":"http","url":{}}}}}"#, serde_json::json!(text)));
    }
}
