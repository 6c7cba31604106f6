//! `batchwright demo`: counts the words of real files with the whole system, and checks the result
//! against a single-pass count.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use batchwright::client::Client;
use batchwright::{
    Role, Running, Stack, StackOptions,
    advanced::{EXAMPLE_OUT_PIPE, EXAMPLE_PIPE},
    batch_job,
};
use clap::Args;
use contract::JobStatus;
use contract::rest::NewJob;
use example_worker::{WordCount, count_words};
use framework::Outputs;
use framework::broker::Broker;
use framework::runtime::stop_signal;
use serde_json::json;
use tempfile::TempDir;

use crate::print::{INTERRUPTED, Unwritten, say};
use crate::watch::{self, Show};

const JOB: &str = "demo";

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// Files and folders to read; by default the source files of this project, and texts made up
    /// for it where these are not.
    paths: Vec<PathBuf>,
    /// Maximum number of lines of a file in one item.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..), value_name = "LINES")]
    lines_per_item: u64,
}

/// Counts by what they count.
type Ranking = BTreeMap<String, u64>;

/// The number of lines, and how often each word occurs.
#[derive(Debug, Default, PartialEq, Eq)]
struct Words {
    lines: u64,
    counts: Ranking,
}

impl Words {
    fn total(&self) -> u64 {
        self.counts.values().sum()
    }

    fn add(&mut self, count: &WordCount) {
        self.lines += count.lines;
        for (word, n) in &count.words {
            *self.counts.entry(word.clone()).or_default() += n;
        }
    }
}

/// The text files, with the result of the single-pass count.
struct Texts {
    root: PathBuf,
    /// Paths relative to `root`.
    files: Vec<String>,
    bytes: u64,
    /// The number of files that are not UTF-8 text.
    skipped: usize,
    words: Words,
}

/// Runs the demonstration. The exit code is 1 if the two counts differ.
pub async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let DemoArgs {
        paths,
        lines_per_item,
    } = args;
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let mut stop = pin!(stop_signal());
    // The signal first: from the first line on that a person reads, it ends the demo and not just
    // the process.
    let started = tokio::select! {
        biased;
        () = &mut stop => return interrupted(folder),
        started = start(paths, folder.path()) => started,
    };
    let (texts, running) = started?;
    let counted = tokio::select! {
        biased;
        () = &mut stop => None,
        counted = count(&running, &texts, lines_per_item) => Some(counted),
    };
    running.stop().await;
    let Some(counted) = counted else {
        return interrupted(folder);
    };
    if counted? == texts.words {
        say!("the totals agree with a single-pass count");
        return Ok(ExitCode::SUCCESS);
    }
    say!(
        "the totals DIFFER from a single-pass count: {} words in {} lines",
        texts.words.total(),
        texts.words.lines
    );
    Ok(ExitCode::FAILURE)
}

/// Reads the texts, and starts the system with its data in this folder.
async fn start(mut paths: Vec<PathBuf>, folder: &Path) -> anyhow::Result<(Texts, Running)> {
    if paths.is_empty() {
        let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        // The program may run on another machine than the one that has built it.
        paths.push(if sources.is_dir() {
            sources
        } else {
            made_up_texts(&folder.join("texts"))?
        });
    }
    let texts = tokio::task::spawn_blocking(move || read_texts(&paths)).await??;
    say!(
        "{} text files, {} lines, {} bytes below {}",
        texts.files.len(),
        texts.words.lines,
        texts.bytes,
        texts.root.display()
    );
    if texts.skipped > 0 {
        say!("{} files are not text and are skipped", texts.skipped);
    }
    let stack = Stack::new(StackOptions {
        roles: Role::ALL.to_vec(),
        root: texts.root.clone(),
        ..StackOptions::embedded(folder.join("data"))
    });
    let running = stack.start().await?;
    Ok((texts, running))
}

fn interrupted(folder: TempDir) -> anyhow::Result<ExitCode> {
    folder
        .close()
        .context("cannot delete the temporary folder")?;
    say!("\nstopped; the temporary folder is deleted");
    Ok(ExitCode::from(INTERRUPTED))
}

