//! What the service ignores of a request: fields of the body and parameters of the query that it
//! does not know.
//!
//! CAF ignores them without a word, so a misspelt name has no effect that the client can see. The
//! response names them in `notes`; with `?strict=true` the request is refused instead.

use axum::extract::Query;
use axum::http::Uri;

use crate::http::error::{ApiError, ApiResult};
use contract::rest::ErrorCode;

/// The parameter that refuses unknown names.
pub const STRICT: &str = "strict";
/// The number of unknown names that a response lists.
const MAX_NAMES: usize = 20;
/// The most characters of an unknown name that a response repeats.
const MAX_NAME_CHARS: usize = 100;

/// The unknown names of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// What each listed name is (a field, a parameter), and the name.
    names: Vec<(&'static str, String)>,
    more: usize,
    strict: bool,
}

impl Unknown {
    /// Returns the parameters of a query that are not `known`. [`STRICT`] always is.
    ///
    /// # Errors
    ///
    /// Returns 400 if `strict` is neither `true` nor `false`.
    pub fn of_query(uri: &Uri, known: &[&str]) -> ApiResult<Self> {
        let mut unknown = Self::default();
        let Ok(Query(parameters)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
            // The handler reports a query that cannot be parsed.
            return Ok(unknown);
        };
        for (name, value) in parameters {
            if name == STRICT {
                unknown.strict = match &*value {
                    "true" => true,
                    "false" | "" => false,
                    other => {
                        return Err(ApiError::bad_request(
                            ErrorCode::InvalidParameter,
                            format!(
                                "The parameter 'strict' must be true or false, but is '{other}'."
                            ),
                        ));
                    }
                };
            } else if !known.contains(&&*name) {
                unknown.add("parameter", &name);
            }
        }
        Ok(unknown)
    }

    /// Adds a name; `what` says what it names.
    pub fn add(&mut self, what: &'static str, name: &str) {
        if self.names.len() == MAX_NAMES {
            self.more += 1;
            return;
        }
        let name = name.chars().take(MAX_NAME_CHARS).collect();
        self.names.push((what, name));
    }

    /// Adds other names of the same request.
    pub fn and(mut self, other: Self) -> Self {
        for (what, name) in other.names {
            self.add(what, &name);
        }
        self.more += other.more;
        self.strict |= other.strict;
        self
    }

    /// Returns the notes for the response.
    ///
    /// # Errors
    ///
    /// Returns 400 if there are any and the request is strict.
    pub fn into_notes(self) -> ApiResult<Vec<String>> {
        let Some((what, name)) = self.names.first() else {
            return Ok(Vec::new());
        };
        if self.strict {
            return Err(ApiError::bad_request(
                ErrorCode::UnknownField,
                format!(
                    "The {what} '{name}' is unknown. Correct or remove it; without 'strict=true', it is ignored."
                ),
            ));
        }
        let note = |(what, name)| format!("The {what} '{name}' is unknown and was ignored.");
        let mut notes: Vec<String> = self.names.into_iter().map(note).collect();
        if self.more > 0 {
            notes.push(format!("{} more were ignored.", self.more));
        }
        Ok(notes)
    }
}

/// Refuses a parameter that is unknown: a misspelt filter would select every letter.
pub fn only_known(uri: &axum::http::Uri, known: &[&str]) -> ApiResult<()> {
    let notes = Unknown::of_query(uri, known)?.into_notes()?;
    match notes.first() {
        None => Ok(()),
        Some(note) => Err(ApiError::bad_request(
            ErrorCode::UnknownField,
            note.replace(" and was ignored", ""),
        )),
    }
}
