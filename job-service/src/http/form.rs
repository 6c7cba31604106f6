//! Reads the fields of forms, from the URL or from a body, and what a page says about the last
//! action.

use axum::body::Body;
use axum::extract::{Form, FromRequest as _, Query, Request};
use axum::http::{Method, Uri, header};
use contract::rest::ErrorCode;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::html::fields::Field;
use crate::html::job_action::Action;
use crate::http::error::{ApiError, ApiResult};
use crate::http::extract::QueryParams;
use crate::http::idempotency::Key;
use crate::http::request_body::RequestBody;

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

    /// Returns what was just done, from the parameters that [`done`] has written. They come from
    /// the URL, so only our own sentences can be made of them.
    pub fn done(&self) -> Option<String> {
        let action = Action::from_name(self.get("done"))?;
        if let Ok(with) = self.get("with").parse::<u32>() {
            let jobs = if with == 1 { "job" } else { "jobs" };
            return Some(format!(
                "The job was {}, with {with} {jobs} that ended with it.",
                action.done()
            ));
        }
        Some(match self.get("n") {
            "" => format!("The job was {}.", action.done()),
            count => action.done_to(count.parse().ok()?),
        })
    }
}

/// What is wrong with the fields of a form: the name of each field, and what is wrong with it.
#[derive(Debug, Default)]
pub struct Problems(Vec<(String, String)>);

impl Problems {
    /// Notes what is wrong with a field; with none, if the name is empty.
    pub fn add(&mut self, field: &str, problem: String) {
        self.0.push((field.to_owned(), problem));
    }

    /// Returns what a field was read as, or notes why it cannot be read.
    pub fn take<T>(&mut self, field: &str, read: Result<T, String>) -> Option<T> {
        read.map_err(|problem| self.add(field, problem)).ok()
    }

    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns what is wrong with a field.
    pub fn of(&self, field: &str) -> Option<String> {
        let found = self.0.iter().filter(|(name, _)| name == field);
        let found: Vec<&str> = found.map(|(_, problem)| problem.as_str()).collect();
        (!found.is_empty()).then(|| found.join(" "))
    }

    /// Returns what is wrong with none of these fields.
    pub fn of_no_field(&self, fields: &[Field], further: &[Field]) -> Option<String> {
        let is_known = |name: &str| fields.iter().chain(further).any(|field| field.name == name);
        let found = self.0.iter().filter(|(name, _)| !is_known(name));
        let found: Vec<&str> = found.map(|(_, problem)| problem.as_str()).collect();
        (!found.is_empty()).then(|| found.join("\n"))
    }
}

/// Returns a key for a new form, so that sending the form twice creates one job.
pub fn new_key() -> String {
    Uuid::now_v7().to_string()
}

/// Returns the key of a form, if it has one. `asks_for` is what the form asks for beside the
/// definition of the job.
pub fn form_key(fields: &Fields, asks_for: String) -> ApiResult<Option<Key>> {
    match fields.get("key") {
        "" => Ok(None),
        key => Key::new(key, asks_for).map(Some),
    }
}

/// Returns the key and the problem for a form that was refused. The key of a form that has created
/// a job is used up.
pub fn taken_key(fields: &Fields, error: &ApiError) -> (String, String) {
    match error {
        ApiError::KeyTaken { job, .. } => (
            new_key(),
            format!(
                "This form has created the job '{job}' already. Send it again to create another job."
            ),
        ),
        error => (fields.get("key").to_owned(), error.message()),
    }
}

/// Returns the query that tells the next page what was done.
pub fn done(action: Action, count: Option<u64>) -> String {
    let count = count.map_or_else(String::new, |count| format!("&n={count}"));
    format!("?done={}{count}", action.name())
}

/// Returns the parameters of an operation of the API, from a path and a query.
pub fn parameters<T: DeserializeOwned>(query: &str) -> ApiResult<QueryParams<T>> {
    let uri: Uri = query
        .parse()
        .map_err(|_| wrong(format!("The URL is too long or invalid: {query:.100}")))?;
    let parsed = Query::try_from_uri(&uri);
    parsed
        .map(|Query(params)| QueryParams(params))
        .map_err(|error| wrong(error.body_text()))
}

/// Returns the error of a parameter.
pub fn wrong(message: String) -> ApiError {
    ApiError::bad_request(ErrorCode::InvalidParameter, message)
}

fn invalid(error: &impl std::fmt::Display) -> ApiError {
    wrong(format!("The form cannot be read: {error}"))
}
