//! Whole numbers within limits, as requests and command lines name them.

/// Implements reading and writing for a type that holds one `u32`, which `$checked` makes from a
/// number within its limits. `$name` is the field of requests that an error names, and `$error`
/// has the text of what was found instead.
macro_rules! whole_number {
    ($type:ident, $error:ident, Self::$checked:ident, $name:literal) => {
        impl std::str::FromStr for $type {
            type Err = $error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let number = text.parse().ok().and_then(Self::$checked);
                // A garbled text may have any length.
                let shown = || $error(format!("{:?}", &text[..text.floor_char_boundary(40)]));
                number.ok_or_else(shown)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                use serde_json::Value;
                let value = Value::deserialize(deserializer)?;
                let number = value.as_u64().and_then(|number| number.try_into().ok());
                let invalid = || {
                    let shown = match &value {
                        Value::Number(number) => number.to_string(),
                        Value::Array(_) | Value::Object(_) => "it".to_owned(),
                        other => other.to_string().chars().take(40).collect(),
                    };
                    serde::de::Error::custom(format!("{}: {}", $name, $error(shown)))
                };
                number.and_then(Self::$checked).ok_or_else(invalid)
            }
        }
    };
}

pub(crate) use whole_number;
