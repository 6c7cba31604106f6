//! Simulation: the whole system in one thread, under seeded faults, with its invariants checked at
//! rest.
//!
//! A seed makes a scenario. `SIMULATION_SEED=17` runs only that one. `SIMULATION_RUNS=5000` runs
//! more of them, and single faults at every step instead of every fifth one. A scenario that fails
//! is made smaller and printed; it becomes a test of its own below. The order of tasks within the
//! runtime is not seeded, so a failure that depends on chance may need several runs of its seed.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this is how a test fails"
)]

mod beside;
mod blocks;
mod checks;
mod dependents;
mod disk;
mod faults;
mod invariants;
mod item_worker;
mod kept;
mod letters;
mod observer;
mod rounds;
mod scenario;
mod simulation;
mod tracking;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use contract::OnFailure;
use contract::rest::{Above, Tolerance};
use framework::config::Route;
use store::FaultPoint;

use crate::blocks::{Blocks, End};
use crate::disk::Kill;
use crate::faults::{AckFault, Action, Op, PublishFault, Who};
use crate::scenario::{Scenario, shards};
use crate::simulation::run;

/// How many seeds run, and from which step at which a single fault can happen to the next, unless
/// more runs are asked for.
const RUNS: u64 = 14;
const STRIDE: usize = 5;

#[expect(
    clippy::disallowed_methods,
    reason = "the environment asks for more runs, or for one"
)]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|text| text.parse().unwrap())
}

fn run_seeds(route: Route) {
    let seeds = match number("SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIMULATION_RUNS").unwrap_or(RUNS),
    };
    for seed in seeds {
        let scenario = Scenario::from_seed(route, seed);
        if let Err(broken) = run(&scenario) {
            let smallest = scenario.shrink(|smaller| run(smaller).is_err());
            let smaller = run(&smallest).err().unwrap_or_default();
            panic!(
                "seed {seed} ({}):\n{broken}\n\nThe smallest that fails: {smallest:#?}\n{smaller}",
                route.name()
            );
        }
    }
}

#[test]
fn any_faults_leave_the_outcome_exact_with_direct_outputs() {
    run_seeds(Route::Direct);
}

#[test]
fn any_faults_leave_the_outcome_exact_with_rerouted_outputs() {
    run_seeds(Route::Reroute);
}

/// Runs a scenario once per step at which a fault can happen, or at each [`STRIDE`]th of them. The
/// first one is another for other faults, so that each step meets some of them.
fn run_at_every_step(scenario: &Scenario, fault: impl Fn(u32) -> Op) {
    let stride = number("SIMULATION_RUNS").map_or(STRIDE, |_| 1);
    let mut kind = DefaultHasher::new();
    format!("{scenario:?} {:?}", fault(0)).hash(&mut kind);
    let first = 1 + u32::try_from(kind.finish() % stride as u64).unwrap();
    for nth in (first..).step_by(stride) {
        let mut scenario = scenario.clone();
        scenario.ops.push(fault(nth));
        match run(&scenario) {
            Ok(0) => return,
            Ok(_) => {}
            Err(broken) => panic!("{scenario:#?}\n{broken}"),
        }
    }
}

/// A job with two levels, one of whose splits stops and goes on. All its outputs must be safe
/// before they are counted.
fn small(route: Route, on_failure: OnFailure) -> Scenario {
    let (failing, hopeless) = if on_failure == OnFailure::Continue {
        (Some(4), Some(5))
    } else {
        (None, None)
    };
    Scenario {
        items: 11,
        route,
        on_failure,
        failing,
        hopeless,
        retrying: Some(3),
        output: true,
        checked: true,
        room: 4,
        flush: 3,
        ..Scenario::default()
    }
}

fn run_every_fault(scenario: &Scenario) {
    for role in [Who::Service, Who::Batch, Who::Items, Who::Tracking] {
        // Faults that only change timing or order are left to the seeds.
        for fault in [
            PublishFault::CrashBefore,
            PublishFault::CrashAfter,
            PublishFault::Refused,
            PublishFault::TakenAndRefused,
        ] {
            run_at_every_step(scenario, |nth| Op::Publish(role, nth, fault));
        }
        for fault in [AckFault::CrashBefore, AckFault::CrashAfter] {
            run_at_every_step(scenario, |nth| Op::Ack(role, nth, fault));
        }
    }
    for point in [FaultPoint::Begin, FaultPoint::Commit, FaultPoint::Committed] {
        run_at_every_step(scenario, |nth| Op::Store(point, nth, 3));
        run_at_every_step(scenario, |nth| Op::CrashTracking(point, nth));
    }
}

#[test]
fn no_single_fault_changes_the_outcome_with_direct_outputs() {
    run_every_fault(&small(Route::Direct, OnFailure::Stop));
}

