//! The plugin `range`: `1-1000000` becomes an item per number, both ends included.

use contract::{RangeItem, TaskData};
use framework::Payload;

use crate::plugin::label_of;
use crate::{Batch, BatchPlugin, Part, Source, SplitError, Totals, even_size};

mod totals;

/// Splits a range of whole numbers.
#[derive(Debug, Clone, Copy)]
pub struct Range;

impl BatchPlugin for Range {
    const NAME: &'static str = "range";

    async fn split(&self, batch: Batch<'_>) -> Result<Vec<Part>, SplitError> {
        let (first, last) = parse(batch.definition)?;
        let count = (last - first).saturating_add(1);
        batch.check_items("range", count)?;
        let size = even_size(count, batch.max_parts as u64);
        if size == 1 {
            let item = |number| {
                batch.item(
                    RangeItem::CLASSIFIER,
                    &RangeItem {
                        number,
                        params: batch.params.clone(),
                    },
                )
            };
            return (first..=last).map(item).collect();
        }
        let starts = std::iter::successors(Some(first), |start| {
            start.checked_add(size).filter(|next| *next <= last)
        });
        Ok(starts
            .map(|start| {
                Part::Batch(format!(
                    "{start}-{}",
                    start.saturating_add(size - 1).min(last)
                ))
            })
            .collect())
    }

    fn reads(&self, _: Batch<'_>) -> bool {
        false
    }

    fn source(&self, batch: Batch<'_>, parts: &[Part]) -> Option<Source> {
        // It has been parsed, so that it is short.
        let name = format!("the range {}", batch.definition.trim());
        Some(batch.parts_as_source(name, parts))
    }

    fn count_items(&self, definition: &str) -> Option<u64> {
        let (first, last) = parse(definition).ok()?;
        (last - first).checked_add(1)
    }

    async fn check(&self, batch: Batch<'_>) -> Result<(), SplitError> {
        let (first, last) = parse(batch.definition)?;
        batch.check_items("range", (last - first).saturating_add(1))
    }

    fn totals(&self, batch: Batch<'_>) -> Option<Totals> {
        let (first, last) = parse(batch.definition).ok()?;
        totals::of(batch, first, last)
    }

    fn label(&self, item: &Payload) -> Option<String> {
        label_of::<RangeItem>(item)
    }
}

fn parse(definition: &str) -> Result<(u64, u64), SplitError> {
    let Some((first, last)) = definition.split_once('-') else {
        return Err(SplitError::Definition(format!(
            "{definition:?} is not a range; expected FIRST-LAST, e.g. 1-1000"
        )));
    };
    let number = |text: &str, position: usize| {
        text.trim().parse::<u64>().map_err(|_| {
            SplitError::Definition(format!("at character {position}: {text:?} is not a number"))
        })
    };
    let (first_number, last_number) = (number(first, 1)?, number(last, first.chars().count() + 2)?);
    if first_number > last_number {
        return Err(SplitError::Definition(format!(
            "the range begins with {first_number} but ends before it, with {last_number}"
        )));
    }
    Ok((first_number, last_number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    async fn split(definition: &str, max_parts: usize) -> Result<Vec<Part>, SplitError> {
        Range.split(Batch::of(definition, max_parts)).await
    }

    /// Splits a batch to the end. Returns the numbers in order, and the number of splits.
    async fn numbers(definition: &str, max_parts: usize) -> (Vec<u64>, usize) {
        let (mut numbers, mut splits, mut open) = (Vec::new(), 0, vec![definition.to_owned()]);
        while let Some(definition) = open.pop() {
            splits += 1;
            let parts = split(&definition, max_parts).await.unwrap();
            assert!(
                !parts.is_empty() && parts.len() <= max_parts,
                "{definition} has {} parts",
                parts.len()
            );
            for part in parts.into_iter().rev() {
                match part {
                    Part::Batch(definition) => open.push(definition),
                    Part::Item(item) => numbers.push(
                        serde_json::from_slice::<RangeItem>(&item.data)
                            .unwrap()
                            .number,
                    ),
                }
            }
        }
        numbers.sort_unstable();
        (numbers, splits)
    }

    #[tokio::test]
    async fn ten_million_numbers_are_split_in_a_tree() {
        let parts = split("1-10000000", 1000).await.unwrap();
        assert_eq!(parts.first(), Some(&Part::Batch("1-1000000".into())));
        assert_eq!(parts.len(), 10);
    }

    #[tokio::test]
    async fn range_with_more_items_than_a_job_may_have_is_refused() {
        let batch = Batch {
            definition: "1-10000000001",
            item_type: None,
            params: &BTreeMap::new(),
            partition: None,
            max_parts: 1000,
            max_items: 10_000_000_000,
            reading: None,
        };
        let error = Range.split(batch).await.unwrap_err();
        assert!(
            matches!(&error, SplitError::Definition(text) if text == "the range has 10000000001 items; a job has at most 10000000000 (--max-items)"),
            "{error:?}"
        );
    }

    #[tokio::test]
    async fn largest_numbers_do_not_overflow() {
        let parts = split("0-18446744073709551615", 10).await.unwrap();
        assert!(parts.len() <= 10);
        assert!(
            matches!(parts.last(), Some(Part::Batch(last)) if last.ends_with("-18446744073709551615"))
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn every_number_of_the_range_becomes_one_item(first in 0u64..1_000_000, count in 1u64..3000, max_parts in 10usize..200) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (numbers, splits) = runtime.block_on(numbers(&format!("{first}-{}", first + count - 1), max_parts));
            prop_assert_eq!(numbers, (first..first + count).collect::<Vec<_>>());
            prop_assert!(splits as u64 <= 1 + 2 * count / max_parts as u64 + 200);
        }
    }
}
