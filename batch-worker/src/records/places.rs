//! Where the records of a part begin, and its items.

use std::collections::BTreeMap;

use contract::RecordItem;

use super::Pinned;
use super::reader::{Place, Records};
use crate::SplitError;
use crate::files::shown;

/// A split of at most this many bytes makes items.
pub const LEAF_BYTES: u64 = 8 * 1024 * 1024;
/// The most bytes of an item, and of the items of a split, as JSON.
const LARGEST_ITEM: usize = 8 * 1024 * 1024;
const LARGEST_SPLIT: usize = 64 * 1024 * 1024;

/// Where groups of records begin.
pub struct Places {
    /// The offset and the number of the first record of each group.
    pub begins: Vec<Place>,
    /// The records of a group.
    pub stride: u64,
    pub records: u64,
}

impl Places {
    /// Reads all records. The groups become larger while there are more than `most`.
    pub fn find(records: &mut Records, per_item: u64, most: usize) -> Result<Self, SplitError> {
        let mut places = Self {
            begins: Vec::new(),
            stride: per_item,
            records: 0,
        };
        while let Some(place) = records.skip()? {
            if places.records.is_multiple_of(places.stride) {
                if places.begins.len() == most {
                    let mut at = 0_usize;
                    places.begins.retain(|_| {
                        at += 1;
                        at % 2 == 1
                    });
                    places.stride *= 2;
                }
                if places.records.is_multiple_of(places.stride) {
                    places.begins.push(place);
                }
            }
            places.records += 1;
        }
        Ok(places)
    }

    /// Returns the groups as parts. Small neighbours become one, if one split can make items of it.
    pub fn parts(&self, whole: &Pinned, per_item: u64, most: usize) -> Vec<Pinned> {
        let mut parts: Vec<Pinned> = Vec::new();
        for (at, begin) in self.begins.iter().enumerate() {
            let next = self.begins.get(at + 1);
            let to = next.map_or(whole.to, |next| next.offset);
            let end = next.map_or(whole.first + self.records, |next| next.number);
            if let Some(last) = parts.last_mut()
                && to - last.from <= LEAF_BYTES
                && (end - last.first).div_ceil(per_item) <= most as u64
            {
                last.to = to;
                last.records = Some(end - last.first);
                continue;
            }
            parts.push(Pinned {
                from: begin.offset,
                to,
                first: begin.number,
                records: Some(end - begin.number),
                ..whole.clone()
            });
        }
        parts
    }
}

/// Reads the items of a part.
pub fn items(
    mut records: Records,
    part: &Pinned,
    per_item: u64,
) -> Result<Vec<RecordItem>, SplitError> {
    let mut items: Vec<RecordItem> = Vec::new();
    let (mut bytes, mut all_bytes) = (0, 0);
    let mut next = part.first;
    let path = shown(&part.path);
    while let Some(record) = records.read()? {
        if (next - part.first).is_multiple_of(per_item) {
            bytes = 0;
            items.push(RecordItem {
                path: path.clone(),
                number: next,
                record: None,
                records: Vec::new(),
                params: BTreeMap::new(),
            });
        }
        next += 1;
        if part
            .records
            .is_some_and(|records| next - part.first > records)
        {
            return Err(part.wrong_count("more"));
        }
        bytes += record.get().len();
        all_bytes += record.get().len();
        if bytes > LARGEST_ITEM || all_bytes > LARGEST_SPLIT {
            return Err(SplitError::Definition(format!(
                "up to record {} of {path:?}, an item becomes {bytes} bytes of JSON, and its split {all_bytes}; at most {LARGEST_ITEM} and \
                 {LARGEST_SPLIT} are possible. Lower recordsPerItem",
                next - 1
            )));
        }
        if let Some(item) = items.last_mut() {
            if per_item == 1 {
                item.record = Some(record);
            } else {
                item.records.push(record);
            }
        }
    }
    if part
        .records
        .is_some_and(|records| next - part.first < records)
    {
        return Err(part.wrong_count(&(next - part.first).to_string()));
    }
    Ok(items)
}
