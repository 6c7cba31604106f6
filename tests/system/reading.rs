//! Batches whose sources hang: they hold up no others, and end when their jobs are cancelled.

use batchwright::Stack;
use batchwright::batch::Sources;
use contract::JobStatus;
use framework::http::confined::AllowedOrigins;
use framework::tls::Tls;
use harness::{RawServer, Sent, wait_for};
use serde_json::json;

use crate::fixture::Fixture;
use crate::workers::echo;

stories![batches_whose_sources_hang_hold_up_no_others_and_a_cancel_frees_their_slots,];

/// Waits until the sources of so many jobs are read, and returns these jobs.
async fn read(server: &RawServer, jobs: usize) -> Vec<String> {
    wait_for("the sources that are read", async || {
        let held = server.held();
        if held.len() == jobs {
            Ok(held)
        } else {
            Err(format!("{held:?}"))
        }
    })
    .await
    .iter()
    .map(|path| path.trim_matches('/').replace(".csv", ""))
    .collect()
}

async fn batches_whose_sources_hang_hold_up_no_others_and_a_cancel_frees_their_slots(
    fixture: Fixture,
) {
    let server = RawServer::start(b"id\n1\n2\n", Sent::ByteAndHold);
    let server = server.await.unwrap();
    let allowed = AllowedOrigins {
        public: Vec::new(),
        private: vec![server.url().parse().unwrap()],
        who: "a batch",
        setting: "--source-origin",
        private_setting: "--source-private-origin",
    };
    let mut options = fixture.options();
    options.batch.readers = 2;
    options.sources = Sources::default().urls(allowed, &Tls::default());
    let stack = Stack::new(options).worker(fixture.settings("items"), echo());
    let system = fixture.start(stack).await;
    for job in ["a", "b", "c", "d"] {
        let definition = json!({"files": [format!("{}/{job}.csv", server.url())]});
        let job_of = fixture.batch("records", &definition.to_string());
        system.client.put(job, &job_of).await.unwrap();
    }
    let first = read(&server, 2).await;
    system
        .client
        .put("range", &fixture.range(30))
        .await
        .unwrap();
    system.completed("range", 30).await;
    assert_eq!(read(&server, 2).await, first);
    for job in &first {
        system.client.cancel(job).await.unwrap();
        let state = system.ended(job).await;
        assert_eq!(state.status, JobStatus::Cancelled);
    }
    wait_for("the two others to be read", async || {
        let held = server.held();
        let is_first = |path: &String| first.iter().any(|job| *path == format!("/{job}.csv"));
        if held.len() == 2 && !held.iter().any(is_first) {
            Ok(())
        } else {
            Err(format!("{held:?}"))
        }
    })
    .await;
    for job in read(&server, 2).await {
        system.client.cancel(&job).await.unwrap();
    }
    assert_eq!(read(&server, 0).await, Vec::<String>::new());
    system.stop().await;
}
