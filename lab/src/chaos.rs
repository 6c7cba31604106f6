//! Chaos: a real system whose parts fail in the middle of a job, and what that cost.
//!
//! Each role is a process of its own, on a broker and a database that can fail, behind a network
//! that can fail. Or everything is one embedded process. Each item of the job writes its effect to
//! a table of its own, and sends an output. At the end, the job's count, the effects and the pipes
//! are compared: no fault may lose an item or count one twice.
//!
//! This is what `batchwright chaos` runs. The tests of survival are further scenarios of the same
//! [`System`].
//!
//! What must stay true: nothing is left behind (processes, servers, folders, databases), however
//! the command ends.

mod effects;
mod outcome;
mod plan;
mod roles;
mod servers;
mod system;
mod worker;

use std::time::Duration;

use anyhow::anyhow;
use tokio::time::{Instant, timeout};

pub use self::effects::Effects;
pub use self::outcome::{Outcome, OutputsIn, Survived};
pub use self::plan::{Early, Fault, Faults, Server, Step, plan};
pub use self::roles::{CHAOS_WORKER, INPUT_PIPE, ItemOptions, ROLES, SystemOptions};
pub use self::servers::{Given, Ground, Servers};
pub use self::system::System;
pub use self::worker::{ChaosWorkerOptions, run as run_worker};

/// What a run does.
#[derive(Debug)]
pub struct Options {
    /// The system and its job.
    pub system: SystemOptions,
    /// Which faults happen.
    pub faults: Faults,
    /// Determines the order of the faults and how long each lasts.
    pub seed: u64,
    /// The time after which the run gives up. No fault begins after two thirds of it.
    pub limit: Duration,
}

/// Runs a job with faults and compares the counts. `tell` gets lines for a person; `stop` ends the
/// run early.
pub async fn run(
    ground: Ground,
    options: Options,
    tell: &dyn Fn(&str),
    stop: impl Future<Output = ()>,
) -> anyhow::Result<Outcome> {
    let began = Instant::now();
    let (mut survived, mut skipped) = (Survived::default(), 0);
    let (seed, limit) = (options.seed, options.limit);
    let system = System::begin(ground, options.system).await?;
    let trouble = {
        let job = async {
            system.start_all()?;
            system.submit().await?;
            let steps = plan(seed, &options.faults, &system.roles());
            skipped = steps.len();
            let struck = (&mut survived, &mut skipped);
            strike(&system, steps, began + limit * 2 / 3, struck, tell).await?;
            tell("no more faults; the job runs to its end");
            system.ended_with_letters().await.map(drop)
        };
        let limited = timeout(limit, async {
            tokio::select! {
                worked = job => worked,
                stalled = system.follow() => stalled,
            }
        });
        tokio::select! {
            worked = limited => worked.unwrap_or_else(|_| Err(anyhow!("the job did not end within {limit:?}"))).err(),
            () = stop => Some(anyhow!("interrupted")),
        }
    };
    if let Some(trouble) = &trouble {
        tell(&format!("{trouble:#}"));
    }
    // A job that was faster than its end is not taken up again.
    survived.rounds = system.rounds();
    let (outcome, _) = system.finish(trouble.is_none()).await?;
    if skipped > 0 {
        tell(&format!("{skipped} faults did not happen"));
    }
    if outcome.kept.is_empty() && !outcome.is_exact() {
        tell("run it again with --keep to keep the logs");
    }
    Ok(Outcome {
        seed,
        survived,
        skipped,
        seconds: began.elapsed().as_secs_f64(),
        trouble: trouble.map(|trouble| trouble.to_string()),
        ..outcome
    })
}

/// Makes the parts of the system fail, each when the job has done its share. Counts the faults that
/// happen, and takes their steps from the number of those that are left.
async fn strike(
    system: &System,
    steps: Vec<Step>,
    end: Instant,
    (survived, left): (&mut Survived, &mut usize),
    tell: &dyn Fn(&str),
) -> anyhow::Result<()> {
    let began = Instant::now();
    let half = steps.len() / 2;
    for (number, step) in steps.into_iter().enumerate() {
        if number == half {
            system.mend().await?;
        }
        if !system.reached(step.share).await? {
            tell("the job ended before all faults; more --items, or --work, make it longer");
            return Ok(());
        }
        if Instant::now() >= end {
            tell("two thirds of --duration are over");
            return Ok(());
        }
        let (at, done) = (began.elapsed().as_secs_f64(), system.completed_items());
        tell(&format!("{at:6.1} s {done:9} items  {step}"));
        let since = Instant::now();
        system.strike(&step).await?;
        step.count(survived);
        *left -= 1;
        if step.fault.is_outage() {
            system.resumes(&step.fault.to_string()).await?;
            let pause = since.elapsed().as_secs_f64();
            tell(&format!("{:>25}  progress again after {pause:.1} s", ""));
        }
    }
    Ok(())
}
