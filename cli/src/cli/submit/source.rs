//! Where the items of a job come from: the batch that the flags of `submit` describe, and the
//! worker for its items.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use batchwright::advanced::{
    BATCH_PIPE, COMMAND_OUT_PIPE, COMMAND_PIPE, EXAMPLE_OUT_PIPE, EXAMPLE_PIPE, NOOP_PIPE,
};
use batchwright::client::Client;
use clap::Args;
use command_worker::{ARGV_PARAM, COMMAND_PARAM};
use contract::rest::JobTask;
use contract::{BatchTask, TaskData};
use serde_json::json;
use serde_json::value::RawValue;

use super::upload::{self, Input, Items};
use crate::print::remark;

#[derive(Debug, Args)]
#[command(next_help_heading = "Batch")]
pub struct SourceArgs {
    /// An item for each number of this range, e.g. `1-1000`.
    #[arg(long, group = "source", value_name = "FROM-TO")]
    range: Option<String>,
    /// An item for each value of this JSON array.
    #[arg(long, group = "source", value_name = "JSON")]
    list: Option<String>,
    /// An item for each file below the root folder of the workers that matches, e.g.
    /// `scans/**/*.tif`.
    #[arg(long, group = "source", value_name = "PATTERN")]
    glob: Option<String>,
    /// An item for each record of this CSV file, as an object with the names of the header: below
    /// the root folder of the batch worker, or a URL, or `store://NAME/PATH`; also compressed
    /// (`.gz`, `.zst`).
    #[arg(long, group = "source", value_name = "FILE")]
    csv: Option<String>,
    /// An item for each line of this file of JSON lines, which is in one of the same places.
    #[arg(long, group = "source", value_name = "FILE")]
    jsonl: Option<String>,
    /// An item for each record of this file, which is in one of the same places, e.g. a URL. What
    /// its name ends with says its format (`.csv`, `.tsv`, `.jsonl`, `.json`, `.txt`), unless
    /// `--format` does.
    #[arg(long, group = "source", value_name = "FILE")]
    records: Option<String>,
    /// Format of the file of `--records`: `lines`, `csv`, `tsv`, `jsonl`, or `json` for a JSON
    /// array.
    #[arg(long, requires = "records", value_parser = ["lines", "csv", "tsv", "jsonl", "json"], value_name = "FORMAT")]
    format: Option<String>,
    /// An item for each line of this file, which is read here; `-` reads standard input. Empty
    /// lines are left out. More than 4 MiB are uploaded to the job service.
    #[arg(long, group = "source", value_name = "FILE")]
    each_line: Option<PathBuf>,
    /// An item for each line of this file, which is JSON and read here; `-` reads standard input.
    /// More than 4 MiB are uploaded to the job service.
    #[arg(long, group = "source", value_name = "FILE")]
    items_from: Option<PathBuf>,
    /// Batch plugin that splits the definition: `range`, `list`, `lines`, `glob` or `records`.
    #[arg(long, group = "source", requires = "what", value_name = "PLUGIN")]
    batch_type: Option<String>,
    /// Batch definition in the plugin's format, e.g. `1-1000` for `range`.
    #[arg(long, group = "what", requires = "batch_type")]
    definition: Option<String>,
    /// File with the batch definition; `-` reads standard input.
    #[arg(long, group = "what", requires = "batch_type", value_name = "FILE")]
    definition_file: Option<PathBuf>,
    /// Command of the command worker that is run for each item; the operator has defined it.
    #[arg(long, requires = "source", conflicts_with_all = ["argv", "file", "job_type"], value_name = "NAME")]
    command: Option<String>,
    /// Command that is run for each item, in whose place `{item}` stands; only for `batchwright up
    /// --allow-any-command`.
    #[arg(last = true, requires = "source", conflicts_with_all = ["file", "job_type"], value_name = "COMMAND")]
    argv: Vec<String>,
    /// Pipe of the batch worker.
    #[arg(long, default_value = BATCH_PIPE, value_name = "PIPE")]
    task_pipe: String,
    /// Pipe of the worker that processes the items; by default that of the command worker if there
    /// is a command, of the example worker for `lines`, and otherwise of the worker that does
    /// nothing.
    #[arg(long, value_name = "PIPE")]
    item_pipe: Option<String>,
    /// Pipe where an item counts as done; `none` if the worker sends no output. By default
    /// `worker-example-out`, or `worker-command-out` for a command.
    #[arg(long, value_name = "PIPE")]
    target_pipe: Option<String>,
    /// Type of the items (`taskMessageType`); by default the plugin's own.
    #[arg(long, value_name = "TYPE")]
    item_type: Option<String>,
}

/// The batch that flags describe.
pub struct MadeBatch {
    batch_type: String,
    definition: String,
    /// The source to which its items were uploaded, if they were.
    pub upload: Option<String>,
}

