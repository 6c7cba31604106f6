//! Tests conditions: by HTTP, by TCP, by PostgreSQL, and by the quota of a partition.
//!
//! What must stay true: a test reaches only what the operator allows, takes bounded time, and reads
//! nothing of what answers. A condition that may not be tested is left to a canary, and says so.

use std::fmt;

use contract::rest::JobStatus;
use contract::{Condition, PartitionId, Tester};
use framework::http::StatusCode;
use framework::http::confined::{ConfinedClient, ConfinedError, check_public};
use framework::tls::Tls;
use store::{JobQuery, Store};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

use crate::conditions::ConditionOptions;
use crate::conditions::ConditionTarget;
use crate::conditions::course::Verdict;
use crate::pipes::seen_workers::SeenWorkers;

/// The most active jobs of a partition that are looked at for its quota: the newest.
const MOST_JOBS: u32 = 1000;

/// Tests conditions.
#[derive(Debug)]
pub struct Testers {
    options: ConditionOptions,
    http: ConfinedClient,
    workers: SeenWorkers,
}

impl Testers {
    pub fn new(options: ConditionOptions, tls: &Tls, workers: SeenWorkers) -> Self {
        Self {
            http: options.client(tls),
            options,
            workers,
        }
    }

    pub const fn options(&self) -> &ConditionOptions {
        &self.options
    }

    /// Tests a condition.
    pub async fn test(&self, condition: &Condition, store: &Store) -> Verdict {
        let limit = self.options.test_limit;
        let test = async {
            match condition.tester() {
                Tester::Canary => Verdict::AskCanary(None),
                Tester::Http { url } => self.get(url).await,
                Tester::Tcp { host, port } => self.connect(host, *port).await,
                Tester::PostgreSql { database } => self.ask(database).await,
                Tester::Quota {
                    partition,
                    jobs,
                    tasks,
                } => self.count(store, partition, *jobs, *tasks).await,
            }
        };
        timeout(limit, test).await.unwrap_or_else(|_| {
            let limit = limit.as_secs_f64();
            Verdict::NotPassed(format!(
                "{}: no answer within {limit} s",
                condition.tester()
            ))
        })
    }

    async fn get(&self, url: &str) -> Verdict {
        let limit = self.options.test_limit;
        match self
            .http
            .get(url, &framework::http::HeaderMap::new(), limit)
            .await
        {
            Ok(response) if response.status().is_success() => Verdict::Passed,
            Ok(response) if response.status() == StatusCode::GONE => {
                Verdict::Never(format!("{url} responds with 410: it is gone for good"))
            }
            Ok(response) => {
                Verdict::NotPassed(format!("{url} responds with {}", response.status()))
            }
            Err(ConfinedError::Refused(why)) => Verdict::AskCanary(Some(why)),
            Err(ConfinedError::Http(error)) => {
                Verdict::NotPassed(format!("{url}: {}", error.innermost()))
            }
        }
    }

    async fn connect(&self, host: &str, port: u16) -> Verdict {
        let target = ConditionTarget::tcp(host, port);
        let is_private = self.options.private_targets.contains(&target);
        if !is_private && !self.options.targets.contains(&target) {
            return Verdict::AskCanary(Some(format!(
                "tcp://{host}:{port} is not among the targets that the operator allows ({})",
                ConditionOptions::TARGETS
            )));
        }
        let found = match lookup_host((host, port)).await {
            Ok(found) => found.collect::<Vec<_>>(),
            Err(error) => return not_passed(host, port, &error),
        };
        // One private address refuses all: who controls the name must not choose among them.
        for address in found.iter().filter(|_| !is_private) {
            if let Err(error) = check_public(host, address.ip()) {
                return Verdict::AskCanary(Some(format!(
                    "{error} ({} allows it)",
                    ConditionOptions::PRIVATE_TARGETS
                )));
            }
        }
        match TcpStream::connect(&found[..]).await {
            Ok(_) => Verdict::Passed,
            Err(error) => not_passed(host, port, &error),
        }
    }

