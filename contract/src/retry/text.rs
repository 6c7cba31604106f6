//! Policies as text and as JSON: in settings, in flags, in requests and in the header of a status
//! check.
//!
//! `<kind or preset>[,<key>=<value>…]`; in JSON that text, or an object with the same keys and the
//! kind as `policy`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{Anchor, Delays, LONGEST, PRESETS, Preset, RetryPolicy, Step, millis};

/// The longest text of a policy, in bytes.
const MOST_BYTES: usize = 1000;
/// The most steps of a policy.
const MOST_STEPS: usize = 32;
/// The most attempts of a policy that runs tasks again within [`BUSY`].
const MOST_BUSY_ATTEMPTS: u32 = 1000;
/// The shortest delay of a policy of more attempts.
const BUSY: Duration = Duration::from_secs(1);
/// The units of durations, the largest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [
    ("d", 86_400_000),
    ("h", 3_600_000),
    ("m", 60_000),
    ("s", 1000),
    ("ms", 1),
];
/// How much of a bad text an error repeats, in characters.
const SHOWN: usize = 60;

/// Why a text is no retry policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPolicy(String);

impl InvalidPolicy {
    fn of(problem: impl Into<String>) -> Self {
        Self(problem.into())
    }
}

impl FromStr for RetryPolicy {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        if text.len() > MOST_BYTES {
            let problem = format!("it is longer than {MOST_BYTES} bytes");
            return Err(InvalidPolicy(problem));
        }
        let mut parts = text.split(',').map(str::trim);
        let kind = parts.next().unwrap_or_default();
        let mut fields = Fields::default();
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| {
                InvalidPolicy(format!(
                    "{} is not a key with a value, such as attempts=5",
                    shown(part)
                ))
            })?;
            fields.add(key.trim(), value.trim().to_owned())?;
        }
        fields.policy(kind)
    }
}

impl fmt::Display for RetryPolicy {
    /// Writes all that the policy says. [`RetryPolicy::coarse`] is not part of it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let none = Self {
            is_coarse: self.is_coarse,
            ..Self::none()
        };
        if *self == none {
            return f.write_str("none");
        }
        match &self.delays {
            Delays::Immediate => f.write_str("immediate")?,
            Delays::Constant(delay) => write!(f, "constant,delay={}", Written(*delay))?,
            Delays::Exponential {
                first,
                factor,
                longest,
            } => {
                let (first, longest) = (Written(*first), Written(*longest));
                write!(
                    f,
                    "exponential,first={first},factor={factor},longest={longest}"
                )?;
            }
            Delays::Stepwise(steps) => {
                f.write_str("stepwise,steps=")?;
                for (n, Step { times, delay }) in steps.iter().enumerate() {
                    let separator = if n == 0 { "" } else { "/" };
                    let repeats = *times != if n + 1 == steps.len() { u32::MAX } else { 1 };
                    f.write_str(separator)?;
                    if repeats {
                        write!(f, "{times}x")?;
                    }
                    write!(f, "{}", Written(*delay))?;
                }
            }
        }
        if self.jitter > 0 {
            write!(f, ",jitter={}%", self.jitter)?;
        }
        if self.anchor == Anchor::Start {
            f.write_str(",anchor=start")?;
        }
        match self.max_attempts {
            u32::MAX => f.write_str(",attempts=none")?,
            attempts => write!(f, ",attempts={attempts}")?,
        }
        match self.max_total {
            Duration::MAX => f.write_str(",within=none"),
            total => write!(f, ",within={}", Written(total)),
        }
    }
}

