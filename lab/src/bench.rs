//! Measurements of the whole system: jobs whose items do nothing, beside what the broker alone can
//! do; requests to the API while many jobs are stored, and many watchers of one job.
//!
//! Each file contains one measurement; `system` contains the code that they share. A measurement
//! reports times, and whether the counts were exact. It does not judge the times.

mod api;
mod cancelled_job;
mod compare;
mod ending;
mod item_outputs;
mod limit;
mod many_jobs;
mod one_job;
mod paced_worker;
mod parts;
mod patience;
mod pipes;
mod run;
mod service_alone;
mod system;
mod usage;
mod watchers;

pub use self::api::{ApiOptions, ApiResult, run as run_api};
pub use self::cancelled_job::{CancelOptions, run as run_cancelled_job};
pub use self::compare::{CompareOptions, ShapeResult, run as run_compare};
pub use self::ending::Stopped;
pub use self::limit::{LimitOptions, LimitResult, run as run_limit};
pub use self::many_jobs::{Course, ManyJobsResult, run as run_many_jobs};
pub use self::one_job::{OneJobResult, run as run_one_job};
pub use self::paced_worker::{PacedOptions, run as run_paced_worker};
pub use self::parts::{PartResult, run as run_part};
pub use self::system::{JobOptions, Part, Processes};
pub use self::usage::memory_text;
pub use self::watchers::{WatchersOptions, run as run_watchers};
