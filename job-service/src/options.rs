//! The options of the job service.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use blobs::{Blobs, ExportStore};
use contract::rest::{Expiry, MAX_BODY_BYTES};
use contract::{PipePurpose, ReservedPipes, TrackingShards, blocked_pipe, overflow_pipe};
use framework::config::StatusOrigins;
use framework::health::Health;
use framework::tls::Tls;
use store::UploadLimits;

use crate::conditions::ConditionOptions;
use crate::http::access::{AllowedHost, AllowedOrigin};
use crate::http::places::Patience;
use crate::jobs::job_types::JobTypes;
use crate::jobs::partition_pattern::PartitionPattern;
use crate::rights::Authentication;
use crate::stuck::StuckLimits;

/// The path prefix of the REST API.
pub const BASE_PATH: &str = "/job-service/v1";

/// The options of a [`JobService`](crate::JobService). [`Default`] gives CAF's defaults.
#[derive(Debug, Clone)]
pub struct ServiceOptions {
    /// The URL at which workers reach this API, e.g. `http://127.0.0.1:8080/job-service/v1`. Every
    /// start message contains it as part of the status URL.
    pub webservice_url: String,
    /// The host names under which clients call the service, beside `localhost`, IP addresses and
    /// the host of `webservice_url`. If empty, they are checked only where the service listens on a
    /// loopback address.
    pub allowed_hosts: Vec<AllowedHost>,
    /// The origins whose web pages may change jobs, beside the service's own.
    pub allowed_origins: Vec<AllowedOrigin>,
    /// The pipe of the tracking worker.
    pub tracking_pipe: String,
    /// How many pipes beside that one new jobs are spread over; with one, all jobs use the pipe
    /// itself.
    pub tracking_shards: TrackingShards,
    /// The pipe to which workers send the tasks of paused jobs.
    pub paused_pipe: String,
    /// The pipes that no job may name, and the exceptions. [`Self::tracking_pipe`] with all
    /// possible shards, [`Self::paused_pipe`] and the invalid pipe of the latter are reserved in
    /// addition.
    pub reserved_pipes: ReservedPipes,
    /// The origins that the status checks of the consumer of the paused pipe may ask.
    pub status_origins: StatusOrigins,
    /// Whom these checks trust at `https://`, and the certificate that they show.
    pub tls: Tls,
    /// How long a worker may cache the status of a job.
    pub status_check_interval: Duration,
    /// The number of jobs on a page of a list if the request sets no limit.
    pub page_size: u32,
    /// The number of jobs that a bulk cancellation cancels in one transaction.
    pub cancel_batch: u32,
    /// The number of jobs that a bulk deletion deletes in one transaction.
    pub delete_batch: u32,
    /// The suspended partitions: their new jobs start only after a client dispatches the partition.
    /// `None`: no partition is suspended.
    pub suspended_partitions: Option<PartitionPattern>,
    /// The largest accepted request body, in bytes.
    pub max_body_bytes: usize,
    /// The bounds of requests and connections.
    pub limits: Limits,
    /// Whether clients may take and put messages over HTTP.
    pub pipe_access: PipeAccess,
    /// Whether the service has a web page.
    pub page: bool,
    /// The pipes that its form for a new job begins with.
    pub page_pipes: PagePipes,
    /// The job types that clients can use instead of a task.
    pub job_types: JobTypes,
    /// The outputs that the service keeps.
    pub outputs: OutputOptions,
    /// The uploaded sources that the service takes. They are where the outputs are.
    pub uploads: UploadOptions,
    /// How long work may not move before that is told.
    pub stuck: StuckLimits,
    /// The number of tasks of one pipe that wait for one condition, from which on their workers
    /// keep further ones themselves.
    pub most_blocked: u64,
    /// The dead letters that the service collects.
    pub letters: LetterOptions,
    /// How the conditions that tasks wait for are tested.
    pub conditions: ConditionOptions,
    /// The retention of finished jobs, where a job does not set its own.
    pub expiry: Expiry,
    /// Who may call the service.
    pub authentication: Authentication,
    /// Whether everybody may read the metrics, also where callers need a token.
    pub open_metrics: bool,
    /// What the process can do. Everything in a process shares one.
    pub health: Health,
}

