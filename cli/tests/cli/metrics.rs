//! The metrics: what each process shows after a job, and that the documentation says exactly this.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use contract::metrics::{METRICS, Metric, MetricKind};
use contract::rest::Job;
use harness::{Family, HttpClient, Prometheus, Scrape, wait_for};
use serde_json::{Value, json};

use crate::binary::Home;

const MONITORING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/monitoring");

/// The metrics that a process on the embedded broker and SQLite does not show: they are about
/// connections to servers.
const OF_SERVERS: &[&str] = &["batchwright_broker_reconnects_total"];

/// The metrics that a process shows once there has been trouble.
const OF_TROUBLE: &[&str] = &["batchwright_degraded", "batchwright_loop_panics_total"];

/// Reads the metrics of the process at this address.
async fn scrape(address: &str) -> Scrape {
    let http = HttpClient::new(format!("http://{address}"));
    let response = http.get("/metrics").await.is(200);
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    assert_eq!(response.header("content-type"), Some(kind));
    Scrape::read(&response.body)
}

/// Creates the job `j`, which has an item for each of so many lines and keeps its outputs.
async fn submit(home: &Home, lines: usize) {
    home.write("lines.txt", &"some words to count\n".repeat(lines));
    let definition = json!({"files": ["lines.txt"], "linesPerItem": 1}).to_string();
    let job = json!({
        "outputs": "keep",
        "task": {
            "taskClassifier": "BatchWorker", "taskApiVersion": 1, "taskPipe": "worker-batch-in",
            "taskData": {"batchType": "lines", "batchDefinition": definition, "targetPipe": "worker-example-in"},
        }
    });
    let job = serde_json::from_value(job).unwrap();
    home.client().put("j", &job).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[expect(clippy::float_cmp, reason = "counts are whole numbers")]
async fn after_a_job_the_metrics_tell_its_exact_numbers_and_all_are_documented() {
    const LINES: u32 = 25;
    let home = Home::new();
    let _up = home.up().await;
    submit(&home, LINES as usize).await;
    let client = home.client();
    wait_for("the job to complete", async || {
        match client.get("j").await {
            Ok(Job { status, .. }) if status.is_finished() => Ok(()),
            state => Err(format!("{state:?}")),
        }
    })
    .await;
    // The last delivery is settled after the job is complete.
    let seen = wait_for("all deliveries to be settled", async || {
        let seen = scrape(&home.listen).await;
        let workers = [
            "worker-batch",
            "worker-example",
            "worker-output",
            "worker-jobtracking",
        ];
        let open: f64 = workers
            .iter()
            .map(|worker| seen.value("batchwright_open_deliveries", &[("worker", worker)]))
            .sum();
        (open == 0.0).then_some(seen).ok_or(open.to_string())
    })
    .await;

    let is_shown = |metric: &&Metric| {
        let mut absent = OF_SERVERS.iter().chain(OF_TROUBLE);
        absent.all(|name| *name != metric.name)
    };
    let expected: BTreeMap<String, Family> = METRICS
        .iter()
        .filter(is_shown)
        .map(|metric| {
            let family = Family::new(metric.kind.name(), metric.meaning, metric.labels);
            (metric.name.to_owned(), family)
        })
        .collect();
    let names = |families: &BTreeMap<String, Family>| families.keys().cloned().collect();
    let (shown, wanted): (BTreeSet<_>, BTreeSet<_>) = (names(seen.families()), names(&expected));
    assert_eq!(shown, wanted, "shown, documented");
    assert_eq!(*seen.families(), expected);

    let worker = [("worker", "worker-example")];
    let lines = f64::from(LINES);
    for (name, value) in [
        ("batchwright_tasks_received_total", lines),
        ("batchwright_tasks_done_total", lines),
        ("batchwright_task_seconds_count", lines),
        ("batchwright_time_in_pipe_seconds_count", lines),
        ("batchwright_tasks_failed_total", 0.0),
        ("batchwright_tasks_retried_total", 0.0),
        ("batchwright_tasks_redelivered_total", 0.0),
        ("batchwright_tasks_rejected_total", 0.0),
        ("batchwright_oldest_open_delivery_seconds", 0.0),
        ("batchwright_slots", 8.0),
        ("batchwright_slots_in_use", 0.0),
    ] {
        assert_eq!(seen.value(name, &worker), value, "{name}");
    }
    let kept = [("outcome", "done")];
    assert_eq!(seen.value("batchwright_outputs_total", &kept), lines);
    let batch = [("worker", "worker-batch")];
    assert_eq!(seen.value("batchwright_tasks_done_total", &batch), 1.0);
    for (status, count) in [("Completed", 1.0), ("Active", 0.0), ("Waiting", 0.0)] {
        let status = [("status", status)];
        assert_eq!(seen.value("batchwright_jobs", &status), count, "{status:?}");
    }
    assert_eq!(seen.value("batchwright_ready", &[]), 1.0);
    let published = seen.value("batchwright_messages_published_total", &[]);
    let confirmed = [("outcome", "confirmed")];
    assert_eq!(
        seen.value("batchwright_messages_confirmed_total", &confirmed),
        published
    );
    // The start message, and at least a message each with items, with outputs and with reports.
    assert!(published >= 4.0, "{published}");
    let put = [
        (
            "route",
            "/job-service/v1/partitions/{partitionId}/jobs/{jobId}",
        ),
        ("method", "PUT"),
        ("status", "201"),
    ];
    assert_eq!(seen.value("batchwright_http_requests_total", &put), 1.0);
    let record = [("transaction", "record")];
    assert_eq!(
        seen.value("batchwright_store_transaction_seconds_count", &record),
        seen.value("batchwright_ledger_flush_seconds_count", &[])
    );
    assert!(seen.value("batchwright_ledger_flush_events_sum", &[]) >= lines);
    assert!(seen.value("process_resident_memory_bytes", &[]) > 1e6);
}

/// Returns the queries of the dashboard.
fn dashboard_queries() -> Vec<String> {
    let file = Path::new(MONITORING).join("dashboard.json");
    let dashboard: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    targets
        .flatten()
        .map(|target| target["expr"].as_str().unwrap().to_owned())
        .collect()
}

/// The rules and the dashboard are tried on a real server if Debian's package is installed, which
/// `test.sh` tries to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prometheus_takes_the_rules_and_every_query_of_the_dashboard_finds_its_metrics() {
    if !Prometheus::is_installed() {
        harness::left_out(
            "Prometheus does not try the rules and the dashboard (apt-get install prometheus)",
        );
        return;
    }
    let home = Home::new();
    let _up = home.up().await;
    submit(&home, 10).await;
    let rules = Path::new(MONITORING).join("alerts.yaml");
    let prometheus = Prometheus::start(&home.listen, &rules).await.unwrap();
    let is_empty = |query: &str| {
        let mut absent = OF_SERVERS.iter().chain(OF_TROUBLE);
        absent.any(|name| query.contains(name))
    };
    for query in dashboard_queries() {
        let now = query.replace("$__rate_interval", "1m");
        wait_for(&query, async || match prometheus.query(&now).await {
            Ok(samples) if is_empty(&query) == samples.is_empty() => Ok(()),
            seen => Err(format!("{seen:?}")),
        })
        .await;
    }
    let groups = wait_for("the rules to be evaluated", async || {
        let groups = prometheus
            .rules()
            .await
            .map_err(|error| format!("{error:#}"))?;
        let evaluated = |rule: &Value| rule["health"] != "unknown";
        let all = |group: &Value| group["rules"].as_array().unwrap().iter().all(evaluated);
        groups
            .iter()
            .all(all)
            .then_some(groups.clone())
            .ok_or(format!("{groups:?}"))
    })
    .await;
    for rule in groups
        .iter()
        .flat_map(|group| group["rules"].as_array().unwrap())
    {
        assert_eq!(
            (&rule["health"], &rule["state"]),
            (&json!("ok"), &json!("inactive")),
            "{rule}"
        );
        let query = rule["query"].as_str().unwrap();
        let named = METRICS.iter().any(|metric| query.contains(metric.name));
        assert!(named || query.contains("up{"), "no metric of ours: {query}");
    }
}

