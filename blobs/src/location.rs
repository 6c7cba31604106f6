//! Where the operator wants files: in a folder, or in a bucket of a cloud.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A folder, or a bucket with a prefix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A folder.
    Folder(PathBuf),
    /// A bucket, or what a cloud calls so: `s3://bucket/prefix`, `gs://bucket/prefix`,
    /// `az://container/prefix`.
    Bucket {
        /// The protocol by which it is reached.
        cloud: Cloud,
        /// The name of the bucket.
        bucket: String,
        /// What the names of all objects begin with; may be empty. Without `/` at its ends.
        prefix: String,
    },
}

/// A kind of store, by the protocol that it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cloud {
    /// Amazon S3, and what speaks its protocol: `s3://`.
    S3,
    /// Google Cloud Storage: `gs://`.
    Google,
    /// Azure Blob Storage: `az://`. Its containers are the buckets.
    Azure,
}

impl Cloud {
    pub(crate) const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    const fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Google => "gs",
            Self::Azure => "az",
        }
    }

    /// Returns what the cloud calls a bucket.
    const fn bucket(self) -> &'static str {
        match self {
            Self::S3 | Self::Google => "bucket",
            Self::Azure => "container",
        }
    }
}

/// How buckets are reached. `Debug` shows no credentials.
#[derive(Clone, Default)]
pub struct BucketOptions {
    /// The URL of a store that speaks the protocol of S3, and is not Amazon's. `http://` is not
    /// encrypted, here and below.
    pub s3_endpoint: Option<String>,
    /// The region of S3.
    pub s3_region: Option<String>,
    /// The URL of a store that speaks the protocol of Google Cloud Storage, and is not Google's.
    pub gs_endpoint: Option<String>,
    /// The URL of the account in Azure Blob Storage, if it is not
    /// `https://ACCOUNT.blob.core.windows.net`.
    pub az_endpoint: Option<String>,
    /// Certificates of authorities to trust besides the system's, in PEM format; may be empty.
    pub authorities: Vec<u8>,
    /// The variables of the process among [`BucketOptions::VARIABLES`], with their values.
    pub variables: Vec<(String, String)>,
}

impl BucketOptions {
    /// The variables that say who asks and where: those of Amazon's own tools, and those of the
    /// other clouds that the library reads.
    pub const VARIABLES: [&str; 32] = [
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
        "GOOGLE_APPLICATION_CREDENTIALS",
        "GOOGLE_SERVICE_ACCOUNT",
        "GOOGLE_SERVICE_ACCOUNT_KEY",
        "GOOGLE_BEARER_TOKEN",
        "GOOGLE_BASE_URL",
        "AZURE_STORAGE_ACCOUNT",
        "AZURE_STORAGE_ACCOUNT_NAME",
        "AZURE_STORAGE_KEY",
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_ENDPOINT",
        "AZURE_CLIENT_ID",
        "AZURE_CLIENT_SECRET",
        "AZURE_TENANT_ID",
        "AZURE_AUTHORITY_HOST",
        "AZURE_FEDERATED_TOKEN_FILE",
        "AZURE_MSI_ENDPOINT",
        "AZURE_OBJECT_ID",
        "AZURE_MSI_RESOURCE_ID",
    ];
}

/// Why a place for files cannot be used at all.
#[derive(Debug, thiserror::Error)]
#[error("{location} cannot be used: {reason}")]
pub struct LocationError {
    pub(crate) location: String,
    pub(crate) reason: String,
}

#[cfg(not(feature = "buckets"))]
impl LocationError {
    pub(crate) fn without_buckets(location: &Location, _: &BucketOptions) -> Self {
        Self {
            location: location.to_string(),
            reason: "this program is built without buckets; build it with the feature `buckets`"
                .to_owned(),
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
        let Some(cloud) = Cloud::ALL.into_iter().find(|it| it.scheme() == scheme) else {
            return Err(format!(
                "{text:?} is neither a folder nor s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX"
            ));
        };
        let kind = cloud.bucket();
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_name = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if matches!(bucket, "" | "." | "..") || !bucket.chars().all(is_name) {
            return Err(format!(
                "{text:?} has no name of a {kind}; expected {scheme}://{}/PREFIX",
                kind.to_uppercase()
            ));
        }
        let prefix = prefix.trim_end_matches('/');
        let is_segment = |segment: &str| !matches!(segment, "" | "." | "..");
        if !prefix.is_empty() && !prefix.split('/').all(is_segment) {
            return Err(format!("{text:?} has an empty part, `.` or `..`"));
        }
        Ok(Self::Bucket {
            cloud,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "the folder {}", folder.display()),
            Self::Bucket {
                cloud,
                bucket,
                prefix,
            } => {
                let separator = if prefix.is_empty() { "" } else { "/" };
                let (kind, scheme) = (cloud.bucket(), cloud.scheme());
                write!(f, "the {kind} {scheme}://{bucket}{separator}{prefix}")
            }
        }
    }
}

impl fmt::Debug for BucketOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.variables.iter().map(|(name, _)| name);
        f.debug_struct("BucketOptions")
            .field("s3_endpoint", &self.s3_endpoint)
            .field("s3_region", &self.s3_region)
            .field("gs_endpoint", &self.gs_endpoint)
            .field("az_endpoint", &self.az_endpoint)
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
        let bucket = |cloud: Cloud, bucket: &str, prefix: &str| {
            Ok(Location::Bucket {
                cloud,
                bucket: bucket.to_owned(),
                prefix: prefix.to_owned(),
            })
        };
        for (text, expected) in [
            ("data/outputs", Ok(Location::Folder("data/outputs".into()))),
            ("s3://b", bucket(Cloud::S3, "b", "")),
            (
                "s3://my-bucket.eu/a/b/",
                bucket(Cloud::S3, "my-bucket.eu", "a/b"),
            ),
            ("gs://my_bucket/a", bucket(Cloud::Google, "my_bucket", "a")),
            ("az://inbox", bucket(Cloud::Azure, "inbox", "")),
            (
                "az:///a",
                Err("\"az:///a\" has no name of a container; expected az://CONTAINER/PREFIX"),
            ),
            (
                "az://../a",
                Err("\"az://../a\" has no name of a container; expected az://CONTAINER/PREFIX"),
            ),
            (
                "s3:///a",
                Err("\"s3:///a\" has no name of a bucket; expected s3://BUCKET/PREFIX"),
            ),
            (
                "s3://b/a/../c",
                Err("\"s3://b/a/../c\" has an empty part, `.` or `..`"),
            ),
            (
                "ftp://b",
                Err(
                    "\"ftp://b\" is neither a folder nor s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX",
                ),
            ),
            ("", Err("the name of the folder is empty")),
        ] {
            assert_eq!(text.parse(), expected.map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let options = BucketOptions {
            variables: vec![("AWS_SECRET_ACCESS_KEY".to_owned(), "hush".to_owned())],
            ..BucketOptions::default()
        };
        let shown = format!("{options:?}");
        assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hush"));
    }
}
