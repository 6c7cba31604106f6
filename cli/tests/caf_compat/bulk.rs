//! Cancelling and deleting many jobs at once.

use harness::unique;
use reqwest::Method;
use serde_json::json;

use crate::filters::{put, selected};
use crate::service::{Service, Store};

on_both_stores![bulk_cancel_works_in_batches, bulk_delete_works_in_batches,];

/// Creates twelve jobs. The ids of even ones begin with `even-`. Jobs 1 to 3 have a label, 10 is
/// cancelled and 11 is completed.
async fn twelve_jobs(service: &Service) {
    for n in 0..12 {
        let labels = if (1..=3).contains(&n) {
            json!({"few": n.to_string()})
        } else {
            json!({})
        };
        put(
            service,
            &format!("{}-{n}", if n % 2 == 0 { "even" } else { "odd" }),
            json!({"labels": labels}),
        )
        .await;
    }
    service.post("/jobs/even-10/cancel", &[]).await.is(204);
    service.complete("odd-11", "").await;
    service.becomes("odd-11", "Completed", 100.0).await;
}

async fn bulk_cancel_works_in_batches(store: Store) {
    let service = Service::start_with(store, &[("CAF_CANCEL_JOBS_BATCH_LIMIT", "3")]).await;
    twelve_jobs(&service).await;
    let elsewhere = format!(
        "/job-service/v1/partitions/{}/jobs/even-0",
        unique("elsewhere")
    );
    service
        .call(
            Method::PUT,
            &elsewhere,
            Some(&service.new_job("in").to_string()),
            &[],
        )
        .await
        .is(201);
    for (parameters, count, unfinished) in [
        (&[("filter", "id==nobody")][..], 0, 10),
        (&[("labelExist", "few"), ("filter", "labels.few>=2")], 2, 8),
        (&[("jobIdStartsWith", "odd-"), ("labelExist", "few")], 1, 7),
        (&[("filter", "id=in=(even-0, even-2, even-4)")], 2, 5),
        // Jobs that have ended are neither cancelled again nor counted.
        (&[("filter", "status=in=(Cancelled,Completed)")], 0, 5),
        (&[], 5, 0),
        (&[], 0, 0),
    ] {
        let answer = service.post("/jobs:cancel", parameters).await.is(200);
        assert_eq!(
            answer.json(),
            json!({"jobsCanceled": count}),
            "{parameters:?}"
        );
        assert_eq!(
            service
                .ask("/jobStats/count", &[("statusType", "NotFinished")])
                .await
                .json(),
            unfinished,
            "{parameters:?}"
        );
    }
    assert_eq!(service.state("odd-11").await.0, "Completed");
    assert_eq!(
        service
            .call(Method::GET, &elsewhere, None, &[])
            .await
            .json()["status"],
        "Waiting"
    );

    // A filter may match more jobs than one batch holds.
    for n in 0..20 {
        service
            .create(&format!("more-{n}"), &service.new_job("in"))
            .await;
    }
    let filter = [("filter", "id==more-*;id!=more-7")];
    assert_eq!(
        service.post("/jobs:cancel", &filter).await.is(200).json(),
        json!({"jobsCanceled": 19})
    );
    assert_eq!(
        selected(&service, &[("statusType", "NotFinished")]).await,
        ["more-7"]
    );
}

async fn bulk_delete_works_in_batches(store: Store) {
    let service = Service::start_with(store, &[("CAF_DELETE_JOBS_BATCH_LIMIT", "3")]).await;
    twelve_jobs(&service).await;
    let elsewhere = format!(
        "/job-service/v1/partitions/{}/jobs/even-0",
        unique("elsewhere")
    );
    service
        .call(
            Method::PUT,
            &elsewhere,
            Some(&service.new_job("in").to_string()),
            &[],
        )
        .await
        .is(201);
    for (parameters, count, left) in [
        (&[("filter", "id==nobody")][..], 0, 12),
        (&[("labelExist", "few"), ("filter", "labels.few>=2")], 2, 10),
        (&[("filter", "status==Completed")], 1, 9),
        (&[("jobIdStartsWith", "even-")], 5, 4),
        (&[], 4, 0),
        (&[], 0, 0),
    ] {
        let answer = service.post("/jobs:delete", parameters).await.is(200);
        assert_eq!(
            answer.json(),
            json!({"jobsDeleted": count}),
            "{parameters:?}"
        );
        assert_eq!(
            service.get("/jobStats/count").await.json(),
            left,
            "{parameters:?}"
        );
    }
    service
        .call(Method::GET, &elsewhere, None, &[])
        .await
        .is(200);

    // Deleted jobs can be created again, and a filter may match more jobs than one batch holds.
    for n in 0..20 {
        service
            .create(&format!("even-{n}"), &service.new_job("in"))
            .await;
    }
    assert_eq!(
        service
            .ask("/jobStats/count", &[("jobIdStartsWith", "even-")])
            .await
            .json(),
        20
    );
    assert_eq!(
        service
            .post("/jobs:delete", &[("filter", "id!=even-7")])
            .await
            .is(200)
            .json(),
        json!({"jobsDeleted": 19})
    );
    assert_eq!(service.get("/jobs").await.ids(), ["even-7"]);
}
