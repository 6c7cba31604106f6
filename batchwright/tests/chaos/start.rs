//! Roles that start before their servers.

use harness::wait_for;

use crate::SIZE;
use crate::system::{ROLES, System};

/// Returns what a role says about the servers that it needs, in READY and in its log.
fn needs(role: &str) -> &'static [&'static str] {
    match role {
        "job-service" | "tracking-worker" => &["the database is not available", "not connected"],
        _ => &["not connected"],
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_wait_for_their_servers_and_say_so() {
    let system = System::begin((SIZE.items / 20).max(50)).await;
    tokio::try_join!(
        system.servers.postgres.stop(),
        system.servers.rabbitmq.stop()
    )
    .unwrap();
    for role in ROLES {
        system.start(role);
    }
    for role in ROLES {
        wait_for(
            &format!("{role} to name the servers that it waits for"),
            async || {
                let (code, ready) = system.health(role, "READY").await?;
                let log = system.log(role);
                let names = |text: &str| needs(role).iter().all(|need| text.contains(need));
                if code == 503 && names(&ready) && names(&log) {
                    Ok(())
                } else {
                    Err(format!("{code} {ready}\n{log}"))
                }
            },
        )
        .await;
        assert_eq!(
            system.health(role, "ALIVE").await.unwrap().0,
            200,
            "{role} is alive"
        );
    }
    system.servers.postgres.start_again().await.unwrap();
    system.servers.rabbitmq.start_again().await.unwrap();
    for role in ROLES {
        wait_for(&format!("{role} to be ready"), async || {
            match system.health(role, "READY").await? {
                (200, _) => Ok(()),
                seen => Err(format!("{seen:?}\n{}", system.log(role))),
            }
        })
        .await;
        // The log records an outage once, not at each attempt to connect.
        let outages = system
            .log(role)
            .matches("the database is not available; trying again")
            .count();
        assert!(
            outages <= 3,
            "{role} has logged {outages} outages:\n{}",
            system.log(role)
        );
    }
    system.submit(SIZE.items).await;
    system.follow().await;
    system.end("roles before their servers", SIZE.items).await;
}
