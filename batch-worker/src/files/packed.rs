//! What the name of a file, or its definition, says of how it is packed.

use serde::{Deserialize, Serialize};

/// How a file is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Packing {
    /// It is as it is.
    None,
    Gzip,
    Zstd,
}

impl Packing {
    /// Returns how a file of this name is packed, and its name without the ending that says so.
    pub fn of(name: &str) -> (Self, &str) {
        // A URL may have more behind its path.
        let is_url = name.starts_with("http://") || name.starts_with("https://");
        let end = if is_url { name.find(['?', '#']) } else { None };
        let name = &name[..end.unwrap_or(name.len())];
        let Some((stem, ending)) = name.rsplit_once('.') else {
            return (Self::None, name);
        };
        match ending.to_ascii_lowercase().as_str() {
            "gz" | "gzip" => (Self::Gzip, stem),
            "zst" | "zstd" => (Self::Zstd, stem),
            _ => (Self::None, name),
        }
    }
}
