//! Tells batch workers where and with which key they read uploads. They ask over the broker, so
//! that the key is in no message of a job.
//!
//! What must stay true: a question about a job never gets the key of an upload of another
//! partition.

use std::time::Duration;

use contract::{BatchRefusal, PartitionId, UPLOADS_PIPE, UploadAnswer, UploadQuery};
use framework::broker::{Broker, Query};
use store::Store;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::http::url::source_path;

/// How long to wait before questions are received again.
const PAUSE: Duration = Duration::from_secs(1);

/// Answers questions until `shutdown` is cancelled.
pub async fn run(
    store: &Store,
    broker: &dyn Broker,
    webservice_url: &str,
    shutdown: &CancellationToken,
) {
    while !shutdown.is_cancelled() {
        if let Ok(mut queries) = broker.queries(UPLOADS_PIPE).await {
            while let Some(Some(query)) = shutdown.run_until_cancelled(queries.next()).await {
                answer(store, webservice_url, query).await;
            }
        }
        shutdown.run_until_cancelled(sleep(PAUSE)).await;
    }
}

/// Answers, unless the question is not understood, or the store does not respond in time: then the
/// batch worker asks again.
async fn answer(store: &Store, webservice_url: &str, query: Query) {
    let Ok(question) = serde_json::from_slice::<UploadQuery>(&query.body) else {
        return;
    };
    let until = query.until();
    let found = tokio::time::timeout_at(until, answered(store, webservice_url, &question)).await;
    if let Ok(Some(answer)) = found
        && let Ok(body) = serde_json::to_vec(&answer)
    {
        query.answer(body.into());
    }
}

/// Returns the answer; `None` if it is not known now.
async fn answered(
    store: &Store,
    webservice_url: &str,
    UploadQuery { upload, partition }: &UploadQuery,
) -> Option<UploadAnswer> {
    let refused = |message: String| {
        Some(UploadAnswer {
            refusal: Some(BatchRefusal {
                message,
                missing: true,
            }),
            ..UploadAnswer::default()
        })
    };
    let unknown =
        || format!("the partition has no source {upload:?}; upload it, or correct its id");
    let Ok(partition) = PartitionId::parse(partition) else {
        return refused(unknown());
    };
    let Some(found) = store.upload(&partition, upload).await.ok()? else {
        return refused(unknown());
    };
    let Some(sha256) = found.digest else {
        return refused(format!(
            "the source {upload:?} is not committed; send the rest of it and commit it"
        ));
    };
    let base = webservice_url.trim_end_matches('/');
    Some(UploadAnswer {
        refusal: None,
        bytes: found.bytes,
        sha256,
        url: format!("{base}{}/content", source_path(&partition, upload)),
        key: found.key,
    })
}