/// The keys of a policy and their values.
#[derive(Default)]
struct Fields(Vec<(&'static str, String)>);

impl Fields {
    const KEYS: [&str; 9] = [
        "delay", "first", "factor", "longest", "steps", "jitter", "anchor", "attempts", "within",
    ];

    fn add(&mut self, key: &str, value: String) -> Result<(), InvalidPolicy> {
        let known = Self::KEYS.into_iter().find(|known| *known == key);
        let key = known.ok_or_else(|| {
            let keys = Self::KEYS.join(", ");
            InvalidPolicy(format!("{} is no key; expected {keys}", shown(key)))
        })?;
        if self.0.iter().any(|(other, _)| *other == key) {
            return Err(InvalidPolicy(format!("it states {key} twice")));
        }
        self.0.push((key, value));
        Ok(())
    }

    /// Takes a value and reads it.
    fn take<T>(
        &mut self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, InvalidPolicy> {
        let Some(place) = self.0.iter().position(|(other, _)| *other == key) else {
            return Ok(None);
        };
        let (_, value) = self.0.remove(place);
        read(&value)
            .map(Some)
            .map_err(|problem| InvalidPolicy(format!("{key} is {}: {problem}", shown(&value))))
    }

    fn policy(mut self, kind: &str) -> Result<RetryPolicy, InvalidPolicy> {
        let mut policy = self.without_limits(kind)?;
        if kind != "none" {
            if let Some(jitter) = self.take("jitter", percent)? {
                policy = policy.jitter(jitter);
            }
            if let Some(anchor) = self.take("anchor", anchor)? {
                policy = policy.anchor(anchor);
            }
            if let Some(attempts) = self.take("attempts", attempts)? {
                policy = policy.attempts(attempts);
            }
            if let Some(total) = self.take("within", limit)? {
                policy = policy.within(total);
            }
        }
        if let Some((key, _)) = self.0.first() {
            return Err(InvalidPolicy(format!("the policy {kind} has no {key}")));
        }
        let shortest = policy.delays.shortest();
        if policy.max_attempts > MOST_BUSY_ATTEMPTS && shortest < BUSY {
            return Err(InvalidPolicy(format!(
                "it has a delay of {} and would keep workers busy; state at most {MOST_BUSY_ATTEMPTS} attempts, or delays of 1s or more",
                Written(shortest)
            )));
        }
        Ok(policy)
    }

    /// Reads what differs from kind to kind.
    fn without_limits(&mut self, kind: &str) -> Result<RetryPolicy, InvalidPolicy> {
        match kind {
            "none" => Ok(RetryPolicy::none()),
            "immediate" => Ok(RetryPolicy::immediate()),
            "constant" => {
                let delay = self.take("delay", duration)?;
                let delay = delay.ok_or_else(|| {
                    InvalidPolicy::of(
                        "the policy constant needs a delay, such as constant,delay=30s",
                    )
                })?;
                Ok(RetryPolicy::constant(delay))
            }
            "exponential" => {
                let first = self.take("first", duration)?;
                let factor = self.take("factor", factor)?;
                let longest = self.take("longest", longest)?;
                Ok(RetryPolicy::exponential(
                    first.unwrap_or(Duration::from_secs(1)),
                    factor.unwrap_or(2.0),
                    longest.unwrap_or(Duration::from_mins(5)),
                ))
            }
            "stepwise" => {
                let steps = self.take("steps", steps)?;
                let steps = steps.ok_or_else(|| {
                    InvalidPolicy::of(
                        "the policy stepwise needs steps, such as stepwise,steps=2x10s/10x1m/5m",
                    )
                })?;
                let ends = steps.last().is_some_and(|last| last.times != u32::MAX);
                let policy = RetryPolicy::with(Delays::Stepwise(steps));
                // Steps that end are a limit of their own.
                Ok(if ends {
                    policy.attempts(u32::MAX)
                } else {
                    policy
                })
            }
            name => {
                let preset = Preset::named(name).ok_or_else(|| {
                    let presets: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
                    InvalidPolicy(format!(
                        "{} is no retry policy; expected none, immediate, constant, exponential, stepwise or one of the presets {}",
                        shown(name),
                        presets.join(", ")
                    ))
                })?;
                Ok(preset.policy())
            }
        }
    }
}

impl Delays {
    /// Returns the shortest delay.
    pub(super) fn shortest(&self) -> Duration {
        match self {
            Self::Immediate => Duration::ZERO,
            Self::Constant(delay) => *delay,
            Self::Exponential { first, longest, .. } => *first.min(longest),
            Self::Stepwise(steps) => {
                let delays = steps.iter().map(|step| step.delay);
                delays.min().unwrap_or_default()
            }
        }
    }
}

/// A duration in the largest unit of which it is a whole number.
struct Written(Duration);

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = millis(self.0);
        let fits = |(_, unit): &&(&str, u64)| millis.is_multiple_of(*unit) && millis > 0;
        match UNITS.iter().find(fits) {
            Some((name, unit)) => write!(f, "{}{name}", millis / unit),
            None => f.write_str("0s"),
        }
    }
}

/// Reads a duration.
fn time(text: &str) -> Result<Duration, String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let unit = UNITS.iter().find(|(name, _)| *name == unit);
    let millis = unit.and_then(|(_, unit)| number.parse::<u64>().ok()?.checked_mul(*unit));
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| "expected a whole number and a unit: 500ms, 10s, 5m, 2h or 1d".to_owned())
}

