//! Simulation: the whole system in one thread, under seeded faults, with its invariants checked at rest.
//!
//! A scenario is made from a seed: `SIMULATION_SEED=17` runs that one alone, `SIMULATION_RUNS=5000` more of them. One that
//! fails is made smaller and shown; it becomes a test of its own below. The order of tasks within the runtime is not seeded, so a
//! failure that is a matter of chance may need its seed more than once.

mod faults;
mod scenario;
mod world;

use framework::Route;

use crate::scenario::Scenario;
use crate::world::run;

const RUNS: u64 = 150;

#[expect(clippy::disallowed_methods, reason = "a test is asked for more runs, or one, by its environment")]
fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
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
            panic!("seed {seed} ({}):\n{broken}\n\nThe smallest that fails: {smallest:#?}\n{smaller}", route.name());
        }
    }
}

#[test]
fn a_job_comes_to_its_exact_end_whatever_fails_on_the_way_when_outputs_travel_directly() {
    run_seeds(Route::Direct);
}

#[test]
fn a_job_comes_to_its_exact_end_whatever_fails_on_the_way_when_outputs_travel_through_the_tracking_pipe() {
    run_seeds(Route::Reroute);
}

#[test]
fn a_job_that_nothing_happens_to_is_completed_item_by_item() {
    for route in [Route::Direct, Route::Reroute] {
        for output in [false, true] {
            run(&Scenario { items: 150, route, output, ..Scenario::default() }).unwrap();
        }
    }
}