    async fn ask(&self, name: &str) -> Verdict {
        let Some(database) = self.options.databases.get(name) else {
            return Verdict::AskCanary(Some(format!(
                "the operator has set up no database {name:?} ({})",
                ConditionOptions::DATABASES
            )));
        };
        match store::postgres_answers(&database.0).await {
            Ok(()) => Verdict::Passed,
            Err(why) => Verdict::NotPassed(format!("the database {name}: {why}")),
        }
    }

    /// Returns how many tasks may be let go until the quota of a partition is used up: those that
    /// run are counted by what is reported of them and by what the workers tell.
    async fn count(
        &self,
        store: &Store,
        partition: &PartitionId,
        jobs: Option<u32>,
        tasks: Option<u32>,
    ) -> Verdict {
        let query = JobQuery {
            statuses: vec![JobStatus::Active],
            limit: MOST_JOBS,
            ..JobQuery::default()
        };
        let found = match store.jobs(partition, &query).await {
            Ok(found) => found,
            Err(error) => return Verdict::NotPassed(error.to_string()),
        };
        let running = self.workers.running();
        let running = found.into_iter().map(|mut job| {
            running.show(partition, &mut job);
            job.items.running.unwrap_or(0).max(0)
        });
        let (mut busy_jobs, mut busy_tasks) = (0_i64, 0_i64);
        for tasks in running.filter(|tasks| *tasks > 0) {
            busy_jobs += 1;
            busy_tasks = busy_tasks.saturating_add(tasks);
        }
        room(jobs, tasks, busy_jobs, busy_tasks)
    }
}

/// Returns how many tasks may be let go if so many jobs and tasks are under way. Each may be of
/// another job.
fn room(jobs: Option<u32>, tasks: Option<u32>, busy_jobs: i64, busy_tasks: i64) -> Verdict {
    let left = |limit: Option<u32>, busy: i64| {
        limit.map(|limit| u32::try_from(i64::from(limit).saturating_sub(busy)).unwrap_or(0))
    };
    let rooms = [left(jobs, busy_jobs), left(tasks, busy_tasks)];
    Verdict::Room(rooms.into_iter().flatten().min().unwrap_or(0))
}

