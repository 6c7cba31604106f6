//! Sample jobs for queries, and short forms of queries.

use contract::{PartitionId, ReportFailure};
use store::{
    Comparison, EventKind, Filter, Incarnation, JobQuery, JobRequest, Sort, TextField, TextTest,
};

use crate::fixture::{TestStore, acme, request};

impl TestStore {
    pub async fn create_labelled(
        &self,
        job: &str,
        name: Option<&str>,
        labels: &[(&str, Option<&str>)],
    ) -> Incarnation {
        self.create_in(acme(), job, name, labels).await
    }

    async fn create_in(
        &self,
        partition: PartitionId,
        job: &str,
        name: Option<&str>,
        labels: &[(&str, Option<&str>)],
    ) -> Incarnation {
        let labels = labels
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.map(str::to_owned)));
        self.create_with(JobRequest {
            partition,
            name: name.map(str::to_owned),
            correlation_id: name.map(str::to_owned),
            labels: labels.collect(),
            ..request(job)
        })
        .await
    }

    /// Returns the ids of the jobs that match a query, and checks that the count is the same.
    pub async fn find(&self, query: JobQuery) -> Vec<String> {
        let query = JobQuery {
            limit: if query.limit == 0 { 1000 } else { query.limit },
            ..query
        };
        let found = self.jobs(&acme(), &query).await.unwrap();
        let found: Vec<String> = found.into_iter().map(|job| job.id).collect();
        if query.limit == 1000 && query.offset == 0 {
            let count = self.count_jobs(&acme(), &query).await.unwrap();
            assert_eq!(count, found.len() as u64, "{query:?}");
        }
        found
    }

    /// Returns the ids of the jobs that match a filter, in the order of their creation.
    pub async fn accepted(&self, filter: Filter) -> Vec<String> {
        self.find(JobQuery {
            filter: Some(filter),
            sort: Sort {
                ascending: true,
                ..Sort::default()
            },
            ..JobQuery::default()
        })
        .await
    }

    /// Creates jobs that differ in every field that a query can use.
    pub async fn create_five_jobs(&self) {
        self.create_labelled("plain", None, &[]).await;
        let half = self
            .create_labelled(
                "Half",
                Some("Zürich"),
                &[("team", Some("search")), ("tier:a.b", Some("1"))],
            )
            .await;
        let done = self
            .create_labelled(
                "done",
                Some("apple"),
                &[("team", Some("Search")), ("bare", None)],
            )
            .await;
        let failed = self
            .create_labelled(
                "fail_ed",
                Some("Äpfel"),
                &[("team", None), ("tier:a.b", Some("10"))],
            )
            .await;
        let gone = self
            .create_labelled("gone", Some("100%_\\'\"*"), &[("team", Some(""))])
            .await;
        self.report(&half, "", EventKind::Progress(47)).await;
        self.report(&done, "", EventKind::Complete).await;
        self.report(&failed, "", EventKind::Failed(ReportFailure::default()))
            .await;
        self.cancel(&gone).await;
        let elsewhere = PartitionId::parse("elsewhere").unwrap();
        self.create_in(
            elsewhere,
            "Half",
            Some("Zürich"),
            &[("team", Some("search"))],
        )
        .await;
    }
}

pub fn is(field: TextField, comparison: Comparison, value: &str) -> Filter {
    Filter::Text(field, TextTest::Is(comparison, value.to_owned()))
}

pub fn label(name: &str) -> TextField {
    TextField::Label(name.to_owned())
}

pub fn texts(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}
