//! What each operation needs. Every route of the API and of the page has one row.

use std::collections::HashMap;
use std::sync::LazyLock;

use contract::rest::AccessRole;
use utoipa::openapi::path::Operation;
use utoipa::openapi::{OpenApi, PathItem, RefOr, ResponseBuilder};

use AccessRole::{Metrics, Operate, Operator, Submit, View};
use Need::{Everywhere, InPartition, Installation, Nothing, OwnJob, Somebody, Worker};

/// What a subject needs for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Nothing: it is open to everybody.
    Nothing,
    /// The key of the job, as its workers have it, or a role that sees it.
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

/// The rows: a method, a route, and what it needs. A `HEAD` needs what a `GET` does.
pub const OPERATIONS: &[(&str, &str, Need)] = &[
    // The service.
    ("GET", "/health-check", Nothing),
    ("GET", "/job-service/v1/ping", Nothing),
    ("GET", "/metrics", Installation(Metrics)),
    ("GET", "/job-service/v1/tokens", Somebody),
    ("POST", "/job-service/v1/tokens", Somebody),
    ("DELETE", "/job-service/v1/tokens/{id}", Somebody),
    // Jobs.
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs",
        InPartition(View),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs",
        InPartition(Submit),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs:explain",
        InPartition(Submit),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs:cancel",
        InPartition(Operate),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs:delete",
        InPartition(Operate),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs:retry",
        InPartition(Operate),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/dispatch",
        InPartition(Operate),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobStats/count",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/events",
        InPartition(View),
    ),
    ("GET", "/job-service/v1/events", Everywhere(View)),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}",
        InPartition(View),
    ),
    (
        "PUT",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}",
        InPartition(Submit),
    ),
    (
        "PATCH",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}",
        OwnJob,
    ),
    (
        "DELETE",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}",
        OwnJob,
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/cancel",
        OwnJob,
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/pause",
        OwnJob,
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/resume",
        OwnJob,
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/retry",
        OwnJob,
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/resubmit",
        InPartition(Submit),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/definition",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/history",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/isActive",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/progress",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/events",
        InPartition(View),
    ),
    // What workers ask.
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/status",
        Worker,
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/splits/{taskId}",
        Worker,
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/memos/{taskId}/{key}",
        Worker,
    ),
    (
        "PUT",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/memos/{taskId}/{key}",
        Worker,
    ),
    // Tasks, failures and outputs.
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/tasks",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/tasks/count",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/tasks/{taskId}",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/failures",
        InPartition(View),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/outputs",
        InPartition(View),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/jobs/{jobId}/outputs:export",
        OwnJob,
    ),
    // Sources.
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/sources",
        InPartition(View),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/sources",
        InPartition(Submit),
    ),
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/sources/{sourceId}",
        InPartition(View),
    ),
    (
        "PATCH",
        "/job-service/v1/partitions/{partitionId}/sources/{sourceId}",
        InPartition(Submit),
    ),
    (
        "DELETE",
        "/job-service/v1/partitions/{partitionId}/sources/{sourceId}",
        InPartition(Submit),
    ),
    (
        "POST",
        "/job-service/v1/partitions/{partitionId}/sources/{sourceId}/commit",
        InPartition(Submit),
    ),
    // A reader of the source has a key of its own.
    (
        "GET",
        "/job-service/v1/partitions/{partitionId}/sources/{sourceId}/content",
        Worker,
    ),
    // Pipes, workers and conditions.
    ("GET", "/job-service/v1/pipes", Installation(Operator)),
    (
        "GET",
        "/job-service/v1/pipes/{pipe}",
        Installation(Operator),
    ),
    (
        "POST",
        "/job-service/v1/pipes/{pipe}/take",
        Installation(Operator),
    ),
    (
        "POST",
        "/job-service/v1/pipes/{pipe}/put",
        Installation(Operator),
    ),
    ("GET", "/job-service/v1/workers", Installation(Operator)),
    ("GET", "/job-service/v1/conditions", Installation(Operator)),
    (
        "GET",
        "/job-service/v1/conditions/{key}",
        Installation(Operator),
    ),
    (
        "POST",
        "/job-service/v1/conditions/{key}/test",
        Installation(Operator),
    ),
    (
        "POST",
        "/job-service/v1/conditions/{key}/release",
        Installation(Operator),
    ),
    (
        "POST",
        "/job-service/v1/conditions/{key}/fail",
        Installation(Operator),
    ),
    // Dead letters, which may be of a partition.
    ("GET", "/job-service/v1/deadLetters", Somebody),
    ("DELETE", "/job-service/v1/deadLetters", Somebody),
    ("POST", "/job-service/v1/deadLetters:replay", Somebody),
    ("GET", "/job-service/v1/deadLetters/{id}", Somebody),
    ("DELETE", "/job-service/v1/deadLetters/{id}", Somebody),
    ("POST", "/job-service/v1/deadLetters/{id}/replay", Somebody),
    // The description of the API.
    ("GET", "/job-service-ui", Nothing),
    ("GET", "/job-service-ui/", Nothing),
    ("GET", "/job-service-ui/{*rest}", Nothing),
    ("GET", "/job-service-ui/api-docs/openapi.json", Nothing),
    ("GET", "/job-service-ui/api-docs/swagger.yaml", Nothing),
    // The page.
    ("GET", "/assets/{hash}/{name}", Nothing),
    ("GET", "/sign-in", Nothing),
    ("POST", "/sign-in", Nothing),
    ("POST", "/sign-out", Nothing),
    ("GET", "/", Somebody),
    ("GET", "/partitions/{partition}/jobs", InPartition(View)),
    ("GET", "/partitions/{partition}/live", InPartition(View)),
    ("GET", "/partitions/{partition}/bulk", InPartition(Operate)),
    ("POST", "/partitions/{partition}/bulk", InPartition(Operate)),
    ("GET", "/partitions/{partition}/submit", InPartition(Submit)),
    (
        "POST",
        "/partitions/{partition}/submit",
        InPartition(Submit),
    ),
    (
        "GET",
        "/partitions/{partition}/jobs/{job}",
        InPartition(View),
    ),
    (
        "GET",
        "/partitions/{partition}/jobs/{job}/live",
        InPartition(View),
    ),
    (
        "GET",
        "/partitions/{partition}/jobs/{job}/definition",
        InPartition(View),
    ),
    (
        "GET",
        "/partitions/{partition}/jobs/{job}/failures",
        InPartition(View),
    ),
    (
        "GET",
        "/partitions/{partition}/jobs/{job}/outputs",
        InPartition(View),
    ),
    (
        "GET",
        "/partitions/{partition}/jobs/{job}/tasks/{task}",
        InPartition(View),
    ),
    ("GET", "/partitions/{partition}/jobs/{job}/confirm", OwnJob),
    (
        "GET",
        "/partitions/{partition}/jobs/{job}/resubmit",
        InPartition(Submit),
    ),
    (
        "POST",
        "/partitions/{partition}/jobs/{job}/resubmit",
        InPartition(Submit),
    ),
    (
        "GET",
        "/partitions/{partition}/jobs/{job}/{action}",
        InPartition(View),
    ),
    (
        "POST",
        "/partitions/{partition}/jobs/{job}/{action}",
        OwnJob,
    ),
    ("GET", "/partitions/{partition}/sources", InPartition(View)),
    (
        "GET",
        "/partitions/{partition}/sources/{source}/confirm",
        InPartition(Submit),
    ),
    (
        "POST",
        "/partitions/{partition}/sources/{source}/delete",
        InPartition(Submit),
    ),
    ("GET", "/pipes", Installation(Operator)),
    ("GET", "/pipes/{pipe}", Installation(Operator)),
    ("GET", "/workers", Installation(Operator)),
    ("GET", "/conditions", Installation(Operator)),
    ("GET", "/conditions/live", Installation(Operator)),
    ("GET", "/conditions/{key}", Installation(Operator)),
    ("GET", "/conditions/{key}/confirm", Installation(Operator)),
    ("POST", "/conditions/{key}/{action}", Installation(Operator)),
    ("GET", "/dead-letters", Somebody),
    ("POST", "/dead-letters", Somebody),
    ("GET", "/dead-letters/confirm", Somebody),
    ("GET", "/dead-letters/{id}", Somebody),
    ("GET", "/dead-letters/{id}/confirm", Somebody),
    ("POST", "/dead-letters/{id}/{action}", Somebody),
];

static NEEDS: LazyLock<HashMap<(&str, &str), Need>> = LazyLock::new(|| {
    let rows = OPERATIONS.iter();
    rows.map(|(method, route, need)| ((*method, *route), *need))
        .collect()
});

impl Need {
    /// Returns what an operation needs, if the table has it.
    pub fn of(method: &str, route: &str) -> Option<Self> {
        let method = if method == "HEAD" { "GET" } else { method };
        NEEDS.get(&(method, route)).copied()
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
