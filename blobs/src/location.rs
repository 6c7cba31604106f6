//! Where the operator wants files: in a folder, or in a bucket of S3.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A folder, or a bucket with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A folder.
    Folder(PathBuf),
    /// A bucket of S3, or of a store that speaks its protocol: `s3://bucket/prefix`.
    Bucket {
        /// The name of the bucket.
        bucket: String,
        /// What the names of all objects begin with; may be empty. Without `/` at its ends.
        prefix: String,
    },
}

/// How buckets are reached. `Debug` shows no credentials.
#[derive(Clone, Default)]
pub struct S3Options {
    /// The URL of a store that is not Amazon's. `http://` is not encrypted.
    pub endpoint: Option<String>,
    /// The region.
    pub region: Option<String>,
    /// Certificates of authorities to trust besides the system's, in PEM format; may be empty.
    pub authorities: Vec<u8>,
    /// The variables of the process among [`S3Options::VARIABLES`], with their values.
    pub variables: Vec<(String, String)>,
}

impl S3Options {
    /// The variables that say who asks and where, as Amazon's own tools read them.
    pub const VARIABLES: [&str; 12] = [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_DEFAULT_REGION",
        "AWS_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_ROLE_ARN",
        "AWS_ROLE_SESSION_NAME",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    ];
}

/// Why a place for files cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[error("{location} cannot be used: {reason}")]
pub struct LocationError {
    pub(crate) location: String,
    pub(crate) reason: String,
}

#[cfg(not(feature = "s3"))]
impl LocationError {
    pub(crate) fn without_s3(location: &Location, _: &S3Options) -> Self {
        Self {
            location: location.to_string(),
            reason: "this program is built without S3; build it with the feature `s3`".to_owned(),
        }
    }
}

impl FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text {
                "" => Err("the name of the folder is empty".to_owned()),
                folder => Ok(Self::Folder(folder.into())),
            };
        };
        if scheme != "s3" {
            return Err(format!(
                "{text:?} is neither a folder nor s3://BUCKET/PREFIX"
            ));
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if bucket.is_empty() || !bucket.chars().all(is_name) {
            return Err(format!(
                "{text:?} has no name of a bucket; expected s3://BUCKET/PREFIX"
            ));
        }
        let prefix = prefix.trim_end_matches('/');
        let is_segment = |segment: &str| !matches!(segment, "" | "." | "..");
        if !prefix.is_empty() && !prefix.split('/').all(is_segment) {
            return Err(format!("{text:?} has an empty part, `.` or `..`"));
        }
        Ok(Self::Bucket {
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "the folder {}", folder.display()),
            Self::Bucket { bucket, prefix } if prefix.is_empty() => {
                write!(f, "the bucket s3://{bucket}")
            }
            Self::Bucket { bucket, prefix } => write!(f, "the bucket s3://{bucket}/{prefix}"),
        }
    }
}

impl fmt::Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.variables.iter().map(|(name, _)| name);
        f.debug_struct("S3Options")
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("authorities", &self.authorities.len())
            .field("variables", &names.collect::<Vec<_>>())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_is_a_folder_or_a_bucket_and_anything_else_is_named_in_the_error() {
        let bucket = |bucket: &str, prefix: &str| {
            Ok(Location::Bucket {
                bucket: bucket.to_owned(),
                prefix: prefix.to_owned(),
            })
        };
        for (text, expected) in [
            ("data/outputs", Ok(Location::Folder("data/outputs".into()))),
            ("s3://b", bucket("b", "")),
            ("s3://my-bucket.eu/a/b/", bucket("my-bucket.eu", "a/b")),
            (
                "s3:///a",
                Err("\"s3:///a\" has no name of a bucket; expected s3://BUCKET/PREFIX"),
            ),
            (
                "s3://b/a/../c",
                Err("\"s3://b/a/../c\" has an empty part, `.` or `..`"),
            ),
            (
                "gs://b",
                Err("\"gs://b\" is neither a folder nor s3://BUCKET/PREFIX"),
            ),
            ("", Err("the name of the folder is empty")),
        ] {
            assert_eq!(text.parse(), expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = S3Options {
            variables: vec![("AWS_SECRET_ACCESS_KEY".to_owned(), "hush".to_owned())],
            ..S3Options::default()
        };
        let shown = format!("{options:?}");
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hush"));
    }
}
