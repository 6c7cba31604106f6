//! What is printed at the end: the failures, and a table by layer.

use std::time::Duration;

use crate::job::Finished;
use crate::plan::LAYERS;

/// The numbers of the whole run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub passed: u64,
    pub failed: u64,
}

/// A row of the table.
#[derive(Debug, Default)]
struct Row {
    jobs: u64,
    passed: u64,
    failed: u64,
    ignored: u64,
    /// The sum over the jobs. Jobs run side by side, so the whole run is shorter.
    wall: Duration,
    cpu: Duration,
}

/// Prints the failures and the table. A layer without a test counts as a failure.
pub fn print(finished: &[Finished], wall: Duration) -> Summary {
    for job in finished.iter().filter(|job| job.outcome.failed > 0) {
        println!("\n== failed: {}\n{}", job.name, job.outcome.reason);
    }
    println!(
        "\n{:<14} {:>5} {:>7} {:>7} {:>8} {:>9} {:>9}",
        "layer", "jobs", "passed", "failed", "ignored", "wall s", "cpu s"
    );
    let mut all = Row::default();
    let mut empty = Vec::new();
    for layer in LAYERS {
        let mut row = Row::default();
        for job in finished.iter().filter(|job| job.layer == layer) {
            row.add(job);
            all.add(job);
        }
        row.print(layer);
        if row.passed + row.failed == 0 {
            empty.push(layer);
        }
    }
    all.print("all jobs");
    println!("the jobs ran side by side for {:.1} s", wall.as_secs_f64());
    for layer in &empty {
        println!("failed: no test of the layer {layer} ran");
    }
    Summary {
        passed: all.passed,
        failed: all.failed + empty.len() as u64,
    }
}

impl Row {
    fn add(&mut self, job: &Finished) {
        self.jobs += 1;
        self.passed += job.outcome.passed;
        self.failed += job.outcome.failed;
        self.ignored += job.outcome.ignored;
        self.wall += job.wall;
        self.cpu += job.cpu;
    }

    fn print(&self, name: &str) {
        let Self {
            jobs,
            passed,
            failed,
            ignored,
            wall,
            cpu,
        } = self;
        println!(
            "{name:<14} {jobs:>5} {passed:>7} {failed:>7} {ignored:>8} {:>9.1} {:>9.1}",
            wall.as_secs_f64(),
            cpu.as_secs_f64()
        );
    }
}