/// Counts the words with a job of the running system.
async fn count(running: &Running, texts: &Texts, lines_per_item: u64) -> anyhow::Result<Words> {
    say!("API         {}", running.api_url());
    say!("web page    {}/", running.url());
    say!("Swagger UI  {}/job-service-ui/", running.url());
    let client = Client::new(&running.api_url(), "demo");
    let began = Instant::now();
    client.put(JOB, &new_job(texts, lines_per_item)?).await?;
    let job = watch::follow(&client, JOB, Show::Progress, |_| {}).await?;
    let seconds = began.elapsed().as_secs_f64();
    if job.status != JobStatus::Completed {
        let reasons: Vec<_> = job
            .failures
            .iter()
            .filter_map(|failure| failure.failure_message.as_deref())
            .collect();
        bail!("the job is {}: {}", job.status, reasons.join("; "));
    }
    let (words, files) = collect(running.broker(), usize::try_from(job.completed_items)?).await?;
    show(&words, &files, job.completed_items, seconds)?;
    Ok(words)
}

fn new_job(texts: &Texts, lines_per_item: u64) -> anyhow::Result<NewJob> {
    let definition = json!({ "files": texts.files, "linesPerItem": lines_per_item }).to_string();
    ensure!(
        definition.len() <= batch_worker::MAX_DEFINITION,
        "too many files for one batch: their names have {} bytes, the limit is {}; pass fewer folders",
        definition.len(),
        batch_worker::MAX_DEFINITION
    );
    Ok(NewJob {
        name: Some("count words".to_owned()),
        ..batch_job("lines", definition, EXAMPLE_PIPE, Some(EXAMPLE_OUT_PIPE))
    })
}

/// Adds up the outputs in the output pipe, all together and the words of each file. The pipe may
/// contain an output twice, with the same task id.
async fn collect(broker: &Arc<dyn Broker>, items: usize) -> anyhow::Result<(Words, Ranking)> {
    let mut outputs = Outputs::<WordCount>::of(broker, EXAMPLE_OUT_PIPE).await?;
    let (mut words, mut files) = (Words::default(), Ranking::new());
    let mut seen = HashSet::new();
    while seen.len() < items {
        let next = tokio::time::timeout(Duration::from_secs(30), outputs.next()).await;
        let Ok(Some(output)) = next.unwrap_or(Ok(None)) else {
            bail!(
                "found only {} of {items} outputs in the output pipe",
                seen.len()
            )
        };
        match &output.result {
            Ok(count) => {
                if seen.insert(output.task_id.clone()) {
                    *files.entry(count.path.clone()).or_default() += count.total;
                    words.add(count);
                }
            }
            Err(failure) => bail!("{} has failed: {failure}", output.name()),
        }
        output.done();
    }
    Ok((words, files))
}

