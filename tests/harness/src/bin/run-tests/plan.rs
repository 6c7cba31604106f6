//! Which jobs there are, to which layer each belongs, and in which order they start.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;

use crate::job::Job;

/// The layers of tests, in the order of the table. `CONTRIBUTING.md` says what belongs to each.
pub const LAYERS: [&str; 11] = [
    "rules",
    "wire",
    "conformance",
    "API",
    "CAF",
    "system",
    "chaos",
    "simulation",
    "architecture",
    "examples",
    "harness",
];

/// The stories of this binary run one after the other, on a pair of servers that a run of it
/// starts.
const CHAOS: &str = "lab/chaos";
/// The names of these stories contain one of these words; they are one half of the time. The other
/// stories are a job of their own.
const HALF_OF_CHAOS: [&str; 2] = ["killed_three_times", "database"];

/// The longest jobs start first, so that none of them is still running when all others have
/// finished.
const LONGEST_FIRST: [&str; 8] = [
    "tests/simulation",
    CHAOS,
    "tests/system",
    "cli/caf_compat",
    "doc tests",
    "framework (lib",
    "harness",
    "store",
];

/// No test binary takes that long, on two slow processors either. One that does hangs.
const LIMIT: Duration = Duration::from_mins(20);
/// For the jobs that are known to be long.
const LONG_LIMIT: Duration = Duration::from_mins(25);

/// Returns the jobs: one per test binary that cargo has built, and one per `NAME=COMMAND`.
pub fn jobs(messages: &str, commands: impl Iterator<Item = String>) -> anyhow::Result<Vec<Job>> {
    let mut jobs = Vec::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line)
            .with_context(|| format!("not a message of cargo: {line}"))?;
        match test_binary(&message)? {
            Some(job) if job.name == CHAOS => jobs.extend(halves(job)),
            job => jobs.extend(job),
        }
    }
    ensure!(!jobs.is_empty(), "cargo has built no test binary");
    for command in commands {
        let (name, command) = command
            .split_once('=')
            .with_context(|| format!("{command} is not NAME=COMMAND"))?;
        let mut command = command.split_whitespace().map(str::to_owned);
        jobs.push(Job {
            name: name.to_owned(),
            layer: "examples",
            program: command.next().context("a job without a command")?.into(),
            arguments: command.collect(),
            folder: std::env::current_dir()?,
            is_test_binary: false,
            limit: LONG_LIMIT,
        });
    }
    jobs.sort_by_key(|job| position(&job.name));
    Ok(jobs)
}

/// Splits a job into the stories of [`HALF_OF_CHAOS`] and all others.
fn halves(job: Job) -> [Job; 2] {
    let words = HALF_OF_CHAOS.map(str::to_owned);
    let others = words
        .iter()
        .flat_map(|word| ["--skip".to_owned(), word.clone()]);
    [
        Job {
            name: format!("{} (brokers)", job.name),
            arguments: others.collect(),
            ..job.clone()
        },
        Job {
            name: format!("{} (processes and databases)", job.name),
            arguments: words.to_vec(),
            ..job
        },
    ]
}

/// Returns the job of a message about a test binary; `None` for all other messages.
fn test_binary(message: &Value) -> anyhow::Result<Option<Job>> {
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let Some(program) = message["executable"].as_str().filter(|_| is_test) else {
        return Ok(None);
    };
    let target = message["target"]["name"]
        .as_str()
        .context("a target without a name")?;
    let manifest = message["manifest_path"]
        .as_str()
        .context("a package without a manifest")?;
    let folder = Path::new(manifest)
        .parent()
        .context("a manifest without a folder")?;
    let package = folder.file_name().unwrap_or_default().to_string_lossy();
    let kind = message["target"]["kind"][0].as_str().unwrap_or_default();
    let is_integration_test = kind == "test";
    let name = if is_integration_test {
        format!("{package}/{target}")
    } else {
        // A library and a binary may have the same name.
        format!("{package} ({kind} {target}, unit tests)")
    };
    Ok(Some(Job {
        layer: layer(&package, is_integration_test.then_some(target)),
        limit: if name == CHAOS { LONG_LIMIT } else { LIMIT },
        name,
        program: PathBuf::from(program),
        arguments: Vec::new(),
        folder: folder.to_owned(),
        is_test_binary: true,
    }))
}

/// Returns the layer of the unit tests of a package, or of one of its integration tests.
fn layer(package: &str, integration_test: Option<&str>) -> &'static str {
    match (package, integration_test) {
        ("contract", _) => "wire",
        ("harness", _) => "harness",
        ("example-worker", _) | (_, Some("first_worker" | "book")) => "examples",
        (_, None) => "rules",
        (_, Some(target)) if target.contains("conformance") => "conformance",
        (_, Some("architecture")) => "architecture",
        (_, Some("simulation")) => "simulation",
        (_, Some("chaos")) => "chaos",
        (_, Some("caf_compat")) => "CAF",
        ("job-service", _) => "API",
        ("tests" | "cli" | "lab", _) => "system",
        _ => "rules",
    }
}

fn position(name: &str) -> usize {
    LONGEST_FIRST
        .iter()
        .position(|first| name.starts_with(first))
        .unwrap_or(LONGEST_FIRST.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact(package: &str, target: &str, kind: &str, test: bool) -> String {
        json!({
            "reason": "compiler-artifact",
            "manifest_path": format!("/checkout/{package}/Cargo.toml"),
            "target": {"name": target, "kind": [kind]},
            "profile": {"test": test},
            "executable": format!("/target/{target}-1"),
        })
        .to_string()
    }

    #[test]
    fn every_test_binary_and_every_command_becomes_a_job_and_the_longest_come_first() {
        let messages = [
            artifact("contract", "batchwright_contract", "lib", true),
            artifact("store", "store_conformance", "test", true),
            artifact("cli", "batchwright", "bin", false),
            artifact("lab", "chaos", "test", true),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let commands = ["doc tests=cargo test --doc".to_owned()];
        let jobs = jobs(&messages.join("\n"), commands.into_iter()).unwrap();
        let seen: Vec<_> = jobs
            .iter()
            .map(|job| (job.name.as_str(), job.layer, job.program.to_str().unwrap()))
            .collect();
        assert_eq!(
            seen,
            [
                ("lab/chaos (brokers)", "chaos", "/target/chaos-1"),
                (
                    "lab/chaos (processes and databases)",
                    "chaos",
                    "/target/chaos-1"
                ),
                ("doc tests", "examples", "cargo"),
                (
                    "store/store_conformance",
                    "conformance",
                    "/target/store_conformance-1"
                ),
                (
                    "contract (lib batchwright_contract, unit tests)",
                    "wire",
                    "/target/batchwright_contract-1"
                ),
            ]
        );
        assert_eq!(
            jobs[0].arguments,
            ["--skip", "killed_three_times", "--skip", "database"]
        );
        assert_eq!(jobs[1].arguments, ["killed_three_times", "database"]);
        assert_eq!(jobs[2].arguments, ["test", "--doc"]);
    }

    #[test]
    fn a_build_without_test_binaries_is_an_error() {
        assert!(jobs(r#"{"reason":"build-finished"}"#, std::iter::empty()).is_err());
    }
}
