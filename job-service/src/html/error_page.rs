//! An error as a page: what is wrong, and the remedy.

use askama::Template;

use crate::html::layout::Layout;

/// An error.
#[derive(Debug, Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    pub layout: Layout,
    pub status: u16,
    pub message: String,
    pub remedy: &'static str,
    pub correlation_id: Option<String>,
}