#[test]
fn every_metric_is_documented_with_its_type_labels_and_meaning() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/metrics.md");
    let text = std::fs::read_to_string(file).unwrap();
    let rows: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.starts_with("| `batchwright_") || line.starts_with("| `process_"))
        .collect();
    let wanted: BTreeSet<String> = METRICS.iter().map(row).collect();
    let wanted: BTreeSet<&str> = wanted.iter().map(String::as_str).collect();
    let missing: Vec<_> = wanted.difference(&rows).collect();
    let wrong: Vec<_> = rows.difference(&wanted).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "docs/reference/metrics.md misses {missing:#?} and should not have {wrong:#?}"
    );
}

fn row(metric: &Metric) -> String {
    let Metric {
        name,
        kind,
        labels,
        meaning,
    } = metric;
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
    format!(
        "| `{name}` | {} | {} | {meaning} |",
        kind.name(),
        labels.join(", ")
    )
}

#[test]
fn buckets_rise_and_names_tell_the_type_and_the_unit() {
    for metric in METRICS {
        let Metric { name, kind, .. } = metric;
        assert_eq!(
            name.ends_with("_total"),
            *kind == MetricKind::Counter,
            "{name}"
        );
        if let MetricKind::Histogram(bounds) = kind {
            assert!(bounds.is_sorted(), "{name}: {bounds:?}");
            assert!(
                name.ends_with("_seconds") || name.ends_with("_events"),
                "{name}"
            );
        }
    }
}
