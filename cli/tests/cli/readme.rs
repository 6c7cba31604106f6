//! The commands and programs of the README and of the pages in `docs`, as a reader types them.

use std::collections::BTreeMap;
use std::process::Command;

use contract::JobStatus;
use example_worker::{WordCount, count_words};
use harness::wait_for;
use serde_json::Value;

use crate::binary::{Home, Up, batchwright, ended, run_script};

const README: &str = include_str!("../../../README.md");

const RESULTS: &str = include_str!("../../../docs/results.md");

const FIRST_JOB: &str = include_str!("../../../docs/first-job.md");

const CLIENTS: &str = include_str!("../../../docs/use-the-api.md");

/// Returns the first block of shell commands after this sentence.
pub fn commands_after(page: &'static str, sentence: &str) -> &'static str {
    let (_, behind) = page.split_once(sentence).unwrap();
    let (_, block) = behind.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_job_of_the_readme_ends_with_the_word_counts_on_the_screen() {
    let home = Home::new();
    home.write("README.md", README);
    let _up = home.up().await;
    let commands = commands_after(README, "In another shell");
    let ended = run_script(commands, &home).await.with(0);
    let results = ended.out.lines().filter(|line| line.starts_with('{'));
    let (mut lines, mut words) = (0, BTreeMap::new());
    for result in results {
        let result: Value = serde_json::from_str(result).unwrap();
        let job = &result["headers"]["x-batchwright-job"];
        assert_eq!(job, "default:words", "{result}");
        let count: WordCount = serde_json::from_value(result["taskData"].clone()).unwrap();
        lines += count.lines;
        for (word, times) in count.words {
            *words.entry(word).or_insert(0) += times;
        }
    }
    let mut expected = BTreeMap::new();
    README
        .lines()
        .for_each(|line| count_words(line, &mut expected));
    assert_eq!((lines, words), (README.lines().count() as u64, expected));
    let rest = commands_after(README, "The same job over REST");
    let here = rest.replace("http://127.0.0.1:8080/job-service/v1", &home.url());
    let created = run_script(&here, &home).await.with(0);
    assert!(created.out.contains(r#""id":"words2""#), "{created:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_of_the_guide_to_results_return_what_it_says() {
    let home = Home::new();
    home.write("README.md", README);
    let archive = home.folder.path().join("archive");
    let store = format!("archive={}", archive.display());
    let _up = home.up_with(&["--export-store", &store]).await;
    let run = async |commands: &str| {
        let here = commands.replace("http://127.0.0.1:8080/job-service/v1", &home.url());
        assert!(here != commands, "{commands}");
        run_script(&here, &home).await.with(0).out
    };
    let (create, read) = commands_after(RESULTS, "# Get the results")
        .rsplit_once("\ncurl ")
        .unwrap();
    run(create).await;
    let client = home.client();
    wait_for("the job", async || {
        let job = client
            .get("words")
            .await
            .map_err(|error| error.to_string())?;
        let is_done = job.status == JobStatus::Completed;
        is_done.then_some(()).ok_or(format!("{job:?}"))
    })
    .await;
    let outputs = run(&format!("curl {read}")).await;
    let lines: Vec<Value> = outputs
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["offset"], 0, "{outputs}");
    assert_eq!(lines[0]["status"], "done", "{outputs}");
    assert!(lines[0]["output"]["words"].is_object(), "{outputs}");
    // Whichever worker ends first.
    let label = |line: &Value| line["label"].as_str().map(str::to_owned);
    let mut labels = lines.iter().filter_map(label);
    assert!(
        labels.any(|it| it.starts_with("50 lines of README.md")),
        "{outputs}"
    );

    let exported = run(commands_after(RESULTS, "## Export them")).await;
    let last: Value = serde_json::from_str(exported.lines().last().unwrap()).unwrap();
    assert_eq!(last["manifest"]["lines"], lines.len(), "{exported}");
    let part = std::fs::read_to_string(archive.join("2026/words/part-00001.ndjson"));
    assert_eq!(part.unwrap(), outputs);
}

/// Returns the blocks of a page in this language.
pub fn blocks(page: &'static str, language: &str) -> Vec<&'static str> {
    let begin = format!("\n```{language}\n");
    page.split(begin.as_str())
        .skip(1)
        .map(|rest| rest.split("\n```").next().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_job_and_the_clients_of_the_documentation_do_what_the_pages_say() {
    let home = Home::new();
    let _up = home.up().await;
    let here = |text: &str| text.replace("http://127.0.0.1:8080/job-service/v1", &home.url());
    let commands = blocks(FIRST_JOB, "sh");
    let [up, create, watch, retry, rest, delete] = commands[..] else {
        panic!("{commands:#?}");
    };
    assert_eq!(up, "batchwright up");
    let shown = blocks(FIRST_JOB, "text");
    run_script(create, &home).await.with(0);
    let watched = run_script(watch, &home).await.with(0).out;
    assert!(watched.contains("exit code 10"), "{watched}");
    assert!(watched.trim_end().ends_with(shown[0]), "{watched}");
    let retried = run_script(retry, &home).await.with(0).out;
    assert!(retried.contains("letters: Completed"), "{retried}");
    // The ages differ, and so does the width of their column.
    let without_ages = |table: &str| -> Vec<String> {
        let lines = table.lines().skip_while(|line| !line.starts_with("AGE"));
        let words = lines.map(|line| {
            line.split_whitespace()
                .skip(1)
                .collect::<Vec<_>>()
                .join(" ")
        });
        words.collect()
    };
    assert_eq!(without_ages(&retried), without_ages(shown[1]));
    let created = run_script(&here(rest), &home).await.with(0).out;
    assert!(created.contains(r#""id":"numbers""#), "{created}");

    let clients = [
        (
            "python3",
            "python",
            &["-"][..],
            "Cleo has failed: Cleo has no address\nAda has sent ",
        ),
        (
            "node",
            "js",
            &["--input-type=module", "-"],
            "Completed, 1000 items\n",
        ),
    ];
    for (program, language, arguments, said) in clients {
        if Command::new(program).arg("--version").output().is_err() {
            harness::left_out(&format!(
                "a client of the documentation is not run ({program} is not installed)"
            ));
            continue;
        }
        let mut client = Command::new(program);
        client.args(arguments);
        let ended = ended(client, &here(blocks(CLIENTS, language)[0])).await;
        assert!(ended.out.contains(said), "{ended:?}");
        ended.with(0);
    }
    run_script(delete, &home).await.with(0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demo_that_is_interrupted_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let [texts, temporary] = ["texts", "temporary"].map(|name| folder.path().join(name));
    std::fs::create_dir_all(&temporary).unwrap();
    std::fs::write(&texts, "some more words\n".repeat(100_000)).unwrap();
    let told = folder.path().join("out");
    let mut demo = batchwright(&["demo", texts.to_str().unwrap(), "--lines-per-item", "1"]);
    demo.env("TMPDIR", &temporary);
    demo.stdout(std::fs::File::create(&told).unwrap());
    let mut demo = Up(demo.spawn().unwrap());
    wait_for("the demo", async || {
        let told = std::fs::read_to_string(&told).unwrap();
        told.contains("Swagger UI").then_some(()).ok_or(told)
    })
    .await;
    let pid = demo.0.id().to_string();
    let interrupt = std::process::Command::new("kill")
        .args(["-INT", &pid])
        .status();
    assert!(interrupt.unwrap().success());
    wait_for("the end of the demo", async || {
        let ended = demo.0.try_wait().unwrap();
        let is_interrupted = ended.is_some_and(|ended| ended.code() == Some(130));
        is_interrupted.then_some(()).ok_or(format!("{ended:?}"))
    })
    .await;
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0);
}
