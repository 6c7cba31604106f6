use contract::ConditionCode;
use proptest::prelude::*;

use super::*;

const PACE: ConditionPace = ConditionPace::DEFAULT;
const SECOND: i64 = 1000;

/// A condition, its tasks, and the time.
#[derive(Debug, Clone)]
struct World {
    condition: Condition,
    now: i64,
    since: i64,
    tests: u32,
    tested: Option<i64>,
    result: Option<String>,
    phase: ConditionPhase,
    pace: u32,
    heard: Option<Heard>,
    due: i64,
    waiting: u64,
    /// The tasks that were let go and have not told anything.
    away: u64,
    done: u64,
    failed: u64,
    forgotten: bool,
    /// When tests were made, and how many tasks were let go, when.
    tested_at: Vec<i64>,
    released: Vec<(i64, u64)>,
}

impl World {
    fn new(policy: &str, waiting: u64) -> Self {
        let condition = Condition::new(ConditionCode::DATABASE_NOT_AVAILABLE).because("refused");
        let condition = condition.policy(policy.parse().unwrap()).unwrap();
        let first = condition.delay_before_test(0, Duration::ZERO).unwrap();
        Self {
            now: 0,
            since: 0,
            tests: 0,
            tested: None,
            result: None,
            phase: ConditionPhase::Testing,
            pace: 0,
            heard: None,
            due: i64::try_from(first.as_millis()).unwrap(),
            waiting,
            away: 0,
            done: 0,
            failed: 0,
            forgotten: false,
            tested_at: Vec::new(),
            released: Vec::new(),
            condition,
        }
    }

    fn standing(&self) -> Standing<'_> {
        Standing {
            condition: &self.condition,
            since: self.since,
            tests: self.tests,
            tested: self.tested,
            result: self.result.as_deref(),
            phase: self.phase,
            pace: self.pace,
            heard: self.heard,
            waiting: self.waiting,
            canaries: match self.phase {
                ConditionPhase::Canary => self.away,
                _ => 0,
            },
        }
    }

    /// Does what is due, as the store does it.
    fn step(&mut self, verdict: impl FnOnce() -> Verdict) {
        self.now = self.now.max(self.due);
        let (standing, now) = (self.standing(), self.now);
        let (step, was_tested) = match due(&standing, now, PACE) {
            Course::Step(step) => (step, false),
            Course::Test => (after_test(&standing, verdict(), now, PACE), true),
        };
        if was_tested || matches!(step.act, ConditionAct::Canary) {
            self.tested_at.push(now);
        }
        if step.restarts {
            self.since = now;
        }
        if let Some(result) = step.result {
            self.result = Some(result);
            self.tested = Some(now);
        }
        (self.phase, self.tests, self.pace, self.heard) = (step.phase, step.tests, step.pace, None);
        self.due = now + i64::try_from(step.next).unwrap();
        match step.act {
            ConditionAct::Nothing => {}
            ConditionAct::Canary => self.let_go(1),
            ConditionAct::Release(most) => self.let_go(u64::from(most)),
            ConditionAct::Fail(most, _) => {
                let failed = self.waiting.min(u64::from(most));
                self.waiting -= failed;
                self.failed += failed;
            }
            ConditionAct::Forget => self.forgotten = self.waiting == 0,
        }
    }

    fn let_go(&mut self, most: u64) {
        let gone = self.waiting.min(most);
        self.waiting -= gone;
        self.away += gone;
        if self.phase == ConditionPhase::Releasing {
            self.released.push((self.now, gone));
        }
    }

    /// Those that were let go tell what they have done.
    fn tell(&mut self, is_passed: bool) {
        if self.away == 0 {
            return;
        }
        if is_passed {
            self.done += self.away;
            if self.phase == ConditionPhase::Canary {
                self.hear(Heard::Ended);
            }
        } else {
            self.waiting += self.away;
            self.hear(Heard::Again);
        }
        self.away = 0;
    }

    fn hear(&mut self, heard: Heard) {
        (self.heard, self.due) = (Some(heard), self.now);
    }
}

fn not_passed() -> Verdict {
    Verdict::NotPassed("refused".to_owned())
}

