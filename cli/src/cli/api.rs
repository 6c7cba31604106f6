//! The flags of `up` and `run` that say who may call the REST API, and how much of it.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use clap::Args;
use clap::builder::RangedU64ValueParser;
use framework::http::HeaderName;
use job_service::{
    AllowedHost, AllowedOrigin, Authentication, Callers, GroupAccess, Limits, PipeAccess,
    ProxyOptions, ServiceOptions, TokenSecret,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The defaults.
const LIMITS: Limits = Limits::DEFAULT;
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

#[derive(Debug, Args)]
#[command(next_help_heading = "REST API")]
pub struct ApiArgs {
    /// Host name under which clients call the REST API, or `*`; repeat the flag, or separate names
    /// with commas. Always allowed: `localhost`, IP addresses and the host of the public URL.
    /// Without this flag, other names are refused only on a loopback address.
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    allowed_host: Vec<AllowedHost>,
    /// Origin whose web pages may call the REST API, e.g. `https://console.example.com`; repeat the
    /// flag, or separate origins with commas. The API's own pages always may.
    #[arg(long, value_delimiter = ',', value_name = "ORIGIN")]
    allowed_origin: Vec<AllowedOrigin>,
    /// Number of connections to the REST API; beyond it, connections that wait for their clients
    /// are closed for new ones.
    #[arg(long, default_value_t = LIMITS.connections, value_parser = size(1..=1_000_000), value_name = "CONNECTIONS")]
    max_connections: usize,
    /// Seconds that a connection may wait for its next request, or for the rest of its head. A
    /// proxy in front of the service must close idle connections earlier.
    #[arg(long, default_value_t = LIMITS.head_time.as_secs(), value_parser = clap::value_parser!(u64).range(1..=86_400), value_name = "SECONDS")]
    idle_connection: u64,
    /// MiB of request bodies that the REST API handles at the same time, from 16; beyond it,
    /// requests get 503.
    #[arg(long, default_value_t = LIMITS.body_bytes / MIB, value_parser = size(16..=1_000_000), value_name = "MIB")]
    max_body_memory: usize,
    /// Number of labels that a job may have.
    #[arg(long, default_value_t = LIMITS.labels, value_parser = size(0..=u32::MAX.into()), value_name = "LABELS")]
    max_labels: usize,
    /// KiB of the description of a job, and of its external data.
    #[arg(long, default_value_t = LIMITS.text / KIB, value_parser = size(1..=16_384), value_name = "KIB")]
    max_text: usize,
    /// Largest number of jobs on a page of a list; a request for a larger page gets 400.
    #[arg(long, default_value_t = LIMITS.page, value_parser = clap::value_parser!(u32).range(1..), value_name = "JOBS")]
    max_page_size: u32,
    /// Whether clients may take and put messages of pipes over HTTP: `on`, `off`, or `auto`, which
    /// allows it where the broker is embedded and the REST API listens on a loopback address.
    #[arg(long, default_value = "auto", value_name = "ACCESS")]
    pipe_access: PipeAccess,
    /// Who may call the REST API: `tokens` for whoever has a token, `none` for everybody. Without
    /// this flag everybody on this machine may, and an address that others reach is refused.
    #[arg(long, value_name = "WHO")]
    auth: Option<Auth>,
    /// File with a token, of at least 32 characters, that may do everything; the REST API then
    /// needs tokens.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Address of a proxy that authenticates those who call and names them in headers; repeat the
    /// flag, or separate addresses with commas. Everybody at these addresses is believed.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS")]
    proxy_address: Vec<IpAddr>,
    /// File with a secret, of at least 32 characters, that this proxy sends in the header
    /// `X-Batchwright-Proxy-Secret`, from whatever address.
    #[arg(long, value_name = "FILE")]
    proxy_secret_file: Option<PathBuf>,
    /// Header in which the proxy names whoever calls.
    #[arg(long, default_value = "x-forwarded-user", value_name = "HEADER")]
    subject_header: HeaderName,
    /// Header in which the proxy names their groups, separated by commas.
    #[arg(long, default_value = "x-forwarded-groups", value_name = "HEADER")]
    groups_header: HeaderName,
    /// What the members of a group may do, e.g. `engineers=operate,metrics@search-*,orders`; `*`
    /// stands for everybody whom the proxy names. Repeat the flag, or separate groups with
    /// semicolons.
    #[arg(long, value_delimiter = ';', value_name = "GROUP=ROLES@PARTITIONS")]
    group: Vec<GroupAccess>,
    /// Whether everybody may read the metrics where the REST API needs tokens: `on` or `off`.
    #[arg(long, default_value = "off", value_name = "SWITCH")]
    open_metrics: Switch,
    /// Whether the service has a web page at `/`: `on` or `off`.
    #[arg(long, default_value = "on", value_name = "SWITCH")]
    page: Switch,
}

/// Who may call the REST API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Auth {
    None,
    Tokens,
}

