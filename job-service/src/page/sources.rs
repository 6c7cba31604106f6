//! The uploaded sources of a partition: the list, and deleting one.

use std::sync::Arc;

use axum::extract::{OriginalUri, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Redirect, Response};
use page::{SourceConfirmation, SourcesPage, url};

use super::form::Fields;
use crate::error::ApiResult;
use crate::extract::{PartitionPath, SourcePath, whole_number};
use crate::html::html;
use crate::state::AppState;

/// How many sources a page shows.
const PAGE: u32 = 100;

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
    let page = SourcesPage::new(partition.as_str(), &found, is_deleted);
    Ok(html(StatusCode::OK, &page))
}

/// `GET …/sources/{id}/confirm`: asks whether to delete it.
pub async fn confirm(
    State(state): State<Arc<AppState>>,
    SourcePath(partition, id): SourcePath,
) -> ApiResult<Response> {
    let found = state.find_upload(&partition, &id).await?;
    let source = state.shown_upload(found);
    let page = SourceConfirmation::new(partition.as_str(), &source);
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
