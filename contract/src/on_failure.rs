//! What happens to a job when one of its tasks fails, as requests and responses say it.

use std::fmt;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error as _, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The largest number of failed items that can be tolerated: what every JSON parser reads exactly.
const MOST_ITEMS: u64 = (1 << 53) - 1;
/// Millionths in a whole.
const WHOLE: u32 = 1_000_000;
/// What a limit looks like, for errors.
const EXPECTED_LIMIT: &str = "a number of items, such as 100 (at most 9007199254740991), or a percentage of them, such as \"2%\" or \"0.25%\" \
                              (at most 100%, and four decimals)";

/// What happens to a job when one of its tasks fails.
///
/// `"stop"`, `"continue"`, or `{"continue": {"tolerate": 100, "above": "stop"}}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// The first failed task fails the job.
    #[default]
    Stop,
    /// The job continues. It completes or fails once every task is done or has failed.
    Continue,
    /// The job continues, and completes although some of its items have failed.
    Tolerate(Tolerance),
}

/// How many items of a job may fail.
///
/// An item counts when it is reported failed. A split that fails is never tolerated: nobody knows
/// how many items it stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tolerance {
    /// How many failed items are tolerated.
    pub limit: FailureLimit,
    /// What happens when more have failed.
    pub above: Above,
}

/// A number of failed items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureLimit {
    /// This many items.
    Items(u64),
    /// This part of all items of the job.
    Share(Share),
}

/// A part of a whole, in ten-thousandths of a percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u32);

/// What happens to a job of which more items have failed than are tolerated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Above {
    /// The job fails as soon as that is certain.
    #[default]
    Stop,
    /// The job continues, and fails once every task is done or has failed.
    Continue,
}

impl Above {
    /// Returns the name as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Continue => "continue",
        }
    }
}

impl OnFailure {
    /// Returns how many failures are tolerated; `None` if the job only knows that there are none or
    /// some.
    pub const fn tolerance(self) -> Option<Tolerance> {
        match self {
            Self::Tolerate(tolerance) => Some(tolerance),
            Self::Stop | Self::Continue => None,
        }
    }
}

impl FailureLimit {
    /// Returns whether this many failed items, of this many in all, are more than are tolerated.
    pub fn is_exceeded(self, failed: u64, items: u64) -> bool {
        match self {
            Self::Items(most) => failed > most,
            Self::Share(Share(millionths)) => {
                u128::from(failed) * u128::from(WHOLE) > u128::from(items) * u128::from(millionths)
            }
        }
    }
}

impl fmt::Display for OnFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stop => f.write_str("stop"),
            Self::Continue => f.write_str("continue"),
            Self::Tolerate(Tolerance { limit, above }) => {
                write!(
                    f,
                    "continue; {limit} failed items are tolerated, then {}",
                    above.name()
                )
            }
        }
    }
}

impl fmt::Display for FailureLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Items(items) => write!(f, "{items}"),
            Self::Share(share) => write!(f, "{share}"),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (percent, rest) = (self.0 / 10_000, self.0 % 10_000);
        if rest == 0 {
            return write!(f, "{percent}%");
        }
        let decimals = format!("{rest:04}");
        write!(f, "{percent}.{}%", decimals.trim_end_matches('0'))
    }
}

/// A text is no limit of failures.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not {EXPECTED_LIMIT}")]
pub struct InvalidLimit(String);

impl FromStr for FailureLimit {
    type Err = InvalidLimit;

    /// Parses a number of items (`100`) or a percentage of them (`2%`).
    fn from_str(text: &str) -> Result<Self, InvalidLimit> {
        let limit = match text.strip_suffix('%') {
            Some(percent) => share(percent).map(Self::Share),
            None => digits(text, 16)
                .filter(|items| *items <= MOST_ITEMS)
                .map(Self::Items),
        };
        limit.ok_or_else(|| InvalidLimit(text.chars().take(40).collect()))
    }
}

/// Parses a percentage without its sign.
fn share(percent: &str) -> Option<Share> {
    let (whole, decimals) = percent.split_once('.').unwrap_or((percent, "0"));
    let fraction = digits(
        &format!("{:0<4}", digits(decimals, 4).map(|_| decimals)?),
        4,
    )?;
    let millionths = digits(whole, 3)? * 10_000 + fraction;
    let millionths = u32::try_from(millionths).ok()?;
    (millionths <= WHOLE).then_some(Share(millionths))
}

/// Parses a number of at most `most` digits and nothing else.
fn digits(text: &str, most: usize) -> Option<u64> {
    let are_digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (are_digits && (1..=most).contains(&text.len()))
        .then(|| text.parse().ok())
        .flatten()
}

