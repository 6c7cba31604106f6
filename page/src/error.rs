//! An error as a page: what is wrong, and the remedy.

use askama::Template;

use crate::layout::{Layout, Place};

/// An error.
#[derive(Debug, Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    layout: Layout,
    status: u16,
    message: String,
    remedy: String,
    correlation_id: String,
}

impl ErrorPage {
    /// The page of an error that the API would return with this status, title, message and remedy.
    pub fn new(
        status: u16,
        title: &str,
        message: String,
        remedy: &str,
        correlation_id: Option<String>,
        partition: Option<String>,
    ) -> Self {
        Self {
            layout: Layout {
                partition,
                ..Layout::new(title.to_owned(), Place::Nowhere)
            },
            status,
            message,
            remedy: remedy.to_owned(),
            correlation_id: correlation_id.unwrap_or_default(),
        }
    }
}