fn show(words: &Words, files: &Ranking, items: i64, seconds: f64) -> Result<(), Unwritten> {
    say!("\nthe ten most frequent words:");
    for (word, count) in highest(&words.counts, 10) {
        say!("{count:>10}  {word}");
    }
    say!("\nthe files with the most words:");
    for (file, count) in highest(files, 5) {
        say!("{count:>10}  {}", end_of(file));
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no precision")]
    let rate = items as f64 / seconds;
    say!(
        "\n{} words, {} of them distinct, in {} lines of {} files",
        words.total(),
        words.counts.len(),
        words.lines,
        files.len()
    );
    say!("{items} tracked items in {seconds:.2} s: {rate:.0} items/s");
    Ok(())
}

/// Returns the entries with the highest counts, the highest first.
fn highest(counts: &Ranking, entries: usize) -> Vec<(&String, &u64)> {
    let mut by_count: Vec<_> = counts.iter().collect();
    by_count.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
    by_count.truncate(entries);
    by_count
}

/// Returns a path, or the end of it, so that it fits beside a count in 80 columns.
fn end_of(path: &str) -> String {
    const LONGEST: usize = 60;
    match path.chars().count().checked_sub(LONGEST) {
        None | Some(0) => path.to_owned(),
        Some(over) => format!("…{}", path.chars().skip(over + 1).collect::<String>()),
    }
}

/// Writes texts of made-up sentences to a new folder, the same ones each time.
fn made_up_texts(folder: &Path) -> anyhow::Result<PathBuf> {
    const WORDS: [&str; 16] = [
        "the", "worker", "takes", "an", "item", "from", "its", "pipe", "and", "sends", "a",
        "result", "while", "each", "job", "counts",
    ];
    std::fs::create_dir_all(folder)?;
    // Knuth's generator for MMIX: nothing depends on its quality.
    let mut random = 42_u64;
    for file in 1..=40 {
        let mut text = String::new();
        for _ in 0..500 {
            for _ in 0..12 {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                // Words at the begin of the list are more frequent.
                let places = [random >> 33, random >> 48];
                let place = places
                    .map(|bits| bits % WORDS.len() as u64)
                    .into_iter()
                    .min();
                text += WORDS[usize::try_from(place.unwrap_or_default())?];
                text.push(' ');
            }
            text.push('\n');
        }
        std::fs::write(folder.join(format!("text-{file}.txt")), text)?;
    }
    Ok(folder.to_owned())
}

/// Finds all text files and counts their words in a single pass.
fn read_texts(paths: &[PathBuf]) -> anyhow::Result<Texts> {
    let mut files = Vec::new();
    for path in paths {
        let path = path
            .canonicalize()
            .with_context(|| format!("cannot read {}", path.display()))?;
        find_files(&path, &mut files)?;
    }
    files.sort();
    files.dedup();
    let root = common_folder(&files);
    let mut texts = Texts {
        root,
        files: Vec::new(),
        bytes: 0,
        skipped: 0,
        words: Words::default(),
    };
    for file in files {
        let name = file
            .strip_prefix(&texts.root)
            .unwrap_or(&file)
            .to_str()
            .map(str::to_owned);
        let text = std::fs::read(&file)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok());
        match name.zip(text) {
            Some((name, text)) => {
                texts.bytes += text.len() as u64;
                for line in text.lines() {
                    texts.words.lines += 1;
                    count_words(line, &mut texts.words.counts);
                }
                texts.files.push(name);
            }
            None => texts.skipped += 1,
        }
    }
    ensure!(
        texts.bytes > 0,
        "found no text in {}",
        paths
            .iter()
            .map(|path| path.display().to_string())
            .collect::<Vec<_>>()
            .join(", ")
    );
    Ok(texts)
}

/// Appends the files below `path` to `found`, except hidden files and build output.
fn find_files(path: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    if path.is_file() {
        found.push(path.to_owned());
        return Ok(());
    }
    for entry in
        std::fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?
    {
        let entry = entry?;
        let name = entry.file_name();
        let is_skipped = name.to_string_lossy().starts_with('.') || name == "target";
        // Links are not followed, because they may form a cycle.
        if !is_skipped && !entry.file_type()?.is_symlink() {
            find_files(&entry.path(), found)?;
        }
    }
    Ok(())
}

/// Returns the deepest folder that contains all files.
fn common_folder(files: &[PathBuf]) -> PathBuf {
    let folders = files.iter().filter_map(|file| file.parent());
    let common = folders.fold(None::<PathBuf>, |common, folder| match common {
        None => Some(folder.to_owned()),
        Some(common) => Some(
            common
                .ancestors()
                .find(|ancestor| folder.starts_with(ancestor))
                .unwrap_or(Path::new("/"))
                .to_owned(),
        ),
    });
    common.unwrap_or_else(|| PathBuf::from("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_made_up_where_there_are_no_sources() {
        let folder = tempfile::tempdir().unwrap();
        let texts = read_texts(&[made_up_texts(folder.path()).unwrap()]).unwrap();
        assert_eq!(texts.files.len(), 40);
        assert_eq!((texts.words.lines, texts.words.total()), (20_000, 240_000));
        let all: Vec<_> = highest(&texts.words.counts, 16);
        assert!(all[0].1 > &(10 * all[15].1), "{all:?}");
    }
}
