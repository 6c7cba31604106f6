//! What each operation needs. Every route of the API and of the page has one row.

use std::collections::HashMap;
use std::sync::LazyLock;

use contract::rest::AccessRole;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, PathItem, RefOr, ResponseBuilder};

use crate::options::BASE_PATH;
use AccessRole::{Metrics, Operate, Operator, Submit, View};
use Need::{Everywhere, InPartition, Installation, Nothing, OwnJob, Somebody, Worker};

/// What a subject needs for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing: it is open to everybody.
    Nothing,
    /// The key of the job, as its workers have it, or a role: `view`, and `operate` to put a memo.
    Worker,
    /// A valid token. What the operation shows and does depends on what it allows.
    Somebody,
    /// A role in the partition of the path.
    InPartition(AccessRole),
    /// The role `operate` there, or `submit` if the job of the path is the subject's own.
    OwnJob,
    /// A role in all partitions.
    Everywhere(AccessRole),
    /// A role for the installation.
    Installation(AccessRole),
}

/// Writes a table with one line for each row.
macro_rules! rows {
    ($($method:ident $route:literal $need:expr;)*) => {
        &[$((stringify!($method), $route, $need)),*]
    };
}

/// The operations of the API: a method, a route below [`BASE_PATH`], and what it needs. A `HEAD`
/// needs what a `GET` does.
const API: &[(&str, &str, Need)] = rows! {
    // The service.
    GET    "/ping"                                                                      Nothing;
    GET    "/tokens"                                                                    Somebody;
    POST   "/tokens"                                                                    Somebody;
    DELETE "/tokens/{id}"                                                               Somebody;
    // Jobs.
    GET    "/partitions/{partitionId}/jobs"                                             InPartition(View);
    POST   "/partitions/{partitionId}/jobs"                                             InPartition(Submit);
    POST   "/partitions/{partitionId}/jobs:explain"                                     InPartition(Submit);
    POST   "/partitions/{partitionId}/jobs:cancel"                                      InPartition(Operate);
    POST   "/partitions/{partitionId}/jobs:delete"                                      InPartition(Operate);
    POST   "/partitions/{partitionId}/jobs:retry"                                       InPartition(Operate);
    POST   "/partitions/{partitionId}/dispatch"                                         InPartition(Operate);
    GET    "/partitions/{partitionId}/jobStats/count"                                   InPartition(View);
    GET    "/partitions/{partitionId}/events"                                           InPartition(View);
    GET    "/events"                                                                    Everywhere(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}"                                     InPartition(View);
    PUT    "/partitions/{partitionId}/jobs/{jobId}"                                     InPartition(Submit);
    PATCH  "/partitions/{partitionId}/jobs/{jobId}"                                     OwnJob;
    DELETE "/partitions/{partitionId}/jobs/{jobId}"                                     OwnJob;
    POST   "/partitions/{partitionId}/jobs/{jobId}/cancel"                              OwnJob;
    POST   "/partitions/{partitionId}/jobs/{jobId}/pause"                               OwnJob;
    POST   "/partitions/{partitionId}/jobs/{jobId}/resume"                              OwnJob;
    POST   "/partitions/{partitionId}/jobs/{jobId}/retry"                               OwnJob;
    POST   "/partitions/{partitionId}/jobs/{jobId}/resubmit"                            InPartition(Submit);
    GET    "/partitions/{partitionId}/jobs/{jobId}/definition"                          InPartition(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}/history"                             InPartition(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}/isActive"                            InPartition(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}/progress"                            InPartition(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}/events"                              InPartition(View);
    // What workers ask.
    GET    "/partitions/{partitionId}/jobs/{jobId}/status"                              Worker;
    GET    "/partitions/{partitionId}/jobs/{jobId}/splits/{taskId}"                     Worker;
    GET    "/partitions/{partitionId}/jobs/{jobId}/memos/{taskId}/{key}"                Worker;
    PUT    "/partitions/{partitionId}/jobs/{jobId}/memos/{taskId}/{key}"                Worker;
    // Tasks, failures and outputs.
    GET    "/partitions/{partitionId}/jobs/{jobId}/tasks"                               InPartition(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}/tasks/count"                         InPartition(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}/tasks/{taskId}"                      InPartition(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}/failures"                            InPartition(View);
    GET    "/partitions/{partitionId}/jobs/{jobId}/outputs"                             InPartition(View);
    POST   "/partitions/{partitionId}/jobs/{jobId}/outputs:export"                      OwnJob;
    // Sources.
    GET    "/partitions/{partitionId}/sources"                                          InPartition(View);
    POST   "/partitions/{partitionId}/sources"                                          InPartition(Submit);
    GET    "/partitions/{partitionId}/sources/{sourceId}"                               InPartition(View);
    PATCH  "/partitions/{partitionId}/sources/{sourceId}"                               InPartition(Submit);
    DELETE "/partitions/{partitionId}/sources/{sourceId}"                               InPartition(Operate);
    POST   "/partitions/{partitionId}/sources/{sourceId}/commit"                        InPartition(Submit);
    // A reader of the source has a key of its own.
    GET    "/partitions/{partitionId}/sources/{sourceId}/content"                       Worker;
    // Pipes, workers and conditions.
    GET    "/pipes"                                                                     Installation(Operator);
    GET    "/pipes/{pipe}"                                                              Installation(Operator);
    POST   "/pipes/{pipe}/take"                                                         Installation(Operator);
    POST   "/pipes/{pipe}/put"                                                          Installation(Operator);
    GET    "/workers"                                                                   Installation(Operator);
    GET    "/conditions"                                                                Installation(Operator);
    GET    "/conditions/{key}"                                                          Installation(Operator);
    POST   "/conditions/{key}/test"                                                     Installation(Operator);
    POST   "/conditions/{key}/release"                                                  Installation(Operator);
    POST   "/conditions/{key}/fail"                                                     Installation(Operator);
    // Dead letters, which may be of a partition.
    GET    "/deadLetters"                                                               Somebody;
    DELETE "/deadLetters"                                                               Somebody;
    POST   "/deadLetters:replay"                                                        Somebody;
    GET    "/deadLetters/{id}"                                                          Somebody;
    DELETE "/deadLetters/{id}"                                                          Somebody;
    POST   "/deadLetters/{id}/replay"                                                   Somebody;
};

