//! The web page: what a person sees of the job service in a browser.
//!
//! This crate has the templates (`templates/`), the assets (`assets/`) and the values that the
//! templates show. It knows no store, no broker and no HTTP library: the job service reads what is
//! shown, with the functions of its API, and sends what is rendered here.
//!
//! What must stay true:
//! - **Every text is escaped.** The templates are HTML to askama, which escapes each value; none of
//!   them is marked as safe.
//! - **A page needs no script.** Links and forms do everything; a script makes it live, and shows
//!   times in the zone of the viewer.
//! - **Nothing is inline and nothing comes from elsewhere**: no style, no script, no handler, so
//!   that [`POLICY`] can forbid them.
//!
//! Why so little JavaScript: server-rendered pages that are replaced by their newer version
//! (idiomorph) need no state in the browser, and a plot is a drawing that the server makes.

#![warn(missing_docs)]

mod again;
mod assets;
mod bulk;
mod conditions;
mod error;
mod filters;
mod job;
mod layout;
mod letters;
mod list;
mod message;
mod outputs;
mod partitions;
mod pipes;
mod plot;
mod sources;
mod submit;
mod task;
pub mod text;
pub mod url;
mod workers;

pub use again::AgainPage;
pub use assets::Asset;
pub use bulk::{ActionConfirmation, BulkOutcome, many};
pub use conditions::{ConditionAction, ConditionPage, ConditionsPage, FailConfirmation};
pub use error::ErrorPage;
pub use job::{Action, Around, Definition, FailuresPage, JobHead, JobPage};
pub use layout::{Layout, Live, Place};
pub use letters::{AskedLetters, LetterAction, LetterPage, LettersConfirmation, LettersPage};
pub use list::{Asked, Found, ListPage};
pub use outputs::{OutputLines, OutputsPage};
pub use partitions::PartitionsPage;
pub use pipes::{PipePage, PipesPage};
pub use plot::Plot;
pub use sources::{SourceConfirmation, SourcesPage};
pub use submit::{Entry, Field, Kind, Request, SubmitPage};
pub use task::TaskPage;
pub use workers::WorkersPage;

pub use askama::Template;

/// The `Content-Security-Policy` of every page: nothing inline, nothing from elsewhere, no frame
/// around it.
pub const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