#[test]
fn condition_is_tested_at_the_times_of_its_policy_and_then_its_tasks_fail() {
    let mut world = World::new("first-ssh-authentication-failed", 1200);
    while !world.forgotten {
        world.step(not_passed);
    }
    assert_eq!(
        world.tested_at,
        [60, 120, 180].map(|second| second * SECOND)
    );
    assert_eq!((world.failed, world.now), (1200, 180 * SECOND));
}

#[test]
fn failure_says_what_was_waited_for_how_long_and_what_the_last_test_has_found() {
    let world = World::new("constant,delay=1m,attempts=2", 1);
    let step = after_test(&world.standing(), not_passed(), 60 * SECOND, PACE);
    let ConditionAct::Fail(_, failure) = step.act else {
        panic!("{step:?}")
    };
    assert_eq!(
        failure.failure_id.as_deref(),
        Some("DATABASE_NOT_AVAILABLE")
    );
    assert_eq!(
        failure.failure_message.as_deref(),
        Some(
            "the condition DATABASE_NOT_AVAILABLE was given up after 60 s and 1 test: refused; last result: refused"
        )
    );
}

#[test]
fn tasks_are_let_go_twice_as_many_each_second_up_to_the_most() {
    let mut world = World::new("aloe-constant", 5000);
    while !world.forgotten {
        world.step(|| Verdict::Passed);
        world.tell(true);
    }
    let expected: Vec<(i64, u64)> = [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 730]
        .into_iter()
        .enumerate()
        .map(|(n, tasks)| (60 * SECOND + i64::try_from(n).unwrap() * SECOND, tasks))
        .collect();
    assert_eq!(world.released, expected);
    assert_eq!((world.done, world.tested_at.len()), (5000, 1));
}

#[test]
fn canary_that_ends_lets_the_others_go_and_one_that_does_not_lets_none_go() {
    let mut world = World::new("constant,delay=1m", 3);
    world.step(|| Verdict::AskCanary(None));
    assert_eq!((world.phase, world.away), (ConditionPhase::Canary, 1));
    world.tell(false);
    world.step(|| panic!("no test"));
    assert_eq!(
        (world.phase, world.away, world.due),
        (ConditionPhase::Testing, 0, 120 * SECOND)
    );
    // The next one is silent, and its task is lost; another one follows.
    world.step(|| Verdict::AskCanary(Some("the operator has no such database".to_owned())));
    assert_eq!(
        world.result.as_deref(),
        Some("a canary runs: the operator has no such database")
    );
    world.away = 0;
    world.step(|| panic!("no test"));
    assert_eq!(
        (world.phase, world.away, world.now),
        (ConditionPhase::Canary, 1, 420 * SECOND)
    );
    // One that waits for something else now tells nothing of this condition.
    world.hear(Heard::Elsewhere);
    world.step(|| panic!("no test"));
    assert_eq!(
        (world.phase, world.away, world.tests),
        (ConditionPhase::Canary, 2, 2)
    );
    world.hear(Heard::Ended);
    world.step(|| panic!("no test"));
    assert_eq!(world.phase, ConditionPhase::Releasing);
}

#[test]
fn silent_canaries_are_one_test_and_fail_no_task_before_the_time_of_the_policy_is_over() {
    let mut world = World::new("constant,delay=1m,attempts=2", 20);
    world.step(|| Verdict::AskCanary(None));
    for _ in 0..10 {
        // No worker takes it.
        world.away = 0;
        world.step(|| panic!("no test"));
        assert_eq!(
            (world.phase, world.tests, world.away),
            (ConditionPhase::Canary, 1, 1)
        );
    }
    // One that is blocked is the end of the test.
    world.tell(false);
    world.step(|| panic!("no test"));
    assert_eq!((world.phase, world.failed), (ConditionPhase::Failing, 10));

    let mut world = World::new("constant,delay=1m,attempts=none,within=30m", 20);
    world.step(|| Verdict::AskCanary(None));
    while world.failed == 0 {
        world.away = 0;
        world.step(|| panic!("no test"));
    }
    assert_eq!(world.now, 31 * 60 * SECOND);
}

