//! The error responses that operations have in common, as the OpenAPI document describes them.
//! Errors that only one operation has stand at the operation.

use std::collections::BTreeMap;

use serde_json::json;
use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

/// Defines types that stand for some responses: their status, description and message.
macro_rules! error_responses {
    ($($(#[$doc:meta])* $name:ident { $($status:literal, $description:literal, $message:expr;)* })*) => {$(
        $(#[$doc])*
        pub struct $name;

        impl IntoResponses for $name {
            fn responses() -> BTreeMap<String, RefOr<Response>> {
                let responses = [$(($status, $description, $message)),*];
                responses.into_iter().map(response).collect()
            }
        }
    )*};
}

error_responses! {
    /// Those of every operation that uses the store.
    StoreErrors {
        "500", "Internal error. The log has the details under the correlation id of the response", None;
        "503", "The service cannot do this now, and the message says why: its database or the batch worker that it asks is unavailable, its disk is \
            short of space for new jobs, or it has as many connections, request bodies or event streams as it may have. Try again later", None;
    }
    /// What is wrong with ids and parameters.
    InvalidParameter {
        "400", "Invalid partition id, job id, task id or parameter", Some("Unsupported filter key specified: colour");
    }
    NoJob {
        "404", "The job does not exist", Some("ERROR: job_id {reindex-7} not found");
    }
    /// A worker asks about a job with the key of another one.
    WrongKey {
        "401", "The key is not that of this incarnation of the job", Some("The key 'k' in the URL is not that of the job 'reindex-7'.");
    }
    NoCondition {
        "400", "Invalid key or parameter", Some("\"x\" is not the key of a condition; expected 32 hexadecimal digits.");
        "404", "No task waits for such a condition", Some("There is no condition 0d3a506323d39ba742675eceb7c8cf7c.");
    }
    NoLetter {
        "400", "Invalid number or parameter", Some("'x' is not the number of a dead letter.");
        "404", "There is no such letter", Some("There is no dead letter 4711.");
    }
    NoSource {
        "404", "There is no such source", Some("The partition 'acme' has no source 'x'.");
    }
    /// What is wrong with the body of a request before it is read.
    BadBody {
        "408", "The request body did not arrive in time", Some("The body did not arrive within 60s.");
        "413", "The request body is too large", Some("The body is larger than 16777216 bytes.");
    }
}

fn response(
    (status, description, message): (&str, &str, Option<&str>),
) -> (String, RefOr<Response>) {
    let content = ContentBuilder::new()
        .schema(Some(Ref::from_schema_name("ErrorBody")))
        .example(message.map(|message| json!({ "message": message })))
        .build();
    let response = ResponseBuilder::new().description(description);
    let response = response.content("application/json", content).build();
    (status.to_owned(), response.into())
}
