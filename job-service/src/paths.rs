//! Ids in the paths of the API.

use contract::PartitionId;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};

/// Returns the path of an uploaded source, below that of the API.
pub fn source_path(partition: &PartitionId, id: &str) -> String {
    let partition = encoded(partition.as_str());
    format!("/partitions/{partition}/sources/{}", encoded(id))
}

/// Returns a text as a part of a path.
pub fn encoded(text: &str) -> PercentEncode<'_> {
    /// Every character except those that never need encoding in a URL.
    const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');
    utf8_percent_encode(text, ENCODED)
}
