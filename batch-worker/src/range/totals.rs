//! Calculates what a range is split into (items, splits, levels and bytes) without splitting it.

use std::ops::RangeInclusive;

use contract::RangeItem;

use crate::{Batch, Totals, even_size};

/// Returns what the numbers from `first` to `last` become; `None` if that cannot be counted.
pub fn of(batch: Batch<'_>, first: u64, last: u64) -> Option<Totals> {
    let one_digit = RangeItem {
        number: 0,
        params: batch.params.clone(),
    };
    let item = serde_json::to_vec(&one_digit).ok()?.len() as u128 - 1;
    let mut sum = Sum::default();
    sum.add(u128::from(first), u128::from(last), batch.max_parts as u128)?;
    let digits = digits_of(u128::from(first)..=u128::from(last), 1);
    let items = u128::from(last) - u128::from(first) + 1;
    Some(Totals {
        items: u64::try_from(items).ok()?,
        splits: u64::try_from(sum.splits).ok()?,
        levels: sum.levels,
        item_bytes: u64::try_from(items.checked_mul(item)?.checked_add(digits)?).ok()?,
        definition_bytes: u64::try_from(sum.definition_bytes).ok()?,
    })
}

#[derive(Debug, Default)]
struct Sum {
    splits: u128,
    levels: u32,
    definition_bytes: u128,
    /// On which level the range is that is added.
    level: u32,
}

impl Sum {
    /// Adds the splits of a range and of all below it.
    fn add(&mut self, first: u128, last: u128, max_parts: u128) -> Option<()> {
        self.splits += 1;
        self.level += 1;
        self.levels = self.levels.max(self.level);
        let count = last - first + 1;
        let whole = even_size(u64::try_from(count).ok()?, u64::try_from(max_parts).ok()?);
        let mut size = u128::from(whole);
        let (mut level, full) = (self.level, count / size);
        // The full sub-batches, and below them full ones again: on each level as many as the level
        // above has parts.
        while size > 1 {
            level += 1;
            self.levels = self.levels.max(level);
            let batches = full * (u128::from(whole) / size);
            self.splits += batches;
            self.definition_bytes += definitions(first, batches, size);
            size /= max_parts;
        }
        let rest = first + full * u128::from(whole);
        if whole > 1 && rest <= last {
            self.definition_bytes += definition(rest, last);
            self.add(rest, last, max_parts)?;
        }
        self.level -= 1;
        Some(())
    }
}

/// Returns the bytes of a definition as a JSON string.
fn definition(first: u128, last: u128) -> u128 {
    digits_of(first..=first, 1) + digits_of(last..=last, 1) + 3
}

/// Returns the bytes of the definitions of so many ranges of this size in succession.
fn definitions(first: u128, count: u128, size: u128) -> u128 {
    let Some(after) = count.checked_sub(1) else {
        return 0;
    };
    let end = first + size - 1;
    digits_of(first..=first + after * size, size)
        + digits_of(end..=end + after * size, size)
        + 3 * count
}

/// Returns the number of decimal digits of all numbers of a range in these steps.
fn digits_of(numbers: RangeInclusive<u128>, step: u128) -> u128 {
    let (first, last) = numbers.into_inner();
    let (mut sum, mut begin, mut power, mut digits) = (0, first, 10_u128, 1_u128);
    while begin <= last {
        if begin < power {
            let end = last.min(power - 1);
            let count = (end - begin) / step + 1;
            sum += count * digits;
            begin += count * step;
        }
        (power, digits) = (power * 10, digits + 1);
    }
    sum
}
