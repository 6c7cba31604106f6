//! `/partitions/{partitionId}/sources`: creates, fills, commits, lists, shows and deletes uploaded
//! sources.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{OriginalUri, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::IntoResponse;
use contract::UPLOAD_OFFSET_HEADER;
use contract::rest::{ErrorBody, ErrorCode, SourceCommit, UploadedSource, UploadedSources};
use serde::Deserialize;
use store::Committed;
use utoipa::IntoParams;
use uuid::Uuid;

use crate::http::url::source_path;
use crate::http::url::url;
use crate::http::{
    ApiError, ApiResult, BadBody, Client, InvalidParameter, NoSource, PartitionPath, QueryParams,
    RequestBody, SourcePath, StoreErrors, Unknown, no_source, page_limit, whole_number,
};
use crate::options::BASE_PATH;
use crate::sources::uploads::conflict;
use crate::state::AppState;

/// The number of sources on a page if the request sets no limit.
const PAGE: u32 = 100;
/// The number of characters of a SHA-256 in hexadecimal.
const DIGEST_CHARS: usize = 64;

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct SourcesParams {
    /// The maximum number of sources: absent, 0 or negative means 100.
    #[param(value_type = Option<i64>, example = 100)]
    limit: Option<String>,
    /// The `next` of the page before this one.
    #[param(value_type = Option<String>, example = "17")]
    after: Option<String>,
}

/// Create a source
///
/// Begins to upload a source of items that is too large for a definition, or that no batch worker
/// can reach: lines, CSV, TSV, JSON lines or a JSON array. Send its bytes to the new source, commit
/// it, and name it in the `files` of a batch of the type `records`, as `upload://ID`. Jobs of its
/// partition alone can read it.
///
/// A source is deleted with the last job that names it, or when for a day nothing is added to it
/// and no job names it.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/sources",
    operation_id = "createSource",
    tag = "sources",
    params(PartitionPath),
    responses(
        (status = 201, description = "The new source", body = UploadedSource, headers(("Location", description = "The URL of the source")),
            example = json!({"id": "0197b3c1d3a87e0f8e5f1c9b7a2d4e6f", "bytes": 0, "committed": false, "createTime": 1_767_225_600_000_i64,
                "expiryTime": 1_767_312_000_000_i64, "jobs": []})),
        (status = 400, description = "Invalid partition id, or the service has no place for sources", body = ErrorBody,
            example = json!({"message": "This service takes no sources, because it has no place for them: its operator sets it with --outputs-folder."})),
        (status = 507, description = "The partition, or the service, has as many sources as it may have, or there is no room for one", body = ErrorBody,
            example = json!({"message": "The partition 'acme' has 10000 sources, as many as it may have. Delete sources, or jobs that name some."})),
        StoreErrors
    )
)]
pub async fn create_source(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    headers: HeaderMap,
) -> ApiResult<impl IntoResponse> {
    state.upload_place().await?;
    let id = Uuid::now_v7().simple().to_string();
    // Twice 122 random bits.
    let key = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let limits = state.options.uploads.limits;
    let created = state.store.create_upload(&partition, (&id, &key), limits);
    let source = created
        .await?
        .map_err(|quota| state.full(&partition, quota))?;
    tracing::info!(source = id, %partition, "created a source");
    let path = format!("{BASE_PATH}{}", source_path(&partition, &id));
    let location = url(&path, &uri, &headers);
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, location)],
        Json(state.shown_upload(source)),
    ))
}

/// List sources
///
/// Returns a page of the uploaded sources of a partition, the oldest first, and how much room all
/// of them take.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/sources",
    operation_id = "listSources",
    tag = "sources",
    params(PartitionPath, SourcesParams),
    responses(
        (status = 200, description = "The sources", body = UploadedSources, example = json!({
            "sources": [{"id": "0197b3c1d3a87e0f8e5f1c9b7a2d4e6f", "bytes": 38_888_896, "committed": true,
                "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "createTime": 1_767_225_600_000_i64,
                "jobs": ["reindex-7"]}],
            "bytes": 38_888_896, "maxBytes": 10_737_418_240_i64
        })),
        InvalidParameter, StoreErrors
    )
)]
pub async fn list_sources(
    State(state): State<Arc<AppState>>,
    PartitionPath(partition): PartitionPath,
    OriginalUri(uri): OriginalUri,
    QueryParams(params): QueryParams<SourcesParams>,
) -> ApiResult<Json<UploadedSources>> {
    Unknown::of_query(&uri, &["limit", "after"])?.into_notes()?;
    let limit = page_limit(params.limit.as_deref(), PAGE, state.options.limits.page)?;
    let after = whole_number("after", params.after.as_deref())?.unwrap_or(0);
    let found = state.uploaded_sources(&partition, after, limit).await?;
    Ok(Json(found))
}