#[test]
fn no_single_fault_changes_the_outcome_with_rerouted_outputs() {
    run_every_fault(&small(Route::Reroute, OnFailure::Stop));
}

#[test]
fn no_single_fault_changes_the_counts_of_a_job_that_continues_on_failure() {
    run_every_fault(&small(Route::Direct, OnFailure::Continue));
}

#[test]
fn no_kill_of_the_embedded_system_changes_the_outcome() {
    let at = Duration::from_millis;
    for (route, on_failure, pace, number) in [
        (Route::Direct, OnFailure::Stop, at(3), 2),
        (Route::Reroute, OnFailure::Continue, at(0), 1),
    ] {
        let scenario = Scenario {
            embedded: Some(pace),
            shards: shards(number),
            dependents: 1,
            ..small(route, on_failure)
        };
        for kill in Kill::ALL {
            run_at_every_step(&scenario, |nth| Op::Kill(kill, nth));
        }
    }
}

#[test]
fn no_single_fault_forgets_a_dependent_job() {
    for (fails, number) in [(Some(4), 1), (None, 3)] {
        run_every_fault(&Scenario {
            items: 5,
            shards: shards(number),
            retrying: None,
            failing: fails,
            dependents: 2,
            ..small(Route::Direct, OnFailure::Stop)
        });
    }
}

#[test]
fn dependents_follow_a_job_that_is_cancelled_or_deleted_at_any_moment() {
    for action in [Action::Cancel, Action::Delete, Action::PutAgain(3)] {
        for millis in (0..40).step_by(2) {
            let ops = vec![Op::Client(action, Duration::from_millis(millis))];
            run(&Scenario {
                dependents: 3,
                ops,
                ..small(Route::Direct, OnFailure::Stop)
            })
            .unwrap();
        }
    }
}

#[test]
fn a_job_that_is_recreated_counts_nothing_of_its_past_incarnation() {
    for (route, number) in [
        (Route::Direct, 1),
        (Route::Reroute, 1),
        // Each incarnation has a shard of its own.
        (Route::Direct, 2),
    ] {
        for millis in (0..40).step_by(3) {
            let ops = vec![Op::Client(
                Action::PutAgain(13),
                Duration::from_millis(millis),
            )];
            run(&Scenario {
                items: 40,
                shards: shards(number),
                ops,
                ..small(route, OnFailure::Continue)
            })
            .unwrap();
        }
    }
}

#[test]
fn a_job_that_is_paused_and_resumed_at_any_moment_is_counted_exactly() {
    for route in [Route::Direct, Route::Reroute] {
        for pauses_hold in [0, 7].map(|millis| Some(Duration::from_millis(millis))) {
            for (pause, resume) in (0..36)
                .step_by(4)
                .flat_map(|pause| [(pause, pause), (pause, pause + 3), (pause, pause + 30)])
            {
                let at = Duration::from_millis;
                let ops = vec![
                    Op::Client(Action::Pause, at(pause)),
                    Op::Client(Action::Resume, at(resume)),
                ];
                let scenario = Scenario {
                    items: 40,
                    ops,
                    pauses_hold,
                    ..small(route, OnFailure::Stop)
                };
                run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
            }
        }
    }
}

#[test]
fn a_job_that_is_taken_up_again_at_any_moment_is_exact_and_forgets_nothing() {
    let at = Duration::from_millis;
    for route in [Route::Direct, Route::Reroute] {
        for (cancel, retry) in (0..36)
            .step_by(6)
            .flat_map(|cancel| [(cancel, cancel), (cancel, cancel + 9)])
        {
            let ops = vec![
                Op::Client(Action::Cancel, at(cancel)),
                Op::Client(Action::Retry, at(retry)),
                // The first item that fails has ended the job, unless it was mended in time.
                Op::Client(Action::Retry, at(2000)),
            ];
            let scenario = Scenario {
                items: 40,
                ops,
                failing: Some(13),
                mended: Some(2),
                checked: retry % 2 == 0,
                ..small(route, OnFailure::Stop)
            };
            run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
        }
    }
}

#[test]
fn reports_of_an_earlier_round_that_arrive_late_count_only_if_their_task_is_done() {
    let at = Duration::from_millis;
    for (route, on_failure) in [
        (Route::Direct, OnFailure::Stop),
        (Route::Direct, OnFailure::Continue),
        (Route::Reroute, OnFailure::Continue),
    ] {
        for cancel in (4..36).step_by(8) {
            let ops = vec![
                Op::HoldReports(at(cancel - 3), at(cancel + 90)),
                Op::Client(Action::Cancel, at(cancel)),
                Op::Client(Action::Retry, at(cancel + 9)),
                Op::Client(Action::Retry, at(2000)),
            ];
            for (failing, mended, worsening) in
                [(Some(5), Some(2), None), (Some(13), None, Some(2))]
            {
                let scenario = Scenario {
                    items: 40,
                    on_failure,
                    route,
                    failing,
                    mended,
                    worsening,
                    ops: ops.clone(),
                    ..Scenario::default()
                };
                run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
            }
        }
    }
}

