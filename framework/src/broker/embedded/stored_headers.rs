//! Headers as the file contains them: JSON, e.g. `[["name","text"],["name",1]]`, which a person can
//! read there.

use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use smol_str::SmolStr;

use crate::broker::{HeaderValue, Headers};

/// Returns the text for the file; `None` if there are no headers.
pub fn encode(headers: &Headers) -> Option<String> {
    if headers.is_empty() {
        return None;
    }
    serde_json::to_string(&Written(headers)).ok()
}

/// Reads the text of the file.
pub fn decode(text: &str) -> Result<Headers, serde_json::Error> {
    let Read(headers) = serde_json::from_str(text)?;
    Ok(headers)
}

struct Written<'a>(&'a Headers);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(
            self.0
                .iter()
                .map(|(name, value)| (name, WrittenValue(value))),
        )
    }
}

struct WrittenValue<'a>(&'a HeaderValue);

impl Serialize for WrittenValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            HeaderValue::Text(text) => serializer.serialize_str(text),
            HeaderValue::Integer(integer) => serializer.serialize_i64(*integer),
        }
    }
}

struct Read(Headers);

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeadersVisitor;
        impl<'de> Visitor<'de> for HeadersVisitor {
            type Value = Headers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("headers, each a name and a value")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Headers, A::Error> {
                let mut headers = Headers::default();
                while let Some((name, ReadValue(value))) = list.next_element::<(SmolStr, _)>()? {
                    headers.set(name, value);
                }
                Ok(headers)
            }
        }
        deserializer.deserialize_seq(HeadersVisitor).map(Self)
    }
}

struct ReadValue(HeaderValue);

impl<'de> Deserialize<'de> for ReadValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ValueVisitor;
        impl Visitor<'_> for ValueVisitor {
            type Value = HeaderValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or an integer of 64 bits")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<HeaderValue, E> {
                Ok(HeaderValue::Text(text.into()))
            }

            fn visit_i64<E: de::Error>(self, integer: i64) -> Result<HeaderValue, E> {
                Ok(HeaderValue::Integer(integer))
            }

            fn visit_u64<E: de::Error>(self, integer: u64) -> Result<HeaderValue, E> {
                let integer = i64::try_from(integer);
                integer.map(HeaderValue::Integer).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(ValueVisitor).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value() -> impl Strategy<Value = HeaderValue> {
        prop_oneof![
            any::<String>().prop_map(|text| HeaderValue::Text(text.into())),
            any::<i64>().prop_map(HeaderValue::Integer),
        ]
    }

    proptest! {
        #[test]
        fn headers_are_read_as_they_were_written(all in prop::collection::vec((any::<String>(), value()), 0..8)) {
            let mut headers = Headers::default();
            for (name, value) in all {
                headers.set(name, value);
            }
            let text = encode(&headers);
            prop_assert_eq!(text.is_none(), headers.is_empty());
            let read = text.map(|text| decode(&text).unwrap()).unwrap_or_default();
            prop_assert_eq!(read, headers);
        }

        #[test]
        fn what_is_no_list_of_headers_is_an_error(text in any::<String>()) {
            let _ = decode(&text);
        }
    }

    #[test]
    fn text_in_the_file_is_as_earlier_builds_write_it() {
        let mut headers = Headers::default();
        headers.set("name", HeaderValue::Text("a \"text\"".into()));
        headers.set("number", HeaderValue::Integer(-1));
        let text = r#"[["name","a \"text\""],["number",-1]]"#;
        assert_eq!(encode(&headers).as_deref(), Some(text));
        assert_eq!(decode(text).unwrap(), headers);
    }
}