fn not_passed(host: &str, port: u16, error: &impl fmt::Display) -> Verdict {
    Verdict::NotPassed(format!("tcp://{host}:{port}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use contract::ConditionCode;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::conditions::ConditionDatabase;
    use store::StoreOptions;

    fn targets(list: &[&str]) -> Vec<ConditionTarget> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    async fn tested(options: ConditionOptions, tester: Tester) -> Verdict {
        let condition = Condition::new(ConditionCode::SERVICE_CONNECTION_FAILURE);
        let condition = condition.tested_by(tester).unwrap();
        let store = Store::temporary(StoreOptions::default());
        let testers = Testers::new(options, &Tls::default(), SeenWorkers::default());
        let test = testers.test(&condition, &store);
        harness::in_time("the test", test).await
    }

    #[test]
    fn target_is_an_origin_or_a_port_and_nothing_else() {
        for (text, expected) in [
            (
                "tcp://DB.example.com:5432",
                ConditionTarget::tcp("db.example.com", 5432),
            ),
            ("tcp://[::1]:80/", ConditionTarget::tcp("::1", 80)),
            (
                "https://a.example",
                ConditionTarget::Http("https://a.example".parse().unwrap()),
            ),
        ] {
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for wrong in [
            "tcp://db",
            "tcp://:5",
            "tcp://a:1/x",
            "tcp://u@a:1",
            "https://a/b",
            "ftp://a",
            "db:5",
        ] {
            assert!(wrong.parse::<ConditionTarget>().is_err(), "{wrong}");
        }
    }

    #[tokio::test]
    async fn port_passes_if_it_is_allowed_and_accepts_connections() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tester = |port| Tester::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        };
        let named = format!("tcp://127.0.0.1:{port}");
        let allowed = ConditionOptions {
            private_targets: targets(&[&named]),
            ..ConditionOptions::default()
        };
        assert_eq!(tested(allowed.clone(), tester(port)).await, Verdict::Passed);
        let public = ConditionOptions {
            targets: targets(&[&named]),
            ..ConditionOptions::default()
        };
        for (options, problem) in [
            (
                public,
                "127.0.0.1 is not an address of the public internet (--condition-private-targets allows it)",
            ),
            (
                ConditionOptions::default(),
                "is not among the targets that the operator allows (--condition-targets)",
            ),
        ] {
            let verdict = tested(options, tester(port)).await;
            assert!(
                matches!(&verdict, Verdict::AskCanary(Some(why)) if why.contains(problem)),
                "{verdict:?}"
            );
        }
        drop(listener);
        // The system refuses the connection, or resets one that it has begun to accept.
        let verdict = tested(allowed, tester(port)).await;
        assert!(
            matches!(&verdict, Verdict::NotPassed(why) if why.starts_with(&named)),
            "{verdict:?}"
        );
    }

    #[tokio::test]
    async fn url_passes_with_a_status_of_success_only() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let allowed = ConditionOptions {
            private_targets: targets(&[&base]),
            test_limit: Duration::from_millis(500),
            ..ConditionOptions::default()
        };
        let cases = [
            ("204 No Content", Verdict::Passed),
            (
                "503 Busy",
                Verdict::NotPassed(format!(
                    "{base}/health responds with 503 Service Unavailable"
                )),
            ),
            (
                "410 Gone",
                Verdict::Never(format!(
                    "{base}/health responds with 410: it is gone for good"
                )),
            ),
            (
                "",
                Verdict::NotPassed(format!("HTTP {base}/health: no answer within 0.5 s")),
            ),
        ];
        for (answer, expected) in cases {
            let tester = Tester::Http {
                url: format!("{base}/health"),
            };
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                if answer.is_empty() {
                    std::future::pending::<()>().await;
                }
                let mut read = [0; 1024];
                let _ = stream.read(&mut read).await.unwrap();
                let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
                std::future::pending::<()>().await;
            };
            let verdict = tokio::select! {
                verdict = tested(allowed.clone(), tester) => verdict,
                () = serve => unreachable!("it serves for ever"),
            };
            match (&verdict, &expected) {
                // Which of the two limits ends first does not matter.
                (Verdict::NotPassed(why), Verdict::NotPassed(_)) if answer.is_empty() => {
                    assert!(why.contains("within"), "{why}");
                }
                _ => assert_eq!(verdict, expected, "{answer}"),
            }
        }
        let verdict = tested(ConditionOptions::default(), Tester::Http { url: base }).await;
        assert!(
            matches!(&verdict, Verdict::AskCanary(Some(why)) if why.contains("--condition-targets")),
            "{verdict:?}"
        );
    }

    #[tokio::test]
    async fn database_passes_if_the_operator_has_named_it_and_it_answers() {
        let database = harness::postgres().await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let away = format!(
            "postgres://user:secret@{}/away",
            listener.local_addr().unwrap()
        );
        drop(listener);
        let options = ConditionOptions {
            databases: BTreeMap::from([
                ("orders".to_owned(), ConditionDatabase(database.url.clone())),
                ("away".to_owned(), ConditionDatabase(away)),
            ]),
            ..ConditionOptions::default()
        };
        assert!(!format!("{options:?}").contains("secret"));
        let tester = |database: &str| Tester::PostgreSql {
            database: database.to_owned(),
        };
        assert_eq!(
            tested(options.clone(), tester("orders")).await,
            Verdict::Passed
        );
        let verdict = tested(options.clone(), tester("away")).await;
        assert!(
            matches!(&verdict, Verdict::NotPassed(why) if why.starts_with("the database away: ") && !why.contains("secret")),
            "{verdict:?}"
        );
        let verdict = tested(options, tester("other")).await;
        let why = "the operator has set up no database \"other\" (--condition-databases)";
        assert_eq!(verdict, Verdict::AskCanary(Some(why.to_owned())));
    }

    #[test]
    fn room_is_what_the_smaller_quota_leaves() {
        for (jobs, tasks, busy, expected) in [
            (Some(3), None, (1, 50), 2),
            (None, Some(60), (1, 50), 10),
            (Some(3), Some(60), (1, 50), 2),
            (Some(1), Some(60), (2, 50), 0),
            (None, Some(u32::MAX), (0, 0), u32::MAX),
        ] {
            assert_eq!(room(jobs, tasks, busy.0, busy.1), Verdict::Room(expected));
        }
    }
}
