//! Reads the fields of forms, from the URL or from a body, and what a page says about the last action.

use axum::body::Body;
use axum::extract::{Form, FromRequest as _, Query, Request};
use axum::http::{Method, Uri, header};
use contract::rest::ErrorCode;
use page::{Action, many};

use crate::error::{ApiError, ApiResult};
use crate::request_body::RequestBody;

/// The media type of a form without files.
const FORM: &str = "application/x-www-form-urlencoded";

/// The fields of a form, in the order in which the browser sent them.
#[derive(Debug)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// Reads the fields from a URL.
    pub fn of_url(uri: &Uri) -> ApiResult<Self> {
        let fields = Query::<Vec<(String, String)>>::try_from_uri(uri);
        fields
            .map(|Query(fields)| Self(fields))
            .map_err(|error| invalid(&error))
    }

    /// Reads the fields from a body.
    pub async fn of_body(body: RequestBody) -> ApiResult<Self> {
        let request = Request::builder()
            .method(Method::POST)
            .header(header::CONTENT_TYPE, FORM)
            .body(Body::from(body.bytes))
            .map_err(|error| ApiError::Bug(error.to_string()))?;
        let fields = Form::<Vec<(String, String)>>::from_request(request, &()).await;
        fields
            .map(|Form(fields)| Self(fields))
            .map_err(|error| invalid(&error))
    }

    /// Returns the first value of a field; an empty text if there is none.
    pub fn get(&self, name: &str) -> &str {
        let found = self.0.iter().find(|(field, _)| field == name);
        found.map_or("", |(_, value)| value)
    }

    /// Returns every value of a field.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(field, _)| field == name)
            .map(|(_, value)| value.as_str())
    }

    /// Returns the action that the form is for.
    pub fn action(&self) -> ApiResult<Action> {
        let name = self.get("action");
        Action::from_name(name).ok_or_else(|| {
            let names = Action::ALL.map(Action::name).join(", ");
            ApiError::bad_request(
                ErrorCode::InvalidParameter,
                format!("The field 'action' must be one of {names}, but is '{name}'."),
            )
        })
    }

    /// Returns what was just done, from the parameters that [`done`] has written. They come from the URL, so only our own sentences
    /// can be made of them.
    pub fn done(&self) -> Option<String> {
        let action = Action::from_name(self.get("done"))?;
        Some(match self.get("n") {
            "" => format!("The job was {}.", action.done()),
            count => many(action, count.parse().ok()?),
        })
    }
}

/// Returns the query that tells the next page what was done.
pub fn done(action: Action, count: Option<u64>) -> String {
    let count = count.map_or_else(String::new, |count| format!("&n={count}"));
    format!("?done={}{count}", action.name())
}

fn invalid(error: &impl std::fmt::Display) -> ApiError {
    ApiError::bad_request(
        ErrorCode::InvalidParameter,
        format!("The form cannot be read: {error}"),
    )
}
