//! The commands of the README and of the guide to results, as a reader types them.

use std::collections::BTreeMap;

use contract::JobStatus;
use example_worker::{WordCount, count_words};
use harness::wait_for;
use serde_json::Value;

use crate::binary::{Home, run_script};

const README: &str = include_str!("../../../README.md");

const RESULTS: &str = include_str!("../../../docs/results.md");

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
