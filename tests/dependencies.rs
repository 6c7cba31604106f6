//! Checks the licences and the duplicates of all dependencies against `deny.toml`.
//!
//! `cargo deny check` does the same and more, but is a program of its own to install. This test
//! needs nothing and runs with all others. It reads the two lists of `deny.toml` that matter here
//! by their lines: one quoted entry a line.
//!
//! It also counts what an author's worker compiles, and looks for what would change how a worker's
//! own libraries work.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use cargo_metadata::semver::VersionReq;
use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use spdx::{Expression, ParseMode};

#[test]
fn every_dependency_has_an_accepted_licence() {
    let accepted = list("allow");
    let refused: Vec<String> = metadata()
        .packages
        .iter()
        .filter(|package| package.source.is_some())
        .filter(|package| !is_accepted(package, &accepted))
        .map(|package| format!("{package}: {:?}", package.license, package = package.id))
        .collect();
    assert!(
        refused.is_empty(),
        "licences that deny.toml does not allow:\n{}",
        refused.join("\n")
    );
}

#[test]
fn no_library_is_compiled_in_two_versions_unless_it_is_listed() {
    let mut versions: BTreeMap<String, BTreeSet<_>> = BTreeMap::new();
    for package in metadata().packages {
        versions
            .entry(package.name.to_string())
            .or_default()
            .insert(package.version);
    }
    let mut listed = list("skip");
    let mut doubled = Vec::new();
    for (name, versions) in versions {
        // The newest needs no entry; each older one does.
        for version in versions.iter().rev().skip(1) {
            let entries = [
                format!("{name}@{}", version.major),
                format!("{name}@{}.{}", version.major, version.minor),
            ];
            if !entries.iter().any(|entry| listed.remove(entry)) {
                doubled.push(format!("{name}@{version}"));
            }
        }
    }
    assert!(
        doubled.is_empty() && listed.is_empty(),
        "doubled, but not in deny.toml: {doubled:?}; in deny.toml, but not doubled: {listed:?}"
    );
}

/// What a worker compiles only if its author asks for the feature.
const HEAVY: [&str; 12] = [
    "askama",
    "clap",
    "icu_collator",
    "jaq-core",
    "jsonschema",
    "libsqlite3-sys",
    "object_store",
    "opentelemetry",
    "prost",
    "sqlx",
    "utoipa",
    "utoipa-swagger-ui",
];
/// The most libraries that a worker compiles which only names `batchwright`. A larger number needs
/// a reason.
const MOST_OF_A_WORKER: usize = 200;

#[test]
fn a_worker_compiles_few_libraries_and_no_heavy_one() {
    let compiled = compiled_with(&[]);
    let heavy: Vec<_> = HEAVY.iter().filter(|it| compiled.contains(**it)).collect();
    assert!(heavy.is_empty(), "{heavy:?}");
    assert!(
        compiled.len() <= MOST_OF_A_WORKER,
        "{} libraries: {compiled:?}",
        compiled.len()
    );
}

/// Cargo compiles a library once for a program, with the features that any of its users asks for.
/// If we used the HTTP client that workers use, the encryption that ours is built with would become
/// theirs.
#[test]
fn a_worker_shares_no_http_client_with_us() {
    for features in [&[][..], &["otlp", "stack"], &["job-types", "swagger-ui"]] {
        assert!(!compiled_with(features).contains("reqwest"), "{features:?}");
    }
}

/// Returns the libraries that a program compiles which depends on `batchwright` with these
/// features.
fn compiled_with(features: &[&str]) -> BTreeSet<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--package", "batchwright"])
        .args(["--edges", "normal,build", "--prefix", "none"])
        .args(["--target", "x86_64-unknown-linux-gnu"])
        .args(["--features", &features.join(",")])
        .current_dir(root())
        .output()
        .unwrap();
    let text = String::from_utf8(tree.stdout).unwrap();
    let complaint = String::from_utf8_lossy(&tree.stderr);
    assert!(tree.status.success(), "{complaint}");
    let name = |line: &str| line.split_whitespace().next().map(str::to_owned);
    text.lines().filter_map(name).collect()
}

#[test]
fn every_package_but_those_of_the_tests_could_be_published() {
    let all = metadata();
    let ours = |package: &&Package| all.workspace_members.contains(&package.id);
    let mut lacks = Vec::new();
    for package in all.packages.iter().filter(ours) {
        // Nothing but a test depends on what is never published.
        if package.publish.as_ref().is_some_and(Vec::is_empty) {
            continue;
        }
        let folder = package.manifest_path.parent().unwrap();
        let internal = package.dependencies.iter().filter(|it| it.path.is_some());
        let shipped = internal.filter(|it| it.kind != DependencyKind::Development);
        for (is_there, what) in [
            (package.description.is_some(), "a description"),
            (package.license.is_some(), "a licence"),
            (package.readme.is_some(), "a readme"),
            (package.rust_version.is_some(), "a version of Rust"),
            (!package.keywords.is_empty(), "keywords"),
            (folder.join("LICENSE-MIT").exists(), "LICENSE-MIT"),
            (folder.join("LICENSE-APACHE").exists(), "LICENSE-APACHE"),
            (
                shipped.clone().all(|it| it.req != VersionReq::STAR),
                "versions of its internal dependencies",
            ),
        ] {
            if !is_there {
                lacks.push(format!("{}: {what}", package.name));
            }
        }
    }
    assert!(lacks.is_empty(), "missing: {lacks:#?}");
}

fn is_accepted(package: &Package, accepted: &BTreeSet<String>) -> bool {
    let Some(licence) = &package.license else {
        return false;
    };
    // Old packages write `MIT/Apache-2.0`.
    Expression::parse_mode(licence, ParseMode::LAX).is_ok_and(|expression| {
        expression.evaluate(|requirement| {
            let id = requirement.license.id().map(|id| id.name);
            id.is_some_and(|id| accepted.contains(id))
        })
    })
}

/// Returns the quoted entries of a list of `deny.toml`.
fn list(key: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    let begins = format!("{key} = [");
    text.lines()
        .skip_while(|line| *line != begins)
        .skip(1)
        .take_while(|line| *line != "]")
        .filter_map(|line| line.split('"').nth(1))
        .map(str::to_owned)
        .collect()
}

/// Returns everything that is compiled for Linux on x86-64, the platform in `deny.toml`.
fn metadata() -> Metadata {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(
            ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"].map(str::to_owned),
        )
        .exec()
        .unwrap()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