/// The same for all other routes: the page, and what has no version.
const OTHERS: &[(&str, &str, Need)] = rows! {
    // The service.
    GET    "/health-check"                                                              Nothing;
    GET    "/metrics"                                                                   Installation(Metrics);
    // The description of the API.
    GET    "/job-service-ui"                                                            Nothing;
    GET    "/job-service-ui/"                                                           Nothing;
    GET    "/job-service-ui/{*rest}"                                                    Nothing;
    GET    "/job-service-ui/api-docs/openapi.json"                                      Nothing;
    GET    "/job-service-ui/api-docs/swagger.yaml"                                      Nothing;
    // The page.
    GET    "/assets/{hash}/{name}"                                                      Nothing;
    GET    "/sign-in"                                                                   Nothing;
    POST   "/sign-in"                                                                   Nothing;
    POST   "/sign-out"                                                                  Nothing;
    GET    "/"                                                                          Somebody;
    GET    "/partitions/{partition}/jobs"                                               InPartition(View);
    GET    "/partitions/{partition}/live"                                               InPartition(View);
    GET    "/partitions/{partition}/bulk"                                               InPartition(Operate);
    POST   "/partitions/{partition}/bulk"                                               InPartition(Operate);
    GET    "/partitions/{partition}/submit"                                             InPartition(Submit);
    POST   "/partitions/{partition}/submit"                                             InPartition(Submit);
    GET    "/partitions/{partition}/jobs/{job}"                                         InPartition(View);
    GET    "/partitions/{partition}/jobs/{job}/live"                                    InPartition(View);
    GET    "/partitions/{partition}/jobs/{job}/definition"                              InPartition(View);
    GET    "/partitions/{partition}/jobs/{job}/failures"                                InPartition(View);
    GET    "/partitions/{partition}/jobs/{job}/outputs"                                 InPartition(View);
    GET    "/partitions/{partition}/jobs/{job}/tasks/{task}"                            InPartition(View);
    GET    "/partitions/{partition}/jobs/{job}/confirm"                                 OwnJob;
    GET    "/partitions/{partition}/jobs/{job}/resubmit"                                InPartition(Submit);
    POST   "/partitions/{partition}/jobs/{job}/resubmit"                                InPartition(Submit);
    GET    "/partitions/{partition}/jobs/{job}/{action}"                                InPartition(View);
    POST   "/partitions/{partition}/jobs/{job}/{action}"                                OwnJob;
    GET    "/partitions/{partition}/sources"                                            InPartition(View);
    GET    "/partitions/{partition}/sources/{source}/confirm"                           InPartition(Operate);
    POST   "/partitions/{partition}/sources/{source}/delete"                            InPartition(Operate);
    GET    "/pipes"                                                                     Installation(Operator);
    GET    "/pipes/{pipe}"                                                              Installation(Operator);
    GET    "/workers"                                                                   Installation(Operator);
    GET    "/conditions"                                                                Installation(Operator);
    GET    "/conditions/live"                                                           Installation(Operator);
    GET    "/conditions/{key}"                                                          Installation(Operator);
    GET    "/conditions/{key}/confirm"                                                  Installation(Operator);
    POST   "/conditions/{key}/{action}"                                                 Installation(Operator);
    GET    "/dead-letters"                                                              Somebody;
    POST   "/dead-letters"                                                              Somebody;
    GET    "/dead-letters/confirm"                                                      Somebody;
    GET    "/dead-letters/{id}"                                                         Somebody;
    GET    "/dead-letters/{id}/confirm"                                                 Somebody;
    POST   "/dead-letters/{id}/{action}"                                                Somebody;
};

