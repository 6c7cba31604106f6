//! Which faults happen, in which order, and when.

use std::fmt;
use std::time::Duration;

use clap::Args;
use clap::builder::ArgPredicate;
use fastrand::Rng;

use super::outcome::Survived;

/// How many faults of each kind happen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Faults")]
pub struct Faults {
    /// Number of processes that are killed (SIGKILL), every role in turn.
    #[arg(long, default_value_t = 10)]
    pub kills: u32,
    /// Number of restarts of the broker; by default none of a given broker without
    /// `--restart-broker`.
    #[arg(long, conflicts_with = "embedded", value_name = "RESTARTS", default_value_ifs = restarts("restart_broker"), default_value_t = 1)]
    pub broker_restarts: u32,
    /// Number of restarts of the database, every other one after a SIGKILL; by default none of a
    /// given database without `--restart-database`.
    #[arg(long, conflicts_with = "embedded", value_name = "RESTARTS", default_value_ifs = restarts("restart_database"), default_value_t = 1)]
    pub database_restarts: u32,
    /// Number of times that connections are cut or carry nothing.
    #[arg(
        long,
        conflicts_with = "embedded",
        value_name = "FAULTS",
        default_value_if("embedded", "true", "0"),
        default_value_t = 2
    )]
    pub network_faults: u32,
    /// Number of times that the job is paused and resumed.
    #[arg(long, default_value_t = 1)]
    pub pauses: u32,
    /// Number of times that the job is cancelled or fails, in turn, and is retried.
    #[arg(long, default_value_t = 1)]
    pub rounds: u32,
}

/// Returns how often a server restarts by default: once if that is possible. A given server needs
/// a command.
fn restarts(command: &'static str) -> [(&'static str, ArgPredicate, &'static str); 3] {
    [
        ("embedded", "true".into(), "0"),
        (command, ArgPredicate::IsPresent, "1"),
        ("broker", ArgPredicate::IsPresent, "0"),
    ]
}

/// One fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// A role is killed, and started again after this time.
    Kill(String, Duration),
    /// The broker stops, and starts again after this time.
    Broker(Duration),
    /// The database stops, or is killed, and starts again after this time.
    Database(Stop, Duration),
    /// The network fails on the way to a server.
    Network(Server, Network),
    /// The job is paused for this time.
    Pause(Duration),
    /// The job ends before it is done, and is taken up again after this time.
    Round(Early, Duration),
}

/// How a job ends before it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Early {
    /// A client cancels it.
    Cancelled,
    /// Its items fail.
    Failed,
}

/// How a server ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// It ends its sessions.
    Gently,
    /// As `kill -9` does.
    Killed,
}

/// Which server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Server {
    /// The broker.
    Broker,
    /// The database.
    Database,
}

/// How the network fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    /// All connections end.
    Cut,
    /// Nothing is carried for this time.
    BlackHole(Duration),
    /// Existing connections carry nothing ever again.
    Forgotten,
}

/// A fault, when it happens, and what is killed in the middle of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The share of the items that are done when it happens.
    pub share: f64,
    /// The fault.
    pub fault: Fault,
    /// The role that is killed meanwhile.
    pub meanwhile: Option<String>,
}

/// Returns the faults in a random order, spread over the job. The same seed gives the same plan.
pub fn plan(seed: u64, faults: &Faults, roles: &[String]) -> Vec<Step> {
    let mut rng = Rng::with_seed(seed);
    let mut others = Vec::new();
    others.extend((0..faults.broker_restarts).map(|_| Fault::Broker(millis(&mut rng, 500..4000))));
    others.extend((0..faults.database_restarts).map(|number| {
        let stop = if number % 2 == 0 {
            Stop::Gently
        } else {
            Stop::Killed
        };
        Fault::Database(stop, millis(&mut rng, 500..4000))
    }));
    others.extend((0..faults.network_faults).map(|number| network_fault(number, &mut rng)));
    others.extend((0..faults.pauses).map(|_| Fault::Pause(millis(&mut rng, 500..2000))));
    others.extend((0..faults.rounds).map(|number| {
        let early = if number % 2 == 0 {
            Early::Cancelled
        } else {
            Early::Failed
        };
        Fault::Round(early, millis(&mut rng, 0..2000))
    }));
    // Every role has its turn before one has its second.
    let mut turns = Vec::new();
    let mut victim = |rng: &mut Rng| {
        if turns.is_empty() {
            turns.extend_from_slice(roles);
            rng.shuffle(&mut turns);
        }
        turns.pop().unwrap_or_default()
    };
    let mut kills = faults.kills;
    let mut all: Vec<(Fault, Option<String>)> = Vec::new();
    for fault in others {
        let meanwhile = kills > 0 && rng.bool();
        kills -= u32::from(meanwhile);
        all.push((fault, meanwhile.then(|| victim(&mut rng))));
    }
    for _ in 0..kills {
        let kill = Fault::Kill(victim(&mut rng), millis(&mut rng, 0..1000));
        all.push((kill, None));
    }
    rng.shuffle(&mut all);
    let count = f64::from(u32::try_from(all.len()).unwrap_or(u32::MAX));
    let steps = all.into_iter().zip(1_u32..);
    steps
        .map(|((fault, meanwhile), number)| Step {
            // The last faults still happen well before the end of the job.
            share: 0.9 * f64::from(number) / (count + 1.0),
            fault,
            meanwhile,
        })
        .collect()
}