/// Get a source
///
/// Returns how many bytes of a source are there, which is also where a client goes on that was
/// interrupted, and which jobs name it.
#[utoipa::path(
    get,
    path = "/partitions/{partitionId}/sources/{sourceId}",
    operation_id = "getSource",
    tag = "sources",
    params(SourcePath),
    responses(
        (status = 200, description = "The source", body = UploadedSource,
            example = json!({"id": "0197b3c1d3a87e0f8e5f1c9b7a2d4e6f", "bytes": 8_388_608, "committed": false,
                "createTime": 1_767_225_600_000_i64, "expiryTime": 1_767_312_000_000_i64, "jobs": []})),
        InvalidParameter, NoSource, StoreErrors
    )
)]
pub async fn get_source(
    State(state): State<Arc<AppState>>,
    SourcePath(partition, id): SourcePath,
) -> ApiResult<Json<UploadedSource>> {
    let found = state.find_upload(&partition, &id).await?;
    Ok(Json(state.shown_upload(found)))
}

/// Add to a source
///
/// Adds the bytes of the body, however many there are. The header `Upload-Offset` has the position
/// of the first one, which must be the number of bytes that are there (`bytes`). The service stores
/// the body in pieces of 4 MiB: after an interruption, ask for the source and go on where it ends.
#[utoipa::path(
    patch,
    path = "/partitions/{partitionId}/sources/{sourceId}",
    operation_id = "appendToSource",
    tag = "sources",
    params(
        SourcePath,
        ("Upload-Offset" = u64, Header, description = "The position of the first byte", example = 0)
    ),
    request_body(content = Vec<u8>, description = "The bytes", content_type = "application/octet-stream"),
    responses(
        (status = 200, description = "The source with these bytes", body = UploadedSource,
            example = json!({"id": "0197b3c1d3a87e0f8e5f1c9b7a2d4e6f", "bytes": 8_388_608, "committed": false,
                "createTime": 1_767_225_600_000_i64, "expiryTime": 1_767_312_000_000_i64, "jobs": []})),
        (status = 400, description = "Invalid partition id, or no possible Upload-Offset", body = ErrorBody,
            example = json!({"message": "The header 'Upload-Offset' must be there once, with the position of the first byte of the body."})),
        (status = 408, description = "No more bytes arrived in time", body = ErrorBody,
            example = json!({"message": "The body did not arrive within 30s."})),
        (status = 409, description = "The source is committed, or has another number of bytes", body = ErrorBody,
            example = json!({"message": "The source '0197b3c1d3a87e0f8e5f1c9b7a2d4e6f' has 4194304 bytes: go on with Upload-Offset 4194304, and not 0."})),
        (status = 507, description = "There is no room for so many bytes", body = ErrorBody,
            example = json!({"message": "The sources of the partition 'acme' take 10737418240 bytes of room, and with this one they would take more than 10737418240. Delete sources, or jobs that name some, or let the operator raise --uploads-size-per-partition."})),
        NoSource, StoreErrors
    )
)]
pub async fn append_to_source(
    State(state): State<Arc<AppState>>,
    SourcePath(partition, id): SourcePath,
    client: Client,
    headers: HeaderMap,
    body: Body,
) -> ApiResult<Json<UploadedSource>> {
    let offset = offset(&headers)?;
    let length = headers.get(header::CONTENT_LENGTH);
    let length = length.and_then(|length| length.to_str().ok()?.parse().ok());
    let source = state.append_to_upload(&partition, &id, (offset, length), body, &client);
    Ok(Json(state.shown_upload(source.await?)))
}

