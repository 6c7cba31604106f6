//! Checks the licences and the duplicates of all dependencies against `deny.toml`.
//!
//! `cargo deny check` does the same and more, but is a program of its own to install. This test needs nothing and runs with all
//! others. It reads the two lists of `deny.toml` that matter here by their lines: one quoted entry a line.

#![expect(clippy::unwrap_used, reason = "this is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use cargo_metadata::{Metadata, MetadataCommand, Package};
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