#[test]
fn a_job_that_tolerates_failures_ends_as_its_limit_says_in_every_round() {
    let retry = Op::Client(Action::Retry, Duration::from_secs(2));
    // Of 40 items, 8 fail.
    for limit in ["0", "7", "8", "19%", "20%"] {
        for (above, ops) in [
            (Above::Stop, vec![]),
            (Above::Stop, vec![retry]),
            (Above::Continue, vec![]),
            (Above::Continue, vec![retry]),
        ] {
            let tolerance = Tolerance {
                limit: limit.parse().unwrap(),
                above,
            };
            for mended in [None, Some(2)] {
                let scenario = Scenario {
                    items: 40,
                    failing: Some(5),
                    on_failure: OnFailure::Tolerate(tolerance),
                    checked: mended.is_some(),
                    mended,
                    dependents: 2,
                    ops: ops.clone(),
                    ..Scenario::default()
                };
                run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
            }
        }
    }
}

#[test]
fn no_single_fault_changes_the_outputs_that_are_kept() {
    let at = Duration::from_millis;
    let scenario = Scenario {
        items: 5,
        retrying: None,
        output: false,
        kept: true,
        ops: vec![
            Op::Client(Action::Cancel, at(3)),
            Op::Client(Action::Retry, at(6)),
        ],
        ..small(Route::Direct, OnFailure::Stop)
    };
    for fault in [
        PublishFault::CrashBefore,
        PublishFault::CrashAfter,
        PublishFault::Twice,
    ] {
        run_at_every_step(&scenario, |nth| Op::Publish(Who::Outputs, nth, fault));
    }
    for fault in [AckFault::CrashBefore, AckFault::CrashAfter] {
        run_at_every_step(&scenario, |nth| Op::Ack(Who::Outputs, nth, fault));
    }
    for point in [FaultPoint::Begin, FaultPoint::Commit, FaultPoint::Committed] {
        run_at_every_step(&scenario, |nth| Op::Store(point, nth, 3));
    }
}

/// A job of which some items are given up, become dead letters and are sent again. They are done
/// then.
fn given_up() -> Scenario {
    Scenario {
        items: 5,
        on_failure: OnFailure::Continue,
        hopeless: Some(2),
        mended: Some(2),
        letters: true,
        ..Scenario::default()
    }
}

#[test]
fn no_single_fault_loses_a_dead_letter_or_sends_one_twice() {
    let scenario = given_up();
    for fault in [
        PublishFault::CrashBefore,
        PublishFault::CrashAfter,
        PublishFault::Twice,
        PublishFault::Refused,
    ] {
        run_at_every_step(&scenario, |nth| Op::Publish(Who::Service, nth, fault));
    }
    for fault in [AckFault::CrashBefore, AckFault::CrashAfter] {
        run_at_every_step(&scenario, |nth| Op::Ack(Who::Service, nth, fault));
    }
    for point in [FaultPoint::Begin, FaultPoint::Commit, FaultPoint::Committed] {
        run_at_every_step(&scenario, |nth| Op::Store(point, nth, 3));
    }
}

#[test]
fn dead_letters_that_are_sent_again_at_any_moment_leave_the_counts_exact() {
    for mended in [None, Some(2)] {
        for millis in (2990..3060).step_by(10) {
            let ops = vec![Op::Client(Action::Replay, Duration::from_millis(millis))];
            let scenario = Scenario {
                items: 20,
                mended,
                checked: millis % 2 == 0,
                ops,
                ..given_up()
            };
            run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
        }
    }
}

/// A job of which some items wait for a condition until a canary has shown that it has passed.
fn blocked() -> Scenario {
    let blocks = Blocks {
        every: 2,
        end: End::Passes(Duration::from_millis(1500)),
        returns: None,
        quota: false,
        silent: false,
        beside: false,
        many: false,
    };
    Scenario {
        items: 4,
        blocks: Some(blocks),
        ..Scenario::default()
    }
}

#[test]
fn no_single_fault_loses_a_task_that_waits_or_sends_it_beside_itself() {
    let scenario = blocked();
    for fault in [PublishFault::CrashBefore, PublishFault::CrashAfter] {
        run_at_every_step(&scenario, |nth| Op::Publish(Who::Service, nth, fault));
        run_at_every_step(&scenario, |nth| Op::Publish(Who::Items, nth, fault));
    }
    // The task has come back, and was blocked again.
    let again = PublishFault::Again(Duration::from_millis(1200));
    run_at_every_step(&scenario, |nth| Op::Publish(Who::Items, nth, again));
    for fault in [AckFault::CrashBefore, AckFault::CrashAfter] {
        run_at_every_step(&scenario, |nth| Op::Ack(Who::Service, nth, fault));
    }
    // The store has done it, and its answer is lost.
    run_at_every_step(&scenario, |nth| Op::Store(FaultPoint::Committed, nth, 0));
}

