//! The content hash of a request. It decides whether a repeated request is the same one. Pure.
//!
//! What must stay true: the hash depends only on the meaning of a request. The order of fields,
//! unknown fields and the build do not change it. Two uploads of the same bytes mean the same. The
//! store keeps the hash, so every version must compute the same one.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use contract::UPLOAD_SCHEME;
use contract::rest::{Expiry, NewJob};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::http::{ApiError, ApiResult};

/// The content of a request, in the form in which it is compared.
#[derive(Debug, Default)]
pub struct Content(String);

impl Content {
    /// Names an upload by its SHA-256. A client that repeats a command uploads the same bytes
    /// again.
    pub fn set_digest(&mut self, upload: &str, digest: &str) {
        let by_digest = format!("{UPLOAD_SCHEME}sha256:{digest}");
        self.0 = self
            .0
            .replace(&format!("{UPLOAD_SCHEME}{upload}"), &by_digest);
    }

    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}

/// Normalizes a request and returns its content.
pub fn content(job: &mut NewJob) -> ApiResult<Content> {
    // Absent, null and empty fields mean the same, so they must hash the same.
    job.labels = job.labels.take().filter(|labels| !labels.is_empty());
    job.parameters = job
        .parameters
        .take()
        .filter(|parameters| job.job_type.is_some() && !parameters.is_null());
    job.expiry = job.expiry.take().filter(|expiry| !expiry.is_empty());
    job.expiry
        .iter_mut()
        .flat_map(Expiry::policies)
        .for_each(|(_, policy)| policy.policer = None);
    job.delay = job.delay.filter(|delay| *delay > 0);
    let value = serde_json::to_value(&*job).map_err(|error| ApiError::Bug(error.to_string()))?;
    let mut text = String::new();
    write_canonical(&value, &mut text).map_err(|error| ApiError::Bug(error.to_string()))?;
    Ok(Content(text))
}

/// Writes JSON with the members of every object sorted by name. Sorts them itself because the order
/// of a `serde_json::Map` depends on a feature that any crate of a build can enable. Each text is
/// written once: it may be large.
fn write_canonical(value: &Value, text: &mut String) -> fmt::Result {
    let separator = |at: usize| if at == 0 { "" } else { "," };
    match value {
        Value::Object(members) => {
            text.push('{');
            let sorted: BTreeMap<&String, &Value> = members.iter().collect();
            for (at, (name, value)) in sorted.into_iter().enumerate() {
                write!(text, "{}{}:", separator(at), Value::from(name.as_str()))?;
                write_canonical(value, text)?;
            }
            text.push('}');
        }
        Value::Array(values) => {
            text.push('[');
            for (at, value) in values.iter().enumerate() {
                text.push_str(separator(at));
                write_canonical(value, text)?;
            }
            text.push(']');
        }
        scalar => write!(text, "{scalar}")?,
    }
    Ok(())
}
