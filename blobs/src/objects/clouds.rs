//! How the buckets of each cloud are reached: where, as whom, and how long.
//!
//! Hides the builders of the library, one for each cloud.

use std::sync::Arc;
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{
    BackoffConfig, Certificate, ClientOptions, Error, ObjectStore, Result, RetryConfig,
};

use crate::location::{BucketOptions, Cloud};

/// The region where none is set. Stores that are not Amazon's mostly ignore it.
const REGION: &str = "us-east-1";

/// Returns a bucket, as the library knows it.
pub fn open(cloud: Cloud, bucket: &str, options: &BucketOptions) -> Result<Arc<dyn ObjectStore>> {
    // The HTTP client takes what the process has. If it has something already, that stays.
    drop(rustls::crypto::ring::default_provider().install_default());
    match cloud {
        Cloud::S3 => s3(bucket, options),
        Cloud::Google => google(bucket, options),
        Cloud::Azure => azure(bucket, options),
    }
}

fn s3(bucket: &str, options: &BucketOptions) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = AmazonS3Builder::new().with_region(REGION);
    for (key, value) in settings::<AmazonS3ConfigKey>("AWS_", options) {
        builder = builder.with_config(key, value);
    }
    if let Some(region) = &options.s3_region {
        builder = builder.with_region(region);
    }
    if let Some(endpoint) = &options.s3_endpoint {
        // The library prefers this setting to the general one.
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    let endpoints = [AmazonS3ConfigKey::Endpoint, AmazonS3ConfigKey::S3Endpoint];
    let endpoints = endpoints.map(|key| builder.get_config_value(&key));
    let built = builder
        .with_bucket_name(bucket)
        .with_client_options(client(&endpoints, options)?)
        .with_retry(retry())
        .build();
    Ok(Arc::new(built?))
}

fn google(bucket: &str, options: &BucketOptions) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in settings::<GoogleConfigKey>("GOOGLE_", options) {
        builder = builder.with_config(key, value);
    }
    let of_variable = builder.get_config_value(&GoogleConfigKey::BaseUrl);
    let endpoint = options.gs_endpoint.clone().or(of_variable);
    if let Some(endpoint) = &endpoint {
        builder = builder.with_base_url(endpoint.trim_end_matches('/'));
    }
    let built = builder
        .with_bucket_name(bucket)
        .with_client_options(client(&[endpoint], options)?)
        .with_retry(retry())
        .build();
    Ok(Arc::new(built?))
}

fn azure(container: &str, options: &BucketOptions) -> Result<Arc<dyn ObjectStore>> {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in settings::<AzureConfigKey>("AZURE_", options) {
        builder = builder.with_config(key, value);
    }
    // Azure's own tools call two settings otherwise than the library.
    for (name, value) in &options.variables {
        builder = match name.as_str() {
            "AZURE_STORAGE_ACCOUNT" => builder.with_account(value),
            "AZURE_STORAGE_KEY" => builder.with_access_key(value),
            _ => builder,
        };
    }
    let of_variable = builder.get_config_value(&AzureConfigKey::Endpoint);
    let endpoint = options.az_endpoint.clone().or(of_variable);
    if let Some(endpoint) = &endpoint {
        builder = builder.with_endpoint(endpoint.trim_end_matches('/').to_owned());
    }
    if builder
        .get_config_value(&AzureConfigKey::AccountName)
        .is_none()
    {
        return Err(Error::Generic {
            store: "Azure",
            source: "the account is not set (AZURE_STORAGE_ACCOUNT)".into(),
        });
    }
    let built = builder
        .with_container_name(container)
        .with_client_options(client(&[endpoint], options)?)
        .with_retry(retry())
        .build();
    Ok(Arc::new(built?))
}

/// Returns the settings of a cloud that are in variables.
fn settings<Key: std::str::FromStr>(
    prefix: &str,
    options: &BucketOptions,
) -> impl Iterator<Item = (Key, String)> {
    let own = options.variables.iter();
    own.filter(move |(name, _)| name.starts_with(prefix))
        .filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.clone())))
}

/// Returns how requests are sent to these endpoints: without encryption only where one says so.
fn client(endpoints: &[Option<String>], options: &BucketOptions) -> Result<ClientOptions> {
    let is_plain = |endpoint: &String| endpoint.starts_with("http://");
    let mut client = ClientOptions::new()
        .with_allow_http(endpoints.iter().flatten().any(is_plain))
        .with_connect_timeout(Duration::from_secs(5))
        .with_timeout(Duration::from_mins(1));
    for authority in Certificate::from_pem_bundle(&options.authorities)? {
        client = client.with_root_certificate(authority);
    }
    Ok(client)
}

fn retry() -> RetryConfig {
    RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: 2,
        retry_timeout: Duration::from_secs(10),
    }
}