#[test]
fn condition_without_tasks_is_forgotten_unless_its_canary_may_be_blocked_again() {
    let mut world = World::new("constant,delay=1m,attempts=none,within=2d", 1);
    world.step(|| Verdict::AskCanary(None));
    for minutes in [6, 11, 16] {
        world.step(|| panic!("no test"));
        assert!(!world.forgotten && world.tests == 1, "{world:?}");
        assert_eq!(world.now, minutes * 60 * SECOND);
    }
    // Its job is deleted, which tells nothing.
    world.away = 0;
    world.step(|| panic!("no test"));
    assert!(world.forgotten, "{world:?}");

    let mut world = World::new("constant,delay=1m", 1);
    world.step(|| Verdict::AskCanary(None));
    world.away = 0;
    world.hear(Heard::Elsewhere);
    world.step(|| panic!("no test"));
    assert!(world.forgotten, "{world:?}");
}

#[test]
fn release_stops_when_a_task_is_blocked_again() {
    let mut world = World::new("constant,delay=1m", 100);
    world.step(|| Verdict::Passed);
    assert_eq!(world.waiting, 90);
    world.tell(false);
    world.step(|| panic!("no test"));
    assert_eq!(
        (world.phase, world.waiting, world.due),
        (ConditionPhase::Testing, 100, 120 * SECOND)
    );
    // What comes late does not bring the test forward.
    world.now += 20 * SECOND;
    world.hear(Heard::Again);
    world.step(|| panic!("no test"));
    assert_eq!(world.due, 120 * SECOND);
}

#[test]
fn room_lets_as_many_go_and_the_time_of_the_others_begins_again() {
    let mut world = World::new("constant,delay=1m,attempts=2", 5);
    world.step(|| Verdict::Room(3));
    assert_eq!(
        (world.away, world.waiting, world.since),
        (3, 2, 60 * SECOND)
    );
    world.step(|| Verdict::Room(0));
    assert_eq!((world.failed, world.now), (2, 120 * SECOND));
}

#[test]
fn test_that_can_never_pass_fails_the_tasks_at_once() {
    let mut world = World::new("aloe-constant", 5);
    world.step(|| Verdict::Never("the URL is gone".to_owned()));
    assert_eq!((world.failed, world.phase), (5, ConditionPhase::Failing));
}

#[test]
fn tasks_that_come_when_no_other_waits_begin_a_new_time() {
    let mut world = World::new("constant,delay=1m,attempts=3", 1);
    world.step(|| Verdict::Passed);
    world.tell(true);
    world.step(|| panic!("no test"));
    assert_eq!(world.phase, ConditionPhase::Idle);
    world.waiting = 1;
    world.now += 30 * SECOND;
    world.due = world.now;
    world.step(|| panic!("no test"));
    let expected = (
        ConditionPhase::Testing,
        0,
        world.now,
        world.now + 60 * SECOND,
    );
    assert_eq!((world.phase, world.tests, world.since, world.due), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_task_ends_and_none_runs_while_the_condition_is_known_not_to_have_passed(
        waiting in 1u64..3000,
        by_canary: bool,
        passes in proptest::option::of(0i64..10_000),
        rumours in proptest::collection::vec(0usize..200, 0..10),
    ) {
        let mut world = World::new("stepwise,steps=2x10s/5x1m/2m,attempts=none,within=2h", waiting);
        let passes = passes.map_or(i64::MAX, |second| second * SECOND);
        let mut steps = 0;
        while !world.forgotten {
            steps += 1;
            prop_assert!(steps < 5000, "it never ends: {world:?}");
            let is_passed = world.now.max(world.due) >= passes;
            let before = world.due;
            world.step(|| if by_canary {
                Verdict::AskCanary(None)
            } else if is_passed {
                Verdict::Passed
            } else {
                not_passed()
            });
            prop_assert!(world.due >= before);
            if !is_passed {
                prop_assert!(world.away <= 1, "{world:?}");
            }
            world.tell(is_passed);
            if world.phase == ConditionPhase::Testing && rumours.contains(&steps) {
                world.hear(Heard::Again);
            }
            prop_assert_eq!(world.waiting + world.away + world.done + world.failed, waiting);
        }
        // Two hours, then nobody tests any more.
        if passes > 2 * 3600 * SECOND {
            prop_assert_eq!(world.failed, waiting);
            prop_assert!(world.tested_at.iter().all(|at| *at <= 2 * 3600 * SECOND));
        } else if passes <= 7000 * SECOND {
            prop_assert_eq!(world.done, waiting);
        }
        let apart = world.tested_at.windows(2).all(|pair| pair[1] - pair[0] >= 5 * SECOND);
        prop_assert!(apart, "{:?}", world.tested_at);
    }
}
