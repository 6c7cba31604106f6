//! The recorder that keeps the metrics of this process, and writes them as text for Prometheus.

use std::sync::OnceLock;
use std::time::Duration;

use contract::metrics::{BUILD_INFO, METRICS, MetricKind};
use metrics::{describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use super::process;

/// How often the samples of histograms are put into their buckets. Until then each takes 16 bytes,
/// and an item causes several. Measured: with 5 s, they took some 40 MB at more than 200,000 items
/// a second.
const UPKEEP: Duration = Duration::from_millis(250);

/// Returns all metrics of this process as text.
pub fn rendered() -> String {
    recorder().map_or_else(
        || "# This program has installed a metrics recorder of its own.\n".to_owned(),
        |recorder| in_order(&(recorder.render() + &process::render())),
    )
}

/// Sorts metrics by name, and the values of one by their labels. The buckets of a histogram are in
/// order already.
fn in_order(text: &str) -> String {
    let mut blocks: Vec<Vec<&str>> = text
        .split("\n\n")
        .map(|block| block.lines().filter(|line| !line.is_empty()).collect())
        .collect();
    for block in &mut blocks {
        let is_histogram = |line: &&str| line.starts_with("# TYPE") && line.ends_with("histogram");
        if !block.iter().any(is_histogram) {
            block.sort_unstable();
        }
    }
    blocks.retain(|block| !block.is_empty());
    blocks.sort_unstable();
    let blocks: Vec<String> = blocks.iter().map(|block| block.join("\n")).collect();
    blocks.join("\n\n") + "\n"
}

/// Returns the recorder, and installs it first; `None` if the program has installed another one.
pub fn recorder() -> Option<&'static PrometheusHandle> {
    static RECORDER: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    RECORDER
        .get_or_init(|| {
            let recorder = build().and_then(PrometheusBuilder::install_recorder).ok()?;
            describe();
            gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
            keep_up(recorder.clone());
            Some(recorder)
        })
        .as_ref()
}

fn build() -> Result<PrometheusBuilder, BuildError> {
    METRICS
        .iter()
        .try_fold(PrometheusBuilder::new(), |builder, metric| {
            match metric.kind {
                MetricKind::Histogram(bounds) => {
                    builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)
                }
                MetricKind::Counter | MetricKind::Gauge => Ok(builder),
            }
        })
}

fn describe() {
    for metric in METRICS {
        match metric.kind {
            MetricKind::Counter => describe_counter!(metric.name, metric.meaning),
            MetricKind::Gauge => describe_gauge!(metric.name, metric.meaning),
            MetricKind::Histogram(_) => describe_histogram!(metric.name, metric.meaning),
        }
    }
}

/// Puts the samples of histograms into their buckets from time to time, on a thread of its own, for
/// as long as the process lives: no runtime of the program lives as long as the recorder.
fn keep_up(recorder: PrometheusHandle) {
    let upkeep = move || {
        loop {
            std::thread::park_timeout(UPKEEP);
            recorder.run_upkeep();
        }
    };
    let thread = std::thread::Builder::new().name("metrics".to_owned());
    if let Err(error) = thread.spawn(upkeep) {
        tracing::warn!(%error, "cannot start the thread of the metrics; they take more memory between two scrapes");
    }
}