static NEEDS: LazyLock<HashMap<(&str, String), Need>> = LazyLock::new(|| {
    let of_api = API.iter().map(|row| (BASE_PATH, row));
    let rows = of_api.chain(OTHERS.iter().map(|row| ("", row)));
    rows.map(|(base, (method, route, need))| ((*method, format!("{base}{route}")), *need))
        .collect()
});

impl Need {
    /// Returns what an operation needs, if the table has it.
    pub fn of(method: &str, route: &str) -> Option<Self> {
        let method = if method == "HEAD" { "GET" } else { method };
        NEEDS.get(&(method, route.to_owned())).copied()
    }
}

/// Adds to the description of the API what the gate answers.
pub fn responses_of_rights(document: &mut OpenApi) {
    let refused =
        |description: &str| RefOr::T(ResponseBuilder::new().description(description).build());
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations_of(item) {
            let need = Need::of(method, path);
            if need == Some(Nothing) {
                operation.security = Some(Vec::new());
                continue;
            }
            let responses = &mut operation.responses.responses;
            responses.entry("401".to_owned()).or_insert_with(|| {
                refused("The service needs a token, and the request has none that is valid")
            });
            if need != Some(Worker) {
                responses
                    .entry("403".to_owned())
                    .or_insert_with(|| refused("The token lacks the role that the message names"));
            }
        }
    }
}

fn operations_of(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let operations = [
        ("GET", &mut item.get),
        ("PUT", &mut item.put),
        ("POST", &mut item.post),
        ("PATCH", &mut item.patch),
        ("DELETE", &mut item.delete),
    ];
    operations
        .into_iter()
        .filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}
