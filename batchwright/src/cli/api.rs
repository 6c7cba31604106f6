//! The flags of `up` and `run` that say who may call the REST API, and how much of it.

use clap::Args;
use job_service::{AllowedHost, AllowedOrigin, ServiceOptions};

#[derive(Debug, Args)]
#[command(next_help_heading = "REST API")]
pub struct ApiArgs {
    /// Host name under which clients call the REST API, or `*`; repeat the flag, or separate names with commas. Always allowed:
    /// `localhost`, IP addresses and the host of the public URL. Without this flag, other names are refused only on a loopback address.
    #[arg(
        long,
        env = "BATCHWRIGHT_ALLOWED_HOST",
        value_delimiter = ',',
        value_name = "NAME"
    )]
    allowed_host: Vec<AllowedHost>,
    /// Origin whose web pages may call the REST API, e.g. `https://console.example.com`; repeat the flag, or separate origins with
    /// commas. The API's own pages always may.
    #[arg(
        long,
        env = "BATCHWRIGHT_ALLOWED_ORIGIN",
        value_delimiter = ',',
        value_name = "ORIGIN"
    )]
    allowed_origin: Vec<AllowedOrigin>,
}

impl ApiArgs {
    /// Adds these flags to the options of the job service.
    pub fn apply_to(self, service: ServiceOptions) -> ServiceOptions {
        ServiceOptions {
            allowed_hosts: self.allowed_host,
            allowed_origins: self.allowed_origin,
            ..service
        }
    }
}
