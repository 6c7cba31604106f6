//! The command `bench` as a user runs it.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

mod program;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Stdio;

use framework::broker::amqp::{Amqp, AmqpOptions};
use framework::broker::{Broker, Outgoing};
use harness::{free_port, run_command, unique};
use serde_json::{Value, json};

use crate::program::{bench, json_lines, json_of, laboratory, stop};

/// Returns the arguments that name the servers.
async fn servers() -> String {
    let (postgres, rabbitmq) = tokio::try_join!(harness::postgres(), harness::rabbitmq()).unwrap();
    format!("--database {} --broker {}", postgres.url, rabbitmq.url)
}

/// Checks fields of a result.
fn has<const N: usize>(result: &Value, fields: [(&str, Value); N]) {
    for (field, expected) in fields {
        assert_eq!(result[field], expected, "{field}: {result}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn benchmark_prints_exact_counts_on_one_line_for_both_routes() {
    let on_servers = servers().await;
    for servers in ["", &on_servers] {
        let (broker, store) = match servers {
            "" => ("embedded", "sqlite"),
            _ => ("rabbitmq", "postgres"),
        };
        for (route, output) in [
            ("direct", ""),
            ("direct", "--no-output"),
            ("reroute", ""),
            ("reroute", "--no-output"),
        ] {
            let load = format!("--name {} --items 300 --route {route}", unique("bench"));
            let result = json_of(&format!("run {load} {servers} {output}")).await;
            has(
                &result,
                [
                    ("items", json!(300)),
                    ("completed_items", json!(300)),
                    ("job_status", json!("Completed")),
                    ("route", json!(route)),
                    ("broker", json!(broker)),
                    ("store", json!(store)),
                ],
            );
            let (rows, splits) = (&result["task_table_rows"], &result["split_nodes"]);
            let most = splits.as_u64().unwrap() + 10;
            assert!(rows.as_u64().unwrap() <= most, "{result}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_over_several_shards_are_exact_if_each_tracking_worker_reads_some_of_them() {
    let (name, servers) = (unique("bench"), servers().await);
    let load = "--jobs 5 --items 100 --no-output --tracking-shards 3";
    let parts = "--processes tracking-worker=2";
    let result = json_of(&format!("run --name {name} {load} {parts} {servers}")).await;
    has(
        &result,
        [
            ("completed_jobs", json!(5)),
            ("executed_items", json!(500)),
            ("tracking_shards", json!(3)),
        ],
    );
    assert_eq!(result["processes"][0]["processes"], 2, "{result}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn benchmark_whose_parts_run_apart_counts_each_item_and_tells_what_each_part_used() {
    let (name, servers) = (unique("bench"), servers().await);
    let parts = "--processes worker=2,batch-worker=1,tracking-worker=1";
    let result = json_of(&format!("run --name {name} --items 300 {parts} {servers}")).await;
    has(
        &result,
        [("executed_items", json!(300)), ("outputs", json!(300))],
    );
    assert!(result["reports"].as_u64().unwrap() >= 300, "{result}");
    let parts = result["processes"].as_array().unwrap();
    let parts = parts.iter().map(|part| (&part["part"], &part["processes"]));
    let expected = [("worker", 2), ("batch-worker", 1), ("tracking-worker", 1)];
    let expected = expected.map(|(part, processes)| (json!(part), json!(processes)));
    assert!(
        parts.eq(expected.iter().map(|(part, number)| (part, number))),
        "{result}"
    );
    let alone = bench("run --processes worker=2").await.expect_code(2);
    assert!(alone.stderr.contains("--broker"), "{alone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_benchmark_prints_a_line_for_creations_and_for_each_read_without_and_under_load() {
    let postgres = harness::postgres().await.unwrap();
    for database in [String::new(), format!("--database {}", postgres.url)] {
        let api = format!("api --jobs 20 --stored-jobs 100 --requests 5 {database}");
        let results = json_lines(&api).await;
        let of = |what: &str| {
            let of = results.iter().filter(|result| result["what"] == what);
            of.map(|result| result["stored_jobs"].as_u64().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!((of("create a job"), of("one job")), (vec![0], vec![0, 100]));
        let is_measured = |result: &Value| {
            let measured = ["per_second", "p50_ms", "p99_ms"].map(|name| result[name].as_f64());
            measured.iter().all(|number| *number > Some(0.0))
        };
        assert!(
            results.len() > 8 && results.iter().all(is_measured),
            "{results:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watcher_benchmark_prints_the_events_of_each_phase() {
    let result = json_of("watchers --watchers 3 --seconds 1").await;
    assert_eq!(result["other_job_changes"]["events"], 0, "{result}");
    let seen = &result["watched_job_changes"]["events"];
    assert!(seen.as_u64().unwrap() > 3, "{result}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_benchmark_leaves_no_tables_and_no_larger_catalogue() {
    let on_servers = servers().await;
    for servers in ["", &on_servers] {
        let name = unique("bench");
        let result = json_of(&format!("run --name {name} --jobs 30 --items 20 {servers}")).await;
        has(
            &result,
            [
                ("completed_jobs", json!(30)),
                ("outputs", json!(600)),
                ("leftover_tables", json!(0)),
            ],
        );
        let executed = result["executed_items"].as_u64();
        assert!(executed >= Some(600), "{result}");
        assert_eq!(
            result["catalogue_before"]["entries"], result["catalogue_after"]["entries"],
            "{result}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_benchmark_with_failing_jobs_counts_each_of_them() {
    let name = unique("bench");
    let load = "--jobs 40 --items 200 --no-output --failing-every 10 --rate 200";
    let result = json_of(&format!("run --name {name} {load}")).await;
    has(
        &result,
        [
            ("completed_jobs", json!(36)),
            ("failing_jobs", json!(4)),
            ("wrong_jobs", json!(0)),
            ("leftover_tables", json!(0)),
        ],
    );
    assert!(result["status_checks"].is_u64(), "{result}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn comparison_prints_the_limit_the_system_and_their_ratio_for_each_shape() {
    let on_servers = servers().await;
    for (servers, shapes) in [
        ("", &["direct", "direct-output"][..]),
        (&on_servers, &["direct", "direct-output", "reroute-output"]),
    ] {
        let name = unique("bench");
        let compare = format!("compare --rounds 1 --items 500 --name {name} {servers}");
        let lines = json_lines(&compare).await;
        let found: Vec<_> = lines
            .iter()
            .map(|line| line["shape"].as_str().unwrap())
            .collect();
        assert_eq!(found, shapes);
        for line in lines {
            let ratio = line["system"].as_f64().unwrap() / line["limit"].as_f64().unwrap();
            let told = line["ratio"]["median"].as_f64().unwrap();
            assert!((ratio - told).abs() < 1e-6 && ratio > 0.0, "{line}");
            assert_eq!(line["is_exact"], true, "{line}");
            // The servers of the tests are on this machine.
            let broker = &line["cpu_us_per_item"]["broker"];
            assert_eq!(broker.is_number(), !servers.is_empty(), "{line}");
            let database = if servers.is_empty() { "ours" } else { "none" };
            assert_eq!(
                line["limit_cpu_us_per_item"]["database"], database,
                "{line}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bench_run_and_limit_print_a_table_for_a_person() {
    let ended = bench("run --items 300 --payload 100 --work 1ms..2ms").await;
    let ended = ended.expect_code(0);
    let (titles, row) = ended.stdout.trim().split_once('\n').unwrap();
    assert!(
        titles.contains("OUR µs") && row.ends_with("yes"),
        "{ended:?}"
    );
    let ended = bench("limit --items 1000 --items-per-message 10 --hops 1,4").await;
    let ended = ended.expect_code(0);
    assert_eq!(ended.stdout.lines().count(), 3, "{ended:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn benchmark_refuses_pipes_in_which_messages_of_an_earlier_run_wait() {
    let (rabbitmq, servers) = (harness::rabbitmq().await.unwrap(), servers().await);
    let broker = Amqp::connect(AmqpOptions::new(&rabbitmq.url)).unwrap();
    let name = unique("bench");
    let bundles = format!("{name}-worker-in.bundles");
    for _ in 0..2 {
        broker
            .publish(Outgoing::new(&*bundles, "old"))
            .await
            .unwrap();
    }
    broker.close().await;
    let load = format!("--name {name} --items 10 {servers}");
    for measurement in [
        "run",
        "run --jobs 2",
        "compare --rounds 1",
        "cancel --after 1",
    ] {
        let refused = bench(&format!("{measurement} {load}")).await;
        let refused = refused.expect_code(1);
        let waiting = format!(": 2 in '{bundles}'; ");
        assert!(
            refused.stderr.contains(&waiting) && refused.stderr.contains("--name"),
            "{refused:?}"
        );
    }
    let broker = Amqp::connect(AmqpOptions::new(&rabbitmq.url)).unwrap();
    let mut left = broker.consume(&bundles, 2).await.unwrap();
    for _ in 0..2 {
        let message = harness::in_time("the old message", left.next()).await;
        message.unwrap().ack();
    }
    broker.close().await;
    json_of(&format!("run {load}")).await;
}

/// Starts a measurement, and asks it to stop once its job runs. Returns its exit code.
async fn stopped_in_the_middle(arguments: &str, folder: &Path) -> Option<i32> {
    let mut command = laboratory(arguments);
    command.env("TMPDIR", folder);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut bench = command.spawn().unwrap();
    let mut told = BufReader::new(bench.stderr.take().unwrap());
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.contains(" items"), "{line}");
    let code = stop(bench).await;
    told.read_to_string(&mut line).unwrap();
    assert!(!line.contains("messages are left"), "{line}");
    code
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_benchmark_leaves_no_files_and_empty_pipes() {
    let on_servers = servers().await;
    let folder = tempfile::tempdir().unwrap();
    let name = unique("bench");
    for servers in ["", &on_servers] {
        let run = format!("run --name {name} {servers}");
        for endless in ["--items 5000000", "--items 10 --warm-up 5000000"] {
            let arguments = format!("bench {run} {endless}");
            let code = stopped_in_the_middle(&arguments, folder.path()).await;
            assert_eq!(code, Some(130));
            assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        }
        json_of(&format!("{run} --items 10")).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_before_the_measured_job_are_not_counted() {
    for bundle in ["--bundle 1", ""] {
        let result = json_of(&format!("run --items 30 --warm-up 700 {bundle}")).await;
        has(
            &result,
            [
                ("completed_items", json!(30)),
                ("executed_items", json!(30)),
                ("outputs", json!(30)),
            ],
        );
        let (reports, splits) = (result["reports"].as_u64(), result["split_nodes"].as_u64());
        assert!(reports < Some(60) && splits < Some(5), "{result}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn worker_process_of_a_cancelled_job_ends_with_its_standard_input() {
    let rabbitmq = harness::rabbitmq().await.unwrap();
    let (pipe, url) = (unique("bench-in"), &rabbitmq.url);
    let worker = laboratory(&format!(
        "bench-worker --input {pipe} --route direct --concurrency 1 --broker {url}"
    ));
    let summary = run_command(worker, "").await.expect_code(0).json();
    assert_eq!(summary["starts"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn benchmark_says_that_it_cannot_use_the_broker() {
    let broker = format!("amqp://ann:secret@127.0.0.1:{}/%2f", free_port());
    let ended = bench(&format!("run --broker {broker}"))
        .await
        .expect_code(1);
    assert!(
        ended.stderr.contains("not connected to the broker") && !ended.stderr.contains("secret"),
        "{ended:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_benchmark_waits_for_no_tables_of_other_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("--data {}", folder.path().display());
    // One of its jobs stays unfinished.
    json_of(&format!("watchers --watchers 1 --seconds 1 {data}")).await;
    let result = json_of(&format!("run --jobs 2 --items 5 {data}")).await;
    assert_eq!(result["leftover_tables"], 0, "{result}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_job_leaves_workers_idle_and_pipes_empty() {
    let (name, servers) = (unique("bench"), servers().await);
    let load = "--items 20000 --rate 500 --worker-processes 2 --after 8";
    let result = json_of(&format!("cancel --name {name} {load} {servers}")).await;
    assert_eq!(result["job_status"], "Cancelled", "{result}");
    let started = ["started_before_answer", "started_after_answer"];
    let [before, after] = started.map(|name| result[name].as_u64().unwrap());
    assert!(before > 0 && before + after < 10_000, "{result}");
    let memory = result["worker_peak_memory_bytes"].as_array().unwrap();
    assert_eq!(memory.len(), 2, "{result}");

    let alone = bench("cancel --after 1").await.expect_code(2);
    assert!(alone.stderr.contains("--database"), "{alone:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_benchmark_fails_with_the_reason() {
    let unreachable = format!("postgres://ann:secret@127.0.0.1:{}/jobs", free_port());
    let masked = unreachable.replace("secret", "***");
    let elsewhere = format!("--items 1 --database {unreachable}");
    for (arguments, code, text) in [
        (&*elsewhere, 1, &*masked),
        ("--items 0", 2, "--items"),
        ("--itms 1", 2, "--items"),
    ] {
        let ended = bench(&format!("run {arguments}")).await.expect_code(code);
        assert!(
            ended.stderr.contains(text) && ended.stdout.is_empty(),
            "{ended:?}"
        );
        assert!(!ended.stderr.contains("secret"), "{ended:?}");
    }
}