/// Reads a delay.
fn duration(text: &str) -> Result<Duration, String> {
    let delay = time(text)?;
    if delay > LONGEST {
        return Err(format!("the longest delay is {}", Written(LONGEST)));
    }
    Ok(delay)
}

fn longest(text: &str) -> Result<Duration, String> {
    if text == "none" {
        Ok(LONGEST)
    } else {
        duration(text)
    }
}

/// Reads a limit of time.
fn limit(text: &str) -> Result<Duration, String> {
    if text == "none" {
        Ok(Duration::MAX)
    } else {
        time(text)
    }
}

fn attempts(text: &str) -> Result<u32, String> {
    if text == "none" {
        return Ok(u32::MAX);
    }
    let attempts = text.parse().ok().filter(|attempts| *attempts > 0);
    attempts.ok_or_else(|| "expected a whole number from 1 on, or none".to_owned())
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok();
    factor
        .filter(|factor| (1.0..=1000.0).contains(factor))
        .ok_or_else(|| "expected a number from 1 to 1000".to_owned())
}

fn percent(text: &str) -> Result<u8, String> {
    let percent = text.strip_suffix('%').and_then(|text| text.parse().ok());
    percent
        .filter(|percent| *percent <= 100)
        .ok_or_else(|| "expected a whole percentage from 0% to 100%".to_owned())
}

fn anchor(text: &str) -> Result<Anchor, String> {
    match text {
        "failure" => Ok(Anchor::Failure),
        "start" => Ok(Anchor::Start),
        _ => Err("expected failure or start".to_owned()),
    }
}

fn steps(text: &str) -> Result<Vec<Step>, String> {
    let parts: Vec<&str> = text.split('/').map(str::trim).collect();
    if parts.len() > MOST_STEPS {
        return Err(format!("there are more than {MOST_STEPS} steps"));
    }
    let last = parts.len() - 1;
    let step = |(n, part): (usize, &&str)| {
        let (times, delay) = match part.split_once('x') {
            Some((times, delay)) => (times.parse().ok().filter(|times| *times > 0), delay),
            None => (Some(if n == last { u32::MAX } else { 1 }), *part),
        };
        let times = times.ok_or_else(|| {
            format!("{part} is no step; expected a number and a delay, such as 2x10s")
        })?;
        Ok(Step {
            times,
            delay: duration(delay)?,
        })
    };
    parts.iter().enumerate().map(step).collect()
}

/// Quotes the start of a text that may be of any length.
fn shown(text: &str) -> String {
    let start: String = text.chars().take(SHOWN).collect();
    format!("{start:?}")
}

impl Serialize for RetryPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RetryPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfJson;
        impl<'de> Visitor<'de> for OfJson {
            type Value = RetryPolicy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a retry policy: the name of a preset, such as \"jobweaver\", or an object, such as {\"policy\": \"constant\", \"delay\": \"30s\", \"attempts\": 5}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<RetryPolicy, E> {
                text.parse()
                    .map_err(|error| E::custom(format!("retry: {error}")))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RetryPolicy, A::Error> {
                let (mut kind, mut fields) = (None, Fields::default());
                let failed = |problem: InvalidPolicy| {
                    <A::Error as serde::de::Error>::custom(format!("retry: {problem}"))
                };
                while let Some((key, value)) = map.next_entry::<String, Value>()? {
                    if value.is_null() {
                        continue;
                    }
                    let text = plain(&key, &value).map_err(failed)?;
                    if key == "policy" && kind.is_none() {
                        kind = Some(text);
                    } else {
                        fields.add(&key, text).map_err(failed)?;
                    }
                }
                let kind = kind.ok_or_else(|| {
                    failed(InvalidPolicy::of(
                        "it has no policy; state the kind or a preset, such as {\"policy\": \"jobweaver\"}",
                    ))
                })?;
                fields.policy(&kind).map_err(failed)
            }
        }
        deserializer.deserialize_any(OfJson)
    }
}