impl ServiceOptions {
    /// The default of [`Self::most_blocked`].
    pub const DEFAULT_BLOCKED: u64 = 10_000;

    /// Returns all pipes that no job may name.
    pub fn all_reserved_pipes(&self) -> ReservedPipes {
        let reserved = self
            .reserved_pipes
            .clone()
            .reserve(PipePurpose::Tracking, &self.tracking_pipe)
            .reserve(PipePurpose::Paused, &self.paused_pipe)
            .reserve(PipePurpose::Blocked, self.blocked_pipe())
            .reserve(PipePurpose::Outputs, &self.outputs.pipe)
            .reserve(PipePurpose::Invalid, self.paused_invalid_pipe());
        let letters = self.letters.pipes.iter();
        letters.fold(reserved, |reserved, pipe| {
            reserved
                .reserve(PipePurpose::Reject, pipe)
                .reserve(PipePurpose::Reject, overflow_pipe(pipe))
        })
    }

    /// Returns whether the operator lets everybody do everything.
    pub fn is_open_to_all(&self) -> bool {
        self.authentication == Authentication::None
    }

    /// Returns the pipe to which workers send the tasks that wait for a condition.
    pub fn blocked_pipe(&self) -> String {
        blocked_pipe(&self.paused_pipe)
    }

    /// Returns the invalid pipe of the paused pipe, and of the blocked pipe.
    pub fn paused_invalid_pipe(&self) -> String {
        format!("{}.invalid", self.paused_pipe)
    }
}

/// Whether clients may take messages from pipes and put messages into them over HTTP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PipeAccess {
    /// As the program decides that serves; a service that is not told refuses.
    #[default]
    Auto,
    /// They may.
    On,
    /// They may not.
    Off,
}

impl FromStr for PipeAccess {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            _ => Err(format!("{text:?} is not auto, on or off")),
        }
    }
}

/// The pipes that the page's form for a new job begins with; the viewer may write others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PagePipes {
    /// The input of the batch worker.
    pub batch: String,
    /// The input of a worker for the items of the plugin `lines`.
    pub items: String,
    /// The input of a worker for the items of every plugin.
    pub any_items: String,
    /// Where tracking ends.
    pub target: String,
}

/// The outputs that the service keeps for jobs with `"outputs": "keep"`.
#[derive(Debug, Clone)]
pub struct OutputOptions {
    /// The pipe to which their workers send results, and from which the output worker takes them.
    pub pipe: String,
    /// Where the output worker writes them. Without a place, no job can keep its outputs.
    pub blobs: Option<Blobs>,
    /// The places to which they can be exported, by their names.
    pub export_stores: BTreeMap<String, ExportStore>,
    /// How long they are kept after the end of the job; `None` keeps them as long as the job.
    pub keep: Option<Duration>,
}

impl OutputOptions {
    /// The default of [`Self::keep`].
    pub const DEFAULT_KEEP: Duration = Duration::from_hours(30 * 24);
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self {
            pipe: contract::OUTPUTS_PIPE.to_owned(),
            blobs: None,
            export_stores: BTreeMap::new(),
            keep: Some(Self::DEFAULT_KEEP),
        }
    }
}

/// The uploads that the service takes. Their blobs are where the outputs of jobs are.
#[derive(Debug, Clone)]
pub struct UploadOptions {
    /// How much room they may take.
    pub limits: UploadLimits,
    /// How long one stays that no job names, and to which nothing is added.
    pub keep: Duration,
}

impl UploadOptions {
    /// The default of the bytes that those of a partition may take.
    pub const DEFAULT_OF_PARTITION: u64 = 10 << 30;
    /// The default of the bytes that all may take.
    pub const DEFAULT_OF_ALL: u64 = 100 << 30;
}

