//! The flags of `up` and `run` about uploaded sources.

use std::time::Duration;

use clap::Args;
use job_service::UploadOptions;
use store::UploadLimits;

/// How many sources the job service takes, and for how long.
#[derive(Debug, Args)]
#[command(next_help_heading = "Uploaded sources")]
pub struct UploadArgs {
    /// MiB that the uploaded sources of a partition take; further ones are refused. They are where
    /// the outputs are (`--outputs-folder`).
    #[arg(long, default_value_t = UploadOptions::DEFAULT_OF_PARTITION >> 20, value_parser = clap::value_parser!(u64).range(..1 << 40), value_name = "MEGABYTES")]
    uploads_size_per_partition: u64,
    /// MiB that the uploaded sources of all partitions take; further ones are refused.
    #[arg(long, default_value_t = UploadOptions::DEFAULT_OF_ALL >> 20, value_parser = clap::value_parser!(u64).range(..1 << 40), value_name = "MEGABYTES")]
    uploads_size: u64,
    /// How long a source is kept that no job names and to which nothing is added, e.g. `P1D` or
    /// `PT12H`; others are deleted with the last job that names them.
    #[arg(long, default_value = "P1D", value_parser = store::span, value_name = "DURATION")]
    keep_uploads: Duration,
}

impl UploadArgs {
    /// Returns which sources the job service takes.
    pub const fn options(&self) -> UploadOptions {
        UploadOptions {
            limits: UploadLimits::of_bytes(
                self.uploads_size_per_partition << 20,
                self.uploads_size << 20,
            ),
            keep: self.keep_uploads,
        }
    }
}