/// Returns a value of the object as in the text. Steps may be a list.
fn plain(key: &str, value: &Value) -> Result<String, InvalidPolicy> {
    match value {
        Value::String(text) if text.len() <= MOST_BYTES => Ok(text.clone()),
        Value::Number(number) => Ok(number.to_string()),
        Value::Array(steps) if key == "steps" && steps.len() <= MOST_STEPS => {
            let steps: Result<Vec<String>, _> = steps.iter().map(|step| plain("", step)).collect();
            Ok(steps?.join("/"))
        }
        Value::Array(_) if key == "steps" => Err(InvalidPolicy(format!(
            "there are more than {MOST_STEPS} steps"
        ))),
        _ => Err(InvalidPolicy(format!(
            "{} is neither a short text nor a number",
            shown(key)
        ))),
    }
}

#[cfg(feature = "utoipa")]
mod schema {
    use utoipa::openapi::schema::{AdditionalProperties, Type};
    use utoipa::openapi::{ArrayBuilder, ObjectBuilder, OneOfBuilder, RefOr, Schema};
    use utoipa::{PartialSchema, ToSchema};

    use super::{PRESETS, RetryPolicy};

    impl PartialSchema for RetryPolicy {
        fn schema() -> RefOr<Schema> {
            let duration = |text: &str| {
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .pattern(Some("^[0-9]{1,12}(ms|s|m|h|d)$"))
                    .description(Some(text))
            };
            let open = |text: &str| {
                OneOfBuilder::new().description(Some(text)).item(
                    ObjectBuilder::new()
                        .schema_type(Type::String)
                        .pattern(Some("^([0-9]{1,12}(ms|s|m|h|d)|none)$")),
                )
            };
            let kinds = ["none", "immediate", "constant", "exponential", "stepwise"];
            let names: Vec<&str> = kinds
                .into_iter()
                .chain(PRESETS.iter().map(|preset| preset.name))
                .collect();
            let object = ObjectBuilder::new()
                .property(
                    "policy",
                    ObjectBuilder::new()
                        .schema_type(Type::String)
                        .enum_values(Some(names))
                        .description(Some("The kind of the delays, or a preset.")),
                )
                .required("policy")
                .property("delay", duration("Of `constant`: the delay, at most 30 days."))
                .property("first", duration("Of `exponential`: the first delay. Default: 1s."))
                .property(
                    "factor",
                    ObjectBuilder::new()
                        .schema_type(Type::Number)
                        .minimum(Some(1))
                        .maximum(Some(1000))
                        .description(Some("Of `exponential`: by how much each delay is longer than the one before. Default: 2.")),
                )
                .property("longest", open("Of `exponential`: the longest delay. Default: 5m."))
                .property(
                    "steps",
                    ArrayBuilder::new()
                        .items(
                            ObjectBuilder::new()
                                .schema_type(Type::String)
                                .pattern(Some("^([1-9][0-9]{0,8}x)?[0-9]{1,12}(ms|s|m|h|d)$")),
                        )
                        .min_items(Some(1))
                        .max_items(Some(super::MOST_STEPS))
                        .description(Some("Of `stepwise`: delays, one after another, each as often as stated. The last one without a number comes for ever.")),
                )
                .property(
                    "jitter",
                    ObjectBuilder::new()
                        .schema_type(Type::String)
                        .pattern(Some("^([0-9]{1,2}|100)%$"))
                        .description(Some("How much shorter a delay may be by chance.")),
                )
                .property(
                    "anchor",
                    ObjectBuilder::new()
                        .schema_type(Type::String)
                        .enum_values(Some(["failure", "start"]))
                        .description(Some("Whether a delay counts from the failure, or all of them from the start of the first attempt.")),
                )
                .property(
                    "attempts",
                    OneOfBuilder::new()
                        .description(Some("The largest number of attempts, the first included, or `none`. Default: 10."))
                        .item(
                            ObjectBuilder::new()
                                .schema_type(Type::Integer)
                                .minimum(Some(1))
                                .maximum(Some(u32::MAX)),
                        )
                        .item(
                            ObjectBuilder::new()
                                .schema_type(Type::String)
                                .enum_values(Some(["none"])),
                        ),
                )
                .property("within", open("No attempt begins later than this after the first one. Default: 1d."))
                .additional_properties(Some(AdditionalProperties::FreeForm(false)));
            OneOfBuilder::new()
                .description(Some(
                    "When the failed tasks of the job run again, instead of the retry policies of its workers. Delays are cut to two significant digits.",
                ))
                .item(
                    ObjectBuilder::new()
                        .schema_type(Type::String)
                        .examples(["jobweaver", "constant,delay=30s,attempts=5"])
                        .description(Some("A preset, or a policy as text.")),
                )
                .item(object)
                .into()
        }
    }

    impl ToSchema for RetryPolicy {}
}
