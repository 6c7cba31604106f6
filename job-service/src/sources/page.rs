//! The uploaded sources of a partition: the list, and deleting one.

use std::sync::Arc;

use askama::Template;
use axum::Router;
use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use contract::rest::{UploadedSource, UploadedSources};

use crate::html::{Layout, Live, filters, html, url};
use crate::http::form::Fields;
use crate::http::{ApiResult, PartitionPath, SourcePath, whole_number};
use crate::state::AppState;

pub fn router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/partitions/{partition}/sources", get(list))
        .route(
            "/partitions/{partition}/sources/{source}/confirm",
            get(confirm),
        )
        .route(
            "/partitions/{partition}/sources/{source}/delete",
            post(delete),
        )
}

/// How many sources a page shows.
const PAGE: u32 = 100;

/// How often the list is read again, in seconds.
const EVERY: u32 = 5;

/// The sources of a partition.
#[derive(Debug, Template)]
#[template(path = "sources.html")]
struct SourcesPage<'a> {
    layout: Layout,
    partition: &'a str,
    found: &'a UploadedSources,
}

/// Asks whether to delete a source.
#[derive(Debug, Template)]
#[template(path = "source-confirm.html")]
struct SourceConfirmation<'a> {
    layout: Layout,
    partition: &'a str,
    source: &'a UploadedSource,
}

/// `GET …/sources`: the sources.
pub async fn list(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
) -> ApiResult<Response> {
    let fields = Fields::of_url(&uri)?;
    let after = whole_number("after", Some(fields.get("after")))?.unwrap_or(0);
    let found = state.uploaded_sources(&partition, after, PAGE).await?;
    let is_deleted = !fields.get("done").is_empty();
    let partition = partition.as_str();
    let page = SourcesPage {
        layout: Layout {
            done: is_deleted.then(|| "The source is deleted.".to_owned()),
            live: Live::Every(EVERY),
            ..Layout::of_jobs("Sources".to_owned(), partition)
        },
        partition,
        found: &found,
    };
    Ok(html(StatusCode::OK, &page))
}

/// `GET …/sources/{id}/confirm`: asks whether to delete it.
pub async fn confirm(
    State(state): State<Arc<AppState>>,
    SourcePath(partition, id): SourcePath,
) -> ApiResult<Response> {
    let found = state.find_upload(&partition, &id).await?;
    let source = state.shown_upload(found);
    let partition = partition.as_str();
    let page = SourceConfirmation {
        layout: Layout::of_jobs("Delete a source".to_owned(), partition),
        partition,
        source: &source,
    };
    Ok(html(StatusCode::OK, &page))
}

/// `POST …/sources/{id}/delete`: deletes it, and shows the others.
pub async fn delete(
    State(state): State<Arc<AppState>>,
    SourcePath(partition, id): SourcePath,
) -> ApiResult<Response> {
    state.delete_uploaded_source(&partition, &id).await?;
    let list = url::sources(partition.as_str());
    Ok(Redirect::to(&format!("{list}?done=delete")).into_response())
}
