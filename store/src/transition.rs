//! The states of a job: which transitions are legal, and who may make each. Pure.

use contract::JobStatus::{self, Active, Blocked, Cancelled, Completed, Failed, Paused, Waiting};

/// Who moves a job from one status to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor {
    /// A person or program, through the API.
    Client,
    /// The ledger, from reports of workers.
    Tracking,
    /// The system itself.
    Service,
}

impl Actor {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Tracking => "tracking",
            Self::Service => "service",
        }
    }
}

/// Every legal transition. A status that is finished is in no first column: outcomes stay.
const LEGAL: &[(JobStatus, JobStatus, Actor)] = &[
    (Waiting, Active, Actor::Tracking),
    (Waiting, Paused, Actor::Client),
    (Waiting, Cancelled, Actor::Client),
    (Waiting, Completed, Actor::Tracking),
    (Waiting, Failed, Actor::Tracking),
    (Active, Paused, Actor::Client),
    (Active, Blocked, Actor::Service),
    (Active, Cancelled, Actor::Client),
    (Active, Completed, Actor::Tracking),
    (Active, Failed, Actor::Tracking),
    (Paused, Active, Actor::Client),
    (Paused, Cancelled, Actor::Client),
    (Paused, Completed, Actor::Tracking),
    (Paused, Failed, Actor::Tracking),
    (Blocked, Active, Actor::Service),
    (Blocked, Cancelled, Actor::Client),
    (Blocked, Completed, Actor::Tracking),
    (Blocked, Failed, Actor::Tracking),
];

pub fn is_legal(from: JobStatus, to: JobStatus, actor: Actor) -> bool {
    LEGAL.contains(&(from, to, actor))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows: from; columns: to. Letters: who may (c client, t tracking, s service).
    const EXPECTED: &str = "\
              Active Blocked Cancelled Completed Failed Paused Waiting
    Active    -      s       c         t         t      c      -
    Blocked   s      -       c         t         t      -      -
    Cancelled -      -       -         -         -      -      -
    Completed -      -       -         -         -      -      -
    Failed    -      -       -         -         -      -      -
    Paused    c      -       c         t         t      -      -
    Waiting   t      -       c         t         t      c      -";

    #[test]
    fn every_pair_of_statuses_has_the_actors_that_the_table_says() {
        let mut lines = EXPECTED.lines();
        let columns: Vec<_> = lines
            .next()
            .unwrap()
            .split_whitespace()
            .map(|name| JobStatus::from_name(name).unwrap())
            .collect();
        let mut pairs = 0;
        for line in lines {
            let mut words = line.split_whitespace();
            let from = JobStatus::from_name(words.next().unwrap()).unwrap();
            for (to, letters) in columns.iter().zip(words) {
                for actor in [Actor::Client, Actor::Tracking, Actor::Service] {
                    let expected = letters.contains(&actor.name()[..1]);
                    assert_eq!(
                        is_legal(from, *to, actor),
                        expected,
                        "{from} -> {to} by {}",
                        actor.name()
                    );
                    pairs += 1;
                }
            }
        }
        assert_eq!(pairs, JobStatus::ALL.len() * JobStatus::ALL.len() * 3);
    }

    #[test]
    fn nothing_leaves_a_finished_status() {
        assert!(LEGAL.iter().all(|(from, _, _)| !from.is_finished()));
    }
}
