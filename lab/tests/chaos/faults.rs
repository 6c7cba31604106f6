//! Faults in the middle of a job.

use std::time::Duration;

use batchwright_lab::chaos::{CHAOS_WORKER, Early, Fault, INPUT_PIPE, ROLES, Server, Step};
use harness::{psql, wait_for};
use tokio::time::sleep;

use crate::SIZE;
use crate::story::{Story, story};

async fn is_killed_three_times(role: &str) {
    story(
        &format!("{role} is killed three times"),
        async |system: &Story| {
            for share in [0.1, 0.3, 0.5] {
                system.reached(share).await;
                system.kill_and_start(role).await;
            }
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_service_is_killed_three_times() {
    is_killed_three_times("job-service").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_worker_is_killed_three_times() {
    is_killed_three_times("batch-worker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tracking_worker_is_killed_three_times() {
    is_killed_three_times("tracking-worker").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn item_worker_is_killed_three_times() {
    is_killed_three_times(CHAOS_WORKER).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_restarts() {
    story("the broker restarts", async |system: &Story| {
        system.reached(0.3).await;
        system.servers().rabbitmq.stop().await.unwrap();
        system.servers().rabbitmq.start_again().await.unwrap();
        system.resumes("broker restarted").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_is_killed() {
    story("the broker is killed", async |system: &Story| {
        system.reached(0.3).await;
        system.servers().rabbitmq.kill().await.unwrap();
        system.servers().rabbitmq.start_again().await.unwrap();
        system.resumes("broker killed").await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_restarts_and_is_killed() {
    story(
        "the database restarts, and is killed",
        async |system: &Story| {
            system.reached(0.2).await;
            system.servers().postgres.stop().await.unwrap();
            system.servers().postgres.start_again().await.unwrap();
            system.resumes("database restarted").await;
            system.reached(0.5).await;
            system.servers().postgres.kill().await.unwrap();
            system.servers().postgres.start_again().await.unwrap();
            system.resumes("database killed").await;
        },
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_stays_away_for_a_while() {
    story("the database stays away", async |system: &Story| {
        system.reached(0.3).await;
        let questions = || system.servers().rabbitmq.questions_for_missing(".suspects");
        let before = questions().unwrap();
        system.servers().postgres.stop().await.unwrap();
        sleep(SIZE.outage).await;
        system.servers().postgres.start_again().await.unwrap();
        assert_eq!(
            questions().unwrap() - before,
            0,
            "workers look for quarantines that were never used"
        );
        system
            .resumes(&format!("{:?} without database", SIZE.outage))
            .await;
    })
    .await;
}

/// The service keeps the outputs, so each must be there once although items run again. A role is
/// killed at about the time at which the job is taken up again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_is_cancelled_and_fails_and_goes_on() {
    let system = Story::keeping_outputs().await;
    system.start_all().unwrap();
    let rounds = async {
        for (early, share, killed) in [
            (Early::Cancelled, 0.2, "tracking-worker"),
            (Early::Failed, 0.5, "output-worker"),
        ] {
            system.reached(share).await;
            let step = Step {
                share,
                fault: Fault::Round(early, Duration::from_millis(100)),
                meanwhile: Some(killed.to_owned()),
            };
            system.strike(&step).await.unwrap();
            system.resumes(&step.to_string()).await;
        }
    };
    system.runs(rounds).await;
    assert_eq!(system.rounds(), 2);
    system.end("the job ends early, twice").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_drops_everything_for_the_broker() {
    story("a black hole before the broker", async |system: &Story| {
        system.reached(0.3).await;
        system.network(Server::Broker).black_hole();
        sleep(SIZE.hole).await;
        system.network(Server::Broker).pass();
        system
            .resumes(&format!("{:?} of black hole", SIZE.hole))
            .await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_drops_everything_for_the_database() {
    story(
        "a black hole before the database",
        async |system: &Story| {
            system.reached(0.3).await;
            system.network(Server::Database).black_hole();
            sleep(SIZE.hole).await;
            system.network(Server::Database).pass();
            system
                .resumes(&format!("{:?} of black hole", SIZE.hole))
                .await;
        },
    )
    .await;
}

/// The item worker does not find its table and asks for a retry. The broker keeps the delayed
/// tasks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_tasks_survive_a_restart_of_the_broker() {
    const ITEMS: u64 = 200;
    let system = Story::begin(ITEMS, 2 * ITEMS).await;
    for role in ROLES {
        system.start(role).unwrap();
    }
    let rename = async |from: &str, to: &str| {
        let statement = format!("alter table {from} rename to {to}");
        psql(system.database().unwrap(), &[&statement])
            .await
            .unwrap();
    };
    let faults = async {
        let broker = system.broker().await.unwrap();
        let input = system.pipe(INPUT_PIPE);
        rename("chaos_effects", "away").await;
        system.start(CHAOS_WORKER).unwrap();
        let delays: Vec<String> = (0..9)
            .map(|doubled| format!("{input}.delay.{}", 1000 << doubled))
            .collect();
        wait_for("most items to be delayed", async || {
            let mut delayed = 0;
            for pipe in &delays {
                let depth = broker.depth(pipe).await;
                delayed += depth.map_err(|error| error.to_string())?;
            }
            if delayed > ITEMS / 2 {
                Ok(())
            } else {
                Err(format!("{delayed} are delayed"))
            }
        })
        .await;
        system.servers().rabbitmq.stop().await.unwrap();
        rename("away", "chaos_effects").await;
        system.servers().rabbitmq.start_again().await.unwrap();
        system.resumes("broker restarted").await;
        broker.close().await;
    };
    system.runs(faults).await;
    system
        .end("the broker restarts while items are delayed")
        .await;
}

/// Existing connections stay open but carry nothing, and new ones work, as when a firewall loses
/// its state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_to_the_broker_are_replaced() {
    story(
        "connections to the broker fall silent",
        async |system: &Story| {
            system.reached(0.3).await;
            system.network(Server::Broker).forget();
            system.resumes("silent connections").await;
        },
    )
    .await;
}