impl FromStr for Auth {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "tokens" => Ok(Self::Tokens),
            _ => Err(format!("{text:?} is not none or tokens")),
        }
    }
}

/// Whether something is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Switch {
    On,
    Off,
}

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("{text:?} is not on or off")),
        }
    }
}

impl ApiArgs {
    /// Adds these flags to the options of the job service.
    pub fn apply_to(self, service: ServiceOptions) -> anyhow::Result<ServiceOptions> {
        let authentication = self.authentication()?;
        let connections = self.max_connections;
        let limits = Limits {
            connections: connections.min(raise_open_files(connections)),
            head_time: Duration::from_secs(self.idle_connection),
            body_bytes: self.max_body_memory * MIB,
            labels: self.max_labels,
            text: self.max_text * KIB,
            page: self.max_page_size,
            ..service.limits
        };
        Ok(ServiceOptions {
            authentication,
            open_metrics: self.open_metrics == Switch::On,
            allowed_hosts: self.allowed_host,
            allowed_origins: self.allowed_origin,
            limits,
            pipe_access: self.pipe_access,
            page: self.page == Switch::On,
            ..service
        })
    }

    /// Returns the proxy that names those who call, if there is one.
    fn proxy(&self) -> anyhow::Result<Option<ProxyOptions>> {
        let secret = match &self.proxy_secret_file {
            Some(file) => Some(read_secret(file, "--proxy-secret-file")?.hash()),
            None => None,
        };
        if secret.is_none() && self.proxy_address.is_empty() {
            if !self.group.is_empty() {
                bail!(
                    "--group says what those may do whom a proxy names; name the proxy with --proxy-address or --proxy-secret-file"
                );
            }
            return Ok(None);
        }
        Ok(Some(ProxyOptions {
            addresses: self.proxy_address.clone(),
            secret,
            subject_header: self.subject_header.clone(),
            groups_header: self.groups_header.clone(),
            groups: self.group.clone(),
        }))
    }

    /// Returns who may call.
    fn authentication(&self) -> anyhow::Result<Authentication> {
        let admin = match &self.admin_token_file {
            Some(file) if self.auth == Some(Auth::None) => bail!(
                "--admin-token-file names {}, but with --auth none nobody needs a token; leave one of them out",
                file.display()
            ),
            Some(file) => Some(read_secret(file, "--admin-token-file")?.hash()),
            None => None,
        };
        let proxy = self.proxy()?;
        if proxy.is_some() && self.auth == Some(Auth::None) {
            bail!(
                "--proxy-address and --proxy-secret-file name a proxy, but with --auth none nobody asks it"
            );
        }
        Ok(match self.auth {
            None if admin.is_none() && proxy.is_none() => Authentication::Undecided,
            Some(Auth::None) => Authentication::None,
            None | Some(Auth::Tokens) => Authentication::Needed(Callers { admin, proxy }.into()),
        })
    }
}

/// Reads the secret in the file that a flag names.
fn read_secret(file: &Path, flag: &str) -> anyhow::Result<TokenSecret> {
    let path = file.display();
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("the secret in {path} ({flag}) cannot be read"))?;
    TokenSecret::chosen(&text).map_err(|problem| anyhow!("{path} ({flag}): {problem}"))
}

fn size(range: RangeInclusive<u64>) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(range)
}

/// Raises the limit of open files of this process as far as the system allows. Returns how many of
/// them connections may have: the other half is for databases, brokers and files.
fn raise_open_files(wanted: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let current = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(_) => limit.current,
    };
    // `None` means that there is no limit.
    let files = current.map_or(usize::MAX, |files| {
        usize::try_from(files).unwrap_or(usize::MAX)
    });
    let free = files / 2;
    if free < wanted {
        tracing::warn!(
            files,
            "this process may open few files; the REST API has at most {free} connections (raise the limit with `ulimit -n`)"
        );
    }
    free.max(1)
}
