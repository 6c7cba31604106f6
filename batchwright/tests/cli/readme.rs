//! The commands of the README, as a reader types them.

use std::collections::BTreeMap;

use example_worker::{WordCount, count_words};
use serde_json::Value;

use crate::binary::{Home, run_script};

const README: &str = include_str!("../../../README.md");

/// Returns the first block of shell commands after this sentence.
fn commands_after(sentence: &str) -> &'static str {
    let (_, behind) = README.split_once(sentence).unwrap();
    let (_, block) = behind.split_once("```sh\n").unwrap();
    block.split_once("```").unwrap().0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_job_of_the_readme_ends_with_the_word_counts_on_the_screen() {
    let home = Home::new();
    home.write("README.md", README);
    let _up = home.up().await;
    let commands = commands_after("In another shell");
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
