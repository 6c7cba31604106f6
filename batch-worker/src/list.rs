//! The plugin `list`: `["a", {"b": 1}, 3]` becomes an item per value of the JSON array.

use contract::{ListItem, TaskData};
use framework::Payload;
use serde_json::value::RawValue;

use crate::plugin::label_of;
use crate::{Batch, BatchPlugin, Part, Source, SplitError, even_size};

/// Splits a JSON array.
#[derive(Debug, Clone, Copy)]
pub struct List;

impl BatchPlugin for List {
    const NAME: &'static str = "list";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        let values = values_of(batch)?;
        let size = even_size(values.len() as u64, batch.max_parts as u64);
        if size == 1 {
            let item = |value: &RawValue| {
                batch.item(
                    ListItem::CLASSIFIER,
                    &ListItem {
                        value: value.to_owned(),
                        params: batch.params.clone(),
                    },
                )
            };
            return values.into_iter().map(item).collect();
        }
        values
            .chunks(usize::try_from(size)?)
            .map(|values| Ok(Part::Batch(serde_json::to_string(values)?)))
            .collect()
    }

    fn reads(&self, _: Batch<'_>) -> bool {
        false
    }

    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
        Some(batch.parts_as_source("the list", parts))
    }

    fn count_items(&self, definition: &str) -> Option<u64> {
        let values: Vec<&RawValue> = serde_json::from_str(definition).ok()?;
        Some(values.len() as u64)
    }

    async fn check(&self, batch: Batch<'_>) -> Result<(), SplitError> {
        values_of(batch).map(drop)
    }

    fn label(&self, item: &Payload) -> Option<String> {
        label_of::<ListItem>(item)
    }
}

fn values_of(batch: Batch<'_>) -> Result<Vec<&RawValue>, SplitError> {
    let values: Vec<&RawValue> = serde_json::from_str(batch.definition)
        .map_err(|error| SplitError::Definition(error.to_string()))?;
    batch.check_items("list", values.len() as u64)?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    async fn split(definition: &str, max_parts: usize) -> Result<Vec<Part>, SplitError> {
        List.split(Batch::of(definition, max_parts)).await
    }

    #[tokio::test]
    async fn every_value_becomes_an_item_byte_for_byte() {
        let parts = split(r#"["a", {"b": 1.0}, null]"#, 10).await.unwrap();
        let values: Vec<String> = parts
            .iter()
            .map(|part| match part {
                Part::Item(item) => serde_json::from_slice::<ListItem>(&item.data)
                    .unwrap()
                    .value
                    .get()
                    .to_owned(),
                Part::Batch(_) => panic!("{part:?}"),
            })
            .collect();
        assert_eq!(values, [r#""a""#, r#"{"b": 1.0}"#, "null"]);
    }

    #[tokio::test]
    async fn long_list_becomes_lists() {
        let numbers: Vec<u32> = (0..25).collect();
        let parts = split(&serde_json::to_string(&numbers).unwrap(), 10)
            .await
            .unwrap();
        assert_eq!(parts.len(), 3);
        assert_eq!(parts[2], Part::Batch("[20,21,22,23,24]".into()));
    }

    #[tokio::test]
    async fn malformed_list_is_refused_with_the_position() {
        for (definition, text) in [
            ("[1,", "line 1 column 3"),
            ("{}", "expected a sequence"),
            ("", "line 1 column 0"),
        ] {
            let error = split(definition, 10).await.unwrap_err();
            assert!(
                matches!(&error, SplitError::Definition(found) if found.contains(text)),
                "{definition}: {error:?}"
            );
        }
        assert_eq!(split("[]", 10).await.unwrap(), []);
    }

    #[tokio::test]
    async fn list_with_more_items_than_a_job_may_have_is_refused() {
        let params = BTreeMap::new();
        let batch = |max_items| Batch {
            definition: "[1,2,3]",
            item_type: None,
            params: &params,
            partition: None,
            max_parts: 10,
            max_items,
            reading: None,
        };
        assert_eq!(List.split(batch(3)).await.unwrap().len(), 3);
        let error = List.split(batch(2)).await.unwrap_err();
        assert!(
            matches!(&error, SplitError::Definition(text) if text == "the list has 3 items; a job has at most 2 (--max-items)"),
            "{error:?}"
        );
    }
}
