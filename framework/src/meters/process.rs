//! What the operating system says about this process. The names are those of all Prometheus
//! clients.

use std::fmt::Write as _;

use contract::metrics::METRICS;

/// Returns the metrics of the process as text: nothing where the system does not say.
pub fn render() -> String {
    let mut text = String::new();
    for (name, value) in read() {
        let Some(metric) = METRICS.iter().find(|metric| metric.name == name) else {
            continue;
        };
        let (kind, meaning) = (metric.kind.name(), metric.meaning);
        let _ = write!(
            text,
            "# HELP {name} {meaning}\n# TYPE {name} {kind}\n{name} {value}\n\n"
        );
    }
    text
}

#[cfg(target_os = "linux")]
#[expect(
    clippy::cast_precision_loss,
    reason = "a scrape needs no more precision"
)]
fn read() -> Vec<(&'static str, f64)> {
    use contract::metrics::{
        PROCESS_CPU, PROCESS_MAX_FILES, PROCESS_MEMORY, PROCESS_OPEN_FILES, PROCESS_START,
        PROCESS_THREADS,
    };
    use procfs::process::{LimitValue, Process};
    use procfs::{CurrentSI as _, WithCurrentSystemInfo as _};

    let mut values = Vec::with_capacity(6);
    let Ok(process) = Process::myself() else {
        return values;
    };
    if let Ok(stat) = process.stat() {
        let ticks = procfs::ticks_per_second() as f64;
        values.push((PROCESS_CPU, (stat.utime + stat.stime) as f64 / ticks));
        values.push((PROCESS_MEMORY, stat.rss_bytes().get() as f64));
        values.push((PROCESS_THREADS, stat.num_threads as f64));
        if let Ok(system) = procfs::KernelStats::current() {
            let start = system.btime as f64 + stat.starttime as f64 / ticks;
            values.push((PROCESS_START, start));
        }
    }
    if let Ok(open) = process.fd_count() {
        values.push((PROCESS_OPEN_FILES, open as f64));
    }
    if let Ok(limits) = process.limits()
        && let LimitValue::Value(most) = limits.max_open_files.soft_limit
    {
        values.push((PROCESS_MAX_FILES, most as f64));
    }
    values
}

#[cfg(not(target_os = "linux"))]
fn read() -> Vec<(&'static str, f64)> {
    Vec::new()
}
