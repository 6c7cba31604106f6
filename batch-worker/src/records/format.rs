//! What a file contains.

use serde::{Deserialize, Serialize};

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A record is the text of a line.
    Lines,
    /// Fields separated by commas.
    Csv,
    /// Fields separated by tabs.
    Tsv,
    /// A record is a line of JSON.
    Jsonl,
    /// A record is an element of an array.
    Json,
}

impl Format {
    /// Returns the format that the name of a file says.
    pub fn of(path: &str) -> Option<Self> {
        let (_, extension) = path.rsplit_once('.')?;
        match extension.to_ascii_lowercase().as_str() {
            "txt" | "log" => Some(Self::Lines),
            "csv" => Some(Self::Csv),
            "tsv" => Some(Self::Tsv),
            "jsonl" | "ndjson" => Some(Self::Jsonl),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}