/// The object form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Form {
    #[serde(rename = "continue")]
    continues: Tolerated,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Tolerated {
    tolerate: FailureLimit,
    #[serde(default)]
    above: Above,
}

impl Serialize for OnFailure {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Stop => serializer.serialize_str("stop"),
            Self::Continue => serializer.serialize_str("continue"),
            Self::Tolerate(Tolerance { limit, above }) => Form {
                continues: Tolerated {
                    tolerate: *limit,
                    above: *above,
                },
            }
            .serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for OnFailure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfJson;
        impl<'de> Visitor<'de> for OfJson {
            type Value = OnFailure;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`stop`, `continue` or {\"continue\": {\"tolerate\": 100}}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<OnFailure, E> {
                match text {
                    "stop" => Ok(OnFailure::Stop),
                    "continue" => Ok(OnFailure::Continue),
                    _ => Err(E::unknown_variant(text, &["stop", "continue"])),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<OnFailure, A::Error> {
                let form = Form::deserialize(MapAccessDeserializer::new(map))
                    .map_err(|error| A::Error::custom(format!("onFailure: {error}")))?;
                Ok(OnFailure::Tolerate(Tolerance {
                    limit: form.continues.tolerate,
                    above: form.continues.above,
                }))
            }
        }
        deserializer.deserialize_any(OfJson)
    }
}

impl Serialize for FailureLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Items(items) => serializer.serialize_u64(*items),
            Self::Share(share) => serializer.collect_str(share),
        }
    }
}

impl<'de> Deserialize<'de> for FailureLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfJson;
        impl Visitor<'_> for OfJson {
            type Value = FailureLimit;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED_LIMIT)
            }

            fn visit_u64<E: serde::de::Error>(self, items: u64) -> Result<FailureLimit, E> {
                if items > MOST_ITEMS {
                    return Err(E::invalid_value(Unexpected::Unsigned(items), &self));
                }
                Ok(FailureLimit::Items(items))
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<FailureLimit, E> {
                let limit = text.ends_with('%').then(|| text.parse().ok()).flatten();
                limit.ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(OfJson)
    }
}

#[cfg(feature = "utoipa")]
mod schema {
    use utoipa::openapi::schema::Type;
    use utoipa::openapi::{ObjectBuilder, OneOfBuilder, RefOr, Schema};
    use utoipa::{PartialSchema, ToSchema};

    use super::OnFailure;

    impl PartialSchema for OnFailure {
        fn schema() -> RefOr<Schema> {
            let text = |values: [&str; 2], default: &str| {
                ObjectBuilder::new()
                    .schema_type(Type::String)
                    .enum_values(Some(values))
                    .default(Some(default.into()))
            };
            let simple = text(["stop", "continue"], "stop").description(Some(
                "`stop`: the first failed task fails the job. `continue`: the job continues, and completes or fails once every task is \
                 done or has failed.",
            ));
            let limit = OneOfBuilder::new()
                .description(Some(
                    "How many items may fail: a number of them, or a percentage of all items with at most four decimals. An item counts \
                     when it is reported failed. A split that fails is never tolerated. A percentage is judged when the number of \
                     items is final.",
                ))
                .item(
                    ObjectBuilder::new()
                        .schema_type(Type::Integer)
                        .minimum(Some(0))
                        .maximum(Some(9_007_199_254_740_991_i64)),
                )
                .item(
                    ObjectBuilder::new()
                        .schema_type(Type::String)
                        .pattern(Some(r"^(100(\.0{1,4})?|[0-9]{1,2}(\.[0-9]{1,4})?)%$"))
                        .examples(["2%", "0.25%"]),
                );
            let above = text(["stop", "continue"], "stop").description(Some(
                "What happens when more have failed. `stop`: the job fails as soon as that is certain. `continue`: it continues, and \
                 fails once every task is done or has failed.",
            ));
            let tolerated = ObjectBuilder::new()
                .property("tolerate", limit)
                .required("tolerate")
                .property("above", above)
                .additional_properties(Some(
                    utoipa::openapi::schema::AdditionalProperties::FreeForm(false),
                ));
            let object = ObjectBuilder::new()
                .description(Some(
                    "The job continues, and is Completed, with `failedTasks` above 0, although some of its items have failed.",
                ))
                .property("continue", tolerated)
                .required("continue")
                .additional_properties(Some(utoipa::openapi::schema::AdditionalProperties::FreeForm(false)));
            OneOfBuilder::new()
                .description(Some("What happens to a job when one of its tasks fails."))
                .item(simple)
                .item(object)
                .into()
        }
    }

    impl ToSchema for OnFailure {}
}