impl MadeBatch {
    fn new(batch_type: &str, definition: String) -> Self {
        Self {
            batch_type: batch_type.to_owned(),
            definition,
            upload: None,
        }
    }
}

impl SourceArgs {
    /// Returns the first task of the job. `keeps_outputs` if the service takes the outputs; else
    /// they have a target pipe.
    pub fn task(
        &self,
        batch: MadeBatch,
        params: &[String],
        keeps_outputs: bool,
    ) -> anyhow::Result<JobTask> {
        let MadeBatch {
            batch_type,
            definition,
            ..
        } = batch;
        let params = self.params(params)?;
        let has_command = [COMMAND_PARAM, ARGV_PARAM]
            .iter()
            .any(|name| params.contains_key(*name));
        let batch = BatchTask {
            task_message_type: self.item_type.clone(),
            target_pipe: Some(self.item_pipe(&batch_type, has_command)),
            batch_type: Some(batch_type),
            batch_definition: Some(definition),
            task_message_params: (!params.is_empty()).then_some(params),
        };
        let default = if has_command {
            COMMAND_OUT_PIPE
        } else {
            EXAMPLE_OUT_PIPE
        };
        let target_pipe = self.target_pipe.as_deref().unwrap_or(default);
        Ok(JobTask {
            task_classifier: Some(BatchTask::CLASSIFIER.to_owned()),
            task_api_version: Some(BatchTask::API_VERSION),
            task_data: Some(serde_json::to_value(batch)?),
            task_pipe: Some(self.task_pipe.clone()),
            target_pipe: (!keeps_outputs && target_pipe != "none").then(|| target_pipe.to_owned()),
            ..JobTask::default()
        })
    }

    /// Returns the batch. Items that are too many for a definition are uploaded, if there is a
    /// client for that.
    pub async fn batch(&self, client: Option<&Client>) -> anyhow::Result<MadeBatch> {
        let (batch_type, definition) = if let Some(range) = &self.range {
            ("range", range.clone())
        } else if let Some(list) = &self.list {
            ("list", list.clone())
        } else if let Some(pattern) = &self.glob {
            ("glob", glob(pattern))
        } else if let Some(file) = &self.csv {
            ("records", records(file, Some("csv")))
        } else if let Some(file) = &self.jsonl {
            ("records", records(file, Some("jsonl")))
        } else if let Some(file) = &self.records {
            ("records", records(file, self.format.as_deref()))
        } else if let Some(file) = &self.each_line {
            return items(file, ("lines", line_as_text), client).await;
        } else if let Some(file) = &self.items_from {
            return items(file, ("jsonl", line_as_json), client).await;
        } else {
            let definition = match (&self.definition, &self.definition_file) {
                (Some(definition), _) => definition.clone(),
                (None, Some(file)) => read(file)?,
                (None, None) => bail!(
                    "no job given; pass --file JOB.json, --range, --list, --csv, --jsonl, --records, --each-line, --items-from or --glob, or \
                     --batch-type with --definition"
                ),
            };
            (self.batch_type.as_deref().unwrap_or_default(), definition)
        };
        Ok(MadeBatch::new(batch_type, definition))
    }

    /// Returns the parameters of the items, with the command among them.
    fn params(&self, flags: &[String]) -> anyhow::Result<BTreeMap<String, String>> {
        let mut params = pairs(flags, "parameter")?;
        if let Some(name) = &self.command {
            params.insert(COMMAND_PARAM.to_owned(), name.clone());
        }
        if !self.argv.is_empty() {
            params.insert(ARGV_PARAM.to_owned(), serde_json::to_string(&self.argv)?);
        }
        Ok(params)
    }

    /// Returns the pipe of the worker for the items.
    fn item_pipe(&self, batch_type: &str, has_command: bool) -> String {
        if let Some(pipe) = &self.item_pipe {
            return pipe.clone();
        }
        let pipe = match batch_type {
            _ if has_command => COMMAND_PIPE,
            "range" | "list" | "glob" | "records" => {
                remark!(
                    "batchwright: no --item-pipe and no command; the items go to the worker that does nothing"
                );
                NOOP_PIPE
            }
            _ => EXAMPLE_PIPE,
        };
        pipe.to_owned()
    }
}

/// Returns the keys and values of flags. Each is one of these, for people.
pub fn pairs(flags: &[String], what: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut pairs = BTreeMap::new();
    for flag in flags {
        let (key, value) = flag
            .split_once('=')
            .with_context(|| format!("{flag:?} is not a {what}; expected KEY=VALUE"))?;
        if pairs.insert(key.to_owned(), value.to_owned()).is_some() {
            bail!("the {what} {key:?} is given twice; give each {what} once");
        }
    }
    Ok(pairs)
}