/// Returns the faults in turn, so that a few of them are of different kinds.
fn network_fault(number: u32, rng: &mut Rng) -> Fault {
    let (server, network) = match number % 5 {
        0 => (Server::Broker, Network::Cut),
        1 => (
            Server::Database,
            Network::BlackHole(millis(rng, 1000..6000)),
        ),
        2 => (Server::Broker, Network::Forgotten),
        3 => (Server::Database, Network::Cut),
        _ => (Server::Broker, Network::BlackHole(millis(rng, 1000..6000))),
    };
    Fault::Network(server, network)
}

fn millis(rng: &mut Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.u64(range))
}

impl Fault {
    /// Returns whether the whole job may stand still for a while.
    pub const fn is_outage(&self) -> bool {
        !matches!(self, Self::Kill(..))
    }
}

impl Step {
    /// Counts the faults of this step.
    pub fn count(&self, survived: &mut Survived) {
        survived.kills += u32::from(self.meanwhile.is_some());
        match self.fault {
            Fault::Kill(..) => survived.kills += 1,
            Fault::Broker(_) => survived.broker_restarts += 1,
            Fault::Database(..) => survived.database_restarts += 1,
            Fault::Network(..) => survived.network_faults += 1,
            Fault::Pause(_) => survived.pauses += 1,
            Fault::Round(..) => survived.rounds += 1,
        }
        survived.outages =
            survived.broker_restarts + survived.database_restarts + survived.network_faults;
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fault)?;
        match &self.meanwhile {
            Some(role) => write!(f, "; {role} is killed"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(role, _) => write!(f, "{role} is killed"),
            Self::Broker(away) => write!(f, "the broker is away {:.1} s", away.as_secs_f64()),
            Self::Database(Stop::Gently, away) => {
                write!(f, "the database is away {:.1} s", away.as_secs_f64())
            }
            Self::Database(Stop::Killed, _) => f.write_str("the database is killed"),
            Self::Network(server, network) => {
                let server = match server {
                    Server::Broker => "broker",
                    Server::Database => "database",
                };
                match network {
                    Network::Cut => write!(f, "{server} connections are cut"),
                    Network::BlackHole(time) => {
                        write!(f, "{server} unreachable {:.1} s", time.as_secs_f64())
                    }
                    Network::Forgotten => write!(f, "the {server} falls silent"),
                }
            }
            Self::Pause(time) => write!(f, "the job is paused {:.1} s", time.as_secs_f64()),
            Self::Round(Early::Cancelled, time) => {
                write!(f, "the job is cancelled {:.1} s", time.as_secs_f64())
            }
            Self::Round(Early::Failed, time) => {
                write!(f, "the job has failed {:.1} s", time.as_secs_f64())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles() -> Vec<String> {
        ["job-service", "batch-worker", "tracking-worker"]
            .map(str::to_owned)
            .to_vec()
    }

    #[test]
    fn plan_has_every_fault_once_in_the_order_of_the_job_and_the_same_for_a_seed() {
        let faults = Faults {
            kills: 30,
            broker_restarts: 3,
            database_restarts: 2,
            network_faults: 5,
            pauses: 4,
            rounds: 6,
        };
        let mut orders = Vec::new();
        for seed in 0..100 {
            let steps = plan(seed, &faults, &roles());
            assert_eq!(steps, plan(seed, &faults, &roles()), "seed {seed}");
            let mut survived = Survived::default();
            for step in &steps {
                step.count(&mut survived);
            }
            let counted = Faults {
                kills: survived.kills,
                broker_restarts: survived.broker_restarts,
                database_restarts: survived.database_restarts,
                network_faults: survived.network_faults,
                pauses: survived.pauses,
                rounds: survived.rounds,
            };
            assert_eq!(counted, faults, "seed {seed}");
            assert_eq!(survived.outages, 10);
            let shares: Vec<f64> = steps.iter().map(|step| step.share).collect();
            assert!(shares.is_sorted() && shares[0] > 0.0 && shares[shares.len() - 1] < 0.9);
            assert!(
                steps.iter().all(|step| step.to_string().len() <= 80 - 25),
                "{steps:?}"
            );
            for role in roles() {
                let killed = |step: &&Step| {
                    matches!(&step.fault, Fault::Kill(killed, _) if *killed == role)
                        || step.meanwhile.as_ref() == Some(&role)
                };
                assert_eq!(
                    steps.iter().filter(killed).count(),
                    10,
                    "seed {seed}, {role}"
                );
            }
            orders.push(steps);
        }
        orders.dedup();
        assert_eq!(orders.len(), 100);
    }

    #[test]
    fn plan_without_faults_is_empty() {
        assert_eq!(plan(1, &Faults::default(), &roles()), []);
    }
}
