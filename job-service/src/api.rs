//! The operations of the API, and the OpenAPI document.

use std::sync::Arc;

use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::{health_check, ping};
use crate::options::BASE_PATH;
use crate::state::AppState;
use crate::{conditions, events, jobs, letters, outputs, pipes, rights, sources, tasks};

/// The parts of the OpenAPI document that are not generated from the operations.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Batchwright job service",
        description = "Creates, watches, pauses, cancels and deletes jobs.\n\n\
            Every job belongs to a partition. Partitions need not be created. Ids are case-sensitive and must not contain \
            `. , : ; * ? ! | ( )` or control characters. Times are in milliseconds since 1970, UTC.\n\n\
            Every response has the header `CAF-Correlation-Id`: the one of the request, or a new one. Every error response has the body \
            `{\"message\": \"…\"}`, and a code for programs in the header `X-Batchwright-Error`. Clients that accept \
            `application/problem+json` get code, time and remedy in the body, too. A request that a web page of another origin sends, and that is not a GET, returns 403; a request to \
            a host name that is not the service's returns 421. Request bodies are read as JSON, whatever their content type.",
        license(name = "MIT OR Apache-2.0")
    ),
    tags(
        (name = "jobs", description = "Jobs and their tasks"),
        (name = "sources", description = "Large inputs, which clients send before the jobs that read them"),
        (name = "pipes", description = "The messages of pipes, where the operator gives access to them"),
        (name = "dead letters", description = "The messages that were given up, rejected, not understood or not deliverable"),
        (name = "conditions", description = "The conditions that tasks wait for"),
        (name = "tokens", description = "Who may call the service, where callers need a token"),
        (name = "service", description = "The state of the service")
    ),
    security(("token" = [])),
    modifiers(&TokenScheme)
)]
struct Document;

/// How clients show their tokens, for "Authorize" in Swagger UI.
struct TokenScheme;

impl Modify for TokenScheme {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("A token of the service, where callers need one"))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(bearer));
    }
}

/// Returns the OpenAPI 3.1 document of the API.
pub fn openapi() -> utoipa::openapi::OpenApi {
    routes().into_openapi()
}

/// Collects the operations. Their order here is the order in Swagger UI.
pub(crate) fn routes() -> OpenApiRouter<Arc<AppState>> {
    let api = OpenApiRouter::new()
        .routes(routes!(ping::ping))
        .merge(jobs::routes::routes())
        .merge(events::routes::routes())
        .merge(tasks::routes::routes())
        .merge(pipes::routes::routes())
        .merge(letters::routes::routes())
        .merge(conditions::routes::routes())
        .merge(outputs::routes::routes())
        .merge(sources::routes::routes())
        .merge(rights::routes::routes());
    let mut router = OpenApiRouter::with_openapi(Document::openapi())
        .nest(BASE_PATH, api)
        .routes(routes!(health_check::health_check));
    rights::responses_of_rights(router.get_openapi_mut());
    router
}