impl Default for UploadOptions {
    fn default() -> Self {
        Self {
            limits: UploadLimits::of_bytes(Self::DEFAULT_OF_PARTITION, Self::DEFAULT_OF_ALL),
            keep: Duration::from_hours(24),
        }
    }
}

/// The dead letters that the service collects. The store has the bounds of their number.
#[derive(Debug, Clone)]
pub struct LetterOptions {
    /// The reject and invalid pipes that it empties.
    pub pipes: Vec<String>,
    /// The bytes of a body that are kept. Of a larger one, only so many are.
    pub max_body: usize,
}

impl LetterOptions {
    /// The default of [`Self::max_body`].
    pub const DEFAULT_BODY: usize = 4 * 1024 * 1024;
}

impl Default for LetterOptions {
    fn default() -> Self {
        Self {
            pipes: Vec::new(),
            max_body: Self::DEFAULT_BODY,
        }
    }
}

/// The bounds of what clients may ask for, in one request and all together.
#[derive(Debug, Clone)]
pub struct Limits {
    /// The number of connections. At this number, connections that wait for their clients give way
    /// to new ones.
    pub connections: usize,
    /// How long a client may take to send the head of a request, and to begin the next request.
    pub head_time: Duration,
    /// How long a client may take to send a body.
    pub body_time: Duration,
    /// How long a client may keep the service waiting that sends to a source, or reads outputs or a
    /// source, when there are as many of them as there may be. Then it gives way.
    pub patience: Duration,
    /// The bytes of all request bodies that are read or handled at the same time.
    pub body_bytes: usize,
    /// How long the places of outputs may take for one step of an export, which reads and writes
    /// some megabytes.
    pub export_step: Duration,
    /// The number of labels of a job.
    pub labels: usize,
    /// The bytes of the description of a job, and of its external data.
    pub text: usize,
    /// The largest `limit` of a page. A larger page size counts as well.
    pub page: u32,
}

impl Limits {
    /// The limits of a service that is not told others.
    pub const DEFAULT: Self = Self {
        connections: 1000,
        head_time: Duration::from_secs(75),
        body_time: Duration::from_mins(1),
        patience: Duration::from_secs(10),
        body_bytes: 128 * 1024 * 1024,
        export_step: Duration::from_mins(5),
        labels: 100,
        text: 1024 * 1024,
        page: 10_000,
    };

    pub(crate) fn patience(&self) -> Patience {
        Patience {
            receiving: self.patience,
            sending: self.patience,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Default for ServiceOptions {
    fn default() -> Self {
        Self {
            webservice_url: format!("http://127.0.0.1:8080{BASE_PATH}"),
            allowed_hosts: Vec::new(),
            allowed_origins: Vec::new(),
            tracking_pipe: "worker-jobtracking-in".to_owned(),
            tracking_shards: TrackingShards::ONE,
            paused_pipe: contract::PAUSED_PIPE.to_owned(),
            reserved_pipes: ReservedPipes::default(),
            status_origins: StatusOrigins::default(),
            tls: Tls::default(),
            status_check_interval: Duration::from_secs(10),
            page_size: 25,
            cancel_batch: 100,
            delete_batch: 100,
            suspended_partitions: None,
            max_body_bytes: MAX_BODY_BYTES,
            limits: Limits::default(),
            pipe_access: PipeAccess::default(),
            page: true,
            page_pipes: PagePipes::default(),
            job_types: JobTypes::default(),
            outputs: OutputOptions::default(),
            uploads: UploadOptions::default(),
            stuck: StuckLimits::default(),
            most_blocked: Self::DEFAULT_BLOCKED,
            letters: LetterOptions::default(),
            conditions: ConditionOptions::default(),
            expiry: Expiry::default(),
            authentication: Authentication::default(),
            open_metrics: false,
            health: Health::default(),
        }
    }
}