#[test]
fn tasks_are_let_go_only_after_a_test_and_no_more_when_one_is_blocked_again() {
    let at = Duration::from_millis;
    // Once it returns between the first two releases, once it does not.
    for (passes, returns) in [(1500, None), (500, Some((at(1500), at(3500))))] {
        let blocks = blocked().blocks.map(|blocks| Blocks {
            every: 1,
            end: End::Passes(at(passes)),
            returns,
            ..blocks
        });
        let scenario = Scenario {
            items: 60,
            blocks,
            ..blocked()
        };
        run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
    }
}

#[test]
fn job_that_is_ended_paused_or_deleted_at_any_moment_leaves_no_condition() {
    let at = Duration::from_millis;
    for (action, later) in [
        (Action::Cancel, Some(Action::Retry)),
        (Action::Cancel, None),
        (Action::Delete, None),
        (Action::PutAgain(4), None),
        (Action::Pause, Some(Action::Resume)),
    ] {
        for millis in (0..3600).step_by(400) {
            let later = later.map(|later| Op::Client(later, at(millis + 700)));
            let ops = [Op::Client(action, at(millis))].into_iter().chain(later);
            let scenario = Scenario {
                ops: ops.collect(),
                ..blocked()
            };
            run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
        }
    }
}

#[test]
fn other_jobs_come_back_soon_whatever_becomes_of_one_that_waits_with_them() {
    let at = Duration::from_millis;
    let blocks = blocked().blocks.map(|blocks| Blocks {
        beside: true,
        ..blocks
    });
    for (action, later) in [
        (Action::Cancel, None),
        (Action::Delete, None),
        (Action::Pause, Some(Action::Resume)),
    ] {
        for millis in (500..4000).step_by(700) {
            let later = later.map(|later| Op::Client(later, at(millis + 30_000)));
            let ops = [Op::Client(action, at(millis))].into_iter().chain(later);
            let scenario = Scenario {
                pauses_hold: Some(Duration::ZERO),
                blocks,
                ops: ops.collect(),
                ..blocked()
            };
            run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
        }
    }
}

#[test]
fn tasks_of_conditions_above_the_bound_wait_together_and_come_back() {
    let at = Duration::from_millis;
    let blocks = blocked().blocks.map(|blocks| Blocks {
        every: 1,
        many: true,
        ..blocks
    });
    for ops in [
        vec![],
        vec![Op::Restart(Who::Service, at(2000))],
        vec![Op::Client(Action::Cancel, at(2000))],
        vec![Op::Client(Action::Delete, at(2000))],
    ] {
        let scenario = Scenario {
            items: 20,
            blocks,
            ops,
            ..blocked()
        };
        run(&scenario).unwrap_or_else(|broken| panic!("{scenario:#?}\n{broken}"));
    }
}

/// A job that is paused while some of its items are done, some wait, and some are retried.
fn paused_in_the_middle() -> Scenario {
    let at = Duration::from_millis;
    let ops = vec![
        Op::Client(Action::Pause, at(8)),
        Op::Client(Action::Resume, at(30)),
    ];
    Scenario {
        concurrency: 2,
        work: at(5),
        pauses_hold: Some(Duration::ZERO),
        ops,
        ..small(Route::Direct, OnFailure::Stop)
    }
}

#[test]
fn no_single_fault_changes_the_outcome_of_a_paused_and_resumed_job() {
    let scenario = paused_in_the_middle();
    for role in [Who::Service, Who::Items] {
        for fault in [
            PublishFault::CrashBefore,
            PublishFault::CrashAfter,
            PublishFault::Refused,
        ] {
            run_at_every_step(&scenario, |nth| Op::Publish(role, nth, fault));
        }
        for fault in [AckFault::CrashBefore, AckFault::CrashAfter] {
            run_at_every_step(&scenario, |nth| Op::Ack(role, nth, fault));
        }
    }
    for point in [FaultPoint::Begin, FaultPoint::Commit, FaultPoint::Committed] {
        run_at_every_step(&scenario, |nth| Op::Store(point, nth, 3));
    }
}

#[test]
fn a_job_without_faults_completes_every_item() {
    for route in [Route::Direct, Route::Reroute] {
        for output in [false, true] {
            assert_eq!(
                run(&Scenario {
                    items: 150,
                    route,
                    output,
                    ..Scenario::default()
                }),
                Ok(0)
            );
        }
    }
}
