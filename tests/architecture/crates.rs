//! Which crate may depend on which, and where a library may be named.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};

use crate::code::{sources, words};
use crate::{Place, report, root};

/// The crates of the project that each crate may depend on. The tests of every crate may use the
/// harness, too.
///
/// The roles (the workers, job service) do not know each other; only
/// `batchwright` composes them. The names are those of the folders; the packages of what is
/// published begin with `batchwright-`.
const ARROWS: &[(&str, &[&str])] = &[
    ("contract", &[]),
    ("faults", &[]),
    ("harness", &["faults"]),
    ("framework", &["contract"]),
    ("store", &["contract"]),
    ("instructions", &["contract", "framework", "store"]),
    ("batch-worker", &["blobs", "contract", "framework"]),
    ("command-worker", &["contract", "framework"]),
    ("example-worker", &["contract", "framework"]),
    ("simulation-worker", &["contract", "framework"]),
    ("tracking-worker", &["contract", "framework", "store"]),
    ("blobs", &[]),
    (
        "output-worker",
        &["blobs", "contract", "framework", "store"],
    ),
    ("job-service", &["blobs", "contract", "framework", "store"]),
    (
        "batchwright",
        &[
            "contract",
            "framework",
            "store",
            "blobs",
            "batch-worker",
            "command-worker",
            "example-worker",
            "simulation-worker",
            "tracking-worker",
            "output-worker",
            "job-service",
        ],
    ),
    (
        "cli",
        &[
            "batchwright",
            "contract",
            "framework",
            "store",
            "blobs",
            "batch-worker",
            "command-worker",
            "example-worker",
            "simulation-worker",
            "job-service",
        ],
    ),
    (
        "lab",
        &[
            "batchwright",
            "contract",
            "framework",
            "store",
            "job-service",
            // It prints, connects and ends as the program does.
            "cli",
            // Starts servers and processes, and makes them fail.
            "faults",
        ],
    ),
    (
        "tests",
        &[
            "contract",
            "framework",
            "store",
            "blobs",
            "batch-worker",
            "example-worker",
            "tracking-worker",
            "output-worker",
            "job-service",
            "batchwright",
            "harness",
        ],
    ),
];

/// Libraries that only a few files may name, so that a change of broker, database or web framework
/// stays in them.
const SECRETS: &[(&str, &[&str])] = &[
    (
        "lapin",
        &[
            "framework/src/broker/amqp.rs",
            "framework/src/broker/amqp/",
            // What the broker alone can do.
            "lab/src/bench/limit/amqp.rs",
        ],
    ),
    (
        "sqlx",
        &[
            "store/",
            // The table of a worker's own, as an author would write it; no data of the system.
            "lab/src/chaos/effects.rs",
        ],
    ),
    (
        "rusqlite",
        &[
            "framework/src/broker/embedded/disk.rs",
            "framework/src/broker/embedded/disk/",
            "store/",
            "lab/src/chaos/effects.rs",
            // What SQLite alone can do; a file that is gone afterwards.
            "lab/src/bench/limit/sqlite.rs",
        ],
    ),
    ("opentelemetry", &["framework/src/trace/otlp.rs"]),
    (
        "axum",
        &[
            "job-service/",
            "framework/src/telemetry.rs",
            "framework/src/telemetry/",
        ],
    ),
];

#[test]
fn crates_depend_only_on_the_crates_in_the_table() {
    let mut broken = Vec::new();
    let metadata = metadata();
    let parts: Vec<&str> = metadata
        .packages
        .iter()
        .map(|package| part(&package.name))
        .collect();
    for package in &metadata.packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == part(&package.name))
        else {
            broken.push(Place::in_manifest(
                &metadata,
                package,
                "[package]",
                "a new crate needs an entry in ARROWS",
            ));
            continue;
        };
        for (name, kind) in package
            .dependencies
            .iter()
            .map(|dependency| (part(&dependency.name), dependency.kind))
            .filter(|(name, _)| parts.contains(name))
        {
            // A crate is its own dependency to enable a feature that only its tests need.
            let for_tests = kind == DependencyKind::Development
                && (name == "harness" || name == part(&package.name));
            if !for_tests && !allowed.contains(&name) {
                let rule = format!(
                    "{} must not depend on {name}, only on {allowed:?}",
                    package.name
                );
                broken.push(Place::in_manifest(&metadata, package, name, &rule));
            }
        }
    }
    report(&broken);
}

#[test]
fn hidden_libraries_are_dependencies_of_their_crates_only() {
    let mut broken = Vec::new();
    let metadata = metadata();
    for package in &metadata.packages {
        for (library, keepers) in SECRETS {
            let shipped = |kind| matches!(kind, DependencyKind::Normal | DependencyKind::Build);
            let depends = package
                .dependencies
                .iter()
                .any(|dependency| dependency.name == *library && shipped(dependency.kind));
            let keeps = keepers
                .iter()
                .any(|keeper| keeper.starts_with(&format!("{}/", part(&package.name))));
            if depends && !keeps {
                let rule = format!("only {keepers:?} may know {library}");
                broken.push(Place::in_manifest(&metadata, package, library, &rule));
            }
        }
    }
    report(&broken);
}

#[test]
fn hidden_libraries_are_named_in_their_files_only() {
    let mut broken = Vec::new();
    for source in sources() {
        for (library, keepers) in SECRETS {
            if !keepers.iter().any(|keeper| source.path.starts_with(keeper)) {
                let rule = format!("only {keepers:?} may name {library}");
                broken.extend(
                    source.lines_where(|code| words(code).any(|word| word == *library), &rule),
                );
            }
        }
    }
    report(&broken);
}

impl Place {
    /// Returns the first line of a package's manifest that begins with `what`.
    fn in_manifest(metadata: &Metadata, package: &Package, what: &str, rule: &str) -> Self {
        let manifest = std::fs::read_to_string(&package.manifest_path).unwrap_or_default();
        let line = manifest
            .lines()
            .position(|line| line.starts_with(what))
            .unwrap_or_default()
            + 1;
        let path = package
            .manifest_path
            .strip_prefix(&metadata.workspace_root)
            .unwrap_or(&package.manifest_path);
        Self {
            path: path.to_string(),
            line,
            rule: rule.to_owned(),
        }
    }
}

/// Returns the name of a crate in this repository, which is that of its folder and of the
/// dependency in a manifest.
fn part(package: &str) -> &str {
    package.strip_prefix("batchwright-").unwrap_or(package)
}

fn metadata() -> Metadata {
    let mut command = MetadataCommand::new();
    command.manifest_path(root().join("Cargo.toml")).no_deps();
    command
        .exec()
        .unwrap_or_else(|error| panic!("cargo metadata: {error}"))
}