/// Commit a source
///
/// Says that all bytes of a source are there: how many, and their SHA-256. The service reads what
/// it has stored and compares. From then on the source never changes, and jobs can read it. A
/// repeated request changes nothing.
#[utoipa::path(
    post,
    path = "/partitions/{partitionId}/sources/{sourceId}/commit",
    operation_id = "commitSource",
    tag = "sources",
    params(SourcePath),
    request_body(content = SourceCommit, content_type = "application/json",
        example = json!({"bytes": 38_888_896, "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"})),
    responses(
        (status = 200, description = "The committed source", body = UploadedSource,
            example = json!({"id": "0197b3c1d3a87e0f8e5f1c9b7a2d4e6f", "bytes": 38_888_896, "committed": true,
                "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
                "createTime": 1_767_225_600_000_i64, "expiryTime": 1_767_312_000_000_i64, "jobs": []})),
        (status = 400, description = "Invalid partition id or body", body = ErrorBody,
            example = json!({"message": "The field 'sha256' must have 64 hexadecimal digits."})),
        (status = 409, description = "The source has other bytes", body = ErrorBody,
            example = json!({"message": "The source '0197b3c1d3a87e0f8e5f1c9b7a2d4e6f' has 4194304 bytes, and not 38888896. Send the rest of them."})),
        NoSource, BadBody, StoreErrors
    )
)]
pub async fn commit_source(
    State(state): State<Arc<AppState>>,
    SourcePath(partition, id): SourcePath,
    client: Client,
    body: RequestBody,
) -> ApiResult<Json<UploadedSource>> {
    let SourceCommit { bytes, sha256 } = body.parsed()?;
    let said = sha256.to_ascii_lowercase();
    if said.len() != DIGEST_CHARS || !said.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(ApiError::bad_request(
            ErrorCode::InvalidRequest,
            "The field 'sha256' must have 64 hexadecimal digits.",
        ));
    }
    let taken = state.sources.readers.take(&client);
    let _taken = taken.ok_or(ApiError::Busy("as many readers of sources as it may have"))?;
    let source = state.find_upload(&partition, &id).await?;
    if source.bytes == bytes && source.digest.is_none() {
        let found = state.digest_of(&source).await?;
        if found != said {
            return Err(conflict(format!(
                "The bytes of the source '{id}' have the SHA-256 {found}, and not {said}. Delete it, and send it again."
            )));
        }
    }
    let committed = state.store.commit_upload(&partition, &id, (bytes, &said));
    match committed.await? {
        Committed::Committed(source) => {
            tracing::info!(source = id, %partition, bytes, "committed a source");
            let jobs = state.find_upload(&partition, &id).await?.jobs;
            let source = store::Upload { jobs, ..source };
            Ok(Json(state.shown_upload(source)))
        }
        Committed::Gone => Err(no_source(&partition, &id)),
        Committed::OtherBytes(found) => Err(conflict(format!(
            "The source '{id}' has {found} bytes, and not {bytes}. {}",
            if found < bytes {
                "Send the rest of them."
            } else {
                "Delete it, and send it again."
            }
        ))),
        Committed::OtherDigest(found) => Err(conflict(format!(
            "The source '{id}' is committed with the SHA-256 {found}, and not {said}."
        ))),
    }
}

/// Delete a source
///
/// Deletes a source that no job names.
#[utoipa::path(
    delete,
    path = "/partitions/{partitionId}/sources/{sourceId}",
    operation_id = "deleteSource",
    tag = "sources",
    params(SourcePath),
    responses(
        (status = 204, description = "The source is deleted"),
        (status = 409, description = "A job names the source", body = ErrorBody,
            example = json!({"message": "The job 'reindex-7' names the source '0197b3c1d3a87e0f8e5f1c9b7a2d4e6f'. Delete the job: the source is deleted with the last one that names it."})),
        InvalidParameter, NoSource, StoreErrors
    )
)]
pub async fn delete_source(
    State(state): State<Arc<AppState>>,
    SourcePath(partition, id): SourcePath,
) -> ApiResult<StatusCode> {
    state.delete_uploaded_source(&partition, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Returns where the body begins.
fn offset(headers: &HeaderMap) -> ApiResult<u64> {
    let mut values = headers.get_all(UPLOAD_OFFSET_HEADER).iter();
    let value = values.next().and_then(|value| value.to_str().ok());
    let offset = value.and_then(|value| value.trim().parse().ok());
    offset.filter(|_| values.next().is_none()).ok_or_else(|| {
        ApiError::bad_request(
            ErrorCode::InvalidParameter,
            "The header 'Upload-Offset' must be there once, with the position of the first byte of the body.",
        )
    })
}
