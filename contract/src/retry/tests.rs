use proptest::prelude::*;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn policy(text: &str) -> RetryPolicy {
    text.parse()
        .unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// Returns delays in seconds, runs of equal ones as `3×60`, those for ever as `60…`. At most `most`
/// delays are looked at.
fn shown(policy: &RetryPolicy, most: usize) -> String {
    let delays: Vec<Duration> = policy.delays().take(most).collect();
    let goes_on = policy.delays().nth(most).is_some();
    let runs: Vec<&[Duration]> = delays.chunk_by(|one, other| one == other).collect();
    let mut words: Vec<String> = runs
        .iter()
        .map(|run| match (run.len(), run[0].as_secs()) {
            (1, seconds) => seconds.to_string(),
            (times, seconds) => format!("{times}×{seconds}"),
        })
        .collect();
    if goes_on && let (Some(last), Some(run)) = (words.last_mut(), runs.last()) {
        *last = format!("{}…", run[0].as_secs());
    }
    words.join(", ")
}

#[test]
fn the_delays_of_every_preset_are_those_of_its_system() {
    let expected = [
        ("caf", "10×0"),
        ("jobweaver", "10, 20, 40, 80, 160, 4×300"),
        ("quantumleap", "20, 40, 80, 160, 320, 640, 1280, 2560, 5120"),
        ("aloe-constant", "2880×60"),
        // 48 hours end 560 delays of 300 seconds after the first steps.
        ("aloe-stepwise", "2×10, 10×20, 10×60, 100×120, 533×300"),
        ("system-not-available", "2880×60"),
        ("application-not-available", "2880×60"),
        ("quota-exceeded", "2880×60"),
        ("service-connection-failure", "5×60, 30×120"),
        ("ssh-connection-failure", "5×60, 5×120, 3×300"),
        ("ssh-connection-timeout", "5×60, 5×120, 10×300"),
        ("ssh-authentication-failed", "15×60"),
        ("first-ssh-authentication-failed", "3×60"),
        (
            "aloe-monitoring",
            "1, 5×10, 10×60, 100×180, 100×300, 350×600",
        ),
        ("aloe-transfer", "3×5, 10×10, 100×30, 60…"),
        ("agave", "5×0"),
    ];
    let delays: Vec<(&str, String)> = PRESETS
        .iter()
        .map(|preset| (preset.name, shown(&preset.policy(), 5000)))
        .collect();
    let expected = expected.map(|(name, delays)| (name, delays.to_owned()));
    assert_eq!(delays, expected);
}

#[test]
fn the_table_of_presets_in_the_documentation_is_true() {
    let documentation = include_str!("../../../docs/reference/retries.md");
    let (_, documentation) = documentation.split_once("## Presets").unwrap();
    let row = |preset: &Preset| {
        let (delays, text) = (shown(&preset.policy(), 5000), preset.policy());
        format!(
            "| `{}` | {} | {delays} | `{text}` |",
            preset.name, preset.origin
        )
    };
    let missing = PRESETS
        .iter()
        .map(row)
        .filter(|row| !documentation.contains(row));
    let missing: Vec<String> = missing.collect();
    assert!(
        missing.is_empty(),
        "docs/reference/retries.md lacks these rows:\n{}",
        missing.join("\n")
    );
    let rows = documentation
        .lines()
        .filter(|line| line.starts_with("| `") && line.ends_with("` |"));
    assert_eq!(rows.count(), PRESETS.len(), "the table has other rows, too");
}

#[test]
fn texts_say_policies() {
    for (text, delays) in [
        ("none", ""),
        ("immediate", "9×0"),
        ("immediate, attempts=3", "2×0"),
        ("constant,delay=5s,attempts=4", "3×5"),
        ("constant,delay=1m,within=3m", "3×60"),
        ("exponential", "1, 2, 4, 8, 16, 32, 64, 128, 256"),
        (
            "exponential,first=5s,factor=3,longest=1m,attempts=6",
            "5, 15, 45, 2×60",
        ),
        (
            "exponential,first=1h,longest=none,within=none",
            "3600, 7200, 14400, 28800, 57600, 115200, 230400, 460800, 921600",
        ),
        ("stepwise,steps=2x10s/1m", "2×10, 7×60"),
        ("stepwise,steps=10s/2x1m/1x5m", "10, 2×60, 300"),
        ("jobweaver,attempts=4", "10, 20, 40"),
        ("quantumleap,attempts=1", ""),
    ] {
        assert_eq!(shown(&policy(text), 100), delays, "{text}");
    }
}

#[test]
fn json_says_the_same_as_text() {
    for (json, text) in [
        (r#""jobweaver""#, "jobweaver"),
        (r#""constant,delay=5s""#, "constant,delay=5s"),
        (
            r#"{"policy": "quantumleap", "attempts": 3}"#,
            "quantumleap,attempts=3",
        ),
        (
            r#"{"policy": "exponential", "first": "5s", "factor": 1.5, "longest": null, "jitter": "20%", "within": "2h"}"#,
            "exponential,first=5s,factor=1.5,jitter=20%,within=2h",
        ),
        (
            r#"{"policy": "stepwise", "steps": ["2x10s", "5m"], "attempts": "none"}"#,
            "stepwise,steps=2x10s/5m,attempts=none",
        ),
    ] {
        let read: RetryPolicy = serde_json::from_str(json).unwrap();
        assert_eq!(read, policy(text), "{json}");
        let written = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<RetryPolicy>(&written).unwrap(), read);
    }
}

#[test]
fn what_is_wrong_with_a_policy_is_said() {
    for (text, problem) in [
        (
            "often",
            "\"often\" is no retry policy; expected none, immediate, constant, exponential, stepwise or one of the presets caf, jobweaver,",
        ),
        (
            "constant",
            "the policy constant needs a delay, such as constant,delay=30s",
        ),
        ("stepwise", "the policy stepwise needs steps"),
        (
            "constant,delay=30",
            "delay is \"30\": expected a whole number and a unit: 500ms, 10s, 5m, 2h or 1d",
        ),
        (
            "constant,delay=-1s",
            "delay is \"-1s\": expected a whole number",
        ),
        (
            "constant,delay=31d",
            "delay is \"31d\": the longest delay is 30d",
        ),
        (
            "constant,delay=99999999999999999999d",
            "expected a whole number",
        ),
        ("constant,delay=5s,delay=6s", "it states delay twice"),
        (
            "constant,delay=5s,first=6s",
            "the policy constant has no first",
        ),
        ("none,attempts=3", "the policy none has no attempts"),
        (
            "immediate,often",
            "\"often\" is not a key with a value, such as attempts=5",
        ),
        (
            "immediate,times=5",
            "\"times\" is no key; expected delay, first,",
        ),
        (
            "immediate,attempts=0",
            "attempts is \"0\": expected a whole number from 1 on, or none",
        ),
        (
            "exponential,factor=0.5",
            "factor is \"0.5\": expected a number from 1 to 1000",
        ),
        ("exponential,factor=NaN", "factor is \"NaN\""),
        ("exponential,jitter=101%", "jitter is \"101%\""),
        (
            "exponential,anchor=end",
            "anchor is \"end\": expected failure or start",
        ),
        ("stepwise,steps=0x5s", "0x5s is no step"),
        ("stepwise,steps=", "expected a whole number and a unit"),
        (
            "immediate,attempts=none",
            "it has a delay of 0s and would keep workers busy; state at most 1000 attempts, or delays of 1s or more",
        ),
        (
            "constant,delay=999ms,attempts=1001",
            "it has a delay of 999ms",
        ),
        ("jobweaver,first=1s", "the policy jobweaver has no first"),
        ("", "\"\" is no retry policy"),
    ] {
        let error = text.parse::<RetryPolicy>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
    for (json, problem) in [
        ("5", "a retry policy: the name of a preset"),
        ("{}", "retry: it has no policy; state the kind or a preset"),
        (
            r#"{"policy": "constant", "delay": 5}"#,
            "retry: delay is \"5\": expected a whole number and a unit",
        ),
        (
            r#"{"policy": "constant", "delay": {}}"#,
            "retry: \"delay\" is neither a short text nor a number",
        ),
    ] {
        let error = serde_json::from_str::<RetryPolicy>(json)
            .unwrap_err()
            .to_string();
        assert!(error.contains(problem), "{json}: {error}");
    }
}

#[test]
fn with_an_anchor_each_attempt_has_its_time() {
    let policy = policy("exponential,first=20s,longest=none,anchor=start");
    for (attempt, elapsed, delay) in [
        (1, 0, 20_000),
        (1, 3_000, 17_000),
        // So long did the first attempt take that the time of the next one has passed.
        (1, 25_000, 0),
        (2, 20_000, 40_000),
        // Rounded up: an attempt never runs before its time.
        (2, 23_456, 37_000),
        (3, 61_000, 79_000),
    ] {
        let given = policy.delay_after(attempt, Duration::from_millis(elapsed));
        assert_eq!(
            given,
            Some(Duration::from_millis(delay)),
            "{attempt} {elapsed}"
        );
    }
}

#[test]
fn a_policy_of_a_job_has_few_different_delays() {
    let policy =
        policy("exponential,first=1001ms,factor=1.01,longest=1h,attempts=1000,within=none");
    let delays = |policy: &RetryPolicy| {
        let all = (1..1000).filter_map(|attempt| policy.delay_after(attempt, Duration::ZERO));
        all.collect::<std::collections::HashSet<_>>().len()
    };
    assert!(delays(&policy) > 800);
    let coarse = delays(&policy.coarse());
    assert!(coarse < 350, "{coarse}");
}

#[test]
fn last_step_repeats() {
    let policy = RetryPolicy::stepwise([SECOND, SECOND * 10]).attempts(5);
    assert_eq!(shown(&policy, 100), "1, 3×10");
}

#[test]
fn no_attempt_begins_after_the_total_time() {
    let policy = RetryPolicy::constant(SECOND * 5).within(SECOND * 12);
    assert_eq!(policy.delay_after(1, SECOND * 7), Some(SECOND * 5));
    assert_eq!(policy.delay_after(2, SECOND * 8), None);
}

#[test]
fn policy_with_zero_attempts_allows_no_retry() {
    let policy = RetryPolicy::immediate().attempts(0);
    assert_eq!(policy.delay_after(1, Duration::ZERO), None);
}

/// Any delay in whole milliseconds.
fn any_delay() -> impl Strategy<Value = Duration> {
    let millis = prop_oneof![Just(0), 0u64..100_000, 0u64..2_592_000_000];
    millis.prop_map(Duration::from_millis)
}

fn any_policy() -> impl Strategy<Value = RetryPolicy> {
    let steps = prop::collection::vec((1u32..200, any_delay()), 1..10);
    let delays = prop_oneof![
        Just(Delays::Immediate),
        any_delay().prop_map(Delays::Constant),
        (any_delay(), 1.0f64..1000.0, any_delay()).prop_map(|(first, factor, longest)| {
            Delays::Exponential {
                first,
                factor,
                longest,
            }
        }),
        (steps, any::<bool>()).prop_map(|(steps, ends)| {
            let mut steps: Vec<Step> = steps
                .into_iter()
                .map(|(times, delay)| Step { times, delay })
                .collect();
            if !ends && let Some(last) = steps.last_mut() {
                last.times = u32::MAX;
            }
            Delays::Stepwise(steps)
        }),
    ];
    let anchor = prop_oneof![Just(Anchor::Failure), Just(Anchor::Start)];
    let attempts = prop_oneof![Just(u32::MAX), 1u32..2000];
    let within = prop_oneof![
        Just(Duration::MAX),
        any::<u64>().prop_map(Duration::from_millis)
    ];
    (delays, 0u8..=100, anchor, attempts, within).prop_map(
        |(delays, jitter, anchor, attempts, within)| {
            RetryPolicy::with(delays)
                .jitter(jitter)
                .anchor(anchor)
                .attempts(attempts)
                .within(within)
        },
    )
}

proptest! {
    #[test]
    fn whatever_the_policy_delays_and_limits_are_kept(
        policy in any_policy(), attempt in prop_oneof![1u32..3000, any::<u32>()], elapsed: u64, chance: u64, coarse: bool,
    ) {
        let policy = if coarse { policy.coarse() } else { policy };
        let elapsed = Duration::from_millis(elapsed);
        if let Some(delay) = policy.delay_by_chance(attempt, elapsed, chance) {
            prop_assert!(attempt < policy.max_attempts);
            prop_assert!(elapsed.saturating_add(delay) <= policy.max_total);
            let stated = policy.exact(attempt, elapsed).unwrap();
            prop_assert!(stated <= LONGEST);
            // Jitter and rounding make a delay shorter; an anchor, up to a tenth longer.
            let tenth = if policy.anchor == Anchor::Start { stated / 10 } else { Duration::ZERO };
            prop_assert!(delay <= (stated + tenth + Duration::from_millis(1)).min(LONGEST + tenth));
            let least = stated.mul_f64(f64::from(100 - policy.jitter) / 100.0 * 0.9);
            prop_assert!(delay + Duration::from_millis(1) >= least, "{delay:?} of {stated:?}");
            prop_assert_eq!(policy.delay_by_chance(attempt, elapsed, chance), Some(delay));
        }
    }

    #[test]
    fn delays_never_fall_while_a_policy_grows(first in any_delay(), factor in 0.0f64..100.0, longest in any_delay()) {
        let policy = RetryPolicy::exponential(first, factor, longest).attempts(u32::MAX);
        let mut before = Duration::ZERO;
        for attempt in (1..200).chain([u32::MAX - 1]) {
            let Some(delay) = policy.delay_after(attempt, Duration::ZERO) else { break };
            prop_assert!(delay >= before && delay <= longest.min(LONGEST));
            before = delay;
        }
    }

    #[test]
    fn what_is_written_is_read_again(policy in any_policy()) {
        let text = policy.to_string();
        match text.parse::<RetryPolicy>() {
            Ok(read) => prop_assert_eq!(read, policy),
            Err(error) => {
                let is_busy = policy.max_attempts > 1000 && policy.delays.shortest() < SECOND;
                prop_assert!(is_busy, "{text}: {error}");
            }
        }
    }

    #[test]
    fn no_text_is_too_much(text in prop_oneof![
        any::<String>(),
        "(none|immediate|constant|exponential|stepwise|caf|agave)(,(delay|first|factor|longest|steps|jitter|anchor|attempts|within)=[0-9a-z%/.+-]{0,8}){0,4}",
    ]) {
        if let Ok(policy) = text.parse::<RetryPolicy>() {
            prop_assert_eq!(policy.to_string().parse::<RetryPolicy>(), Ok(policy));
        }
    }
}
