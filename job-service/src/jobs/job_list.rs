//! Parses the query parameters that select, sort and page the jobs of a partition. Pure.
//!
//! Lists, counts, bulk cancellations and bulk deletions share these parameters.

mod filter;
pub mod page;
mod selector;

pub use self::page::{PAGE, Page};
pub use self::selector::{JobSelector, SELECTOR};
