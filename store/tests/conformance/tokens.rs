//! The tokens of the service, and whose the jobs are.

use contract::JobId;
use harness::in_time;
use store::{Comparison, Store, TextField, TokenRow};

use crate::fixture::{TestStore, request};
use crate::queries::is;

suite![
    token_is_found_listed_used_and_revoked,
    revocation_wakes_whoever_remembers_tokens,
    owner_of_a_job_is_kept_and_selects_it,
];

fn token(id: &str) -> TokenRow {
    TokenRow {
        id: id.to_owned(),
        hash: "5e88".to_owned(),
        name: "nightly".to_owned(),
        access: r#"{"roles":["view"],"partitions":["a"]}"#.to_owned(),
        created_by: Some("admin".to_owned()),
        created_time: 0,
        expire_time: Some(i64::MAX),
        used_time: None,
    }
}

async fn token_is_found_listed_used_and_revoked(store: TestStore) {
    let created = store.create_token(token("a")).await.unwrap().unwrap();
    assert!(created.created_time > 0);
    store.create_token(token("b")).await.unwrap().unwrap();
    assert_eq!(store.token("a").await.unwrap(), Some(created));
    assert_eq!(store.token("A").await.unwrap(), None);
    store.use_token("a").await.unwrap();
    let listed = store.tokens().await.unwrap();
    let used: Vec<_> = listed
        .iter()
        .map(|it| (&*it.id, it.used_time.is_some()))
        .collect();
    assert_eq!(used, [("a", true), ("b", false)]);
    assert!(store.revoke_token("a").await.unwrap());
    assert!(!store.revoke_token("a").await.unwrap());
    assert_eq!(store.tokens().await.unwrap().len(), 1);
    // Those that are not valid any more are gone.
    let expired = TokenRow {
        expire_time: Some(7),
        ..token("old")
    };
    store.create_token(expired).await.unwrap().unwrap();
    store.create_token(token("d")).await.unwrap().unwrap();
    assert_eq!(store.token("old").await.unwrap(), None);
    store.revoke_token("d").await.unwrap();
    // There are not more than there may be.
    let most = Store::MOST_TOKENS;
    let rest = format!(
        "with recursive n(i) as (select 2 union all select i + 1 from n where i < {most}) insert into token \
         (id, hash, name, access, created_time) select cast(i as text), '', '', '', 0 from n"
    );
    store.write(&rest).await;
    assert_eq!(store.create_token(token("c")).await.unwrap(), None);
}

async fn revocation_wakes_whoever_remembers_tokens(store: TestStore) {
    let mut signal = store.token_signal();
    in_time("a new receiver", signal.changed()).await.unwrap();
    store.create_token(token("a")).await.unwrap().unwrap();
    store.revoke_token("a").await.unwrap();
    in_time("a revocation", signal.changed()).await.unwrap();
}

async fn owner_of_a_job_is_kept_and_selects_it(store: TestStore) {
    let mut job = request("owned");
    job.owner = Some("anna".to_owned());
    let partition = job.partition.clone();
    store.create_with(job).await;
    store.create("without").await;
    let owner = async |id: &str| {
        let job = JobId::parse(id).unwrap();
        store.owner(&partition, &job).await.unwrap()
    };
    assert_eq!(owner("owned").await, Some(Some("anna".to_owned())));
    assert_eq!(
        (owner("without").await, owner("none").await),
        (Some(None), None)
    );
    for (name, jobs) in [("anna", &["owned"][..]), ("Anna", &[])] {
        let found = store.accepted(is(TextField::Owner, Comparison::Equal, name));
        assert_eq!(found.await, jobs, "{name}");
    }
}
