//! Properties of encoding and decoding, for any message.

use contract::rest::{Above, FailureLimit, Tolerance};
use contract::{
    ContextData, OnFailure, SourceInfo, TaskMessage, TaskStatus, Tracking, patch_tracking,
};
use proptest::prelude::*;
use serde_json::Value;

prop_compose! {
    fn any_tracking()(
        job_task_id in any::<Option<String>>(),
        last_status_check_time in any::<Option<i64>>(),
        status_check_interval_millis in any::<i64>(),
        status_check_url in any::<Option<String>>(),
        tracking_pipe in any::<Option<String>>(),
        track_to in any::<Option<String>>(),
    ) -> Tracking {
        Tracking {
            job_task_id,
            last_status_check_time,
            status_check_interval_millis,
            status_check_url: status_check_url.map(Into::into),
            tracking_pipe: tracking_pipe.map(Into::into),
            track_to: track_to.map(Into::into),
        }
    }
}

prop_compose! {
    fn any_message()(
        task_id in any::<String>(),
        texts in any::<[Option<String>; 3]>(),
        numbers in any::<(i32, i32, Option<i32>)>(),
        task_data in any::<Option<Vec<u8>>>(),
        task_status in proptest::option::of(proptest::sample::select(TaskStatus::ALL.to_vec())),
        context in proptest::collection::btree_map(any::<String>(), any::<Vec<u8>>().prop_map(ContextData), 0..3),
        tracking in proptest::option::of(any_tracking()),
        source in any::<Option<(Option<String>, Option<String>)>>(),
    ) -> TaskMessage {
        let [task_classifier, to, correlation_id] = texts.map(|text| text.map(Into::into));
        let (version, task_api_version, priority) = numbers;
        let source_info = source.map(|(name, version)| SourceInfo { name: name.map(Into::into), version: version.map(Into::into) });
        TaskMessage {
            version, task_id, task_classifier, task_api_version, task_data, task_status, context, to, tracking, source_info, priority,
            correlation_id,
        }
    }
}

/// JSON that looks like a message, with anything anywhere.
fn any_json() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        proptest::sample::select(vec![
            "NEW_TASK",
            "YQ==",
            "2026-11-02T07:40:00Z",
            "17",
            "p:j.1*",
            "-9223372036854775808"
        ])
        .prop_map(Value::from),
    ];
    let name = proptest::sample::select(
        "version taskId taskClassifier taskApiVersion taskData taskStatus context to tracking sourceInfo priority correlationId \
         jobTaskId lastStatusCheckTime statusCheckTime statusCheckIntervalMillis statusCheckUrl trackingPipe trackTo name other"
            .split_whitespace()
            .collect::<Vec<_>>(),
    );
    scalar.prop_recursive(4, 64, 12, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(name.clone().prop_map(str::to_owned), inner, 0..12)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_message_that_was_written_is_read_as_it_was(message in any_message()) {
        let body = message.encode();
        prop_assert_eq!(TaskMessage::decode(&body), Ok(message.clone()));
        prop_assert_eq!(patch_tracking(&body, message.tracking.as_ref()).unwrap(), body);
    }

    #[test]
    fn no_bytes_panic(body in any::<Vec<u8>>()) {
        let _ = TaskMessage::decode(&body);
        let _ = patch_tracking(&body, Some(&Tracking::default()));
    }

    #[test]
    fn no_json_panics_and_what_is_understood_can_be_patched(value in any_json(), tail in any::<Vec<u8>>()) {
        let mut body = serde_json::to_vec(&value).unwrap();
        body.extend(tail);
        if let Ok(message) = TaskMessage::decode(&body) {
            let tracking = Tracking { track_to: Some("out".into()), ..Tracking::default() };
            let patched = TaskMessage::decode(&patch_tracking(&body, Some(&tracking)).unwrap());
            prop_assert_eq!(patched, Ok(TaskMessage { tracking: Some(tracking), ..message }));
        }
    }

    #[test]
    fn cutting_a_message_short_never_panics(message in any_message(), part in 0.0f64..1.0) {
        let body = message.encode();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place within the body")]
        let cut = &body[..(body.len() as f64 * part) as usize];
        prop_assert!(TaskMessage::decode(cut).is_err());
    }
}

proptest! {
    #[test]
    fn tolerance_is_read_as_it_is_written(millionths in 0u32..=1_000_000, items in 0u64..(1 << 53), above: bool) {
        let share = format!("{}.{:04}%", millionths / 10_000, millionths % 10_000);
        let above = if above { Above::Stop } else { Above::Continue };
        for text in [share, items.to_string()] {
            let limit: FailureLimit = text.parse().unwrap();
            let on_failure = OnFailure::Tolerate(Tolerance { limit, above });
            let json = serde_json::to_string(&on_failure).unwrap();
            prop_assert_eq!(serde_json::from_str::<OnFailure>(&json).unwrap(), on_failure);
            prop_assert_eq!(limit.to_string().parse::<FailureLimit>().unwrap(), limit);
        }
    }

    #[test]
    fn share_is_exceeded_exactly_by_more_than_its_part(percent in 0u64..=100, items in any::<u64>(), failed in any::<u64>()) {
        let limit: FailureLimit = format!("{percent}%").parse().unwrap();
        let exact = u128::from(failed) * 100 > u128::from(items) * u128::from(percent);
        prop_assert_eq!(limit.is_exceeded(failed, items), exact);
    }

    #[test]
    fn no_text_is_a_limit_but_numbers_and_percentages(text in "[-+0-9.%eEa ]{0,24}") {
        let form = |text: &str| {
            let (number, decimals) = text.split_once('.').unwrap_or((text, "0"));
            let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            digits(number) && digits(decimals)
        };
        if let Ok(limit) = text.parse::<FailureLimit>() {
            prop_assert!(form(text.trim_end_matches('%')), "{text:?} is {limit}");
        }
    }
}