/// Returns the definition of a glob. The folder is what stands before the first part of the path
/// that is a pattern, so that no other folder is listed.
fn glob(path: &str) -> String {
    let is_plain = |part: &&str| !part.contains(['*', '?', '[', '{']);
    let parts: Vec<&str> = path.split('/').collect();
    let plain = parts.iter().take_while(|part| is_plain(part)).count();
    let (folder, pattern) = parts.split_at(plain.min(parts.len() - 1));
    let folder = if folder.is_empty() {
        ".".to_owned()
    } else {
        folder.join("/")
    };
    json!({ "folder": folder, "pattern": pattern.join("/") }).to_string()
}

/// Reads a file as one text.
fn read(file: &Path) -> anyhow::Result<String> {
    text_of(open(file)?, file, "definition")
}

fn open(file: &Path) -> anyhow::Result<Input> {
    if file.as_os_str() == "-" {
        return Ok(Box::new(io::stdin()));
    }
    let opened = File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Box::new(opened))
}

/// Reads a text that becomes a batch definition, which is `what`. It is not longer than a
/// definition.
fn text_of(from: impl Read, file: &Path, what: &str) -> anyhow::Result<String> {
    let most = BatchTask::MAX_DEFINITION;
    let name = file.display();
    let mut bytes = Vec::new();
    let read = from.take(most as u64 + 1).read_to_end(&mut bytes);
    read.with_context(|| format!("cannot read {name}"))?;
    if bytes.len() > most {
        bail!("the {what} in {name} is too large: {}", too_large(most));
    }
    String::from_utf8(bytes).with_context(|| format!("{name} is not text in UTF-8"))
}

fn too_large(most: usize) -> String {
    format!(
        "a batch definition has at most {most} bytes. Put the file below the root folder of the batch worker (--root) and submit \
         --batch-type lines --definition '{{\"files\": [\"FILE\"], \"linesPerItem\": 1}}', or make several jobs of it"
    )
}

/// Returns the definition of the records of a file.
fn records(file: &str, format: Option<&str>) -> String {
    match format {
        Some(format) => json!({ "files": [file], "format": format }),
        None => json!({ "files": [file] }),
    }
    .to_string()
}

/// Makes an item of a line; `None` of one without.
type LineAsItem = fn(&str) -> serde_json::Result<Option<Box<RawValue>>>;

/// Returns the batch of the items that the lines of a file are: a list of them, or the source that
/// they are uploaded to.
async fn items(
    file: &Path,
    (format, item): (&str, LineAsItem),
    client: Option<&Client>,
) -> anyhow::Result<MadeBatch> {
    let name = file.display();
    let read = upload::read(open(file)?).await;
    let (first, rest) = match read.with_context(|| format!("cannot read {name}"))? {
        Items::Few(bytes) => match list_of(&bytes, file, item)? {
            list if list.len() <= BatchTask::MAX_DEFINITION => {
                return Ok(MadeBatch::new("list", list));
            }
            _ => (bytes, Box::new(io::empty()) as Input),
        },
        Items::Many(first, rest) => (first, rest),
    };
    let Some(client) = client else {
        let most = BatchTask::MAX_DEFINITION;
        bail!(
            "the items in {name} are more than can be explained at once: a batch definition has at most {most} bytes. Submit them, or explain \
             a part of them"
        );
    };
    let id = upload::upload(client, first, rest).await?;
    Ok(MadeBatch {
        batch_type: "records".to_owned(),
        definition: upload::definition(&id, format),
        upload: Some(id),
    })
}

/// Returns the list of the items that the lines of a file are.
fn list_of(bytes: &[u8], file: &Path, item: LineAsItem) -> anyhow::Result<String> {
    let text = std::str::from_utf8(bytes)
        .with_context(|| format!("{} is not text in UTF-8", file.display()))?;
    let mut items = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let found = item(line)
            .with_context(|| format!("line {number} of {} is not JSON", file.display()))?;
        items.extend(found);
    }
    Ok(serde_json::to_string(&items)?)
}

fn line_as_text(line: &str) -> serde_json::Result<Option<Box<RawValue>>> {
    let value = || serde_json::value::to_raw_value(line);
    (!line.is_empty()).then(value).transpose()
}

fn line_as_json(line: &str) -> serde_json::Result<Option<Box<RawValue>>> {
    (!line.trim().is_empty())
        .then(|| serde_json::from_str(line))
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_of_a_glob_is_what_no_pattern_is_in() {
        for (path, folder, pattern) in [
            ("*.txt", ".", "*.txt"),
            ("a.txt", ".", "a.txt"),
            ("scans/2016/**/*.tif", "scans/2016", "**/*.tif"),
            ("a/b", "a", "b"),
            ("a[1]/b", ".", "a[1]/b"),
        ] {
            let expected = json!({ "folder": folder, "pattern": pattern }).to_string();
            assert_eq!(glob(path), expected);
        }
    }
}
